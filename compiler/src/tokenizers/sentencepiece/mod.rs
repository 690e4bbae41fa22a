//! Converts SentencePiece models to `tokenizer.json`.
//!
//! A SentencePiece model's ids differ from its translation model's, which are in another file or shifted. The converted
//! tokenizer returns the latter.

mod deberta;
mod proto;
mod xlm_roberta;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use prost::Message;
use serde_json::{Value, json};

use self::proto::{
    BPE, BYTE, ModelProto, NORMAL, SentencePiece, TrainerSpec, UNIGRAM, USER_DEFINED,
};
use crate::{
    files::io::read,
    tokenizers::parts::{Template, to_bytes},
};
use kivu::{
    Error, Result,
    pipeline::seq2seq::UnknownTokens,
    repository::bundle::TOKENIZER,
    tokenizer::{LONGEST_KEYS, UNMATCHED},
};

/// Maximum number of ids, twice the largest known vocabularies.
pub const MAX_IDS: usize = 1 << 21;
/// Maximum number of unnamed ids beyond the model's table, since some files leave out a few.
const MAX_UNNAMED: usize = 4096;
/// The character for a space in pieces.
const SPACE: &str = "▁";

#[derive(Debug)]
pub struct SentencePieces(ModelProto);

/// A translation model's ids.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// Id per piece.
    pub ids: BTreeMap<String, u32>,
    /// Tokens that are never split: special tokens and language tokens.
    pub tokens: BTreeMap<String, Token>,
    /// Token for pieces outside the vocabulary.
    pub unknown: String,
    /// Minimum number of ids in the model.
    pub size: usize,
    /// Token, one of `tokens`, that the tokenizer adds to a text's end. For translations, the pipeline adds it.
    pub end: Option<&'static str>,
}

/// A token that is never split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: u32,
    /// Whether it is omitted from decoded texts.
    pub is_special: bool,
    /// Whether it includes the spaces before it.
    pub takes_left: bool,
    /// Whether it includes the spaces after it.
    pub takes_right: bool,
}

impl Token {
    pub fn special(id: u32) -> Self {
        Self {
            id,
            is_special: true,
            takes_left: false,
            takes_right: false,
        }
    }
}

/// A converted tokenizer.
#[derive(Debug)]
pub struct BuiltTokenizer {
    /// The `tokenizer.json`.
    pub json: Vec<u8>,
    /// Tokenizer ids that the translation model lacks.
    pub unknown_tokens: Option<UnknownTokens>,
}

impl SentencePieces {
    /// Reads the model at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = read(path)?;
        let unusable = |what: &str| {
            Error::model(format!(
                "expected a SentencePiece model in `{}`, but found {what}",
                path.display()
            ))
        };
        let model = ModelProto::decode(bytes.as_slice()).map_err(|_| unusable("something else"))?;
        if model.pieces.is_empty() {
            return Err(unusable("no pieces"));
        }
        let trainer = model.trainer_spec.clone().unwrap_or_default();
        let normalizer = model.normalizer_spec.clone().unwrap_or_default();
        let unsupported = [
            (
                trainer.byte_fallback && trainer.model_type.unwrap_or(UNIGRAM) != UNIGRAM,
                "byte pairs with `byte_fallback`",
            ),
            (
                trainer.treat_whitespace_as_suffix,
                "`treat_whitespace_as_suffix`",
            ),
            (
                normalizer.add_dummy_prefix == Some(false),
                "`add_dummy_prefix` false",
            ),
            (
                normalizer.remove_extra_whitespaces == Some(false),
                "`remove_extra_whitespaces` false",
            ),
            (
                normalizer.escape_whitespaces == Some(false),
                "`escape_whitespaces` false",
            ),
        ];
        if let Some((_, found)) = unsupported.iter().find(|(is_found, _)| *is_found) {
            return Err(
                unusable(&format!("one with {found}, which is not supported")).with_hint(format!(
                    "save the fast tokenizer of `transformers` (`{TOKENIZER}`)"
                )),
            );
        }
        Ok(Self(model))
    }

    /// The pieces, ordered by their ids in the SentencePiece model.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.pieces.iter().map(|piece| piece.piece.as_str())
    }

    /// Builds the tokenizer for `vocabulary`'s ids.
    pub fn tokenizer(&self, vocabulary: &Vocabulary) -> Result<BuiltTokenizer> {
        let unknown = vocabulary
            .tokens
            .get(&vocabulary.unknown)
            .map(|token| token.id)
            .ok_or_else(|| {
                Error::model(format!(
                    "expected `{}` in the vocabulary, but found none",
                    vocabulary.unknown
                ))
            })?;
        let kind = self
            .0
            .trainer_spec
            .as_ref()
            .and_then(|TrainerSpec { model_type, .. }| *model_type);
        let (model, unknown_tokens) = match kind.unwrap_or(UNIGRAM) {
            UNIGRAM => self.unigram(vocabulary, unknown),
            BPE => (self.byte_pairs(vocabulary, unknown), None),
            other => {
                return Err(Error::model(format!(
                    "expected a SentencePiece model of type 1 (unigram) or 2 (BPE), but found {other}"
                )));
            }
        };
        let template = vocabulary.end.and_then(|end| {
            let template = Template {
                before: &[],
                after: &[(end, vocabulary.tokens.get(end)?.id)],
                between: 1,
                second_type: 0,
            };
            Some(template.post_processor())
        });
        let json = to_json(
            &model,
            &self.normalizer(vocabulary),
            &self.added_tokens(vocabulary),
            template.as_ref(),
        )?;
        Ok(BuiltTokenizer {
            json,
            unknown_tokens,
        })
    }

    /// A unigram model; its ids are list indices. Ids without a piece get a name that no text contains; pieces without
    /// an id are appended to the list.
    fn unigram(&self, vocabulary: &Vocabulary, unknown: u32) -> (Value, Option<UnknownTokens>) {
        let mut list: Vec<(String, f32)> = (0..vocabulary.length())
            .map(|id| (format!("{UNMATCHED}{id}"), 0.0))
            .collect();
        for (content, token) in &vocabulary.tokens {
            list[token.id as usize].0.clone_from(content);
        }
        let known = list.len();
        for SentencePiece { piece, score, .. } in self.normal() {
            match vocabulary.ids.get(piece) {
                Some(id) => list[*id as usize] = (piece.clone(), *score),
                None => list.push((piece.clone(), *score)),
            }
        }
        let unknown_tokens = (list.len() > known).then_some(UnknownTokens {
            from: known as u32,
            read_as: unknown,
        });
        let byte_fallback = self.has_bytes();
        let model = json!({"type": "Unigram", "unk_id": unknown, "vocab": list, "byte_fallback": byte_fallback});
        (model, unknown_tokens)
    }

    /// A BPE model; pieces without an id get the unknown token's id.
    fn byte_pairs(&self, vocabulary: &Vocabulary, unknown: u32) -> Value {
        let mut ids = vocabulary.all();
        for SentencePiece { piece, .. } in self.normal() {
            ids.entry(piece.clone()).or_insert(unknown);
        }
        json!({
            "type": "BPE", "unk_token": vocabulary.unknown, "fuse_unk": true, "byte_fallback": false,
            "vocab": ids, "merges": self.merges(),
        })
    }

    /// Merges that yield pieces, ordered by the piece's score.
    fn merges(&self) -> Vec<[&str; 2]> {
        let ranks: HashMap<&str, usize> = self
            .normal()
            .enumerate()
            .map(|(rank, piece)| (piece.piece.as_str(), rank))
            .collect();
        let mut merges: Vec<(f32, [usize; 2], [&str; 2])> = Vec::new();
        for SentencePiece { piece, score, .. } in self.normal() {
            for (place, _) in piece.char_indices().skip(1) {
                let pair = piece.split_at(place);
                if let (Some(left), Some(right)) = (ranks.get(pair.0), ranks.get(pair.1)) {
                    merges.push((*score, [*left, *right], [pair.0, pair.1]));
                }
            }
        }
        merges.sort_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
        merges.into_iter().map(|(.., pair)| pair).collect()
    }

    /// Whether unknown characters are spelled as bytes.
    fn has_bytes(&self) -> bool {
        self.0
            .trainer_spec
            .as_ref()
            .is_some_and(|trainer| trainer.byte_fallback)
    }

    /// Pieces that occur in texts, including byte pieces.
    fn normal(&self) -> impl Iterator<Item = &SentencePiece> {
        let is_normal = |piece: &&SentencePiece| {
            matches!(piece.r#type, None | Some(NORMAL | USER_DEFINED | BYTE))
                && !piece.piece.is_empty()
        };
        self.0.pieces.iter().filter(is_normal)
    }

    fn normalizer(&self, vocabulary: &Vocabulary) -> Value {
        let mut map = precompiled(&self.0);
        // `transformers` has SentencePiece itself for translators, and a conversion for others.
        if let Some(map) = map.as_mut().filter(|_| vocabulary.end.is_none()) {
            map["type"] = LONGEST_KEYS.into();
        }
        // Other white space may be part of pieces.
        let spaces = [
            json!({"type": "Replace", "pattern": {"Regex": " +\\z"}, "content": ""}),
            json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE}),
        ];
        let steps: Vec<Value> = map.into_iter().chain(spaces).collect();
        json!({"type": "Sequence", "normalizers": steps})
    }

    /// Tokens found in a text before it is split into pieces.
    fn added_tokens(&self, vocabulary: &Vocabulary) -> Vec<Value> {
        let defined = self
            .0
            .pieces
            .iter()
            .filter(|piece| piece.r#type == Some(USER_DEFINED));
        let defined = defined.filter_map(|SentencePiece { piece, .. }| {
            let token = Token {
                is_special: false,
                ..Token::special(*vocabulary.ids.get(piece)?)
            };
            Some((piece.clone(), token))
        });
        // Ids without a name are decoded to nothing.
        let unnamed = vocabulary
            .all()
            .into_iter()
            .filter(|(name, _)| name.starts_with(UNMATCHED));
        let unnamed = unnamed.map(|(name, id)| (name, Token::special(id)));
        let mut tokens: Vec<_> = vocabulary
            .tokens
            .clone()
            .into_iter()
            .chain(defined)
            .chain(unnamed)
            .collect();
        tokens.sort_by_key(|(_, token)| token.id);
        let added = tokens.into_iter().map(|(content, token)| {
            json!({
                "id": token.id, "content": content, "single_word": false, "lstrip": token.takes_left,
                "rstrip": token.takes_right, "normalized": false, "special": token.is_special,
            })
        });
        added.collect()
    }
}

/// Normalization by the model's character map, if it has one.
fn precompiled(model: &ModelProto) -> Option<Value> {
    let map = model
        .normalizer_spec
        .as_ref()
        .map(|spec| &spec.precompiled_charsmap);
    let map = map.filter(|map| !map.is_empty())?;
    Some(json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map)}))
}

/// The pre-tokenizer, and the decoder.
fn metaspace() -> Value {
    json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true})
}

impl Vocabulary {
    /// Refuses ids too large for the number of names, since list sizes depend on the largest id, and tokens that are
    /// pieces with another id.
    pub fn checked(self) -> Result<Self> {
        let piece = |(content, token): (&String, &Token)| {
            let id = self.ids.get(content).filter(|id| **id != token.id)?;
            Some(Error::model(format!(
                "expected the token `{content}` with the id {id}, which it has as a piece, but found the id {}",
                token.id
            )))
        };
        if let Some(error) = self.tokens.iter().find_map(piece) {
            return Err(error);
        }
        let names = self.ids.len() + self.tokens.len();
        let limit = (2 * names + MAX_UNNAMED).max(self.size).min(MAX_IDS);
        match self.length() {
            found if found > limit => Err(Error::model(format!(
                "expected ids below {limit} for a vocabulary of {names} names, but found {}",
                found - 1
            ))),
            _ => Ok(self),
        }
    }

    /// All ids by name. Unnamed ids get a name that no text contains.
    fn all(&self) -> BTreeMap<String, u32> {
        let tokens = self
            .tokens
            .iter()
            .map(|(content, token)| (content, token.id));
        let pieces = self.ids.iter().map(|(piece, id)| (piece, *id));
        let named: BTreeMap<u32, &String> =
            pieces.chain(tokens).map(|(name, id)| (id, name)).collect();
        let name = |id| {
            named
                .get(&id)
                .map_or_else(|| format!("{UNMATCHED}{id}"), |name| (*name).clone())
        };
        (0..self.length() as u32).map(|id| (name(id), id)).collect()
    }

    /// Number of ids, unnamed ones included.
    fn length(&self) -> usize {
        let ids = self
            .ids
            .values()
            .copied()
            .chain(self.tokens.values().map(|token| token.id));
        ids.max().map_or(0, |id| id as usize + 1).max(self.size)
    }

    /// Builds a decode-only tokenizer.
    pub fn decoder(&self) -> Result<Vec<u8>> {
        let model = json!({"type": "WordLevel", "vocab": self.all(), "unk_token": self.unknown});
        let no_pieces = SentencePieces(ModelProto::default());
        to_json(&model, &Value::Null, &no_pieces.added_tokens(self), None)
    }
}

/// Writes a `tokenizer.json` with a template for texts, if there is one.
fn to_json(
    model: &Value,
    normalizer: &Value,
    added_tokens: &[Value],
    template: Option<&Value>,
) -> Result<Vec<u8>> {
    let spaces = metaspace();
    let decoder = match model["byte_fallback"] == true {
        true => json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces]}),
        false => spaces.clone(),
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
        "normalizer": normalizer, "pre_tokenizer": spaces, "post_processor": template, "decoder": decoder,
        "model": model,
    });
    to_bytes(&tokenizer)
}
