//! The tokenizers of models that generate texts, and the languages that their files name.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use crate::{
    build::{
        files::{read, read_json, read_json_if_exists, read_tokenizer},
        sentencepiece::{BuiltTokenizer, MAX_IDS, SentencePieces, Token, Vocabulary},
    },
    error::{Error, Result},
    pipeline::seq2seq::{Languages, TokenSide, UnknownTokens},
    repository::bundle::TOKENIZER,
};

const CONFIG: &str = "tokenizer_config.json";
const PIECES: &str = "sentencepiece.bpe.model";
const VOCABULARY: &str = "vocab.json";
/// The SentencePiece model of T5 and Pegasus.
const OWN_PIECES: &str = "spiece.model";
/// The token that ends a text.
const END: &str = "</s>";
/// The names of T5's blanks, which follow its pieces in descending order.
const BLANK: &str = "extra_id_";
/// The default number of T5's blanks.
const BLANKS: u32 = 100;
/// The number of ids before those of Pegasus' pieces, the first pieces of which it has itself.
const PEGASUS_OFFSET: u32 = 103;
/// The difference of NLLB's ids to those of its SentencePiece model, which has no padding.
const SHIFT: u32 = 1;
/// The first ids of NLLB.
const NLLB_SPECIAL: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];

/// The tokenizers of a model.
pub(in crate::build) struct Tokenizers {
    /// The `tokenizer.json` of sources.
    pub(in crate::build) source: Vec<u8>,
    /// The `tokenizer.json` of targets, if it differs.
    pub(super) target: Option<Vec<u8>>,
    pub(super) unknown_tokens: Option<UnknownTokens>,
    /// None if the files do not name them.
    pub(super) languages: Option<Languages>,
    /// The limit of tokens in a text, if the files set one.
    pub(super) max_tokens: Option<usize>,
}

/// The used fields of `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    added_tokens_decoder: BTreeMap<u32, AddedToken>,
    additional_special_tokens: Vec<Content>,
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

impl Content {
    fn as_str(&self) -> &str {
        match self {
            Self::Plain(content) | Self::Described { content } => content,
        }
    }
}

/// The tokenizer of M2M100 or NLLB in `folder`, for a model of `size` ids.
pub(in crate::build) fn many_to_many(folder: &Path, size: usize) -> Result<Tokenizers> {
    let config: Config = read_json_if_exists(&folder.join(CONFIG))?.unwrap_or_default();
    let ids: Option<BTreeMap<String, u32>> = read_json_if_exists(&folder.join(VOCABULARY))?;
    let is_m2m100 = ids.is_some();
    // A `tokenizer.json` was converted from the SentencePiece model, and treats some white space differently.
    let has_pieces = folder.join(PIECES).is_file();
    let (source, tokens, unknown_tokens) = if !has_pieces && folder.join(TOKENIZER).is_file() {
        let json = read(&folder.join(TOKENIZER))?;
        let tokens = added_tokens(&json)?;
        (json, tokens, None)
    } else {
        let pieces = SentencePieces::open(&folder.join(PIECES))?;
        let vocabulary = match ids {
            Some(ids) => config.vocabulary(ids, size),
            None => config.shifted_vocabulary(&pieces, size),
        }?;
        let BuiltTokenizer { json, unknown_tokens } = pieces.tokenizer(&vocabulary)?;
        let tokens = vocabulary.tokens.iter().map(|(content, token)| (content.clone(), token.id)).collect();
        (json, tokens, unknown_tokens)
    };
    let code = |token: &str| match is_m2m100 {
        true => token.strip_prefix("__")?.strip_suffix("__").map(str::to_owned),
        // Three letters for the language, four for the script: `por_Latn`.
        false => (token.len() == 8 && token.find('_') == Some(3)).then(|| token.to_owned()),
    };
    let codes: BTreeMap<String, i64> =
        tokens.iter().filter_map(|(token, id)| Some((code(token)?, i64::from(*id)))).collect();
    if codes.is_empty() {
        return Err(Error::model(format!(
            "expected the tokens of languages in `{CONFIG}` of `{}` (`additional_special_tokens`), but found none",
            folder.display()
        )));
    }
    let side = if config.legacy_behaviour { TokenSide::After } else { TokenSide::Before };
    let languages = Some(Languages::Tokens { codes, side });
    Ok(Tokenizers { source, target: None, unknown_tokens, languages, max_tokens: config.max_tokens() })
}

/// The tokenizers of Marian in `folder`, for a model with the given numbers of ids of sources and targets.
pub(in crate::build) fn marian(folder: &Path, sizes: [usize; 2]) -> Result<Tokenizers> {
    let config: Config = read_json_if_exists(&folder.join(CONFIG))?.unwrap_or_default();
    let source: BTreeMap<String, u32> = read_json(&folder.join(VOCABULARY))?;
    let targets: BTreeMap<String, i64> = source
        .iter()
        .filter_map(|(piece, id)| {
            let code = piece.strip_prefix(">>")?.strip_suffix("<<")?;
            Some((code.to_owned(), i64::from(*id)))
        })
        .collect();
    let languages = match (config.source_lang.clone(), config.target_lang.clone()) {
        (source, _) if !targets.is_empty() => {
            Some(Languages::Prefix { source: source.unwrap_or_default(), targets })
        }
        (Some(source), Some(target)) => Some(Languages::Pair { source, target }),
        _ => None,
    };
    let target = match config.separate_vocabs {
        true => read_json(&folder.join("target_vocab.json"))?,
        false => source.clone(),
    };
    let target = config.vocabulary(target, sizes[1])?.decoder()?;
    let source = config.vocabulary(source, sizes[0])?;
    let BuiltTokenizer { json, unknown_tokens } =
        SentencePieces::open(&folder.join("source.spm"))?.tokenizer(&source)?;
    Ok(Tokenizers {
        source: json,
        target: Some(target),
        unknown_tokens,
        languages,
        max_tokens: config.max_tokens(),
    })
}

/// The tokenizer of a model without languages in `folder`, for a model of `size` ids: its `tokenizer.json`, or else its
/// SentencePiece model.
pub(in crate::build) fn monolingual(folder: &Path, size: usize) -> Result<Tokenizers> {
    let config: Config = read_json_if_exists(&folder.join(CONFIG))?.unwrap_or_default();
    let pieces = folder.join(OWN_PIECES);
    let (source, unknown_tokens) = if folder.join(TOKENIZER).is_file() || !pieces.is_file() {
        (read_tokenizer(folder)?, None)
    } else {
        let pieces = SentencePieces::open(&pieces)?;
        let is_pegasus = config.tokenizer_class.as_deref().is_some_and(|class| class.contains("Pegasus"));
        let vocabulary = match is_pegasus {
            true => config.pegasus_vocabulary(&pieces, size),
            false => config.t5_vocabulary(&pieces, size),
        }?;
        let BuiltTokenizer { json, unknown_tokens } = pieces.tokenizer(&vocabulary)?;
        (json, unknown_tokens)
    };
    let max_tokens = config.max_tokens();
    Ok(Tokenizers { source, target: None, unknown_tokens, languages: None, max_tokens })
}

impl Config {
    /// The vocabulary of the given ids, followed by the tokens of languages.
    fn vocabulary(&self, ids: BTreeMap<String, u32>, size: usize) -> Result<Vocabulary> {
        let last = ids.values().max().copied();
        if let Some(last) = last.filter(|last| *last as usize >= MAX_IDS) {
            return Err(Error::model(format!("expected ids below {MAX_IDS}, but found {last}")));
        }
        let next = last.map_or(0, |id| id + 1);
        let mut tokens = self.tokens(next);
        for content in self.special() {
            if let Some(id) = ids.get(content) {
                tokens.insert(content.to_owned(), Token::new(*id, true));
            }
        }
        Vocabulary { ids, tokens, unknown: self.unknown(), size, end: None }.checked()
    }

    /// The vocabulary of NLLB, whose ids are those of its pieces plus [`SHIFT`].
    fn shifted_vocabulary(&self, pieces: &SentencePieces, size: usize) -> Result<Vocabulary> {
        let shifted = pieces.pieces().zip(SHIFT..).map(|(piece, id)| (piece.to_owned(), id));
        let ids: BTreeMap<String, u32> =
            shifted.filter(|(_, id)| *id as usize >= NLLB_SPECIAL.len()).collect();
        let mut tokens = self.tokens(pieces.pieces().len() as u32 + SHIFT);
        for (content, id) in NLLB_SPECIAL.iter().zip(0..) {
            tokens.insert((*content).to_owned(), Token::new(id, true));
        }
        Vocabulary { ids, tokens, unknown: self.unknown(), size, end: None }.checked()
    }

    /// The vocabulary of T5: the pieces with the ids of the SentencePiece model, and the blanks after them.
    fn t5_vocabulary(&self, pieces: &SentencePieces, size: usize) -> Result<Vocabulary> {
        let ids: BTreeMap<String, u32> =
            pieces.pieces().zip(0..).map(|(piece, id)| (piece.to_owned(), id)).collect();
        let mut tokens = if self.added_tokens_decoder.is_empty() {
            let (first, count) = (pieces.pieces().len() as u32, self.extra_ids.unwrap_or(BLANKS));
            let blanks = (0..count.min(MAX_IDS as u32)).zip(first..);
            blanks.map(|(n, id)| (format!("<{BLANK}{}>", count - 1 - n), Token::new(id, true))).collect()
        } else {
            self.tokens(0)
        };
        for content in ["<pad>", END, "<unk>"] {
            if let Some(id) = ids.get(content) {
                tokens.insert(content.to_owned(), Token::new(*id, true));
            }
        }
        Vocabulary { ids, tokens, unknown: self.unknown(), size, end: Some(END) }.checked()
    }

    /// The vocabulary of Pegasus, whose ids are those of its pieces plus an offset. The ids before belong to tokens of
    /// its training.
    fn pegasus_vocabulary(&self, pieces: &SentencePieces, size: usize) -> Result<Vocabulary> {
        let offset = self.offset.unwrap_or(PEGASUS_OFFSET);
        if offset as usize >= MAX_IDS {
            return Err(Error::model(format!("expected an `offset` below {MAX_IDS}, but found {offset}")));
        }
        let shifted = pieces.pieces().zip(offset..).skip(2);
        let ids: BTreeMap<String, u32> = shifted.map(|(piece, id)| (piece.to_owned(), id)).collect();
        let named = ["<pad>", END, "<mask_1>", "<mask_2>"].map(str::to_owned).into_iter();
        let others = (2..offset).map(|number| format!("<unk_{number}>"));
        let mut tokens: BTreeMap<String, Token> =
            named.chain(others).zip(0..offset).map(|(name, id)| (name, Token::new(id, true))).collect();
        if let Some(id) = ids.get("<unk>") {
            tokens.insert("<unk>".to_owned(), Token::new(*id, true));
        }
        Vocabulary { ids, tokens, unknown: self.unknown(), size, end: Some(END) }.checked()
    }

    /// The tokens that are never split: those that are listed with their ids, or else those of languages, with ids from
    /// `next` on.
    fn tokens(&self, next: u32) -> BTreeMap<String, Token> {
        if self.added_tokens_decoder.is_empty() {
            let contents = self.additional_special_tokens.iter().map(|content| content.as_str().to_owned());
            return contents.zip((next..).map(|id| Token::new(id, true))).collect();
        }
        let token = |(id, token): (&u32, &AddedToken)| {
            let AddedToken { lstrip: takes_left, rstrip: takes_right, special: is_special, .. } = *token;
            (token.content.clone(), Token { id: *id, is_special, takes_left, takes_right })
        };
        self.added_tokens_decoder.iter().map(token).collect()
    }

    /// The special tokens.
    fn special(&self) -> impl Iterator<Item = &str> {
        let named = [&self.bos_token, &self.eos_token, &self.pad_token, &self.unk_token];
        named.into_iter().flatten().map(Content::as_str).chain(["</s>", "<unk>", "<pad>"])
    }

    fn unknown(&self) -> String {
        self.unk_token.as_ref().map_or("<unk>", Content::as_str).to_owned()
    }

    /// The limit of tokens; "no limit" is written as an enormous number.
    fn max_tokens(&self) -> Option<usize> {
        self.model_max_length.filter(|length| (1.0..1e9).contains(length)).map(|length| length as usize)
    }
}

/// The tokens that a `tokenizer.json` adds, with their ids.
fn added_tokens(json: &[u8]) -> Result<BTreeMap<String, u32>> {
    #[derive(Deserialize)]
    struct File {
        added_tokens: Vec<AddedToken>,
    }
    let file: File = serde_json::from_slice(json)
        .map_err(|error| Error::model_because("cannot read the tokenizer", error))?;
    Ok(file.added_tokens.into_iter().map(|token| (token.content, token.id)).collect())
}
