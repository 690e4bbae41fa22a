//! Token ids for ASCII words in BERT tokenizers, without the `tokenizers` crate's work to record each
//! character's origin.

use aho_corasick::AhoCorasick;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::word_pieces::{Word, WordPieces};
use crate::{character_map::TextNormalizer, file::RawTokenizer};

/// BERT's normalizer and pre-tokenizer, as far as they concern ASCII.
///
/// White space divides a text into words that are normalized and split on their own, so that words with other
/// characters, which have accents or are split without white space, are left to the crate.
#[derive(Debug)]
pub struct BertWords {
    /// Finds added tokens, which may have spaces; `None` if there are none.
    added_tokens: Option<AhoCorasick>,
    /// Whether control characters are removed.
    clean_text: bool,
    lowercase: bool,
}

/// White space whether or not control characters are removed.
const SPACES: [u8; 4] = *b" \t\n\r";

impl BertWords {
    /// `None` for other tokenizers, and if added tokens are matched in normalized text.
    pub fn of(raw: &RawTokenizer) -> Option<Self> {
        let normalizer = raw.get_normalizer().and_then(TextNormalizer::standard);
        let Some(NormalizerWrapper::BertNormalizer(normalizer)) = normalizer else {
            return None;
        };
        let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = raw.get_pre_tokenizer() else {
            return None;
        };
        let added = raw.get_added_tokens_decoder();
        if added.values().any(|token| token.normalized) {
            return None;
        }
        let contents = added.values().map(|token| &token.content);
        let added_tokens = (!added.is_empty())
            .then(|| AhoCorasick::new(contents))
            .transpose()
            .ok()?;
        Some(Self {
            added_tokens,
            clean_text: normalizer.clean_text,
            lowercase: normalizer.lowercase,
        })
    }

    /// A text's token ids, without special tokens. `others` appends ids for text parts with non-ASCII words. `None` for
    /// a text with added tokens.
    pub fn ids<E>(
        &self,
        pieces: &WordPieces,
        text: &str,
        mut others: impl FnMut(&str, &mut Vec<u32>) -> Result<(), E>,
    ) -> Result<Option<Vec<u32>>, E> {
        if self
            .added_tokens
            .as_ref()
            .is_some_and(|tokens| tokens.is_match(text))
        {
            return Ok(None);
        }
        let (mut ids, mut word) = (Vec::with_capacity(text.len() / 4), pieces.word());
        // The pending words that are left to the crate, and the next word's start.
        let (mut left, mut start) = (0..0, 0);
        for bytes in text.as_bytes().split(|byte| SPACES.contains(byte)) {
            let end = start + bytes.len();
            if !bytes.is_ascii() {
                left = if left.is_empty() {
                    start..end
                } else {
                    left.start..end
                };
            } else if !bytes.is_empty() {
                if !left.is_empty() {
                    others(&text[std::mem::take(&mut left)], &mut ids)?;
                }
                self.split(bytes, &mut word, |word| pieces.append_ids(word, &mut ids));
            }
            start = end + 1;
        }
        if !left.is_empty() {
            others(&text[left], &mut ids)?;
        }
        Ok(Some(ids))
    }

    /// Calls `each` for the normalized words in `bytes`, which are ASCII; a punctuation mark is a word.
    fn split(&self, bytes: &[u8], word: &mut Word, mut each: impl FnMut(&mut Word)) {
        let mut end = |word: &mut Word| {
            if !word.is_empty() {
                each(word);
                word.clear();
            }
        };
        for byte in bytes {
            match byte {
                _ if byte.is_ascii_control() && self.clean_text => {}
                // The vertical tab and the form feed are white space, unless they are removed.
                b'\x0b' | b'\x0c' => end(word),
                _ if byte.is_ascii_punctuation() => {
                    end(word);
                    word.push(*byte);
                    end(word);
                }
                _ => word.push(if self.lowercase {
                    byte.to_ascii_lowercase()
                } else {
                    *byte
                }),
            }
        }
        end(word);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use crate::{SpecialTokens, Tokenizer};

    fn tokenizers(normalizer: &Value, added: &Value) -> [Tokenizer; 2] {
        let json = include_bytes!("../../../tests/fixtures/models/tiny-bert/tokenizer.json");
        let mut json: Value = serde_json::from_slice(json).unwrap();
        json["normalizer"] = normalizer.clone();
        json["added_tokens"]
            .as_array_mut()
            .unwrap()
            .push(added.clone());
        let json = serde_json::to_vec(&json).unwrap();
        let compiled = Tokenizer::compile(&json).unwrap().unwrap();
        [
            Tokenizer::from_json(&json).unwrap(),
            Tokenizer::from_compiled(compiled).unwrap(),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn words_have_the_ids_of_the_crate(
            (clean_text, lowercase, handle_chinese_chars) in any::<(bool, bool, bool)>(),
            strip_accents in any::<Option<bool>>(),
            (normalized, single_word) in any::<(bool, bool)>(),
            text in "([a-eA-E]{1,4}|[ -~]|[\u{0}-\u{20}]|[é猫\u{301}\u{200b}\u{2003}ß👍]|the cat|\\[SEP\\]|\\[New one\\]){0,24}",
        ) {
            let normalizer = json!({
                "type": "BertNormalizer", "clean_text": clean_text, "lowercase": lowercase,
                "handle_chinese_chars": handle_chinese_chars, "strip_accents": strip_accents,
            });
            let added = json!({
                "id": 5000, "content": "[New one]", "single_word": single_word, "lstrip": false, "rstrip": true,
                "normalized": normalized, "special": false,
            });
            let [own, quick] = tokenizers(&normalizer, &added);
            prop_assert_eq!(quick.bert.is_some(), !normalized);
            let ids: Vec<u32> = own.tokens(&text, SpecialTokens::LeftOut).unwrap().iter().map(|token| token.id).collect();
            prop_assert_eq!(quick.ids(&text).unwrap(), ids);
        }
    }
}
