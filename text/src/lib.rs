//! Texts to token ids and back. The only module that uses the `tokenizers` crate.

mod character_map;
mod encode;
mod file;
#[doc(hidden)]
pub mod models;
mod patterns;
mod windows;
mod words;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use bytes::Bytes;
use tokenizers::{
    Decoder, Encoding as RawEncoding, PostProcessor, PostProcessorWrapper, Result as RawResult,
};

pub use self::{
    character_map::LONGEST_KEYS,
    encode::{AroundPair, Encoding, Side, Truncation, reach},
    windows::{Window, WindowOptions, word_bounds},
    words::{WordForm, WordPrompt},
};
use self::{
    file::RawTokenizer,
    models::{bert::BertWords, vocabulary::Vocabulary},
};
use kivu_base::{Error, Result, regular_file};

/// A model's tokenizer.
///
/// Padding and truncation in its file are ignored, since the request determines both: a sentence-transformers file
/// pads every text to 128 tokens.
#[derive(Debug)]
pub struct Tokenizer {
    /// Without its post-processor: the crate would apply it a second time and so trim token spans twice.
    raw: RawTokenizer,
    post_processor: Option<PostProcessorWrapper>,
    /// The special tokens before and after a single text.
    around: [Vec<u32>; 2],
    /// `None` for models other than BERT.
    bert: Option<BertWords>,
    padding_id: u32,
}

const PADDING_TOKENS: [&str; 2] = ["[PAD]", "<pad>"];

/// A character that normalized texts never contain. Vocabularies in bundles have it before pieces that texts must not
/// match, such as `</s>`.
pub const UNMATCHED: char = '\u{1}';

/// Whether a text's tokens include special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// With the model's special tokens around the text.
    Added,
    /// Text tokens only.
    LeftOut,
}

/// A text token.
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
        let bytes = regular_file::read_text(path).map_err(Error::cannot("read", path.display()))?;
        Self::from_json(&bytes)
    }

    /// Reads a `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        Self::new(file::read(json)?)
    }

    /// Reads the output from [`compile`](Self::compile).
    pub fn from_compiled(compiled: impl Into<Bytes>) -> Result<Self> {
        Self::new(file::read_compiled(compiled.into())?)
    }

    /// Converts a `tokenizer.json` to a form that loads some 20 times as fast if its vocabulary is large. Supports
    /// WordPiece, Unigram and SentencePiece BPE models; `None` for all others.
    pub fn compile(json: &[u8]) -> Result<Option<Vec<u8>>> {
        file::compile(json)
    }

    fn new(mut raw: RawTokenizer) -> Result<Self> {
        let post_processor = raw.get_post_processor().cloned();
        raw.with_post_processor(None::<PostProcessorWrapper>);
        let padding_id = PADDING_TOKENS
            .iter()
            .find_map(|token| raw.token_to_id(token))
            .unwrap_or(0);
        let bert = BertWords::of(&raw);
        let mut tokenizer = Self {
            raw,
            post_processor,
            around: Default::default(),
            bert,
            padding_id,
        };
        tokenizer.around = tokenizer.special_tokens()?;
        Ok(tokenizer)
    }

    /// The special tokens that the post-processor adds before and after a single text.
    fn special_tokens(&self) -> Result<[Vec<u32>; 2]> {
        let whole = self.add_special_tokens(encoding(vec![0]), None)?;
        let (mask, ids) = (whole.get_special_tokens_mask(), whole.get_ids());
        let is_own = |special: &u32| *special == 0;
        let has_types = whole.get_type_ids().iter().any(|id| *id != 0);
        match mask.iter().position(is_own) {
            Some(own) if !mask[own + 1..].iter().any(is_own) && !has_types => {
                Ok([ids[..own].to_vec(), ids[own + 1..].to_vec()])
            }
            _ => Err(Error::model(
                "expected a tokenizer that puts special tokens of type 0 around a text, but found one that also repeats or \
                 drops the text, or gives other types",
            )),
        }
    }

    /// Count of special tokens around a single text.
    pub fn special_count(&self) -> usize {
        self.around.iter().map(Vec::len).sum()
    }

    /// Calls the crate, which panics on some damaged files.
    fn call<T>(&self, call: impl FnOnce(&RawTokenizer) -> RawResult<T>) -> RawResult<T> {
        let result = catch_unwind(AssertUnwindSafe(|| call(&self.raw)));
        result.unwrap_or_else(|_| Err("the tokenizer panicked".into()))
    }

    /// A text's token ids, without special tokens.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let raw_ids = |text: &str| {
            self.call(|raw| raw.encode_fast(text, false))
                .map_err(cannot_tokenize)
        };
        if let (Some(bert), Vocabulary::WordPieces(pieces)) = (&self.bert, self.raw.get_model())
            && let Some(ids) = bert.ids(pieces, text, |part, ids| {
                raw_ids(part).map(|found| ids.extend(found.get_ids()))
            })?
        {
            return Ok(ids);
        }
        match self.raw.get_model() {
            Vocabulary::FastText(features) => Ok(features.ids(text)),
            _ => Ok(raw_ids(text)?.get_ids().to_vec()),
        }
    }

    /// Encodes a text without spans and special tokens.
    fn encode_raw(&self, text: &str) -> Result<RawEncoding> {
        self.ids(text).map(encoding)
    }

    fn add_special_tokens(
        &self,
        first: RawEncoding,
        second: Option<RawEncoding>,
    ) -> Result<RawEncoding> {
        self.post_process(first, second, SpecialTokens::Added)
    }

    /// Trims token spans, and may add special tokens.
    fn post_process(
        &self,
        first: RawEncoding,
        second: Option<RawEncoding>,
        special: SpecialTokens,
    ) -> Result<RawEncoding> {
        let are_added = special == SpecialTokens::Added;
        let process = |raw: &RawTokenizer| match &self.post_processor {
            Some(processor) => processor.process(first, second, are_added),
            None => raw.post_process(first, second, are_added),
        };
        self.call(process).map_err(cannot_tokenize)
    }

    fn encode_with_spans(&self, text: &str) -> Result<RawEncoding> {
        // The crate skips empty texts, which have a feature too.
        if let Vocabulary::FastText(features) = self.raw.get_model() {
            return Ok(encoding_of_tokens(features.tokenize(text), text));
        }
        self.call(|raw| raw.encode_char_offsets(text, false))
            .map_err(cannot_tokenize)
    }

    /// Whether the model reads two texts together.
    fn reads_pairs(&self) -> bool {
        !matches!(self.raw.get_model(), Vocabulary::FastText(_))
    }

    /// The id that pads short texts.
    pub fn padding_id(&self) -> u32 {
        self.padding_id
    }

    /// Looks up a token's id.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.raw.token_to_id(token)
    }

    /// Vocabulary size, added tokens included.
    pub fn vocabulary_size(&self) -> usize {
        self.raw.get_vocab_size(true)
    }

    /// Tokens with this id or a higher one, by id, added tokens included.
    pub fn tokens_from(&self, id: u32) -> Vec<(u32, String)> {
        let all = self
            .raw
            .get_vocab(true)
            .into_iter()
            .map(|(token, id)| (id, token));
        let mut found: Vec<_> = all.filter(|(found, _)| *found >= id).collect();
        found.sort_unstable();
        found
    }

    fn check_ids(&self, ids: &[u32]) -> Result<()> {
        let known = self.vocabulary_size();
        match ids.iter().find(|id| **id as usize >= known) {
            None => Ok(()),
            Some(id) => Err(Error::invalid(format!(
                "expected token ids below {known}, but found {id}"
            ))),
        }
    }

    /// Tokenizes a text.
    pub fn tokens(&self, text: &str, special: SpecialTokens) -> Result<Vec<Token>> {
        let encoding = self.post_process(self.encode_with_spans(text)?, None, special)?;
        let parts = encoding
            .get_ids()
            .iter()
            .zip(encoding.get_tokens())
            .zip(encoding.get_offsets());
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

    /// The token with this id; an added token as the files write it, as in `convert_ids_to_tokens` of `transformers`.
    pub fn token(&self, id: u32) -> Option<String> {
        // `id_to_token` of the crate returns the normalized form.
        let added = self.raw.get_added_vocabulary().get_added_tokens_decoder();
        added
            .get(&id)
            .map(|token| token.content.clone())
            .or_else(|| self.raw.id_to_token(id))
    }

    /// Decodes token ids to text.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.check_ids(ids)?;
        let decode = |raw: &RawTokenizer| match raw.get_decoder() {
            Some(decoder) if models::byte_pieces::come_first(decoder) => {
                let added = raw.get_added_vocabulary();
                let tokens = ids.iter().filter_map(|id| raw.id_to_token(*id));
                let tokens =
                    tokens.filter(|token| !skip_special_tokens || !added.is_special_token(token));
                decoder.decode(models::byte_pieces::replace_invalid(tokens.collect()))
            }
            _ => raw.decode(ids, skip_special_tokens),
        };
        self.call(decode)
            .map_err(|error| Error::invalid(format!("these token ids cannot be decoded: {error}")))
    }
}

/// Wraps token ids as an encoding without spans.
fn encoding(ids: Vec<u32>) -> RawEncoding {
    let token = |id| tokenizers::Token::new(id, String::new(), (0, 0));
    RawEncoding::from_tokens(ids.into_iter().map(token).collect(), 0)
}

/// Wraps tokens with their spans, which may overlap.
fn encoding_of_tokens(mut tokens: Vec<tokenizers::Token>, text: &str) -> RawEncoding {
    // The number of characters before each byte.
    let mut characters = 0;
    let mut before = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        before.push(characters);
        characters += usize::from(byte & 0xC0 != 0x80);
    }
    let place = |byte: usize| before.get(byte).copied().unwrap_or(characters);
    for token in &mut tokens {
        token.offsets = (place(token.offsets.0), place(token.offsets.1));
    }
    RawEncoding::from_tokens(tokens, 0)
}

/// Without the crate's message, which may quote the text: it must not be in a response or a log.
fn cannot_tokenize(_: tokenizers::Error) -> Error {
    Error::inference("the text cannot be tokenized")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENTENCES: &str = include_str!("../../compiler/src/sentences.txt");

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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
        std::fs::read(folder.join(name).join("tokenizer.json")).unwrap()
    }

    #[test]
    fn compiled_tokenizers_give_the_same_tokens() {
        for model in [
            "tiny-bert",
            "tiny-distilbert",
            "tiny-xlm-roberta",
            "tiny-deberta-v2",
            "tiny-nllb",
        ] {
            let json = fixture(model);
            let own = Tokenizer::from_json(&json).unwrap();
            let quick =
                Tokenizer::from_compiled(Tokenizer::compile(&json).unwrap().unwrap()).unwrap();
            assert_eq!(own.vocabulary_size(), quick.vocabulary_size());
            for text in SENTENCES.lines().chain(ODD) {
                let tokens = own.tokens(text, SpecialTokens::Added).unwrap();
                assert_eq!(
                    tokens,
                    quick.tokens(text, SpecialTokens::Added).unwrap(),
                    "{model}: {text}"
                );
                let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                assert_eq!(
                    own.decode(&ids, false).unwrap(),
                    quick.decode(&ids, false).unwrap()
                );
            }
        }
    }

    #[test]
    fn added_tokens_keep_their_case() {
        let mut file: serde_json::Value = serde_json::from_slice(&fixture("tiny-bert")).unwrap();
        for token in file["added_tokens"].as_array_mut().unwrap() {
            token["normalized"] = true.into();
        }
        let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
        let separator = tokenizer.id("[SEP]").unwrap();
        assert_eq!(tokenizer.token(separator).as_deref(), Some("[SEP]"));
    }

    #[test]
    fn other_models_are_not_compiled() {
        assert_eq!(Tokenizer::compile(&fixture("tiny-roberta")).unwrap(), None);
    }

    #[test]
    fn a_decoder_that_is_not_json_is_an_error_and_not_a_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-decoder-that-is-no-json");
        let refusal = Tokenizer::from_compiled(damaged.to_vec()).err().unwrap();
        assert!(
            refusal
                .chain()
                .starts_with("cannot read the tokenizer: control character"),
            "{}",
            refusal.chain()
        );
    }

    #[test]
    fn a_trie_that_begins_with_a_leaf_is_refused() {
        let mut compiled = Tokenizer::compile(&fixture("tiny-deberta-v2"))
            .unwrap()
            .unwrap();
        let number =
            |at: usize| u64::from_le_bytes(compiled[at..at + 8].try_into().unwrap()) as usize;
        // Magic, five numbers, then each piece's score and end; then the text and the trie. The tokenizer's settings
        // come first.
        let begin = compiled
            .windows(8)
            .position(|window| window == b"pieces\0\x01")
            .unwrap();
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
                assert!(
                    tokenizer
                        .encode_pair([&text, "a mat"], 128, Truncation::Off)
                        .is_err()
                );
            });
            assert!(
                taken.bytes_max < 64 << 20,
                "{model}: {} bytes",
                taken.bytes_max
            );
            // Texts within the bounds are accepted.
            let tokens = tokenizer
                .tokens(&text[..1_000_000], SpecialTokens::LeftOut)
                .unwrap()
                .len();
            assert!(
                !tokenizer.exceeds(&text[..1_000_000], tokens).unwrap(),
                "{model}"
            );
            assert!(
                tokenizer.exceeds(&text[..1_000_000], tokens / 2).unwrap(),
                "{model}"
            );
        }
    }

    #[test]
    fn long_white_space_and_long_words_do_not_hide_the_rest_of_a_text() {
        for model in ["tiny-bert", "tiny-xlm-roberta", "tiny-nllb"] {
            let tokenizer = Tokenizer::from_json(&fixture(model)).unwrap();
            let rare = if model == "tiny-bert" {
                "x".repeat(200_000)
            } else {
                " ".repeat(200_000)
            };
            for text in [
                format!("{rare} the cat"),
                format!("the cat {rare} sat"),
                format!("the cat {rare}"),
            ] {
                let all: Vec<u32> = tokenizer
                    .tokens(&text, SpecialTokens::Added)
                    .unwrap()
                    .iter()
                    .map(|token| token.id)
                    .collect();
                assert!((3..20).contains(&all.len()), "{model}: {}", all.len());
                for truncation in [
                    Truncation::At(Side::Right),
                    Truncation::At(Side::Left),
                    Truncation::Off,
                ] {
                    let found = tokenizer.encode(&text, 32, truncation).unwrap();
                    assert_eq!((&found.ids, found.truncated_from), (&all, None), "{model}");
                    let pair = tokenizer
                        .encode_pair([&text, "a mat"], 32, truncation)
                        .unwrap();
                    assert_eq!(
                        (&pair.ids[..all.len() - 1], pair.truncated_from),
                        (&all[..all.len() - 1], None),
                        "{model}"
                    );
                }
            }
            // Tokens behind them are still cut off.
            let text = format!("{rare} {}", "the cat sat ".repeat(50_000));
            let found = tokenizer
                .encode(&text, 32, Truncation::At(Side::Right))
                .unwrap();
            let expected = tokenizer
                .tokens(
                    &format!("{rare} {}", "the cat sat ".repeat(30)),
                    SpecialTokens::Added,
                )
                .unwrap();
            let expected: Vec<u32> = expected.iter().map(|token| token.id).collect();
            assert_eq!(
                (found.ids.len(), &found.ids[..31]),
                (32, &expected[..31]),
                "{model}"
            );
            assert!(
                found.truncated_from.is_some_and(|found| found > 32),
                "{model}"
            );
            assert!(tokenizer.encode(&text, 32, Truncation::Off).is_err());
        }
    }

    /// The crate truncates no pair to fewer tokens than those around it.
    #[test]
    fn a_pair_without_room_is_refused() {
        let tokenizer = Tokenizer::from_json(&fixture("tiny-bert")).unwrap();
        let encode = |limit| {
            let found =
                tokenizer.encode_pair(["the cat", "a mat"], limit, Truncation::At(Side::Right));
            found.map(|encoding| encoding.len())
        };
        assert_eq!(encode(3).unwrap(), 3);
        insta::assert_snapshot!(encode(2).unwrap_err(), @"the tokens around a pair of texts are 3, but the model takes at most 2");
    }

    #[test]
    fn a_character_map_with_an_index_out_of_bounds_is_an_error_and_not_a_panic() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-map-that-leads-beyond-its-end");
        let tokenizer = Tokenizer::from_compiled(damaged.to_vec()).unwrap();
        let refusal = tokenizer
            .tokens("Hello, wörld!", SpecialTokens::Added)
            .unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"the text cannot be tokenized");
    }

    #[test]
    fn a_character_map_of_claimed_gigabytes_is_refused_before_they_are_allocated() {
        let damaged = include_bytes!("../../fuzz/corpus/pieces/a-map-that-says-it-takes-gigabytes");
        let refusal = Tokenizer::from_compiled(damaged.to_vec()).unwrap_err();
        insta::assert_snapshot!(refusal.chain(), @"cannot read the tokenizer: the character map is truncated at line 1 column 29463");
    }

    #[test]
    fn an_added_token_that_the_character_map_breaks_is_an_error_and_not_a_panic() {
        let damaged =
            include_bytes!("../../fuzz/corpus/tokenizer/a-map-that-breaks-an-added-token");
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
