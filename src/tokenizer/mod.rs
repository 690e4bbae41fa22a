//! Texts to token ids and back. The only module that uses the `tokenizers` crate.

mod byte_pairs;
pub mod cl100k;
mod file;
mod trie;
mod unigram;
mod vocabulary;
mod windows;
mod word_pieces;

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use bytes::Bytes;
use serde::Deserialize;
use tokenizers::{
    Encoding as RawEncoding, PostProcessor, PostProcessorWrapper, Result as RawResult, TruncationDirection,
    TruncationParams, TruncationStrategy, utils::truncation::truncate_encodings,
};

use self::file::RawTokenizer;
pub use self::windows::{Window, WindowOptions};
use crate::error::{Error, Result};

/// A model's tokenizer.
///
/// Padding and truncation in its file are ignored, since the request determines both: a sentence-transformers file
/// pads every text to 128 tokens.
#[derive(Debug)]
pub struct Tokenizer {
    /// Without its post-processor: applied twice, as that of the crate would be, it trims the spans of tokens twice.
    raw: RawTokenizer,
    post_processor: Option<PostProcessorWrapper>,
    /// The number of special tokens around a single text.
    special_tokens: usize,
    padding_id: u32,
}

const PADDING_TOKENS: [&str; 2] = ["[PAD]", "<pad>"];

/// The end of a text that is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The beginning.
    #[serde(alias = "Left")]
    Left,
    /// The end.
    #[default]
    #[serde(alias = "Right")]
    Right,
}

/// Applied to inputs of more tokens than the model takes. Special tokens are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// Refuses them.
    Off,
    /// Truncates at this side; of a pair the longer text, then both.
    At(Side),
    /// Truncates only the first text of a pair, at its end.
    OnlyFirst,
}

impl Truncation {
    /// The side at which a single text is truncated.
    fn side(self) -> Option<Side> {
        match self {
            Self::Off => None,
            Self::At(side) => Some(side),
            Self::OnlyFirst => Some(Side::Right),
        }
    }
}

impl From<Side> for TruncationDirection {
    fn from(side: Side) -> Self {
        match side {
            Side::Left => Self::Left,
            Side::Right => Self::Right,
        }
    }
}

/// A text, or a pair of texts, as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// The token ids, special tokens included.
    pub ids: Vec<u32>,
    /// For each token the index of its text in a pair.
    pub type_ids: Vec<u32>,
    /// The number of tokens before truncation, if there was any; a lower bound for very long texts.
    pub truncated_from: Option<usize>,
    /// The number of tokens at the end that no other token attends to.
    pub unattended: usize,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The id in the vocabulary.
    pub id: u32,
    /// The token in the vocabulary.
    pub text: String,
    /// Whether it is a special token.
    pub special: bool,
    /// Start and end in the text, in characters; `None` for special tokens.
    pub span: Option<(usize, usize)>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        Self::from_json(&bytes)
    }

    /// Reads the contents of a `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        file::read(json).map(Self::new)
    }

    /// Reads the output of [`compile`](Self::compile).
    pub fn from_compiled(compiled: impl Into<Bytes>) -> Result<Self> {
        file::read_compiled(compiled.into()).map(Self::new)
    }

    /// Converts a `tokenizer.json` to a form that loads some 20 times as fast if its vocabulary is large. Supports
    /// WordPiece models, Unigram models and BPE models of SentencePiece; `None` for all others.
    pub fn compile(json: &[u8]) -> Result<Option<Vec<u8>>> {
        file::compile(json)
    }

    fn new(mut raw: RawTokenizer) -> Self {
        let post_processor = raw.get_post_processor().cloned();
        raw.with_post_processor(None::<PostProcessorWrapper>);
        let special_tokens = post_processor.as_ref().map_or(0, |processor| processor.added_tokens(false));
        let padding_id = PADDING_TOKENS.iter().find_map(|token| raw.token_to_id(token));
        Self { raw, post_processor, special_tokens, padding_id: padding_id.unwrap_or(0) }
    }

    /// Calls the crate, which panics on some damaged files.
    fn call<T>(&self, call: impl FnOnce(&RawTokenizer) -> RawResult<T>) -> RawResult<T> {
        let result = catch_unwind(AssertUnwindSafe(|| call(&self.raw)));
        result.unwrap_or_else(|_| Err("the tokenizer panicked".into()))
    }

    fn encode_raw(&self, text: &str) -> Result<RawEncoding> {
        self.call(|raw| raw.encode_fast(text, false)).map_err(cannot_tokenize)
    }

    fn add_special_tokens(&self, first: RawEncoding, second: Option<RawEncoding>) -> Result<RawEncoding> {
        self.post_process(first, second, true)
    }

    /// Trims the spans of tokens, and adds special tokens if `with_special_tokens`.
    fn post_process(
        &self,
        first: RawEncoding,
        second: Option<RawEncoding>,
        with_special_tokens: bool,
    ) -> Result<RawEncoding> {
        let process = |raw: &RawTokenizer| match &self.post_processor {
            Some(processor) => processor.process(first, second, with_special_tokens),
            None => raw.post_process(first, second, with_special_tokens),
        };
        self.call(process).map_err(cannot_tokenize)
    }

    fn encode_with_spans(&self, text: &str) -> Result<RawEncoding> {
        self.call(|raw| raw.encode_char_offsets(text, false)).map_err(cannot_tokenize)
    }

    /// The id that pads short texts.
    pub fn padding_id(&self) -> u32 {
        self.padding_id
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.raw.token_to_id(token)
    }

    /// The number of ids, those of added tokens included.
    pub fn vocabulary_size(&self) -> usize {
        self.raw.get_vocab_size(true)
    }

    /// Encodes a text, special tokens included, into at most `limit` tokens.
    pub fn encode(&self, text: &str, limit: usize, truncation: Truncation) -> Result<Encoding> {
        let text = within_reach(text, limit, truncation)?;
        let mut encoding = self.encode_raw(text)?;
        let found = encoding.len() + self.special_tokens;
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let side = truncation.side().ok_or_else(|| too_long("text", found, limit))?;
            encoding.truncate(limit.saturating_sub(self.special_tokens), 0, side.into());
            // The crate would add special tokens to the part that was cut off as well.
            encoding.take_overflowing();
        }
        Ok(Encoding::from_raw(&self.add_special_tokens(encoding, None)?, truncated_from))
    }

    /// The special tokens before and after a single text.
    pub fn special_ids(&self) -> Result<[Vec<u32>; 2]> {
        let whole = self.add_special_tokens(self.encode_raw("a")?, None)?;
        let ids = whole.get_ids();
        let is_own = |special: &u32| *special == 0;
        let mask = whole.get_special_tokens_mask();
        let first = mask.iter().position(is_own).unwrap_or(ids.len());
        let last = mask.iter().rposition(is_own).map_or(ids.len(), |last| last + 1);
        Ok([ids[..first].to_vec(), ids[last..].to_vec()])
    }

    /// Encodes a text that consists of parts, special tokens included, into at most `limit` tokens, which it must not
    /// exceed. `ends` are the ends of the parts in bytes. A token that is in two parts is one of the second; special
    /// tokens are in the first and in the last part.
    pub fn encode_parts(
        &self,
        text: &str,
        ends: &[usize],
        limit: usize,
    ) -> Result<(Encoding, Vec<Range<usize>>)> {
        let too_long = |found: usize, unit: &str| {
            Error::too_large(format!(
                "the texts have {found} {unit} together, but the model takes at most {limit} tokens; send fewer texts at \
                 once"
            ))
        };
        if text.len() > reach(limit) {
            return Err(too_long(text.len(), "bytes"));
        }
        // With offsets, unlike `encode_fast`.
        let encoding = self.call(|raw| raw.encode(text, false)).map_err(cannot_tokenize)?;
        let found = encoding.len() + self.special_tokens;
        if found > limit {
            return Err(too_long(found, "tokens"));
        }
        let offsets = encoding.get_offsets();
        let cuts: Vec<usize> =
            ends.iter().map(|end| offsets.partition_point(|(_, of_token)| of_token <= end)).collect();
        let encoding = self.add_special_tokens(encoding, None)?;
        let before = encoding.get_special_tokens_mask().iter().take_while(|special| **special == 1).count();
        let mut start = 0;
        let ranges = cuts.iter().enumerate().map(|(part, cut)| {
            let end = if part + 1 == cuts.len() { encoding.len() } else { before + cut };
            std::mem::replace(&mut start, end)..end
        });
        let ranges = ranges.collect();
        Ok((Encoding::from_raw(&encoding, None), ranges))
    }

    /// The token ids of a text, without special tokens.
    pub fn encode_without_special_tokens(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode_raw(text)?.get_ids().to_vec())
    }

    /// The part of a text that its encoding covers, for models with a tokenizer of their own.
    pub fn truncated_text(
        &self,
        text: String,
        encoding: &Encoding,
        limit: usize,
        truncation: Truncation,
    ) -> Result<String> {
        let (Some(_), Some(side)) = (encoding.truncated_from, truncation.side()) else { return Ok(text) };
        let reachable = within_reach(&text, limit, truncation)?;
        // With offsets, unlike `encode_fast`.
        let encoding = self.call(|raw| raw.encode(reachable, false)).map_err(cannot_tokenize)?;
        let encoding = self.post_process(encoding, None, false)?;
        let kept = limit.saturating_sub(self.special_tokens).min(encoding.len());
        let kept = match side {
            Side::Right => &encoding.get_offsets()[..kept],
            Side::Left => &encoding.get_offsets()[encoding.len() - kept..],
        };
        let start = kept.iter().map(|(start, _)| *start).min().unwrap_or(0);
        let end = kept.iter().map(|(_, end)| *end).max().unwrap_or(0);
        Ok(reachable.get(start..end).unwrap_or_default().to_owned())
    }

    /// Encodes a pair of texts, special tokens included, into at most `limit` tokens. An empty second text keeps its
    /// separator.
    pub fn encode_pair(&self, pair: [&str; 2], limit: usize, truncation: Truncation) -> Result<Encoding> {
        let encode = |text| self.encode_raw(within_reach(text, limit, truncation)?);
        let [mut first, mut second] = [encode(pair[0])?, encode(pair[1])?];
        let special_tokens = self.post_processor.as_ref().map_or(0, |processor| processor.added_tokens(true));
        let found = first.len() + second.len() + special_tokens;
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let too_long = || too_long("pair of texts", found, limit);
            let side = truncation.side().ok_or_else(too_long)?;
            let strategy = match truncation {
                Truncation::OnlyFirst => TruncationStrategy::OnlyFirst,
                Truncation::Off | Truncation::At(_) => TruncationStrategy::LongestFirst,
            };
            let max_length = limit.saturating_sub(special_tokens);
            let parameters = TruncationParams { direction: side.into(), max_length, strategy, stride: 0 };
            let (cut_first, cut_second) =
                truncate_encodings(first, Some(second), &parameters).map_err(|_| too_long())?;
            (first, second) = (cut_first, cut_second.unwrap_or_default());
            first.take_overflowing();
            second.take_overflowing();
        }
        Ok(Encoding::from_raw(&self.add_special_tokens(first, Some(second))?, truncated_from))
    }

    /// Encodes a text between two others, each on its own and without special tokens, into at most `limit` tokens. Only the
    /// text between them is truncated.
    pub fn encode_between(
        &self,
        [before, text, after]: [&str; 3],
        limit: usize,
        truncation: Truncation,
    ) -> Result<Encoding> {
        let ids = |text: &str| self.encode_without_special_tokens(text);
        let (before, after) = (ids(before)?, ids(after)?);
        let mut between = ids(within_reach(text, limit, truncation)?)?;
        let around = before.len() + after.len();
        let found = around + between.len();
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let side = truncation.side().ok_or_else(|| too_long("pair of texts", found, limit))?;
            let kept = limit.saturating_sub(around);
            match side {
                Side::Right => between.truncate(kept),
                Side::Left => drop(between.drain(..between.len() - kept.min(between.len()))),
            }
        }
        let ids = [before, between, after].concat();
        if ids.len() > limit {
            return Err(Error::too_large(format!(
                "the text around a pair has {around} tokens, but the model takes at most {limit}"
            )));
        }
        Ok(Encoding { type_ids: vec![0; ids.len()], ids, truncated_from, unattended: 0 })
    }

    /// Takes token ids of a client, without adding special tokens.
    pub fn accept(&self, mut ids: Vec<u32>, limit: usize, truncation: Truncation) -> Result<Encoding> {
        self.check_ids(&ids)?;
        let found = ids.len();
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            match truncation.side().ok_or_else(|| too_long("input", found, limit))? {
                Side::Left => drop(ids.drain(..found - limit)),
                Side::Right => ids.truncate(limit),
            }
        }
        Ok(Encoding { type_ids: vec![0; ids.len()], ids, truncated_from, unattended: 0 })
    }

    fn check_ids(&self, ids: &[u32]) -> Result<()> {
        let known = self.vocabulary_size();
        match ids.iter().find(|id| **id as usize >= known) {
            None => Ok(()),
            Some(id) => Err(Error::invalid(format!("expected token ids below {known}, but found {id}"))),
        }
    }

    /// Whether a text has more than `max` tokens, without the memory of all of them: encodes it in pieces, with an
    /// allowance for tokens that are cut in two.
    pub fn exceeds(&self, text: &str, max: usize) -> Result<bool> {
        const PIECE_BYTES: usize = 64 * 1024;
        const ALLOWANCE: usize = 64;
        let (mut rest, mut found) = (text, 0);
        while rest.len() > PIECE_BYTES && found <= max {
            let (piece, others) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            found += self.encode_raw(piece)?.len().saturating_sub(ALLOWANCE);
            rest = others;
        }
        Ok(found > max)
    }

    /// The tokens of a text.
    pub fn tokens(&self, text: &str, with_special_tokens: bool) -> Result<Vec<Token>> {
        let encoding = self.post_process(self.encode_with_spans(text)?, None, with_special_tokens)?;
        let parts = encoding.get_ids().iter().zip(encoding.get_tokens()).zip(encoding.get_offsets());
        Ok(parts
            .zip(encoding.get_special_tokens_mask())
            .map(|(((id, text), span), special)| Token {
                id: *id,
                text: text.clone(),
                special: *special == 1,
                span: (*special == 0).then_some(*span),
            })
            .collect())
    }

    /// The token with this id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.raw.id_to_token(id)
    }

    /// The text of token ids.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.check_ids(ids)?;
        self.call(|raw| raw.decode(ids, skip_special_tokens))
            .map_err(|error| Error::invalid(format!("these token ids cannot be decoded: {error}")))
    }
}

impl Encoding {
    fn from_raw(encoding: &RawEncoding, truncated_from: Option<usize>) -> Self {
        let (ids, type_ids) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        Self { ids, type_ids, truncated_from, unattended: 0 }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The maximum number of bytes of a text's first or last `limit` tokens.
pub fn reach(limit: usize) -> usize {
    /// The tokens of all known vocabularies are much shorter, white space before them included.
    const MAX_TOKEN_BYTES: usize = 1024;
    limit.saturating_mul(MAX_TOKEN_BYTES)
}

/// The part of a text that may be among its first or last `limit` tokens, so that megabytes are not tokenized only to
/// be cut off or refused.
fn within_reach(text: &str, limit: usize, truncation: Truncation) -> Result<&str> {
    let reach = reach(limit);
    match truncation.side() {
        _ if text.len() <= reach => Ok(text),
        Some(Side::Right) => Ok(&text[..text.floor_char_boundary(reach)]),
        Some(Side::Left) => Ok(&text[text.ceil_char_boundary(text.len() - reach)..]),
        None => Err(Error::too_large(format!(
            "the text has {} bytes, but the model takes at most {limit} tokens; set `truncate` to shorten it",
            text.len()
        ))),
    }
}

fn too_long(input: &str, found: usize, limit: usize) -> Error {
    Error::too_large(format!(
        "the {input} has {found} tokens, but the model takes at most {limit}; set `truncate` to shorten it"
    ))
}

/// Without the crate's message, which may quote the text: it must not be in a response or a log.
fn cannot_tokenize(_: tokenizers::Error) -> Error {
    Error::inference("the text cannot be tokenized")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::quality::SENTENCES;

    const ODD: [&str; 8] = [
        "",
        " ",
        "ﬁancé  e\u{301} 👍🏽",
        "今日は天気がいい",
        "a\0b",
        "<s>x</s> <mask>",
        "\t\r\n\u{200b}",
        "ʬʬ ʬ",
    ];

    fn fixture(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
        std::fs::read(folder.join(name).join("tokenizer.json")).unwrap()
    }

    #[test]
    fn compiled_tokenizers_give_the_same_tokens() {
        for model in ["tiny-bert", "tiny-distilbert", "tiny-xlm-roberta", "tiny-deberta-v2", "tiny-nllb"] {
            let json = fixture(model);
            let own = Tokenizer::from_json(&json).unwrap();
            let quick = Tokenizer::from_compiled(Tokenizer::compile(&json).unwrap().unwrap()).unwrap();
            assert_eq!(own.vocabulary_size(), quick.vocabulary_size());
            for text in SENTENCES.lines().chain(ODD) {
                let tokens = own.tokens(text, true).unwrap();
                assert_eq!(tokens, quick.tokens(text, true).unwrap(), "{model}: {text}");
                let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                assert_eq!(own.decode(&ids, false).unwrap(), quick.decode(&ids, false).unwrap());
            }
        }
    }

    #[test]
    fn other_models_are_not_compiled() {
        assert_eq!(Tokenizer::compile(&fixture("tiny-roberta")).unwrap(), None);
    }

    #[test]
    fn a_decoder_that_is_not_json_is_an_error_and_not_a_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-decoder-that-is-no-json");
        let refusal = Tokenizer::from_compiled(damaged.to_vec()).err().unwrap();
        insta::assert_snapshot!(refusal.chain(), @"cannot read the tokenizer: its parts do not match");
    }

    #[test]
    fn a_trie_that_begins_with_a_leaf_is_refused() {
        let mut compiled = Tokenizer::compile(&fixture("tiny-deberta-v2")).unwrap().unwrap();
        let number = |at: usize| u64::from_le_bytes(compiled[at..at + 8].try_into().unwrap()) as usize;
        // Magic, five numbers, and for each piece its score and its end; then the text and the trie. The settings
        // come before all of it.
        let begin = compiled.windows(8).position(|window| window == b"pieces\0\x01").unwrap();
        let trie = begin + 6 * 8 + 12 * number(begin + 8) + number(begin + 16);
        compiled[trie + 3] |= 0x80;
        assert!(Tokenizer::from_compiled(compiled).is_err());
    }

    #[test]
    fn texts_of_megabytes_are_refused_before_their_tokens_exhaust_memory() {
        for model in ["tiny-bert", "tiny-roberta", "tiny-xlm-roberta", "tiny-nllb"] {
            let tokenizer = Tokenizer::from_json(&fixture(model)).unwrap();
            let text = "the cat sat on the mat ".repeat(200_000);
            let taken = allocation_counter::measure(|| {
                assert!(tokenizer.exceeds(&text, 100_000).unwrap());
                assert!(tokenizer.encode(&text, 128, Truncation::Off).is_err());
                assert!(tokenizer.encode_pair([&text, "a mat"], 128, Truncation::Off).is_err());
            });
            assert!(taken.bytes_max < 64 << 20, "{model}: {} bytes", taken.bytes_max);
            // Texts within the bounds are accepted.
            let tokens = tokenizer.tokens(&text[..1_000_000], false).unwrap().len();
            assert!(!tokenizer.exceeds(&text[..1_000_000], tokens).unwrap(), "{model}");
            assert!(tokenizer.exceeds(&text[..1_000_000], tokens / 2).unwrap(), "{model}");
        }
    }

    #[test]
    fn a_character_map_with_an_index_out_of_bounds_is_an_error_and_not_a_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-map-that-leads-beyond-its-end");
        let tokenizer = Tokenizer::from_compiled(damaged.to_vec()).unwrap();
        let refusal = tokenizer.tokens("Hello, wörld!", true).unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"the text cannot be tokenized");
    }

    #[test]
    fn a_character_map_of_claimed_gigabytes_is_refused_before_they_are_allocated() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-map-that-says-it-takes-gigabytes");
        let refusal = Tokenizer::from_compiled(damaged.to_vec()).unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"cannot read the tokenizer: expected a character map, but found a truncated one at line 1 column 29463");
    }

    #[test]
    fn an_added_token_that_the_character_map_breaks_is_an_error_and_not_a_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/tokenizer/a-map-that-breaks-an-added-token");
        let refusal = Tokenizer::from_json(damaged).unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"cannot read the tokenizer: its parts do not match");
    }

    #[test]
    fn truncated_compiled_tokenizers_are_refused() {
        for model in ["tiny-bert", "tiny-deberta-v2", "tiny-nllb"] {
            let compiled = Tokenizer::compile(&fixture(model)).unwrap().unwrap();
            for length in (0..compiled.len()).step_by(97) {
                let refusal = Tokenizer::from_compiled(compiled[..length].to_vec());
                assert!(refusal.is_err(), "{model}: {length} bytes");
            }
        }
    }
}
