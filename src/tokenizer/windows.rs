//! Texts in windows of as many tokens as a model reads, with the place of each token in the text.

use tokenizers::{
    Decoder, Encoding as RawEncoding,
    models::{ModelWrapper, bpe::BPE},
};

use super::{Encoding, Side, Tokenizer, Truncation, encode::within_reach, vocabulary::Vocabulary};
use crate::error::{Error, Result};

const UNKNOWN_TOKENS: [&str; 2] = ["[UNK]", "<unk>"];

/// A part of a text that a model reads at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its tokens, special tokens included.
    pub encoding: Encoding,
    /// The start and the end of each token in the text, in characters, or those of each word; `None` for special tokens.
    pub spans: Vec<Option<(usize, usize)>>,
}

/// How a text becomes windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// The number of tokens, or words, that a window shares with the one before; without one, a text is one window.
    pub stride: Option<usize>,
    /// Applied to texts of too many tokens, without a stride.
    pub truncation: Truncation,
    /// The maximum number of windows.
    pub max_windows: usize,
}

impl Tokenizer {
    /// Encodes a text into windows of at most `limit` tokens, special tokens included.
    pub fn windows(&self, text: &str, limit: usize, options: WindowOptions) -> Result<Vec<Window>> {
        let WindowOptions { stride, truncation, max_windows } = options;
        let room = limit.saturating_sub(self.special_count());
        if let Some(stride) = stride {
            return self.overlapping_windows(text, room, stride, max_windows);
        }
        let read = within_reach(text, limit, truncation)?;
        // The text in front of what is read.
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
                    "the text has {found} tokens, but the model takes at most {limit}; set `stride` to read it in \
                     windows"
                ))
            })?;
            encoding.truncate(room, 0, side.into());
            encoding.take_overflowing();
        }
        Ok(vec![self.window(encoding, truncated_from, skipped)?])
    }

    fn overlapping_windows(&self, text: &str, room: usize, stride: usize, max: usize) -> Result<Vec<Window>> {
        if stride >= room {
            return Err(Error::invalid(format!(
                "expected a `stride` below {room}, the tokens of a window, but found {stride}"
            )));
        }
        let step = room - stride;
        let refusal = || {
            Error::too_large(format!(
                "expected at most {max} windows of {room} tokens that share {stride}, but found more; send fewer or \
                 shorter texts, or a smaller `stride`"
            ))
        };
        if self.exceeds(text, step.saturating_mul(max).saturating_add(stride))? {
            return Err(refusal());
        }
        let mut first = self.encode_with_spans(text)?;
        if first.len().saturating_sub(stride).div_ceil(step) > max {
            return Err(refusal());
        }
        first.truncate(room, stride, Side::Right.into());
        let others = first.take_overflowing();
        std::iter::once(first).chain(others).map(|part| self.window(part, None, 0)).collect()
    }

    /// A window of tokens without special tokens, with spans `skipped` characters later.
    fn window(&self, part: RawEncoding, truncated_from: Option<usize>, skipped: usize) -> Result<Window> {
        let whole = self.add_special_tokens(part, None)?;
        let marks = whole.get_special_tokens_mask().iter();
        let span = |((start, end), mark): (&(usize, usize), &u32)| {
            (*mark == 0).then_some((start + skipped, end + skipped))
        };
        let spans = whole.get_offsets().iter().zip(marks).map(span).collect();
        Ok(Window { encoding: Encoding::from_raw(&whole, truncated_from), spans })
    }

    /// Whether tokens within a word begin with a prefix, such as `##`.
    pub fn marks_subwords(&self) -> bool {
        match self.raw.get_model() {
            Vocabulary::WordPieces(model) => !model.prefix().is_empty(),
            Vocabulary::Standard(ModelWrapper::WordPiece(model)) => {
                !model.continuing_subword_prefix.is_empty()
            }
            Vocabulary::Standard(ModelWrapper::BPE(BPE { continuing_subword_prefix: prefix, .. })) => {
                prefix.as_ref().is_some_and(|prefix| !prefix.is_empty())
            }
            Vocabulary::Standard(_) | Vocabulary::Unigram(_) | Vocabulary::BytePairs(_) => false,
        }
    }

    /// The token of unknown words or characters.
    pub fn unknown_id(&self) -> Option<u32> {
        UNKNOWN_TOKENS.iter().find_map(|token| self.raw.token_to_id(token))
    }

    /// The text of tokens of the vocabulary.
    pub fn join(&self, tokens: Vec<String>) -> Result<String> {
        let joined = self.call(|raw| match raw.get_decoder() {
            Some(decoder) => decoder.decode(tokens),
            None => Ok(tokens.join(" ")),
        });
        joined.map_err(super::cannot_tokenize)
    }
}
