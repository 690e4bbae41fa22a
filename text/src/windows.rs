//! Splits texts into windows that fit a model, with each token's place in the text.

use std::collections::BTreeSet;

use tokenizers::{
    Decoder, Encoding as RawEncoding,
    models::{ModelWrapper, bpe::BPE},
};
use unicode_segmentation::UnicodeSegmentation;

use super::{Encoding, Side, Tokenizer, Truncation, models::vocabulary::Vocabulary};
use kivu_base::{Error, Result};

const UNKNOWN_TOKENS: [&str; 2] = ["[UNK]", "<unk>"];

/// A text part that a model reads at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its tokens, special tokens included.
    pub encoding: Encoding,
    /// Token or word spans in the text, in characters; `None` for special tokens.
    pub spans: Vec<Option<(usize, usize)>>,
}

/// How a text becomes windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// Tokens or words that a window shares with the one before; `None` puts a text into one window.
    pub stride: Option<usize>,
    /// Applied to texts above the token limit, without a stride.
    pub truncation: Truncation,
    /// Maximum windows.
    pub max_windows: usize,
    /// Whether windows begin at words, as in [`word_bounds`], and then share more than the stride. Windows in
    /// `transformers` begin anywhere.
    pub begin_at_words: bool,
}

impl WindowOptions {
    /// A window for each of `texts` texts.
    pub fn whole(truncation: Truncation, texts: usize) -> Self {
        Self {
            stride: None,
            truncation,
            max_windows: texts,
            begin_at_words: false,
        }
    }
}

/// Byte offsets of word boundaries in a text, its start and its end included. They follow Unicode's rules for words and
/// never split a grapheme cluster. White space and punctuation marks count as words.
pub fn word_bounds(text: &str) -> BTreeSet<usize> {
    let characters: BTreeSet<usize> = text
        .grapheme_indices(true)
        .map(|(start, _)| start)
        .collect();
    let words = text.split_word_bound_indices().map(|(start, _)| start);
    words
        .filter(|start| characters.contains(start))
        .chain([0, text.len()])
        .collect()
}

impl Tokenizer {
    /// Encodes a text into windows with at most `limit` tokens, special tokens included.
    pub fn windows(&self, text: &str, limit: usize, options: WindowOptions) -> Result<Vec<Window>> {
        let WindowOptions {
            stride, truncation, ..
        } = options;
        let room = limit.saturating_sub(self.special_count());
        if let Some(stride) = stride {
            return self.overlapping_windows(text, room, stride, options);
        }
        let read = self.within_reach(text, limit, truncation)?;
        // Characters before the part that is read.
        let skipped = match truncation {
            Truncation::At(Side::Left) => text[..text.len() - read.len()].chars().count(),
            _ => 0,
        };
        let mut encoding = self.encode_with_spans(read)?;
        let found = encoding.len() + self.special_count();
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let side = truncation.side().ok_or_else(|| {
                Error::too_large(format!(
                    "the text has {found} tokens, but the model takes at most {limit}"
                ))
                .with_hint("set `stride` to read it in windows")
            })?;
            encoding.truncate(room, 0, side.into());
            encoding.take_overflowing();
        }
        if found == 0 {
            // No model reads a text without tokens.
            return Ok(Vec::new());
        }
        Ok(vec![self.window(encoding, truncated_from, skipped)?])
    }

    fn overlapping_windows(
        &self,
        text: &str,
        room: usize,
        stride: usize,
        WindowOptions {
            max_windows: max,
            begin_at_words,
            ..
        }: WindowOptions,
    ) -> Result<Vec<Window>> {
        if stride >= room {
            return Err(Error::invalid(format!(
                "expected a `stride` below {room}, the tokens of a window, but found {stride}"
            )));
        }
        let step = room - stride;
        let refusal = || {
            Error::too_large(format!(
                "expected at most {max} windows of {room} tokens that share {stride}, but found \
                 more"
            ))
            .with_hint("send fewer or shorter texts, or a smaller `stride`")
        };
        if self.exceeds(text, step.saturating_mul(max).saturating_add(stride))? {
            return Err(refusal());
        }
        let mut first = self.encode_with_spans(text)?;
        if first.len() + self.special_count() == 0 {
            return Ok(Vec::new());
        }
        if first.len().saturating_sub(stride).div_ceil(step) > max {
            return Err(refusal());
        }
        if begin_at_words && first.len() > room {
            let starts = window_starts(text, &first, [room, stride]);
            if starts.len() > max {
                return Err(refusal());
            }
            let parts = starts.into_iter().map(|start| part(&first, start, room));
            return parts.map(|part| self.window(part, None, 0)).collect();
        }
        first.truncate(room, stride, Side::Right.into());
        let others = first.take_overflowing();
        std::iter::once(first)
            .chain(others)
            .map(|part| self.window(part, None, 0))
            .collect()
    }

    /// A token window without special tokens, with spans `skipped` characters later.
    fn window(
        &self,
        part: RawEncoding,
        truncated_from: Option<usize>,
        skipped: usize,
    ) -> Result<Window> {
        let whole = self.add_special_tokens(part, None)?;
        let marks = whole.get_special_tokens_mask().iter();
        let span = |((start, end), mark): (&(usize, usize), &u32)| {
            (*mark == 0).then_some((start + skipped, end + skipped))
        };
        let spans = whole.get_offsets().iter().zip(marks).map(span).collect();
        Ok(Window {
            encoding: Encoding::from_raw(&whole, truncated_from),
            spans,
        })
    }

    /// Whether tokens within a word begin with a prefix, such as `##`.
    pub fn marks_subwords(&self) -> bool {
        match self.raw.get_model() {
            Vocabulary::WordPieces(model) => !model.prefix().is_empty(),
            Vocabulary::Standard(ModelWrapper::WordPiece(model)) => {
                !model.continuing_subword_prefix.is_empty()
            }
            Vocabulary::Standard(ModelWrapper::BPE(BPE {
                continuing_subword_prefix: prefix,
                ..
            })) => prefix.as_ref().is_some_and(|prefix| !prefix.is_empty()),
            Vocabulary::Standard(_)
            | Vocabulary::Unigram(_)
            | Vocabulary::BytePairs(_)
            | Vocabulary::FastText(_) => false,
        }
    }

    /// Token for unknown words or characters.
    pub fn unknown_id(&self) -> Option<u32> {
        UNKNOWN_TOKENS
            .iter()
            .find_map(|token| self.raw.token_to_id(token))
    }

    /// Joins vocabulary tokens to a text.
    pub fn join(&self, tokens: Vec<String>) -> Result<String> {
        let joined = self.call(|raw| match raw.get_decoder() {
            Some(decoder) => decoder.decode(tokens),
            None => Ok(tokens.join(" ")),
        });
        joined.map_err(super::cannot_tokenize)
    }
}

/// Start indexes for windows with at most `room` tokens that begin at words and share at least `stride` tokens. A
/// word that exceeds a window is cut.
fn window_starts(text: &str, encoding: &RawEncoding, [room, stride]: [usize; 2]) -> Vec<usize> {
    let bounds = word_bounds(text);
    let characters: Vec<usize> = text.char_indices().map(|(byte, _)| byte).collect();
    let offsets = encoding.get_offsets();
    let begins_word = |token: &usize| {
        characters
            .get(offsets[*token].0)
            .is_none_or(|byte| bounds.contains(byte))
    };
    let (mut starts, mut start) = (vec![0], 0);
    while start + room < encoding.len() {
        let latest = start + room - stride;
        start = (start + 1..=latest)
            .rev()
            .find(begins_word)
            .unwrap_or(latest);
        starts.push(start);
    }
    starts
}

/// The tokens from `start` on, at most `room`.
fn part(encoding: &RawEncoding, start: usize, room: usize) -> RawEncoding {
    let range = start..encoding.len().min(start + room);
    RawEncoding::new(
        encoding.get_ids()[range.clone()].to_vec(),
        encoding.get_type_ids()[range.clone()].to_vec(),
        encoding.get_tokens()[range.clone()].to_vec(),
        encoding.get_word_ids()[range.clone()].to_vec(),
        encoding.get_offsets()[range.clone()].to_vec(),
        encoding.get_special_tokens_mask()[range.clone()].to_vec(),
        encoding.get_attention_mask()[range].to_vec(),
        Vec::new(),
        Default::default(),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::SpecialTokens;

    #[test]
    fn windows_begin_at_words_if_required() {
        let file = "../tests/fixtures/models/tiny-bert-ner/tokenizer.json";
        let tokenizer = Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let text = "Xylophonist Brzezinski lives in Szczebrzeszyn";
        let whole = tokenizer
            .tokens(text, SpecialTokens::LeftOut)
            .unwrap()
            .len();
        let bounds = word_bounds(text);
        let starts = |begin_at_words, room| -> Vec<usize> {
            let options = WindowOptions {
                stride: Some(1),
                truncation: Truncation::Off,
                max_windows: 1000,
                begin_at_words,
            };
            let windows = tokenizer.windows(text, room + 2, options).unwrap();
            windows
                .iter()
                .filter_map(|window| window.spans.iter().flatten().next())
                .map(|span| span.0)
                .collect()
        };
        let longest = 20;
        assert!(whole > longest, "{whole}");
        assert!(
            starts(false, longest)
                .iter()
                .any(|start| !bounds.contains(start))
        );
        let found = starts(true, longest);
        assert!(
            found.len() > 1 && found.iter().all(|start| bounds.contains(start)),
            "{found:?}"
        );
        // A word that is longer than a window is cut.
        assert!(starts(true, 3).len() >= whole / 3);
    }

    #[test]
    fn words_have_their_combining_marks_and_joined_emoji() {
        let words = |text: &str| -> Vec<String> {
            let bounds: Vec<usize> = word_bounds(text).into_iter().collect();
            bounds
                .windows(2)
                .map(|pair| text[pair[0]..pair[1]].to_owned())
                .collect()
        };
        assert_eq!(
            words("Nguye\u{302}\u{303}n 王x"),
            ["Nguye\u{302}\u{303}n", " ", "王", "x"]
        );
        assert_eq!(
            words("O'Neill, 👩\u{200d}👧"),
            ["O'Neill", ",", " ", "👩\u{200d}👧"]
        );
        assert!(words("").is_empty());
    }
}
