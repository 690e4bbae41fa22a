//! Byte-pair encoding (BPE): pairs are merged in rank order.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use bytes::Bytes;
use serde_json::Value;
use tokenizers::Token;

use super::trie::{PieceTrie, keys, number, places, take, vocabulary};

/// A BPE model on top of a [`PieceTrie`]. The crate's hash maps take 40 MB for 128,000 pieces and their merges; this
/// takes only its file's bytes. Both return the same ids.
pub struct BytePairs {
    pieces: PieceTrie,
    /// Piece count; several pieces may have the same id.
    size: usize,
    /// Without it, unknown characters are left out. Vocabularies of bytes have none.
    unknown: Option<u32>,
    /// Whether consecutive unknown characters are one token.
    fuses_unknown: bool,
    /// Whether a word that is a piece is not divided.
    ignores_merges: bool,
    /// Sorted by pair ids. Each has four little-endian 32-bit integers: both ids, the rank, the merged id.
    merges: Bytes,
}

/// Part of a word, in a linked list.
struct Symbol {
    id: u32,
    /// Its bytes; 0 once it has been merged into the previous symbol.
    length: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Magic number in the file; the last byte is the version.
pub const MAGIC: [u8; 8] = *b"bpairs\0\x01";
/// The same for models that have no unknown piece, or ignore merges, which earlier versions do not read.
pub const MAGIC_OF_BYTES: [u8; 8] = *b"bpairs\0\x02";
/// Without an unknown piece, smaller models are not compiled: they load in less than half a second, and the crate, which
/// keeps words that it has seen, divides texts up to twice as fast.
const MIN_MERGES: usize = 250_000;
/// The place of an unknown piece in a file without one.
const NONE: u64 = u64::MAX;
/// What the model does, in bits.
const FUSES_UNKNOWN: u64 = 1;
const IGNORES_MERGES: u64 = 2;
/// Bytes per merge.
const MERGE: usize = 16;

impl BytePairs {
    /// Compiles the model in a `tokenizer.json`; `None` for unsupported BPE options: byte fallback, prefixes or
    /// suffixes for pieces within words, or dropout; and for small models without an unknown piece.
    pub fn file_of(model: &Value) -> Option<Vec<u8>> {
        let has_unknown = model.get("unk_token").is_some_and(Value::is_string);
        let merges = model.get("merges")?.as_array()?;
        (has_unknown || merges.len() >= MIN_MERGES)
            .then(|| Self::compile(model))
            .flatten()
    }

    /// Compiles a model of any size.
    fn compile(model: &Value) -> Option<Vec<u8>> {
        let is_unset = |key: &str| match model.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        };
        let others = [
            "dropout",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "byte_fallback",
        ];
        if model.get("type").and_then(Value::as_str) != Some("BPE")
            || !others.iter().all(|key| is_unset(key))
        {
            return None;
        }
        let ids = vocabulary(model)?;
        let unknown_piece = match model.get("unk_token") {
            None | Some(Value::Null) => None,
            Some(piece) => Some(piece.as_str()?),
        };
        let unknown = match unknown_piece {
            Some(piece) => u64::from(*ids.get(piece)?),
            None => NONE,
        };
        let merges = merges(model.get("merges")?, &ids)?;

        let mut by_id = places(&ids)?;
        for (piece, id) in &ids {
            let place = by_id.get_mut(*id as usize)?;
            if place.is_empty() || Some(*piece) == unknown_piece {
                *place = piece;
            }
        }
        let text_bytes: usize = by_id.iter().map(|piece| piece.len()).sum();
        let flag = |key: &str, flag: u64| if is_unset(key) { 0 } else { flag };
        let flags = flag("fuse_unk", FUSES_UNKNOWN) | flag("ignore_merges", IGNORES_MERGES);
        let numbers =
            [by_id.len(), text_bytes, ids.len(), merges.len()].map(|number| number as u64);
        let is_of_bytes = unknown == NONE || flags & IGNORES_MERGES != 0;
        let magic = if is_of_bytes { MAGIC_OF_BYTES } else { MAGIC };
        let mut file = magic.to_vec();
        file.extend(
            numbers
                .into_iter()
                .chain([unknown, flags])
                .flat_map(u64::to_le_bytes),
        );
        for ([left, right], [rank, id]) in merges {
            file.extend(
                [left, right, rank, id]
                    .into_iter()
                    .flat_map(u32::to_le_bytes),
            );
        }
        PieceTrie::write(&by_id, &keys(&ids), &mut file)?;
        Some(file)
    }

    /// Reads the output from [`file_of`](Self::file_of) after the magic number; `None` if it is invalid.
    pub fn read(mut file: Bytes) -> Option<Self> {
        let mut next = || number(&mut file);
        let [count, text_bytes, size, merges] = [next()?, next()?, next()?, next()?];
        let [unknown, flags] = [next()?, next()?];
        let merges = take(&mut file, merges, MERGE)?;
        Some(Self {
            pieces: PieceTrie::read(count, text_bytes, file)?,
            size: usize::try_from(size)
                .ok()
                .filter(|size| *size <= i32::MAX as usize)?,
            unknown: match unknown {
                NONE => None,
                id => Some(u32::try_from(id).ok()?),
            },
            fuses_unknown: flags & FUSES_UNKNOWN != 0,
            ignores_merges: flags & IGNORES_MERGES != 0,
            merges,
        })
    }

    pub fn pieces(&self) -> &PieceTrie {
        &self.pieces
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// A word's pieces after all merges.
    pub fn tokenize(&self, word: &str) -> Vec<Token> {
        let whole = self.ignores_merges.then(|| self.pieces.id_of(word));
        if let Some(id) = whole.flatten() {
            return vec![Token::new(id, word.to_owned(), (0, word.len()))];
        }
        let mut start = 0;
        let token = |Symbol { id, length, .. }: Symbol| {
            let span = (start, start + length);
            start = span.1;
            self.pieces.token(id, span)
        };
        self.merged(self.characters(word))
            .into_iter()
            .filter(|symbol| symbol.length > 0)
            .map(token)
            .collect()
    }

    fn characters(&self, word: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(word.len());
        let mut is_after_unknown = false;
        for character in word.chars() {
            let (known, length) = (
                self.pieces.id_of(character.encode_utf8(&mut [0; 4])),
                character.len_utf8(),
            );
            match symbols.last_mut() {
                Some(last) if known.is_none() && is_after_unknown && self.fuses_unknown => {
                    last.length += length
                }
                _ => {
                    let Some(id) = known.or(self.unknown) else {
                        continue;
                    };
                    let place = symbols.len();
                    symbols.push(Symbol {
                        id,
                        length,
                        before: place.checked_sub(1),
                        after: Some(place + 1),
                    });
                }
            }
            is_after_unknown = known.is_none();
        }
        symbols
            .last_mut()
            .into_iter()
            .for_each(|last| last.after = None);
        symbols
    }

    /// Repeatedly merges the pair with the lowest rank (ties go to the first), until no pair can be merged.
    fn merged(&self, mut symbols: Vec<Symbol>) -> Vec<Symbol> {
        // Queue entry that merges the symbol at `place` with the next, ordered by rank.
        let merge = |symbols: &[Symbol], place: usize| {
            let left = symbols.get(place)?;
            let [rank, id] = self.merge(left.id, symbols.get(left.after?)?.id)?;
            Some(Reverse((rank, place, id)))
        };
        let mut queue: BinaryHeap<_> = (0..symbols.len())
            .filter_map(|place| merge(&symbols, place))
            .collect();
        while let Some(Reverse((_, place, id))) = queue.pop() {
            let Some(after) = symbols[place].after.filter(|_| symbols[place].length > 0) else {
                continue;
            };
            // A symbol in the pair may have changed since.
            if self
                .merge(symbols[place].id, symbols[after].id)
                .is_none_or(|[_, now]| now != id)
            {
                continue;
            }
            let next = symbols[after].after;
            symbols[place].id = id;
            symbols[place].length += std::mem::take(&mut symbols[after].length);
            symbols[place].after = next;
            if let Some(next) = next {
                symbols[next].before = Some(place);
            }
            queue.extend(
                symbols[place]
                    .before
                    .and_then(|before| merge(&symbols, before)),
            );
            queue.extend(merge(&symbols, place));
        }
        symbols
    }

    /// A pair's rank and merged id.
    fn merge(&self, left: u32, right: u32) -> Option<[u32; 2]> {
        let (merges, _) = self.merges.as_chunks::<MERGE>();
        let field = |merge: &[u8; MERGE], field: usize| {
            merge
                .as_chunks()
                .0
                .get(field)
                .map(|it| u32::from_le_bytes(*it))
        };
        let pair = |merge: &[u8; MERGE]| (field(merge, 0), field(merge, 1));
        let place = merges
            .binary_search_by_key(&(Some(left), Some(right)), pair)
            .ok()?;
        Some([field(&merges[place], 2)?, field(&merges[place], 3)?])
    }
}

/// Ranks and merged ids by pair ids. Like the `tokenizers` crate, uses the last of duplicate pairs.
fn merges(list: &Value, ids: &BTreeMap<&str, u32>) -> Option<BTreeMap<[u32; 2], [u32; 2]>> {
    let merge = |(rank, pair): (u32, &Value)| {
        let (left, right) = match pair {
            Value::String(pair) => pair.split_once(' ')?,
            pair => (pair.get(0)?.as_str()?, pair.get(1)?.as_str()?),
        };
        let whole = format!("{left}{right}");
        Some((
            [*ids.get(left)?, *ids.get(right)?],
            [rank, *ids.get(whole.as_str())?],
        ))
    };
    (0..).zip(list.as_array()?).map(merge).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tokenizers::{Model, models::bpe::BPE};

    use super::*;
    use crate::{SpecialTokens, Tokenizer, models::vocabulary::Vocabulary};

    /// A `tokenizer.json` with merges for the pieces at these indexes.
    fn file(pairs: &[(usize, usize)], fuse_unk: bool, shares_unknown: bool) -> Vec<u8> {
        let mut pieces: Vec<String> = ["<unk>", "a", "b", "c"].map(str::to_owned).into();
        let mut merges = Vec::new();
        for (left, right) in pairs {
            let known = pieces.len() - 1;
            let [left, right] = [left, right].map(|place| pieces[1 + place % known].clone());
            let whole = format!("{left}{right}");
            if !pieces.contains(&whole) {
                pieces.push(whole);
            }
            merges.push([left, right]);
        }
        let mut vocabulary: serde_json::Map<String, serde_json::Value> = pieces
            .into_iter()
            .zip(0..)
            .map(|(piece, id)| (piece, json!(id)))
            .collect();
        if shares_unknown {
            vocabulary.insert("c".into(), json!(0));
        }
        let model = json!({
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": fuse_unk, "byte_fallback": false,
            "vocab": vocabulary, "merges": merges,
        });
        serde_json::to_vec(&json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null, "model": model,
        }))
        .unwrap()
    }

    proptest! {
        #[test]
        fn words_are_merged_as_by_the_crate(
            pairs in proptest::collection::vec((0..40_usize, 0..40_usize), 0..14),
            word in "[abcdé]{0,24}",
            fuse_unk: bool,
            shares_unknown: bool,
        ) {
            let json = file(&pairs, fuse_unk, shares_unknown);
            let tokens = |tokenizer: &Tokenizer| {
                let tokens = tokenizer.tokens(&word, SpecialTokens::LeftOut).unwrap();
                tokens.into_iter().map(|token| (token.id, token.span)).collect::<Vec<_>>()
            };
            let own = Tokenizer::from_json(&json).unwrap();
            let quick = Tokenizer::from_compiled(Tokenizer::compile(&json).unwrap().unwrap()).unwrap();
            prop_assert_eq!(tokens(&own), tokens(&quick));
            prop_assert_eq!(own.vocabulary_size(), quick.vocabulary_size());
        }
    }

    proptest! {
        #[test]
        fn models_without_an_unknown_piece_merge_as_the_crate(
            pairs in proptest::collection::vec((0..40_usize, 0..40_usize), 0..14),
            word in "[abcdé]{1,24}",
            ignore_merges: bool,
        ) {
            let file: Value = serde_json::from_slice(&file(&pairs, false, false)).unwrap();
            let mut model = file["model"].clone();
            (model["unk_token"], model["ignore_merges"]) = (Value::Null, ignore_merges.into());
            let compiled = Bytes::from(BytePairs::compile(&model).unwrap());
            let own: BPE = serde_json::from_str(&model.to_string()).unwrap();
            let quick = Vocabulary::read(compiled).unwrap();
            let expected = own.tokenize(&word).unwrap();
            prop_assert_eq!(quick.tokenize(&word).unwrap(), expected);
        }
    }

    #[test]
    fn other_kinds_of_models_are_not_compiled() {
        let model = |more: (&str, serde_json::Value)| {
            let mut model = json!({ "type": "BPE", "unk_token": "u", "vocab": { "u": 0, "a": 1 }, "merges": [] });
            model[more.0] = more.1;
            BytePairs::file_of(&model)
        };
        assert!(model(("dropout", json!(null))).is_some());
        for more in [
            ("dropout", json!(0.1)),
            ("byte_fallback", json!(true)),
            ("end_of_word_suffix", json!("</w>")),
            ("unk_token", json!(null)),
            ("type", json!("WordPiece")),
            ("merges", json!(["a b"])),
            ("vocab", json!({ "u": 0, "a": 900_000_000 })),
        ] {
            assert!(model(more.clone()).is_none(), "{more:?}");
        }
    }
}
