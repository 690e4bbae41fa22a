//! Lexical shortlists: the tokens that a translation may contain, given its source's tokens.
//!
//! With some 700 candidates instead of 32,000 a small model skips most work in each step. A list has the ids that are
//! always allowed, and each source token's likely translations.

use kivu_base::{Error, Result};

/// The format and its version.
const MAGIC: [u8; 8] = *b"KIVUSHL1";
/// Magic number and part lengths, in bytes.
const HEADER: usize = MAGIC.len() + 3 * 4;

/// Allowed target tokens per source token.
///
/// # File format
/// Little-endian 32-bit numbers: after the magic number, three counts (always-allowed ids, source tokens, entries);
/// for each source token the index of its first entry, and the end of the last one's entries; the entries,
/// ascending per source token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortlist {
    always: u32,
    begins: Vec<u32>,
    entries: Vec<u32>,
}

impl Shortlist {
    /// Always allows the ids below `always`; `lists` has the ids allowed by each source token.
    pub fn new(always: u32, lists: impl IntoIterator<Item = Vec<u32>>) -> Self {
        let (mut begins, mut entries) = (vec![0], Vec::new());
        for mut list in lists {
            list.sort_unstable();
            list.dedup();
            entries.extend(list);
            begins.push(entries.len() as u32);
        }
        Self {
            always,
            begins,
            entries,
        }
    }

    /// Reads untrusted file contents.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let damaged = || {
            Error::model(format!(
                "expected a shortlist, but found {} other bytes",
                bytes.len()
            ))
        };
        let (header, numbers) = bytes.split_at_checked(HEADER).ok_or_else(damaged)?;
        let (magic, counts) = header.split_at(MAGIC.len());
        let (numbers, rest) = numbers.as_chunks::<4>();
        let read = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let [always, sources, entries] = *counts.as_chunks::<4>().0 else {
            return Err(damaged());
        };
        let [always, sources, entries] = [always, sources, entries].map(|bytes| read(&bytes));
        let begins = numbers.get(..=sources as usize).ok_or_else(damaged)?;
        let begins: Vec<u32> = begins.iter().map(read).collect();
        let list: Vec<u32> = numbers[begins.len()..].iter().map(read).collect();
        let is_whole = magic == MAGIC && rest.is_empty() && list.len() == entries as usize;
        // More always-allowed ids than tokens would only waste memory.
        if !is_whole || always > sources || !begins.is_sorted() || begins.last() != Some(&entries) {
            return Err(damaged());
        }
        Ok(Self {
            always,
            begins,
            entries: list,
        })
    }

    /// File contents that [`Shortlist::from_bytes`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let counts = [
            self.always,
            self.begins.len() as u32 - 1,
            self.entries.len() as u32,
        ];
        let numbers = counts.iter().chain(&self.begins).chain(&self.entries);
        MAGIC
            .into_iter()
            .chain(numbers.flat_map(|number| number.to_le_bytes()))
            .collect()
    }

    /// The largest allowed id.
    pub fn largest(&self) -> u32 {
        self.entries
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .max(self.always.saturating_sub(1))
    }

    /// Ids that a translation of `source` may contain, ascending, including the ids in `source`, without the id
    /// `without`. Ids beyond the list allow nothing.
    pub fn allowed(&self, source: &[u32], without: u32) -> Vec<i64> {
        let known = source
            .iter()
            .filter(|id| (**id as usize) < self.begins.len() - 1);
        let lists = known.clone().flat_map(|id| self.list(*id));
        let mut allowed: Vec<u32> = (0..self.always)
            .chain(lists.copied())
            .chain(known.copied())
            .collect();
        allowed.sort_unstable();
        allowed.dedup();
        allowed
            .into_iter()
            .filter(|id| *id != without)
            .map(i64::from)
            .collect()
    }

    fn list(&self, id: u32) -> &[u32] {
        let [begin, end] = [id as usize, id as usize + 1].map(|place| self.begins[place] as usize);
        &self.entries[begin..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Shortlist {
        Shortlist::new(3, [vec![], vec![7, 5, 7], vec![1, 9], vec![4]])
    }

    #[test]
    fn allowed_ids_are_ascending_and_without_the_unknown_token() {
        assert_eq!(small().allowed(&[], 1), [0, 2]);
        assert_eq!(small().allowed(&[1], 1), [0, 2, 5, 7]);
        assert_eq!(small().allowed(&[2, 1, 3, 2], 1), [0, 2, 3, 4, 5, 7, 9]);
        assert_eq!(
            small().allowed(&[99], 1),
            [0, 2],
            "unknown ids allow nothing"
        );
        assert_eq!(small().largest(), 9);
    }

    #[test]
    fn files_round_trip_and_damaged_ones_are_refused() {
        let bytes = small().to_bytes();
        assert_eq!(Shortlist::from_bytes(&bytes).unwrap(), small());
        for length in 0..bytes.len() {
            assert!(
                Shortlist::from_bytes(&bytes[..length]).is_err(),
                "cut to {length}"
            );
        }
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0xff;
            // A file that is still valid is used without a panic.
            if let Ok(shortlist) = Shortlist::from_bytes(&damaged) {
                shortlist.allowed(&[0, 1, 2, 3, 4, u32::MAX], 1);
            }
        }
        insta::assert_snapshot!(Shortlist::from_bytes(b"short").unwrap_err(), @"expected a shortlist, but found 5 other bytes");
    }
}
