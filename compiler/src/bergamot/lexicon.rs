//! A Bergamot student's lexical shortlist, in its own engine's format.
//!
//! A file begins with six 64-bit numbers: a magic number, a checksum, the count of always-allowed first ids, the
//! maximum list length, and the lengths of the two parts that follow: the offsets of each source token's list and of
//! the end (64 bits each), and the lists (32 bits per id).

use kivu::{Error, Result, pipeline::seq2seq::shortlist::Shortlist, tensor::read_numbers};

const MAGIC: u64 = 0xF11A_48D5_0134_17F5;
const HEADER: usize = 6;

/// Reads an untrusted shortlist file for a model with `vocabulary` tokens.
pub fn shortlist(bytes: &[u8], vocabulary: usize) -> Result<Shortlist> {
    let damaged = |what: &str| {
        Error::model(format!(
            "expected a lexical shortlist for {vocabulary} tokens, but found {what}"
        ))
        .with_hint("take the `lex` file that belongs to the model")
    };
    let (header, rest) = bytes
        .split_at_checked(HEADER * 8)
        .ok_or_else(|| damaged("too few bytes"))?;
    let header = header.as_chunks().0;
    let [magic, _checksum, always, _limit, offsets, items] =
        std::array::from_fn::<_, HEADER, _>(|place| u64::from_le_bytes(header[place]));
    if magic != MAGIC {
        return Err(damaged("a file of another kind"));
    }
    if offsets != vocabulary as u64 + 1 || always > vocabulary as u64 {
        return Err(damaged(&format!(
            "lists of {} tokens",
            offsets.saturating_sub(1)
        )));
    }
    let (offsets, items_bytes) = rest
        .split_at_checked((vocabulary + 1) * 8)
        .ok_or_else(|| damaged("too few lists"))?;
    let all = read_numbers(items_bytes, u32::from_le_bytes);
    let all = all.filter(|all| all.len() as u64 == items).ok_or_else(|| {
        damaged(&format!(
            "{} entries in place of {items}",
            items_bytes.len() / 4
        ))
    })?;
    let offset = |bytes| usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
    let offsets = read_numbers(offsets, offset).unwrap_or_default();
    let list = |bounds: &[usize]| {
        let list = all
            .get(bounds[0]..bounds[1])
            .ok_or_else(|| damaged("lists beyond its end"))?;
        match list.iter().find(|id| **id as usize >= vocabulary) {
            Some(id) => Err(damaged(&format!("the id {id}"))),
            None => Ok(list.to_vec()),
        }
    };
    let lists = offsets.windows(2).map(list).collect::<Result<Vec<_>>>()?;
    Ok(Shortlist::new(always as u32, lists))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(offsets: &[u64], items: &[u32]) -> Vec<u8> {
        let header = [MAGIC, 7, 2, 3, offsets.len() as u64, items.len() as u64];
        let header = header
            .iter()
            .chain(offsets)
            .flat_map(|number| number.to_le_bytes());
        header
            .chain(items.iter().flat_map(|item| item.to_le_bytes()))
            .collect()
    }

    #[test]
    fn each_token_has_its_list() {
        let shortlist = shortlist(&written(&[0, 0, 2, 3, 3], &[3, 2, 0]), 4).unwrap();
        assert_eq!(shortlist.allowed(&[1], 1), [0, 2, 3]);
        assert_eq!(shortlist.allowed(&[3], 1), [0, 3]);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let whole = written(&[0, 0, 2, 3, 3], &[3, 2, 0]);
        for length in 0..whole.len() {
            assert!(shortlist(&whole[..length], 4).is_err(), "cut to {length}");
        }
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] = 0xff;
            // Must not panic.
            let _ = shortlist(&damaged, 4);
        }
        let refusal =
            |bytes: &[u8], vocabulary| shortlist(bytes, vocabulary).unwrap_err().to_string();
        insta::assert_snapshot!(refusal(&whole, 5), @"expected a lexical shortlist for 5 tokens, but found lists of 4 tokens; take the `lex` file that belongs to the model");
        insta::assert_snapshot!(refusal(&written(&[0, 0, 2, 3, 4], &[3, 2, 0]), 4), @"expected a lexical shortlist for 4 tokens, but found lists beyond its end; take the `lex` file that belongs to the model");
        insta::assert_snapshot!(refusal(&written(&[0, 0, 2, 3, 3], &[3, 9, 0]), 4), @"expected a lexical shortlist for 4 tokens, but found the id 9; take the `lex` file that belongs to the model");
        insta::assert_snapshot!(refusal(&[0; 80], 4), @"expected a lexical shortlist for 4 tokens, but found a file of another kind; take the `lex` file that belongs to the model");
    }
}
