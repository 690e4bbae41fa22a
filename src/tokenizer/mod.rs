//! Texts to token ids and back: the only place that speaks to the `tokenizers` crate.

mod byte_pairs;
mod file;
mod trie;
mod unigram;
mod vocabulary;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use bytes::Bytes;
use serde::Deserialize;
use tokenizers::{
    Encoding as RawEncoding, PostProcessor, Result as RawResult, TruncationDirection, TruncationParams,
    TruncationStrategy, utils::truncation::truncate_encodings,
};

use self::file::RawTokenizer;
use crate::error::{Error, Result};

/// A model's tokenizer, without the padding and truncation that its file may carry: those are a matter of the
/// request (a sentence-transformers file pads every text to 128 tokens, whatever its length).
#[derive(Debug)]
pub struct Tokenizer {
    raw: RawTokenizer,
    special_tokens: usize,
    padding_id: u32,
}

/// What vocabularies call the token that stands for nothing.
const PADDING_TOKENS: [&str; 2] = ["[PAD]", "<pad>"];

/// Which end of a text gives way when it is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The beginning goes.
    #[serde(alias = "Left")]
    Left,
    /// The end goes.
    #[default]
    #[serde(alias = "Right")]
    Right,
}

/// What to do with a text of more tokens than the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// Refuse it.
    Off,
    /// Shorten it at this side, special tokens kept.
    At(Side),
}

impl From<Side> for TruncationDirection {
    fn from(side: Side) -> Self {
        match side {
            Side::Left => Self::Left,
            Side::Right => Self::Right,
        }
    }
}

/// What to do with a pair of texts of more tokens than the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairTruncation {
    /// Refuse it.
    Off,
    /// Shorten the longer one, and both once they are of one length, at this side.
    LongestFirst(Side),
    /// Shorten the first only, at its end.
    OnlyFirst,
}

impl From<Truncation> for PairTruncation {
    fn from(truncation: Truncation) -> Self {
        match truncation {
            Truncation::Off => Self::Off,
            Truncation::At(side) => Self::LongestFirst(side),
        }
    }
}

impl PairTruncation {
    /// The same for a text that comes without another.
    pub fn alone(self) -> Truncation {
        match self {
            Self::Off => Truncation::Off,
            Self::LongestFirst(side) => Truncation::At(side),
            Self::OnlyFirst => Truncation::At(Side::Right),
        }
    }
}

/// A text as a model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// The token ids, special tokens included.
    pub ids: Vec<u32>,
    /// For each token, which of a pair of texts it belongs to.
    pub type_ids: Vec<u32>,
    /// How many tokens the text had before it was shortened, if it was; of a very long text, at least so many.
    pub truncated_from: Option<usize>,
}

/// One token of a text, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The id in the vocabulary.
    pub id: u32,
    /// The vocabulary's spelling.
    pub text: String,
    /// Whether it marks structure rather than text.
    pub special: bool,
    /// The part of the text that it stands for, in characters; nothing for tokens that were added.
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

    /// Reads what [`Tokenizer::compile`] has made.
    pub fn from_compiled(pieces: impl Into<Bytes>) -> Result<Self> {
        file::read_compiled(pieces.into()).map(Self::new)
    }

    /// A `tokenizer.json` in a form that is loaded some 20 times as fast where its vocabulary is large, or nothing
    /// where there is none for its model (all but Unigram).
    pub fn compile(json: &[u8]) -> Result<Option<Vec<u8>>> {
        file::compile(json)
    }

    fn new(raw: RawTokenizer) -> Self {
        let special_tokens = raw.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        let padding_id = PADDING_TOKENS.iter().find_map(|token| raw.token_to_id(token));
        Self { raw, special_tokens, padding_id: padding_id.unwrap_or(0) }
    }

    /// Asks the crate, which panics over some of what a damaged file says of characters and words.
    fn ask<T>(&self, question: impl FnOnce(&RawTokenizer) -> RawResult<T>) -> RawResult<T> {
        let answer = catch_unwind(AssertUnwindSafe(|| question(&self.raw)));
        answer.unwrap_or_else(|_| Err("the tokenizer panicked".into()))
    }

    /// The id that fills up texts that are shorter than others.
    pub fn padding_id(&self) -> u32 {
        self.padding_id
    }

    /// The number of ids, those of added tokens included.
    pub fn vocabulary_size(&self) -> usize {
        self.raw.get_vocab_size(true)
    }

    /// Encodes a text, special tokens included, into at most `limit` tokens.
    ///
    /// The error of a text that is too long names the number of its tokens and the limit.
    pub fn encode(&self, text: &str, limit: usize, truncation: Truncation) -> Result<Encoding> {
        let text = within_reach(text, limit, truncation)?;
        let mut bare = self.ask(|raw| raw.encode_fast(text, false)).map_err(cannot_tokenise)?;
        let found = bare.len() + self.special_tokens;
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let Truncation::At(side) = truncation else {
                return Err(Error::too_large(format!(
                    "the text has {found} tokens, but the model takes at most {limit}; \
                     set `truncate` to shorten it"
                )));
            };
            bare.truncate(limit.saturating_sub(self.special_tokens), 0, side.into());
            // What was cut off is of no use, and the post-processor would dress it up as well.
            bare.take_overflowing();
        }
        let encoding = self.ask(|raw| raw.post_process(bare, None, true)).map_err(cannot_tokenise)?;
        Ok(Encoding::from_raw(&encoding, truncated_from))
    }

    /// The token ids of a text, with nothing put before or after them.
    pub fn encode_without_special_tokens(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.ask(|raw| raw.encode_fast(text, false)).map_err(cannot_tokenise)?.get_ids().to_vec())
    }

    /// The part of a text that its encoding kept, for models that make their tokens themselves.
    pub fn kept_part(
        &self,
        text: String,
        encoding: &Encoding,
        limit: usize,
        truncation: Truncation,
    ) -> Result<String> {
        let (Some(_), Truncation::At(side)) = (encoding.truncated_from, truncation) else { return Ok(text) };
        let reachable = within_reach(&text, limit, truncation)?;
        let bare = self.ask(|raw| raw.encode(reachable, false)).map_err(cannot_tokenise)?;
        let kept = limit.saturating_sub(self.special_tokens).min(bare.len());
        let kept = match side {
            Side::Right => &bare.get_offsets()[..kept],
            Side::Left => &bare.get_offsets()[bare.len() - kept..],
        };
        let start = kept.iter().map(|(start, _)| *start).min().unwrap_or(0);
        let end = kept.iter().map(|(_, end)| *end).max().unwrap_or(0);
        Ok(reachable.get(start..end).unwrap_or_default().to_owned())
    }

    /// Encodes a pair of texts, special tokens included, into at most `limit` tokens.
    ///
    /// An empty second text is a text all the same: its separator stays.
    pub fn encode_pair(&self, pair: [&str; 2], limit: usize, truncation: PairTruncation) -> Result<Encoding> {
        let bare = |text| {
            let text = within_reach(text, limit, truncation.alone())?;
            self.ask(|raw| raw.encode_fast(text, false)).map_err(cannot_tokenise)
        };
        let [mut first, mut second] = [bare(pair[0])?, bare(pair[1])?];
        let special_tokens =
            self.raw.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let found = first.len() + second.len() + special_tokens;
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let too_long = || {
                Error::too_large(format!(
                    "the pair of texts has {found} tokens, but the model takes at most {limit}; \
                     set `truncate` to shorten it"
                ))
            };
            let (strategy, side) = match truncation {
                PairTruncation::Off => return Err(too_long()),
                PairTruncation::LongestFirst(side) => (TruncationStrategy::LongestFirst, side),
                PairTruncation::OnlyFirst => (TruncationStrategy::OnlyFirst, Side::Right),
            };
            let parameters = TruncationParams {
                direction: side.into(),
                max_length: limit.saturating_sub(special_tokens),
                strategy,
                stride: 0,
            };
            let (cut_first, cut_second) =
                truncate_encodings(first, Some(second), &parameters).map_err(|_| too_long())?;
            (first, second) = (cut_first, cut_second.unwrap_or_default());
            first.take_overflowing();
            second.take_overflowing();
        }
        let encoding =
            self.ask(|raw| raw.post_process(first, Some(second), true)).map_err(cannot_tokenise)?;
        Ok(Encoding::from_raw(&encoding, truncated_from))
    }

    /// Takes ids that were made elsewhere, as they are: no special tokens are added.
    pub fn accept(&self, ids: Vec<u32>, limit: usize, truncation: Truncation) -> Result<Encoding> {
        let known = self.vocabulary_size();
        if let Some(id) = ids.iter().find(|id| **id as usize >= known) {
            return Err(Error::invalid(format!("expected token ids below {known}, but found {id}")));
        }
        let found = ids.len();
        let (ids, truncated_from) = match truncation {
            _ if found <= limit => (ids, None),
            Truncation::Off => {
                return Err(Error::too_large(format!(
                    "the input has {found} tokens, but the model takes at most {limit}; \
                     set `truncate` to shorten it"
                )));
            }
            Truncation::At(Side::Left) => (ids[found - limit..].to_vec(), Some(found)),
            Truncation::At(Side::Right) => (ids[..limit].to_vec(), Some(found)),
        };
        Ok(Encoding { type_ids: vec![0; ids.len()], ids, truncated_from })
    }

    /// Whether a text is so long that it has more than `most` tokens, without the memory that they take: it is looked
    /// at in pieces, and what is cut apart between two of them is forgiven.
    pub fn exceeds(&self, text: &str, most: usize) -> Result<bool> {
        const PIECE_BYTES: usize = 64 * 1024;
        const CUT_APART: usize = 64;
        let (mut rest, mut found) = (text, 0);
        while rest.len() > PIECE_BYTES && found <= most {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            let tokens = self.ask(|raw| raw.encode_fast(piece, false)).map_err(cannot_tokenise)?.len();
            found += tokens.saturating_sub(CUT_APART);
            rest = behind;
        }
        Ok(found > most)
    }

    /// Splits a text into tokens, each with the characters that it came from.
    pub fn tokens(&self, text: &str, with_special_tokens: bool) -> Result<Vec<Token>> {
        let encoding =
            self.ask(|raw| raw.encode_char_offsets(text, with_special_tokens)).map_err(cannot_tokenise)?;
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

    /// The vocabulary's spelling of a token.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.raw.id_to_token(id)
    }

    /// Puts a text together again from its token ids.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        let known = self.vocabulary_size();
        if let Some(id) = ids.iter().find(|id| **id as usize >= known) {
            return Err(Error::invalid(format!("expected token ids below {known}, but found {id}")));
        }
        self.ask(|raw| raw.decode(ids, skip_special_tokens))
            .map_err(|error| Error::invalid(format!("these token ids cannot be decoded: {error}")))
    }
}

impl Encoding {
    fn from_raw(encoding: &RawEncoding, truncated_from: Option<usize>) -> Self {
        Self { ids: encoding.get_ids().to_vec(), type_ids: encoding.get_type_ids().to_vec(), truncated_from }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The bytes of a text that can hold its first or last `limit` tokens.
pub fn reach(limit: usize) -> usize {
    /// No token of any known vocabulary comes near this length, white space before it included.
    const LONGEST_TOKEN_BYTES: usize = 1024;
    limit.saturating_mul(LONGEST_TOKEN_BYTES)
}

/// The part of a text that can still be among its first or last `limit` tokens: megabytes beyond it would be
/// tokenised only to be thrown away, or to be refused.
fn within_reach(text: &str, limit: usize, truncation: Truncation) -> Result<&str> {
    let reach = reach(limit);
    match truncation {
        _ if text.len() <= reach => Ok(text),
        Truncation::At(Side::Right) => Ok(&text[..text.floor_char_boundary(reach)]),
        Truncation::At(Side::Left) => Ok(&text[text.ceil_char_boundary(text.len() - reach)..]),
        Truncation::Off => Err(Error::too_large(format!(
            "the text has {} bytes, but the model takes at most {limit} tokens; set `truncate` to shorten it",
            text.len()
        ))),
    }
}

/// The tokenizer's own words may repeat the text, which belongs neither into an answer nor into a log.
fn cannot_tokenise(_: tokenizers::Error) -> Error {
    Error::inference("the text cannot be tokenised")
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
    fn pieces_give_the_tokens_of_the_file_that_they_are_made_of() {
        for model in ["tiny-xlm-roberta", "tiny-deberta-v2", "tiny-nllb"] {
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
    fn other_models_have_no_pieces() {
        assert_eq!(Tokenizer::compile(&fixture("tiny-bert")).unwrap(), None);
        assert_eq!(Tokenizer::compile(&fixture("tiny-roberta")).unwrap(), None);
    }

    #[test]
    fn a_decoder_that_is_no_json_is_refused_and_does_not_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-decoder-that-is-no-json");
        let refusal = Tokenizer::from_compiled(damaged.to_vec()).err().unwrap();
        insta::assert_snapshot!(refusal.chain(), @"cannot read the tokenizer: its parts do not fit together");
    }

    #[test]
    fn a_trie_that_begins_with_a_leaf_is_refused_since_it_would_be_read_beyond_its_end() {
        let mut pieces = Tokenizer::compile(&fixture("tiny-deberta-v2")).unwrap().unwrap();
        let number = |at: usize| u64::from_le_bytes(pieces[at..at + 8].try_into().unwrap()) as usize;
        // Magic, five numbers, and for each piece its score and its end; then the text and the trie. The settings
        // come before all of it.
        let begin = pieces.windows(8).position(|window| window == b"pieces\0\x01").unwrap();
        let trie = begin + 6 * 8 + 12 * number(begin + 8) + number(begin + 16);
        pieces[trie + 3] |= 0x80;
        assert!(Tokenizer::from_compiled(pieces).is_err());
    }

    #[test]
    fn texts_of_megabytes_are_refused_before_their_tokens_fill_the_memory() {
        for model in ["tiny-bert", "tiny-roberta", "tiny-xlm-roberta", "tiny-nllb"] {
            let tokenizer = Tokenizer::from_json(&fixture(model)).unwrap();
            let text = "the cat sat on the mat ".repeat(200_000);
            let taken = allocation_counter::measure(|| {
                assert!(tokenizer.exceeds(&text, 100_000).unwrap());
                assert!(tokenizer.encode(&text, 128, Truncation::Off).is_err());
                assert!(tokenizer.encode_pair([&text, "a mat"], 128, PairTruncation::Off).is_err());
            });
            assert!(taken.bytes_max < 64 << 20, "{model}: {} bytes", taken.bytes_max);
            // What is within the bounds is not refused.
            let tokens = tokenizer.tokens(&text[..1_000_000], false).unwrap().len();
            assert!(!tokenizer.exceeds(&text[..1_000_000], tokens).unwrap(), "{model}");
            assert!(tokenizer.exceeds(&text[..1_000_000], tokens / 2).unwrap(), "{model}");
        }
    }

    #[test]
    fn a_map_of_characters_that_leads_beyond_its_end_is_an_error_and_no_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-map-that-leads-beyond-its-end");
        let tokenizer = Tokenizer::from_compiled(damaged.to_vec()).unwrap();
        let refusal = tokenizer.tokens("Hello, wörld!", true).unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"the text cannot be tokenised");
    }

    #[test]
    fn a_map_of_characters_that_says_it_takes_gigabytes_is_refused_before_it_does() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-map-that-says-it-takes-gigabytes");
        let refusal = Tokenizer::from_compiled(damaged.to_vec()).unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"cannot read the tokenizer: expected a map of characters, but found one that is not whole at line 1 column 29463");
    }

    #[test]
    fn an_added_token_that_the_map_of_characters_leads_astray_is_an_error_and_no_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/tokenizer/a-map-that-breaks-an-added-token");
        let refusal = Tokenizer::from_json(damaged).unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"cannot read the tokenizer: its parts do not fit together");
    }

    #[test]
    fn damaged_pieces_are_refused() {
        let pieces = Tokenizer::compile(&fixture("tiny-deberta-v2")).unwrap().unwrap();
        for length in (0..pieces.len()).step_by(97) {
            assert!(Tokenizer::from_compiled(pieces[..length].to_vec()).is_err(), "{length} bytes");
        }
    }
}
