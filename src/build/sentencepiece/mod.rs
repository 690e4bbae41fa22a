//! Tokenizers of models that come with a SentencePiece model in place of a `tokenizer.json`.
//!
//! Such a model knows pieces, but its ids are its own; those of the translation model stand in another file, or
//! are shifted. What is made here gives the latter at once.

mod proto;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use prost::Message;
use serde_json::{Value, json};

use self::proto::{BPE, ModelProto, NORMAL, SentencePiece, TrainerSpec, UNIGRAM, USER_DEFINED};
use crate::{
    error::{Error, Result},
    pipeline::translation::UnknownTokens,
};

/// No vocabulary has as many ids: the largest that are known have a million.
pub(super) const MOST_IDS: usize = 1 << 21;
/// Ids that have no name, and are no rows of the model's table either: some files leave a few out.
const MOST_UNNAMED: usize = 4096;
/// What stands for a space.
const SPACE: &str = "▁";
/// What no text has after its normalisation: a piece that begins with it is never found in a text.
const NEVER: char = '\u{1}';

/// A SentencePiece model.
#[derive(Debug)]
pub(super) struct SentencePieces(ModelProto);

/// The ids of a translation model.
#[derive(Clone, Debug, Default)]
pub(super) struct Vocabulary {
    /// The id of each piece.
    pub(super) ids: BTreeMap<String, u32>,
    /// The tokens that are never split, with what they stand for in a text spelt out: special ones, and those of
    /// languages.
    pub(super) tokens: BTreeMap<String, Token>,
    /// What pieces are read as that are not in the vocabulary.
    pub(super) unknown: String,
    /// The number of ids that the translation model has, at least.
    pub(super) size: usize,
}

/// A token that is never split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) id: u32,
    /// Whether it marks structure rather than text.
    pub(super) is_special: bool,
    /// Whether it takes the spaces before it along.
    pub(super) takes_left: bool,
    /// Whether it takes the spaces after it along.
    pub(super) takes_right: bool,
}

/// A tokenizer that was made.
#[derive(Debug)]
pub(super) struct Made {
    /// The `tokenizer.json`.
    pub(super) json: Vec<u8>,
    /// The ids that it gives beyond those of the translation model.
    pub(super) unknown_tokens: Option<UnknownTokens>,
}

impl SentencePieces {
    /// Reads the model at `path`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        let unusable = |what: &str| {
            Error::model(format!("expected a SentencePiece model in `{}`, but found {what}", path.display()))
        };
        let model = ModelProto::decode(bytes.as_slice()).map_err(|_| unusable("something else"))?;
        if model.pieces.is_empty() {
            return Err(unusable("no pieces"));
        }
        let trainer = model.trainer_spec.clone().unwrap_or_default();
        let normalizer = model.normalizer_spec.clone().unwrap_or_default();
        let has_usual_spaces =
            [normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces];
        if trainer.byte_fallback
            || trainer.treat_whitespace_as_suffix
            || has_usual_spaces.contains(&Some(false))
        {
            return Err(unusable("one with byte fallback or with spaces of its own kind"));
        }
        Ok(Self(model))
    }

    /// The pieces, by their own ids.
    pub(super) fn pieces(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.pieces.iter().map(|piece| piece.piece.as_str())
    }

    /// The tokenizer that gives the ids of `vocabulary`.
    pub(super) fn tokenizer(&self, vocabulary: &Vocabulary) -> Result<Made> {
        let unknown = vocabulary.tokens.get(&vocabulary.unknown).map(|token| token.id).ok_or_else(|| {
            Error::model(format!("expected `{}` in the vocabulary, but found none", vocabulary.unknown))
        })?;
        let kind = self.0.trainer_spec.as_ref().and_then(|TrainerSpec { model_type, .. }| *model_type);
        let (model, unknown_tokens) = match kind.unwrap_or(UNIGRAM) {
            UNIGRAM => self.unigram(vocabulary, unknown),
            BPE => (self.byte_pairs(vocabulary, unknown), None),
            other => {
                return Err(Error::model(format!(
                    "expected a SentencePiece model of type 1 (unigram) or 2 (BPE), but found {other}"
                )));
            }
        };
        let json = to_json(&model, &self.normalizer(), &self.added_tokens(vocabulary))?;
        Ok(Made { json, unknown_tokens })
    }

    /// A unigram model, whose ids are places in a list. Pieces that are in no text of the source stand there under
    /// a name that is in no text at all; pieces that have no id come after all others.
    fn unigram(&self, vocabulary: &Vocabulary, unknown: u32) -> (Value, Option<UnknownTokens>) {
        let mut list: Vec<(String, f32)> =
            (0..vocabulary.length()).map(|id| (format!("{NEVER}{id}"), 0.0)).collect();
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
        let unknown_tokens =
            (list.len() > known).then_some(UnknownTokens { from: known as u32, read_as: unknown });
        (json!({"type": "Unigram", "unk_id": unknown, "vocab": list, "byte_fallback": false}), unknown_tokens)
    }

    /// A model of byte pairs: pieces that have no id have that of the unknown token.
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

    /// The pairs that make pieces, the ones that are merged first before the others: a piece's score says when.
    fn merges(&self) -> Vec<[&str; 2]> {
        let ranks: HashMap<&str, usize> =
            self.normal().enumerate().map(|(rank, piece)| (piece.piece.as_str(), rank)).collect();
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

    /// The pieces that are found in texts.
    fn normal(&self) -> impl Iterator<Item = &SentencePiece> {
        let is_normal = |piece: &&SentencePiece| {
            matches!(piece.r#type, None | Some(NORMAL | USER_DEFINED)) && !piece.piece.is_empty()
        };
        self.0.pieces.iter().filter(is_normal)
    }

    fn normalizer(&self) -> Value {
        let map = self.0.normalizer_spec.as_ref().map(|spec| &spec.precompiled_charsmap);
        let map = map
            .filter(|map| !map.is_empty())
            .map(|map| json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map)}));
        // Of all white space only the space itself goes, as the others may be pieces.
        let spaces = [
            json!({"type": "Replace", "pattern": {"Regex": " +\\z"}, "content": ""}),
            json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE}),
        ];
        let steps: Vec<Value> = map.into_iter().chain(spaces).collect();
        json!({"type": "Sequence", "normalizers": steps})
    }

    /// The tokens that are taken out of a text before it is split into pieces.
    fn added_tokens(&self, vocabulary: &Vocabulary) -> Vec<Value> {
        let defined = self.0.pieces.iter().filter(|piece| piece.r#type == Some(USER_DEFINED));
        let defined = defined.filter_map(|piece| {
            let id = *vocabulary.ids.get(&piece.piece)?;
            Some((&piece.piece, Token { id, is_special: false, takes_left: false, takes_right: false }))
        });
        // An id without a name stands for nothing, and nothing is what comes of it.
        let unnamed = vocabulary.all().into_iter().filter(|(name, _)| name.starts_with(NEVER));
        let unnamed = unnamed
            .map(|(name, id)| (name, Token { id, is_special: true, takes_left: false, takes_right: false }));
        let named = vocabulary.tokens.iter().map(|(content, token)| (content, *token)).chain(defined);
        let mut tokens: Vec<_> =
            named.map(|(content, token)| (content.clone(), token)).chain(unnamed).collect();
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

impl Vocabulary {
    /// Refuses ids that no file of this size can mean: each takes its place in a list.
    pub(super) fn checked(self) -> Result<Self> {
        let names = self.ids.len() + self.tokens.len();
        let most = (2 * names + MOST_UNNAMED).max(self.size).min(MOST_IDS);
        match self.length() {
            found if found > most => Err(Error::model(format!(
                "expected ids below {most} for a vocabulary of {names} names, but found {}",
                found - 1
            ))),
            _ => Ok(self),
        }
    }

    /// Every id under some name: those that have none under one that is in no text.
    fn all(&self) -> BTreeMap<String, u32> {
        let tokens = self.tokens.iter().map(|(content, token)| (content, token.id));
        let named: BTreeMap<u32, &String> = self
            .ids
            .iter()
            .map(|(piece, id)| (piece, *id))
            .chain(tokens)
            .map(|(name, id)| (id, name))
            .collect();
        let name = |id| named.get(&id).map_or_else(|| format!("{NEVER}{id}"), |name| (*name).clone());
        (0..self.length() as u32).map(|id| (name(id), id)).collect()
    }

    /// The number of ids.
    fn length(&self) -> usize {
        let ids = self.ids.values().copied().chain(self.tokens.values().map(|token| token.id));
        ids.max().map_or(0, |id| id as usize + 1).max(self.size)
    }

    /// A tokenizer that only puts texts together.
    pub(super) fn decoder(&self) -> Result<Vec<u8>> {
        let model = json!({"type": "WordLevel", "vocab": self.all(), "unk_token": self.unknown});
        let nothing_found = SentencePieces(ModelProto::default());
        to_json(&model, &Value::Null, &nothing_found.added_tokens(self))
    }
}

fn to_json(model: &Value, normalizer: &Value, added_tokens: &[Value]) -> Result<Vec<u8>> {
    let spaces =
        json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
        "normalizer": normalizer, "pre_tokenizer": spaces, "post_processor": null, "decoder": spaces,
        "model": model,
    });
    serde_json::to_vec(&tokenizer)
        .map_err(|error| Error::model_because("the tokenizer cannot be written", error))
}
