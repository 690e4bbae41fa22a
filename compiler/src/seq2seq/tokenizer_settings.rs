//! The settings of text generators' tokenizers, and the vocabularies that they give SentencePiece models.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use crate::{
    files::{
        config::ConfigFile,
        io::{parse_tokenizer, read_if_exists},
        model_folder::ModelFolder,
    },
    tokenizers::{
        sentencepiece::{MAX_IDS, SentencePieces, Token, Vocabulary},
        tokenizer_config::{
            ADDED_FILE, AddedToken, listed_tokens, lists_tokens, with_special_tokens,
        },
    },
};
use kivu::{Error, Result, repository::bundle::TOKENIZER};

pub const CONFIG: &str = "tokenizer_config.json";
pub const VOCABULARY: &str = "vocab.json";
/// End-of-text token.
pub const END: &str = "</s>";
/// Padding.
const PAD: &str = "<pad>";
/// The token for unknown pieces.
const UNKNOWN: &str = "<unk>";
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
/// M2M100's languages; their tokens follow the pieces in this order.
const M2M100_LANGUAGES: &str = include_str!("languages/m2m100.txt");
/// The same in WMT21's models.
const WMT21_LANGUAGES: &str = "en ha is ja cs ru zh de";

/// Used settings in `tokenizer_config.json` and, in older files, `special_tokens_map.json`.
#[derive(Debug)]
pub struct Config {
    /// Tokens that the files list with their ids.
    listed: BTreeMap<u32, AddedToken>,
    /// Whether the list has all tokens.
    is_listed: bool,
    additional_special_tokens: Vec<Content>,
    extra_special_tokens: ExtraTokens,
    bos_token: Option<Content>,
    eos_token: Option<Content>,
    pad_token: Option<Content>,
    unk_token: Option<Content>,
    language_codes: Option<String>,
    pub legacy_behaviour: bool,
    model_max_length: Option<f64>,
    pub separate_vocabs: bool,
    pub tokenizer_class: Option<String>,
    extra_ids: Option<u32>,
    offset: Option<u32>,
    pub source_lang: Option<String>,
    pub src_lang: Option<String>,
    pub target_lang: Option<String>,
}

/// A token in a `tokenizer.json`.
#[derive(Debug, Deserialize)]
pub struct NumberedToken {
    pub id: u32,
    #[serde(flatten)]
    pub token: AddedToken,
}

/// A token as a string or with its properties.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Plain(String),
    Described { content: String },
}

/// Additional special tokens, as a list or as an object by name.
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

impl Config {
    /// Reads the files in `folder`, if any.
    pub fn open(folder: &ModelFolder) -> Result<Self> {
        let file = ConfigFile::open_or_empty(folder, CONFIG)?;
        let is_listed = lists_tokens(&file);
        let file = with_special_tokens(folder, file)?;
        // `transformers` then has no such token, and keeps it in texts, or fails. Without the key, the class has a value.
        for key in ["eos_token", "pad_token", "unk_token", "extra_ids", "offset"] {
            if file.fields().get(key).is_some_and(Value::is_null) {
                return Err(Error::model(format!(
                    "expected a value of `{key}` in `{CONFIG}`, but found null"
                ))
                .with_hint("remove the key"));
            }
        }
        Ok(Self {
            listed: listed_tokens(folder, &file)?,
            is_listed,
            additional_special_tokens: file.get("additional_special_tokens")?.unwrap_or_default(),
            extra_special_tokens: file.get("extra_special_tokens")?.unwrap_or_default(),
            bos_token: file.get("bos_token")?,
            eos_token: file.get("eos_token")?,
            pad_token: file.get("pad_token")?,
            unk_token: file.get("unk_token")?,
            language_codes: file.get("language_codes")?,
            legacy_behaviour: file.is_set("legacy_behaviour")?,
            model_max_length: file.get("model_max_length")?,
            separate_vocabs: file.is_set("separate_vocabs")?,
            tokenizer_class: file.get("tokenizer_class")?,
            extra_ids: file.get("extra_ids")?,
            offset: file.get("offset")?,
            source_lang: file.get("source_lang")?,
            src_lang: file.get("src_lang")?,
            target_lang: file.get("target_lang")?,
        })
    }

    /// Reads the files of a multilingual tokenizer: without a full list, `tokenizer.json` lists tokens, too.
    pub fn open_multilingual(folder: &ModelFolder) -> Result<Self> {
        let mut config = Self::open(folder)?;
        if config.is_listed {
            return Ok(config);
        }
        let json = read_if_exists(&folder.join(TOKENIZER))?;
        let tokens = json.as_deref().map(added_tokens).transpose()?;
        let tokens = tokens.unwrap_or_default();
        for (id, listed) in &config.listed {
            let mut others = tokens.iter();
            if let Some(other) =
                others.find(|other| other.token.content == listed.content && other.id != *id)
            {
                return Err(contradiction(
                    &listed.content,
                    [*id, other.id],
                    "`added_tokens.json`",
                ));
            }
        }
        let tokens = tokens
            .into_iter()
            .map(|NumberedToken { id, token }| (id, token));
        config.listed.extend(tokens);
        Ok(config)
    }

    /// A vocabulary with the given ids, followed by language tokens.
    pub fn vocabulary(&self, ids: BTreeMap<String, u32>, size: usize) -> Result<Vocabulary> {
        let last = ids.values().max().copied();
        if let Some(last) = last.filter(|last| *last as usize >= MAX_IDS) {
            return Err(Error::model(format!(
                "expected ids below {MAX_IDS}, but found {last}"
            )));
        }
        let next = last.map_or(0, |id| id + 1);
        let added = self.additional_special_tokens.iter().map(Content::as_str);
        self.vocabulary_with(ids, numbered(added, next), size)
    }

    /// M2M100's vocabulary: the languages of its class follow the pieces.
    pub fn m2m100_vocabulary(&self, ids: BTreeMap<String, u32>, size: usize) -> Result<Vocabulary> {
        let codes = match self.language_codes.as_deref() {
            None | Some("m2m100") => M2M100_LANGUAGES,
            Some("wmt21") => WMT21_LANGUAGES,
            Some(other) => {
                return Err(Error::model(format!(
                    "expected `language_codes` `m2m100` or `wmt21` in `{CONFIG}`, but found `{other}`"
                )));
            }
        };
        let next = ids.len() as u32;
        let languages = codes.split_whitespace().map(|code| format!("__{code}__"));
        let languages: Vec<String> = languages.collect();
        let mut languages = numbered(languages.iter().map(String::as_str), next);
        let is_known = |token: &str| {
            languages.contains_key(token)
                || ids.contains_key(token)
                || self.listed.values().any(|listed| listed.content == token)
        };
        let added = self.additional_special_tokens.iter().map(Content::as_str);
        if let Some(token) = added.clone().find(|token| !is_known(token)) {
            return Err(Error::model(format!(
                "expected the id of the token `{token}` of `additional_special_tokens` in `{ADDED_FILE}`, but found none"
            )));
        }
        // Without gaps, the last piece is right before the first language.
        if let Some((piece, id)) = ids.iter().find(|(_, id)| **id >= next) {
            return Err(Error::model(format!(
                "expected ids below {next}, the number of pieces in `{VOCABULARY}`, but found {id} for `{piece}`"
            )));
        }
        languages.retain(|token, _| self.is_listed || added.clone().any(|added| added == *token));
        self.vocabulary_with(ids, languages, size)
    }

    fn vocabulary_with(
        &self,
        ids: BTreeMap<String, u32>,
        computed: BTreeMap<String, Token>,
        size: usize,
    ) -> Result<Vocabulary> {
        let tokens = self.tokens(computed)?;
        self.complete(ids, tokens, self.special(), size)
    }

    /// A vocabulary with these ids and tokens. The `special` pieces are tokens, too.
    fn complete<'a>(
        &self,
        ids: BTreeMap<String, u32>,
        mut tokens: BTreeMap<String, Token>,
        special: impl IntoIterator<Item = &'a str>,
        size: usize,
    ) -> Result<Vocabulary> {
        for content in special {
            if let Some(id) = ids.get(content) {
                tokens.insert(content.to_owned(), Token::special(*id));
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

    /// mBART's vocabulary: pieces, then these languages, and the mask token.
    pub fn mbart_vocabulary(
        &self,
        pieces: &SentencePieces,
        size: usize,
        languages: &[&str],
    ) -> Result<Vocabulary> {
        let next = pieces.pieces().len() as u32 + SHIFT;
        let mut tokens = numbered(languages.iter().copied(), next);
        let gap = Token {
            takes_left: true,
            ..Token::special(next + languages.len() as u32)
        };
        tokens.insert("<mask>".to_owned(), gap);
        let tokens = self.tokens(tokens)?;
        self.shifted_vocabulary(pieces, tokens, size)
    }

    /// NLLB's and mBART's vocabulary: its pieces' ids plus [`SHIFT`], and `tokens`.
    pub fn shifted_vocabulary(
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
            tokens.insert((*content).to_owned(), Token::special(id));
        }
        self.complete(ids, tokens, [], size)
    }

    /// T5's vocabulary: pieces with SentencePiece ids, then sentinel tokens.
    pub fn t5_vocabulary(&self, pieces: &SentencePieces, size: usize) -> Result<Vocabulary> {
        let ids: BTreeMap<String, u32> = pieces
            .pieces()
            .zip(0..)
            .map(|(piece, id)| (piece.to_owned(), id))
            .collect();
        let (first, count) = (
            pieces.pieces().len() as u32,
            self.extra_ids.unwrap_or(BLANKS),
        );
        let blanks = (0..count.min(MAX_IDS as u32)).zip(first..);
        let blanks = blanks
            .map(|(n, id)| (format!("<{BLANK}{}>", count - 1 - n), Token::special(id)))
            .collect();
        let tokens = self.tokens(blanks)?;
        Ok(Vocabulary {
            end: Some(END),
            ..self.complete(ids, tokens, [PAD, END, UNKNOWN], size)?
        })
    }

    /// Pegasus' vocabulary: its pieces' ids plus an offset. The ids before belong to training tokens.
    pub fn pegasus_vocabulary(&self, pieces: &SentencePieces, size: usize) -> Result<Vocabulary> {
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
        let tokens: BTreeMap<String, Token> = named
            .chain(others)
            .zip(0..offset)
            .map(|(name, id)| (name, Token::special(id)))
            .collect();
        Ok(Vocabulary {
            end: Some(END),
            ..self.complete(ids, tokens, [UNKNOWN], size)?
        })
    }

    /// Tokens that are never split: the listed ones, and unless these are all, the ones with `computed` ids. Refuses other
    /// ids than computed ones, which `transformers` uses in some places.
    pub fn tokens(&self, mut computed: BTreeMap<String, Token>) -> Result<BTreeMap<String, Token>> {
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
        let listed: BTreeMap<String, Token> = self.listed.iter().map(token).collect();
        for (content, token) in &listed {
            if let Some(other) = computed.get(content).filter(|other| other.id != token.id) {
                let ids = [other.id, token.id];
                return Err(contradiction(content, ids, "the number of pieces"));
            }
        }
        if self.is_listed && !listed.is_empty() {
            return Ok(listed);
        }
        computed.extend(listed);
        Ok(computed)
    }

    /// Refuses a list of special tokens that lacks a language: `transformers` 5 writes that token into texts.
    pub fn check_special<'a>(&self, languages: impl IntoIterator<Item = &'a String>) -> Result<()> {
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
    pub fn end(&self, ids: &BTreeMap<String, u32>) -> Result<Option<i64>> {
        self.check_names()?;
        Ok(ids.get(END).map(|id| i64::from(*id)))
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
    pub fn max_tokens(&self) -> Option<usize> {
        self.model_max_length
            .filter(|length| (1.0..1e9).contains(length))
            .map(|length| length as usize)
    }
}

/// Tokens added by a `tokenizer.json`.
pub fn added_tokens(json: &[u8]) -> Result<Vec<NumberedToken>> {
    #[derive(Deserialize)]
    struct File {
        added_tokens: Vec<NumberedToken>,
    }
    let file: File = parse_tokenizer(json)?;
    Ok(file.added_tokens)
}

/// Error for a token with the first id by `source`, and with the other one in another file.
pub fn contradiction(token: &str, [first, other]: [u32; 2], source: &str) -> Error {
    Error::model(format!(
        "the token `{token}` has the id {first} by {source}, but {other} in another file of the \
         tokenizer"
    ))
    .with_hint("save it again with `save_pretrained`")
}

/// Tokens with consecutive ids from `next` on.
fn numbered<'a>(tokens: impl Iterator<Item = &'a str>, next: u32) -> BTreeMap<String, Token> {
    tokens
        .zip(next..)
        .map(|(token, id)| (token.to_owned(), Token::special(id)))
        .collect()
}
