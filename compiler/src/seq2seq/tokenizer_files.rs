//! Text generators' tokenizers, and the languages named by their files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::tokenizer_json::{check_pieces, is_unigram, with_template};
use crate::{
    byte_pairs,
    config::ConfigFile,
    files::{read_if_exists, read_json, read_json_if_exists},
    sentencepiece::{BuiltTokenizer, MAX_IDS, SentencePieces, Token, Vocabulary},
};
use kivu::{
    error::{Error, Result},
    pipeline::seq2seq::{Languages, TargetToken, TokenSide, UnknownTokens},
    repository::bundle::TOKENIZER,
};

const CONFIG: &str = "tokenizer_config.json";
const PIECES: &str = "sentencepiece.bpe.model";
const VOCABULARY: &str = "vocab.json";
/// T5's and Pegasus' SentencePiece model.
const OWN_PIECES: &str = "spiece.model";
/// End-of-text token.
const END: &str = "</s>";
/// Padding.
const PAD: &str = "<pad>";
/// The token for unknown pieces.
const UNKNOWN: &str = "<unk>";
/// Its id in families with shifted ids.
const END_ID: i64 = 2;
/// Name prefix for T5's sentinel tokens, which follow its pieces in descending order.
const BLANK: &str = "extra_id_";
/// Default number of T5 sentinel tokens.
const BLANKS: u32 = 100;
/// Number of ids before Pegasus' pieces; Pegasus defines the first pieces itself.
const PEGASUS_OFFSET: u32 = 103;
/// Offset from SentencePiece ids, which lack padding, to NLLB's ids.
const SHIFT: u32 = 1;
/// NLLB's first ids.
const NLLB_SPECIAL: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];
/// mBART-50's languages; their tokens follow the pieces in this order. mBART has a prefix of this list.
const MBART_LANGUAGES: [&str; 52] = [
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN",
    "it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO",
    "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN", "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL",
    "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN", "mn_MN", "mr_IN", "pl_PL", "ps_AF",
    "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA",
    "gl_ES", "sl_SI",
];
const FIRST_MBART_LANGUAGES: usize = 25;
/// Default language for mBART texts.
const MBART_LANGUAGE: &str = "en_XX";

/// A model's tokenizers.
pub(crate) struct Tokenizers {
    /// Source `tokenizer.json`.
    pub(crate) source: Vec<u8>,
    /// Target `tokenizer.json`, if different.
    pub(super) target: Option<Vec<u8>>,
    /// The token that a translator's tokenizer adds to sources, if its files name it.
    pub(super) end: Option<i64>,
    pub(super) unknown_tokens: Option<UnknownTokens>,
    /// None if the files do not name them.
    pub(super) languages: Option<Languages>,
    /// Maximum number of tokens per text, if the files set one.
    pub(super) max_tokens: Option<usize>,
}

/// Used fields in `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    added_tokens_decoder: BTreeMap<u32, AddedToken>,
    additional_special_tokens: Vec<Content>,
    extra_special_tokens: ExtraTokens,
    bos_token: Option<Content>,
    eos_token: Option<Content>,
    pad_token: Option<Content>,
    unk_token: Option<Content>,
    legacy_behaviour: bool,
    model_max_length: Option<f64>,
    separate_vocabs: bool,
    tokenizer_class: Option<String>,
    extra_ids: Option<u32>,
    offset: Option<u32>,
    source_lang: Option<String>,
    src_lang: Option<String>,
    target_lang: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AddedToken {
    /// Only in a `tokenizer.json`.
    id: u32,
    content: String,
    lstrip: bool,
    rstrip: bool,
    special: bool,
}

/// A token as a string or with its properties.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Plain(String),
    Described { content: String },
}

/// Names, or tokens by name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ExtraTokens {
    List(Vec<Content>),
    ByName(IgnoredAny),
}

impl Default for ExtraTokens {
    fn default() -> Self {
        Self::ByName(IgnoredAny)
    }
}

impl Content {
    fn as_str(&self) -> &str {
        match self {
            Self::Plain(content) | Self::Described { content } => content,
        }
    }
}

/// M2M100's or NLLB's tokenizer in `folder`, for a model with `size` ids.
pub(crate) fn many_to_many(folder: &Path, size: usize) -> Result<Tokenizers> {
    let config = Config::open(folder)?;
    let ids: Option<BTreeMap<String, u32>> = read_json_if_exists(&folder.join(VOCABULARY))?;
    let is_m2m100 = ids.is_some();
    let (
        BuiltTokenizer {
            json: source,
            unknown_tokens,
        },
        tokens,
    ) = with_tokens(folder, |pieces| match ids {
        Some(ids) => config.vocabulary(ids, size),
        None => {
            let tokens = config.tokens(pieces.pieces().len() as u32 + SHIFT);
            config.shifted_vocabulary(pieces, tokens, size)
        }
    })?;
    let code = |token: &str| match is_m2m100 {
        true => token
            .strip_prefix("__")?
            .strip_suffix("__")
            .map(str::to_owned),
        // Three letters for the language, four for the script: `por_Latn`.
        false => (token.len() == 8 && token.find('_') == Some(3)).then(|| token.to_owned()),
    };
    let codes: BTreeMap<String, i64> = tokens
        .iter()
        .filter_map(|(token, id)| Some((code(token)?, i64::from(*id))))
        .collect();
    if codes.is_empty() {
        return Err(Error::model(format!(
            "expected language tokens in `{CONFIG}` of `{}` (`additional_special_tokens`), but found none",
            folder.display()
        )));
    }
    config.check_special(tokens.keys().filter(|token| code(token).is_some()))?;
    let side = if config.legacy_behaviour {
        TokenSide::After
    } else {
        TokenSide::Before
    };
    let languages = Some(Languages::Tokens {
        codes,
        side,
        target: TargetToken::First,
    });
    let end = tokens.get(config.end()?).copied().map(i64::from);
    Ok(Tokenizers {
        source,
        target: None,
        end,
        unknown_tokens,
        languages,
        max_tokens: config.max_tokens(),
    })
}

/// mBART's or mBART-50's tokenizer in `folder`, for a model with `size` ids. `class` is the tokenizer class in
/// `config.json`, if any. A model that does not translate reads texts in its files' language.
pub(crate) fn mbart(
    folder: &Path,
    class: Option<&str>,
    size: usize,
    translates: bool,
) -> Result<Tokenizers> {
    let config = Config::open(folder)?;
    let class = config.tokenizer_class.as_deref().or(class);
    let is_mbart50 = class.is_some_and(|class| class.starts_with("MBart50"));
    let (
        BuiltTokenizer {
            json: mut source,
            unknown_tokens,
        },
        tokens,
    ) = with_tokens(folder, |pieces| {
        config.mbart_vocabulary(pieces, size, is_mbart50)
    })?;
    let end = tokens.get(config.end()?).copied().map(i64::from);
    let tokens = tokens
        .into_iter()
        .filter(|(token, _)| MBART_LANGUAGES.contains(&token.as_str()));
    let codes: BTreeMap<String, i64> = tokens.map(|(token, id)| (token, i64::from(id))).collect();
    config.check_special(codes.keys())?;
    // The token positions that each model was trained with.
    let (side, target) = match is_mbart50 {
        true => (TokenSide::Before, TargetToken::First),
        false => (TokenSide::After, TargetToken::Start),
    };
    if !translates {
        let name = config.src_lang.as_deref().unwrap_or(MBART_LANGUAGE);
        let missing = || {
            Error::model(format!(
                "expected the token of the language `{name}`, but found none"
            ))
        };
        let language = (name, *codes.get(name).ok_or_else(missing)?);
        let end = (END, END_ID);
        source = match side {
            TokenSide::Before => with_template(&source, [&[language], &[end]]),
            TokenSide::After => with_template(&source, [&[], &[end, language]]),
        }?;
    }
    let languages = translates.then_some(Languages::Tokens {
        codes,
        side,
        target,
    });
    Ok(Tokenizers {
        source,
        target: None,
        end,
        unknown_tokens,
        languages,
        max_tokens: config.max_tokens(),
    })
}

/// A multilingual tokenizer in `folder`, its unsplittable tokens, and ids that the model lacks. It is built with the
/// vocabulary that `vocabulary` returns, unless there is only a `tokenizer.json`: that was converted from the
/// SentencePiece model, and treats some white space differently.
fn with_tokens(
    folder: &Path,
    vocabulary: impl FnOnce(&SentencePieces) -> Result<Vocabulary>,
) -> Result<(BuiltTokenizer, BTreeMap<String, u32>)> {
    if let Some(json) = read_if_exists(&folder.join(TOKENIZER))? {
        check_pieces(&json)?;
        if !folder.join(PIECES).is_file() {
            let tokens = added_tokens(&json)?;
            return Ok((
                BuiltTokenizer {
                    json,
                    unknown_tokens: None,
                },
                tokens,
            ));
        }
    }
    let pieces = SentencePieces::open(&folder.join(PIECES))?;
    let vocabulary = vocabulary(&pieces)?;
    let tokens = vocabulary
        .tokens
        .iter()
        .map(|(content, token)| (content.clone(), token.id));
    Ok((pieces.tokenizer(&vocabulary)?, tokens.collect()))
}

/// Marian's tokenizers in `folder`, for a model with the given source and target vocabulary sizes.
pub(crate) fn marian(folder: &Path, sizes: [usize; 2]) -> Result<Tokenizers> {
    let config = Config::open(folder)?;
    let source: BTreeMap<String, u32> = read_json(&folder.join(VOCABULARY))?;
    let targets: BTreeMap<String, i64> = source
        .iter()
        .filter_map(|(piece, id)| {
            let code = piece.strip_prefix(">>")?.strip_suffix("<<")?;
            Some((code.to_owned(), i64::from(*id)))
        })
        .collect();
    let languages = match (config.source_lang.clone(), config.target_lang.clone()) {
        (source, _) if !targets.is_empty() => Some(Languages::Prefix {
            source: source.unwrap_or_default(),
            targets,
        }),
        (Some(source), Some(target)) => Some(Languages::Pair { source, target }),
        _ => None,
    };
    let target = match config.separate_vocabs {
        true => read_json(&folder.join("target_vocab.json"))?,
        false => source.clone(),
    };
    let target = config.vocabulary(target, sizes[1])?.decoder()?;
    let end = source.get(config.end()?).copied().map(i64::from);
    let source = config.vocabulary(source, sizes[0])?;
    let BuiltTokenizer {
        json,
        unknown_tokens,
    } = SentencePieces::open(&folder.join("source.spm"))?.tokenizer(&source)?;
    Ok(Tokenizers {
        source: json,
        target: Some(target),
        end,
        unknown_tokens,
        languages,
        max_tokens: config.max_tokens(),
    })
}

/// A tokenizer without languages in `folder`, for a model with `size` ids: its `tokenizer.json`, or else its
/// SentencePiece model.
pub(crate) fn monolingual(folder: &Path, size: usize) -> Result<Tokenizers> {
    let config = Config::open(folder)?;
    let BuiltTokenizer {
        json: source,
        unknown_tokens,
    } = own_tokenizer(folder, &config, size)?;
    let max_tokens = config.max_tokens();
    Ok(Tokenizers {
        source,
        target: None,
        end: None,
        unknown_tokens,
        languages: None,
        max_tokens,
    })
}

/// T5's `tokenizer.json` in `folder`, for a model with `size` ids.
pub(crate) fn t5_tokenizer(folder: &Path, size: usize) -> Result<Vec<u8>> {
    let config = Config::open(folder)?;
    Ok(own_tokenizer(folder, &config, size)?.json)
}

/// Reads the tokenizer in `folder`, or converts its byte pairs or its SentencePiece model.
fn own_tokenizer(folder: &Path, config: &Config, size: usize) -> Result<BuiltTokenizer> {
    let pieces = folder.join(OWN_PIECES);
    if folder.join(TOKENIZER).is_file() || !pieces.is_file() {
        let json = byte_pairs::tokenizer(folder)?;
        if is_unigram(&json)? {
            check_pieces(&json)?;
        }
        return Ok(BuiltTokenizer {
            json,
            unknown_tokens: None,
        });
    }
    let pieces = SentencePieces::open(&pieces)?;
    let is_pegasus = config
        .tokenizer_class
        .as_deref()
        .is_some_and(|class| class.contains("Pegasus"));
    let vocabulary = match is_pegasus {
        true => config.pegasus_vocabulary(&pieces, size),
        false => config.t5_vocabulary(&pieces, size),
    }?;
    pieces.tokenizer(&vocabulary)
}

impl Config {
    /// Reads the file in `folder`, if any.
    fn open(folder: &Path) -> Result<Self> {
        let file = ConfigFile::open_or_empty(folder, CONFIG)?;
        // `transformers` then has no such token, and keeps it in texts. Without the key, the class has one.
        for key in ["eos_token", "pad_token", "unk_token"] {
            if file.fields().get(key).is_some_and(Value::is_null) {
                return Err(Error::model(format!(
                    "expected a token in `{key}` in `{CONFIG}`, but found null"
                )));
            }
        }
        Ok(read_json_if_exists(&folder.join(CONFIG))?.unwrap_or_default())
    }

    /// A vocabulary with the given ids, followed by language tokens.
    fn vocabulary(&self, ids: BTreeMap<String, u32>, size: usize) -> Result<Vocabulary> {
        let last = ids.values().max().copied();
        if let Some(last) = last.filter(|last| *last as usize >= MAX_IDS) {
            return Err(Error::model(format!(
                "expected ids below {MAX_IDS}, but found {last}"
            )));
        }
        let next = last.map_or(0, |id| id + 1);
        let mut tokens = self.tokens(next);
        for content in self.special() {
            if let Some(id) = ids.get(content) {
                tokens.insert(content.to_owned(), Token::new(*id, true));
            }
        }
        Vocabulary {
            ids,
            tokens,
            unknown: self.unknown()?,
            size,
            end: None,
        }
        .checked()
    }

    /// mBART's vocabulary: pieces, then languages, and the mask token.
    fn mbart_vocabulary(
        &self,
        pieces: &SentencePieces,
        size: usize,
        is_mbart50: bool,
    ) -> Result<Vocabulary> {
        let tokens = if self.added_tokens_decoder.is_empty() {
            let count = if is_mbart50 {
                MBART_LANGUAGES.len()
            } else {
                FIRST_MBART_LANGUAGES
            };
            let next = pieces.pieces().len() as u32 + SHIFT;
            let languages = MBART_LANGUAGES[..count].iter().zip(next..);
            let mut tokens: BTreeMap<String, Token> = languages
                .map(|(code, id)| ((*code).to_owned(), Token::new(id, true)))
                .collect();
            let gap = Token {
                takes_left: true,
                ..Token::new(next + count as u32, true)
            };
            tokens.insert("<mask>".to_owned(), gap);
            tokens
        } else {
            self.tokens(0)
        };
        self.shifted_vocabulary(pieces, tokens, size)
    }

    /// NLLB's and mBART's vocabulary: its pieces' ids plus [`SHIFT`], and `tokens`.
    fn shifted_vocabulary(
        &self,
        pieces: &SentencePieces,
        mut tokens: BTreeMap<String, Token>,
        size: usize,
    ) -> Result<Vocabulary> {
        let shifted = pieces
            .pieces()
            .zip(SHIFT..)
            .map(|(piece, id)| (piece.to_owned(), id));
        let ids: BTreeMap<String, u32> = shifted
            .filter(|(_, id)| *id as usize >= NLLB_SPECIAL.len())
            .collect();
        for (content, id) in NLLB_SPECIAL.iter().zip(0..) {
            tokens.insert((*content).to_owned(), Token::new(id, true));
        }
        Vocabulary {
            ids,
            tokens,
            unknown: self.unknown()?,
            size,
            end: None,
        }
        .checked()
    }

    /// T5's vocabulary: pieces with SentencePiece ids, then sentinel tokens.
    fn t5_vocabulary(&self, pieces: &SentencePieces, size: usize) -> Result<Vocabulary> {
        let ids: BTreeMap<String, u32> = pieces
            .pieces()
            .zip(0..)
            .map(|(piece, id)| (piece.to_owned(), id))
            .collect();
        let mut tokens = if self.added_tokens_decoder.is_empty() {
            let (first, count) = (
                pieces.pieces().len() as u32,
                self.extra_ids.unwrap_or(BLANKS),
            );
            let blanks = (0..count.min(MAX_IDS as u32)).zip(first..);
            blanks
                .map(|(n, id)| (format!("<{BLANK}{}>", count - 1 - n), Token::new(id, true)))
                .collect()
        } else {
            self.tokens(0)
        };
        for content in [PAD, END, UNKNOWN] {
            if let Some(id) = ids.get(content) {
                tokens.insert(content.to_owned(), Token::new(*id, true));
            }
        }
        Vocabulary {
            ids,
            tokens,
            unknown: self.unknown()?,
            size,
            end: Some(END),
        }
        .checked()
    }

    /// Pegasus' vocabulary: its pieces' ids plus an offset. The ids before belong to training tokens.
    fn pegasus_vocabulary(&self, pieces: &SentencePieces, size: usize) -> Result<Vocabulary> {
        let offset = self.offset.unwrap_or(PEGASUS_OFFSET);
        if offset as usize >= MAX_IDS {
            return Err(Error::model(format!(
                "expected an `offset` below {MAX_IDS}, but found {offset}"
            )));
        }
        let shifted = pieces.pieces().zip(offset..).skip(2);
        let ids: BTreeMap<String, u32> =
            shifted.map(|(piece, id)| (piece.to_owned(), id)).collect();
        let named = [PAD, END, "<mask_1>", "<mask_2>"]
            .map(str::to_owned)
            .into_iter();
        let others = (2..offset).map(|number| format!("<unk_{number}>"));
        let mut tokens: BTreeMap<String, Token> = named
            .chain(others)
            .zip(0..offset)
            .map(|(name, id)| (name, Token::new(id, true)))
            .collect();
        if let Some(id) = ids.get(UNKNOWN) {
            tokens.insert(UNKNOWN.to_owned(), Token::new(*id, true));
        }
        Vocabulary {
            ids,
            tokens,
            unknown: self.unknown()?,
            size,
            end: Some(END),
        }
        .checked()
    }

    /// Tokens that are never split: listed with their ids, or else language tokens with ids from `next` on.
    fn tokens(&self, next: u32) -> BTreeMap<String, Token> {
        if self.added_tokens_decoder.is_empty() {
            let contents = self
                .additional_special_tokens
                .iter()
                .map(|content| content.as_str().to_owned());
            return contents
                .zip((next..).map(|id| Token::new(id, true)))
                .collect();
        }
        let token = |(id, token): (&u32, &AddedToken)| {
            let AddedToken {
                lstrip: takes_left,
                rstrip: takes_right,
                special: is_special,
                ..
            } = *token;
            (
                token.content.clone(),
                Token {
                    id: *id,
                    is_special,
                    takes_left,
                    takes_right,
                },
            )
        };
        self.added_tokens_decoder.iter().map(token).collect()
    }

    /// Refuses a list of special tokens that lacks a language: `transformers` 5 writes that token into texts.
    fn check_special<'a>(&self, languages: impl IntoIterator<Item = &'a String>) -> Result<()> {
        let listed: BTreeSet<&str> = match &self.extra_special_tokens {
            ExtraTokens::List(tokens) => tokens.iter().map(Content::as_str).collect(),
            ExtraTokens::ByName(_) => return Ok(()),
        };
        match languages
            .into_iter()
            .find(|token| !listed.is_empty() && !listed.contains(token.as_str()))
        {
            Some(token) => Err(Error::model(format!(
                "expected all language tokens in `extra_special_tokens` of `{CONFIG}`, but found none for `{token}`"
            ))),
            None => Ok(()),
        }
    }

    /// The special tokens.
    fn special(&self) -> impl Iterator<Item = &str> {
        let named = [
            &self.bos_token,
            &self.eos_token,
            &self.pad_token,
            &self.unk_token,
        ];
        named
            .into_iter()
            .flatten()
            .map(Content::as_str)
            .chain([END, UNKNOWN, PAD])
    }

    /// The token at the end of a translator's texts.
    fn end(&self) -> Result<&'static str> {
        self.check_names().map(|()| END)
    }

    fn unknown(&self) -> Result<String> {
        self.check_names().map(|()| UNKNOWN.to_owned())
    }

    /// Refuses tokens with other names than SentencePiece's.
    fn check_names(&self) -> Result<()> {
        let named = [
            ("eos_token", &self.eos_token, END),
            ("pad_token", &self.pad_token, PAD),
            ("unk_token", &self.unk_token, UNKNOWN),
        ];
        for (key, token, expected) in named {
            if let Some(found) = token
                .as_ref()
                .map(Content::as_str)
                .filter(|token| *token != expected)
            {
                return Err(Error::model(format!(
                    "expected `{key}` `{expected}` in `{CONFIG}`, but found `{found}`"
                )));
            }
        }
        Ok(())
    }

    /// Maximum number of tokens; "no limit" is written as an enormous number.
    fn max_tokens(&self) -> Option<usize> {
        self.model_max_length
            .filter(|length| (1.0..1e9).contains(length))
            .map(|length| length as usize)
    }
}

/// Tokens added by a `tokenizer.json`, with their ids.
fn added_tokens(json: &[u8]) -> Result<BTreeMap<String, u32>> {
    #[derive(Deserialize)]
    struct File {
        added_tokens: Vec<AddedToken>,
    }
    let file: File = serde_json::from_slice(json)
        .map_err(|error| Error::model_because("cannot read the tokenizer", error))?;
    Ok(file
        .added_tokens
        .into_iter()
        .map(|token| (token.content, token.id))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn fixture(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/models")
            .join(name)
    }

    #[test]
    fn translators_read_sources_with_the_tokenizer_s_end() {
        assert_eq!(
            many_to_many(&fixture("tiny-m2m100"), 0).unwrap().end,
            Some(2)
        );
        assert_eq!(
            mbart(&fixture("tiny-mbart"), None, 0, true).unwrap().end,
            Some(2)
        );
        assert_eq!(
            marian(&fixture("tiny-marian"), [0, 0]).unwrap().end,
            Some(0)
        );
        let other = tempfile::tempdir().unwrap();
        for file in ["vocab.json", "source.spm"] {
            fs::copy(fixture("tiny-marian").join(file), other.path().join(file)).unwrap();
        }
        fs::write(other.path().join(CONFIG), r#"{"eos_token": "a"}"#).unwrap();
        let refusal = marian(other.path(), [0, 0]).err().unwrap();
        insta::assert_snapshot!(refusal, @"expected `eos_token` `</s>` in `tokenizer_config.json`, but found `a`");
    }

    /// A copy of a fixture with a changed file.
    fn changed(name: &str, file: &str, from: &str, to: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let entries = fs::read_dir(fixture(name)).unwrap().map(Result::unwrap);
        for entry in entries.filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(text.contains(from), "{file}");
        fs::write(folder.path().join(file), text.replace(from, to)).unwrap();
        folder
    }

    #[test]
    fn tokens_that_texts_need_are_not_null() {
        let from = r#""pad_token": "<pad>""#;
        let folder = changed("tiny-mt5", CONFIG, from, r#""pad_token": null"#);
        let refusal = monolingual(folder.path(), 0).err().unwrap();
        insta::assert_snapshot!(refusal, @"expected a token in `pad_token` in `tokenizer_config.json`, but found null");
    }

    #[test]
    fn sentencepiece_models_have_the_parts_of_a_conversion() {
        let pre_tokenizer = ("tokenizer.json", "\"Metaspace\"", "\"ByteLevel\"");
        let folder = changed(
            "tiny-sentence-t5",
            pre_tokenizer.0,
            pre_tokenizer.1,
            pre_tokenizer.2,
        );
        let refusal = t5_tokenizer(folder.path(), 0).unwrap_err();
        insta::assert_snapshot!(refusal, @"expected a `pre_tokenizer` among `Metaspace`, `WhitespaceSplit` in `tokenizer.json` for a SentencePiece model, but found `ByteLevel`");
        assert!(t5_tokenizer(&fixture("tiny-sentence-t5"), 0).is_ok());
        // Read next to the SentencePiece model, too.
        let folder = changed(
            "tiny-nllb",
            "tokenizer.json",
            "\"Precompiled\"",
            "\"BertNormalizer\"",
        );
        let refusal = many_to_many(folder.path(), 0).err().unwrap().to_string();
        assert!(
            refusal.starts_with("expected a `normalizer` among "),
            "{refusal}"
        );
    }

    #[test]
    fn listed_tokens_are_no_pieces_with_another_id() {
        let folder = changed("tiny-mbart50", CONFIG, "\"sw_KE\"", "\"a\"");
        let refusal = mbart(folder.path(), None, 0, true)
            .err()
            .unwrap()
            .to_string();
        assert!(
            refusal.starts_with("expected the token `a` with the id "),
            "{refusal}"
        );
    }

    #[test]
    fn a_list_of_special_tokens_has_all_languages() {
        let check = |listed: Value| {
            let config: Config =
                serde_json::from_value(serde_json::json!({ "extra_special_tokens": listed }))
                    .unwrap();
            config.check_special(&["__de__".to_owned(), "__fr__".to_owned()])
        };
        for listed in [
            serde_json::json!([]),
            serde_json::json!({"a": "b"}),
            serde_json::json!(["__fr__", {"content": "__de__"}, "a"]),
        ] {
            check(listed).unwrap();
        }
        let error = check(serde_json::json!(["a", "__de__"]))
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("but found none for `__fr__`"), "{error}");
    }
}
