//! WordPiece models (BERT, DistilBERT, MiniLM): a word becomes its longest pieces, from left to right.

use bytes::Bytes;
use serde_json::Value;
use tokenizers::Token;

use super::trie::{PieceTrie, keys, number, places, take, vocabulary};

/// A WordPiece model on top of a [`PieceTrie`]. The crate's hash maps take 10 ms and 5 MB for 30,000 pieces; this takes
/// only its file's bytes. Both return the same ids.
pub struct WordPieces {
    pieces: PieceTrie,
    /// Piece count; some ids may be unused.
    size: usize,
    /// The piece for words without pieces, and for words with more than `max_characters`.
    unknown: u32,
    max_characters: usize,
    /// Begins the pieces within a word: `##`.
    prefix: String,
}

/// Magic number in the file; the last byte is the version.
pub const MAGIC: [u8; 8] = *b"wpieces\x01";

impl WordPieces {
    /// Compiles the model in a `tokenizer.json`; `None` if it has no unknown piece, or pieces that share an id.
    pub fn file_of(model: &Value) -> Option<Vec<u8>> {
        let ids = vocabulary(model)?;
        let unknown = *ids.get(model.get("unk_token")?.as_str()?)?;
        let max_characters = model.get("max_input_chars_per_word")?.as_u64()?;
        let prefix = model.get("continuing_subword_prefix")?.as_str()?;

        let mut by_id = places(&ids)?;
        for (piece, id) in &ids {
            let place = by_id
                .get_mut(*id as usize)
                .filter(|place| place.is_empty())?;
            *place = piece;
        }
        let text_bytes: usize = by_id.iter().map(|piece| piece.len()).sum();
        let numbers =
            [by_id.len(), text_bytes, ids.len(), prefix.len()].map(|number| number as u64);
        let mut file = MAGIC.to_vec();
        file.extend(
            numbers
                .into_iter()
                .chain([u64::from(unknown), max_characters])
                .flat_map(u64::to_le_bytes),
        );
        file.extend(prefix.as_bytes());
        PieceTrie::write(&by_id, &keys(&ids), &mut file)?;
        Some(file)
    }

    /// Reads the output from [`file_of`](Self::file_of) after [`MAGIC`]; `None` if it is invalid.
    pub fn read(mut file: Bytes) -> Option<Self> {
        let mut next = || number(&mut file);
        let [count, text_bytes, size, prefix_bytes] = [next()?, next()?, next()?, next()?];
        let [unknown, max_characters] = [next()?, next()?];
        let prefix = take(&mut file, prefix_bytes, 1)?;
        let pieces = PieceTrie::read(count, text_bytes, file)?;
        Some(Self {
            size: usize::try_from(size)
                .ok()
                .filter(|size| *size <= pieces.count())?,
            pieces,
            unknown: u32::try_from(unknown).ok()?,
            max_characters: usize::try_from(max_characters).ok()?,
            prefix: std::str::from_utf8(&prefix).ok()?.to_owned(),
        })
    }

    pub fn pieces(&self) -> &PieceTrie {
        &self.pieces
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A word's pieces, or the unknown piece.
    pub fn tokenize(&self, word: &str) -> Vec<Token> {
        let mut tokens = Vec::new();
        let token = |id, span| self.pieces.token(id, span);
        let is_short = word.chars().nth(self.max_characters).is_none();
        let mut bytes = self.word();
        bytes.0.extend(word.as_bytes());
        if !is_short || !self.split(&mut bytes, |id, span| tokens.push(token(id, span))) {
            tokens = vec![token(self.unknown, (0, word.len()))];
        }
        tokens
    }

    /// Appends the piece ids for an ASCII word, or the unknown piece's id.
    pub fn append_ids(&self, word: &mut Word, ids: &mut Vec<u32>) {
        let before = ids.len();
        let is_short = word.0.len() - word.1 <= self.max_characters;
        if !is_short || !self.split(word, |id, _| ids.push(id)) {
            ids.truncate(before);
            ids.push(self.unknown);
        }
    }

    /// An empty word.
    pub fn word(&self) -> Word {
        Word(self.prefix.as_bytes().to_vec(), self.prefix.len())
    }

    /// Calls `found` with the id and byte span for each piece in a word, which is overwritten; `false`
    /// if a part has no piece.
    fn split(
        &self,
        Word(bytes, before): &mut Word,
        mut found: impl FnMut(u32, (usize, usize)),
    ) -> bool {
        // The first piece has no prefix.
        let (mut start, mut prefix) = (*before, 0);
        while start < bytes.len() {
            bytes[start - prefix..start].copy_from_slice(&self.prefix.as_bytes()[..prefix]);
            let rest = &bytes[start - prefix..];
            let is_boundary = |length| rest.get(length).is_none_or(|byte| !is_continuation(*byte));
            let longest = |(_, length): &(u32, usize)| *length > prefix && is_boundary(*length);
            let Some((id, length)) = self.pieces.prefixes(rest).filter(longest).last() else {
                return false;
            };
            let end = start - prefix + length;
            found(id, (start - *before, end - *before));
            (start, prefix) = (end, self.prefix.len());
        }
        true
    }
}

/// Whether a byte is within a character in UTF-8.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// A word's bytes after the prefix, which is put before each of its parts when pieces are looked up.
pub struct Word(Vec<u8>, usize);

impl Word {
    pub fn is_empty(&self) -> bool {
        self.0.len() == self.1
    }

    pub fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub fn clear(&mut self) {
        self.0.truncate(self.1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::WordPieces;
    use crate::{SpecialTokens, Tokenizer};

    fn model(pieces: &[String], prefix: &str, max_characters: usize) -> Value {
        // Every third id is unused.
        let ids = (0..).filter(|id| id % 3 != 2);
        let vocabulary: serde_json::Map<String, Value> = pieces
            .iter()
            .cloned()
            .zip(ids)
            .map(|(piece, id)| (piece, json!(id)))
            .collect();
        json!({
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": prefix,
            "max_input_chars_per_word": max_characters, "vocab": vocabulary,
        })
    }

    proptest! {
        #[test]
        fn words_are_split_as_by_the_crate(
            begins in proptest::collection::btree_set("[abé#]{1,3}", 1..10),
            others in proptest::collection::btree_set("[abé#]{0,3}", 1..10),
            prefix in "(##|#|é|)",
            max_characters in 0..12_usize,
            word in "[abcé#\u{0}]{0,12}",
        ) {
            let mut pieces = vec!["[UNK]".to_owned()];
            for piece in begins.into_iter().chain(others.iter().map(|piece| format!("{prefix}{piece}"))) {
                if !piece.is_empty() && !pieces.contains(&piece) {
                    pieces.push(piece);
                }
            }
            let json = serde_json::to_vec(&json!({
                "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
                "post_processor": null, "decoder": null, "model": model(&pieces, &prefix, max_characters),
            }))
            .unwrap();
            let own = Tokenizer::from_json(&json).unwrap();
            let quick = Tokenizer::from_compiled(Tokenizer::compile(&json).unwrap().unwrap()).unwrap();
            prop_assert_eq!(own.tokens(&word, SpecialTokens::LeftOut).unwrap(), quick.tokens(&word, SpecialTokens::LeftOut).unwrap());
            prop_assert_eq!(own.vocabulary_size(), quick.vocabulary_size());
            for id in 0..40 {
                prop_assert_eq!(own.token(id), quick.token(id));
            }
        }
    }

    #[test]
    fn vocabularies_that_a_trie_cannot_have_are_not_compiled() {
        let with = |change: fn(&mut Value)| {
            let mut model = model(&["[UNK]".to_owned(), "a".to_owned()], "##", 100);
            change(&mut model);
            WordPieces::file_of(&model)
        };
        assert!(with(|_| ()).is_some());
        assert!(with(|model| model["unk_token"] = json!("[unknown]")).is_none());
        assert!(with(|model| model["vocab"]["b"] = json!(1)).is_none());
        assert!(with(|model| model["vocab"]["b"] = json!(900_000_000)).is_none());
        assert!(with(|model| model["vocab"][""] = json!(3)).is_none());
        assert!(with(|model| model["vocab"]["a\0"] = json!(3)).is_none());
    }
}
