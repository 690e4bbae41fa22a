//! fastText's features: a text's words, their character n-grams and its word n-grams, as rows of a vector table. They equal
//! the features of fastText's C++ library, in the same order.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Range,
};

use serde::Deserialize;
use tokenizers::Token;

/// The model's type in a `tokenizer.json`.
pub const TYPE: &str = "FastText";
/// The word after the last one. In a text, it ends the text.
const END: &str = "</s>";
/// Words with this prefix are labels in training data, and have no features.
const LABEL: &str = "__label__";
/// Maximum length of n-grams, which limits the features per character. fastText's default is 6 characters.
const MAX_LENGTH: u32 = 16;
/// Factor in the hash of word n-grams.
const WORD_FACTOR: u64 = 116_049_371;

/// The model in a `tokenizer.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// By row; `None` for words that are not UTF-8, which no text contains.
    words: Vec<Option<String>>,
    /// Table rows: for words, then for n-grams.
    rows: u32,
    /// Hashes of n-grams are below this number.
    buckets: u32,
    /// The n-gram rows by hash, if most hashes have none: pairs of a hash and a row after the words.
    kept: Option<Vec<(u32, u32)>>,
    /// Minimum characters per n-gram.
    min_length: u32,
    /// Maximum characters per n-gram; 0 for models without character n-grams.
    max_length: u32,
    /// Maximum words per n-gram.
    max_words: u32,
    /// The labels with another prefix, which have no features either.
    #[serde(default)]
    labels: HashSet<String>,
}

/// The features of a long text that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    First,
    Last,
}

/// Finds features.
#[derive(Deserialize)]
#[serde(try_from = "File")]
pub struct FastText {
    words: Vec<Option<String>>,
    ids: HashMap<String, u32>,
    rows: u32,
    buckets: u32,
    kept: Option<HashMap<u32, u32>>,
    min_length: usize,
    max_length: usize,
    max_words: usize,
    labels: HashSet<String>,
}

impl TryFrom<File> for FastText {
    type Error = String;

    fn try_from(file: File) -> Result<Self, String> {
        let File {
            words,
            rows,
            buckets,
            kept,
            min_length,
            max_length,
            max_words,
            labels,
        } = file;
        for (name, length) in [("max_length", max_length), ("max_words", max_words)] {
            if length > MAX_LENGTH {
                return Err(format!(
                    "expected `{name}` of at most {MAX_LENGTH}, but found {length}"
                ));
            }
        }
        let count = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let has_ngrams = max_length > 0 || max_words > 1;
        if has_ngrams && buckets == 0 {
            return Err("expected `buckets` above 0 for n-grams, but found 0".into());
        }
        let of_ngrams = match &kept {
            Some(kept) => kept
                .iter()
                .map(|(_, row)| row.saturating_add(1))
                .max()
                .unwrap_or(0),
            None if has_ngrams => buckets,
            None => 0,
        };
        if count.saturating_add(of_ngrams) > rows {
            return Err(format!(
                "expected a row for each of {count} words and {of_ngrams} n-grams, but found {rows} rows"
            ));
        }
        let ids = words
            .iter()
            .zip(0..)
            .filter_map(|(word, id)| Some((word.clone()?, id)))
            .collect();
        Ok(Self {
            words,
            ids,
            rows,
            buckets,
            kept: kept.map(|kept| kept.into_iter().collect()),
            min_length: min_length as usize,
            max_length: max_length as usize,
            max_words: max_words as usize,
            labels,
        })
    }
}

impl FastText {
    /// A text's features.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.visit(text, |id, _| ids.push(id));
        ids
    }

    /// At most `max` of a text's features, which may be many times its bytes.
    pub fn ids_within(&self, text: &str, kept: Kept, max: usize) -> Vec<u32> {
        let mut ids = VecDeque::new();
        self.visit(text, |id, _| match kept {
            _ if ids.len() < max => ids.push_back(id),
            Kept::First => {}
            Kept::Last => {
                ids.pop_front();
                ids.push_back(id);
            }
        });
        ids.into()
    }

    /// A text's features with the text that they stand for.
    pub fn tokenize(&self, text: &str) -> Vec<Token> {
        let mut tokens = Vec::new();
        self.visit(text, |id, span| {
            tokens.push(Token::new(
                id,
                text[span.clone()].to_owned(),
                (span.start, span.end),
            ));
        });
        tokens
    }

    pub fn id_of(&self, word: &str) -> Option<u32> {
        self.ids.get(word).copied()
    }

    pub fn word(&self, id: u32) -> Option<&str> {
        self.words.get(id as usize)?.as_deref()
    }

    pub fn vocabulary(&self) -> &HashMap<String, u32> {
        &self.ids
    }

    pub fn size(&self) -> usize {
        self.rows as usize
    }

    /// Calls `visit` with each feature and its place in the text. Line breaks are spaces, unlike in fastText, which
    /// reads one line.
    fn visit(&self, text: &str, mut visit: impl FnMut(u32, Range<usize>)) {
        let mut hashes = Vec::new();
        let mut buffer = Vec::new();
        let mut each = |range: Range<usize>, word: &str| {
            let id = self.id_of(word);
            if id.is_none() && (word.starts_with(LABEL) || self.labels.contains(word)) {
                return;
            }
            if let Some(id) = id {
                visit(id, range.clone());
            }
            if word != END {
                self.visit_characters(word, &mut buffer, |id, part| {
                    visit(id, range.start + part.start..range.start + part.end);
                });
            }
            if self.max_words > 1 {
                hashes.push((word_hash(word), range));
            }
        };
        let mut is_ended = false;
        for range in words(text) {
            let word = &text[range.clone()];
            each(range, word);
            is_ended = word == END;
            if is_ended {
                break;
            }
        }
        if !is_ended {
            each(text.len()..text.len(), END);
        }
        self.visit_words(&hashes, visit);
    }

    /// Calls `visit` with the n-grams in `<word>` and their places in the word.
    fn visit_characters(
        &self,
        word: &str,
        buffer: &mut Vec<u8>,
        mut visit: impl FnMut(u32, Range<usize>),
    ) {
        if self.max_length == 0 {
            return;
        }
        buffer.clear();
        buffer.push(b'<');
        buffer.extend_from_slice(word.as_bytes());
        buffer.push(b'>');
        let starts_character =
            |place: usize| buffer.get(place).is_none_or(|byte| byte & 0xC0 != 0x80);
        for start in (0..buffer.len()).filter(|start| starts_character(*start)) {
            let (mut end, mut hash) = (start, HASH_START);
            for length in 1..=self.max_length {
                if end == buffer.len() {
                    break;
                }
                loop {
                    hash = hash_byte(hash, buffer[end]);
                    end += 1;
                    if starts_character(end) {
                        break;
                    }
                }
                let is_mark = length == 1 && (start == 0 || end == buffer.len());
                if length >= self.min_length
                    && !is_mark
                    && let Some(id) = self.row(hash % self.buckets)
                {
                    visit(id, start.max(1) - 1..(end - 1).min(word.len()));
                }
            }
        }
    }

    /// Calls `visit` with the word n-grams.
    fn visit_words(
        &self,
        hashes: &[(u64, Range<usize>)],
        mut visit: impl FnMut(u32, Range<usize>),
    ) {
        for (place, (first, range)) in hashes.iter().enumerate() {
            let mut hash = *first;
            for (next, end) in hashes.iter().skip(place + 1).take(self.max_words - 1) {
                hash = hash.wrapping_mul(WORD_FACTOR).wrapping_add(*next);
                let bucket = (hash % u64::from(self.buckets)) as u32;
                if let Some(id) = self.row(bucket) {
                    visit(id, range.start..end.end);
                }
            }
        }
    }

    /// The row for an n-gram hash.
    fn row(&self, hash: u32) -> Option<u32> {
        let row = match &self.kept {
            None => hash,
            Some(kept) => *kept.get(&hash)?,
        };
        Some(self.words.len() as u32 + row)
    }
}

/// Places of a text's words.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let is_space = |byte: u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | 0x0b | 0x0c | 0);
    let bytes = text.as_bytes();
    let mut end = 0;
    std::iter::from_fn(move || {
        let start = end + bytes[end..].iter().position(|byte| !is_space(*byte))?;
        let length = bytes[start..].iter().position(|byte| is_space(*byte));
        end = length.map_or(bytes.len(), |length| start + length);
        Some(start..end)
    })
}

const HASH_START: u32 = 2_166_136_261;

/// FNV-1a, except that bytes are signed.
fn hash_byte(hash: u32, byte: u8) -> u32 {
    (hash ^ i32::from(byte.cast_signed()).cast_unsigned()).wrapping_mul(16_777_619)
}

/// A word's hash in the hashes of word n-grams, where it is a signed integer.
fn word_hash(word: &str) -> u64 {
    let hash = word.bytes().fold(HASH_START, hash_byte);
    i64::from(hash.cast_signed()).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn model(changes: &Value) -> Result<FastText, serde_json::Error> {
        let mut file = json!({
            "words": ["</s>", "cat", null, "é"], "rows": 104, "buckets": 100, "kept": null, "min_length": 2,
            "max_length": 3, "max_words": 1,
        });
        file.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        serde_json::from_value(file)
    }

    fn parts(model: &FastText, text: &str) -> Vec<String> {
        model
            .tokenize(text)
            .into_iter()
            .map(|token| token.value)
            .collect()
    }

    #[test]
    fn features_are_words_and_ngrams() {
        let own = model(&json!({})).unwrap();
        assert_eq!(
            parts(&own, "cat\n é"),
            [
                "cat", "c", "ca", "ca", "cat", "at", "at", "t", "é", "é", "é", "é", ""
            ]
        );
        let words = model(&json!({"max_length": 0, "max_words": 2})).unwrap();
        // Unknown words are parts of word n-grams, and labels are not.
        assert_eq!(
            parts(&words, " cat dog __label__x"),
            ["cat", "", "cat dog", "dog __label__x"]
        );
        let labels = model(&json!({"labels": ["#a"], "max_length": 0, "max_words": 2})).unwrap();
        assert_eq!(
            labels.ids("cat #a dog"),
            labels.ids("cat __label__a dog"),
            "labels with another prefix"
        );
        assert_ne!(labels.ids("cat #b dog"), labels.ids("cat dog"));
        // The end of a text, written out.
        assert_eq!(parts(&words, "cat </s> dog"), ["cat", "</s>", "cat </s>"]);
        assert_eq!(parts(&words, ""), [""]);
    }

    #[test]
    fn long_texts_take_no_more_memory_than_their_features_within_the_limit() {
        let own = model(&json!({"min_length": 1, "max_length": 16})).unwrap();
        let text = "the cats sat on the mats ".repeat(40_000);
        let all = own.ids(&text);
        let taken = allocation_counter::measure(|| {
            assert_eq!(own.ids_within(&text, Kept::First, 1000), all[..1000]);
            assert_eq!(
                own.ids_within(&text, Kept::Last, 1000),
                all[all.len() - 1000..]
            );
        });
        assert!(taken.bytes_max < 100_000, "{}", taken.bytes_max);
        assert_eq!(own.ids_within("cat", Kept::First, 1000), own.ids("cat"));
    }

    #[test]
    fn only_kept_ngrams_have_rows() {
        let all = model(&json!({})).unwrap();
        let of_cat = all.ids("cat");
        let kept = of_cat[2] - 4;
        let pruned = model(&json!({"kept": [[kept, 1]], "rows": 6})).unwrap();
        assert_eq!(pruned.ids("cat"), [1, 5, 0]);
        assert_eq!(
            model(&json!({"kept": [], "rows": 4})).unwrap().ids("cat"),
            [1, 0]
        );
    }

    #[test]
    fn rows_that_do_not_exist_are_refused() {
        let refusal = |changes: Value| model(&changes).err().unwrap().to_string();
        insta::assert_snapshot!(refusal(json!({"rows": 103})), @"expected a row for each of 4 words and 100 n-grams, but found 103 rows");
        insta::assert_snapshot!(refusal(json!({"kept": [[0, 100]]})), @"expected a row for each of 4 words and 101 n-grams, but found 104 rows");
        insta::assert_snapshot!(refusal(json!({"buckets": 0})), @"expected `buckets` above 0 for n-grams, but found 0");
        insta::assert_snapshot!(refusal(json!({"max_words": 17})), @"expected `max_words` of at most 16, but found 17");
    }
}
