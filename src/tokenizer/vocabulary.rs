//! Tokenizer models: the crate's, and ours, which load quickly if their vocabulary is large.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::Value;
use tokenizers::{
    Model, Result as RawResult, Token,
    models::{
        ModelWrapper, TrainerWrapper, bpe::BpeTrainer, unigram::UnigramTrainer, wordpiece::WordPieceTrainer,
    },
};

use super::{
    byte_pairs::{self, BytePairs},
    trie::{PieceTrie, take},
    unigram::{self, Unigram},
    word_pieces::{self, WordPieces},
};

/// A tokenizer model, which splits words into pieces.
pub(super) enum Vocabulary {
    /// The crate's model, in hash maps.
    Standard(ModelWrapper),
    Unigram(Unigram),
    BytePairs(BytePairs),
    WordPieces(WordPieces),
}

impl Vocabulary {
    /// Compiles a model; `None` for unsupported kinds. `json` is the model in `tokenizer.json`.
    pub(super) fn file_of(model: &ModelWrapper, json: &Value) -> Option<Vec<u8>> {
        match model {
            ModelWrapper::Unigram(model) => Unigram::file_of(model),
            ModelWrapper::BPE(_) => BytePairs::file_of(json),
            ModelWrapper::WordPiece(_) => WordPieces::file_of(json),
            ModelWrapper::WordLevel(_) => None,
        }
    }

    /// Reads the output from [`file_of`](Self::file_of); `None` if it is invalid.
    pub(super) fn read(mut file: Bytes) -> Option<Self> {
        let magic = take(&mut file, 1, unigram::MAGIC.len())?;
        match magic.first_chunk() {
            Some(&unigram::MAGIC) => Unigram::read(file).map(Self::Unigram),
            Some(&byte_pairs::MAGIC) => BytePairs::read(file).map(Self::BytePairs),
            Some(&word_pieces::MAGIC) => WordPieces::read(file).map(Self::WordPieces),
            _ => None,
        }
    }

    /// The compiled model's pieces, or the crate's model.
    fn pieces(&self) -> Result<&PieceTrie, &ModelWrapper> {
        match self {
            Self::Standard(model) => Err(model),
            Self::Unigram(unigram) => Ok(unigram.pieces()),
            Self::BytePairs(pairs) => Ok(pairs.pieces()),
            Self::WordPieces(words) => Ok(words.pieces()),
        }
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.get_vocab_size()).finish_non_exhaustive()
    }
}

impl Model for Vocabulary {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> RawResult<Vec<Token>> {
        match self {
            Self::Standard(model) => model.tokenize(word),
            Self::Unigram(unigram) => unigram.tokenize(word),
            Self::BytePairs(pairs) => Ok(pairs.tokenize(word)),
            Self::WordPieces(words) => Ok(words.tokenize(word)),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.pieces().map_or_else(|own| own.token_to_id(token), |pieces| pieces.id_of(token))
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.pieces().map_or_else(|own| own.id_to_token(id), |pieces| pieces.piece(id).map(str::to_owned))
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        let all = |pieces: &PieceTrie| {
            let ids = 0..pieces.count() as u32;
            ids.filter_map(|id| Some((pieces.piece(id)?.to_owned(), id))).collect()
        };
        self.pieces().map_or_else(ModelWrapper::get_vocab, all)
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Standard(model) => model.get_vocab_size(),
            Self::Unigram(unigram) => unigram.pieces().count(),
            Self::BytePairs(pairs) => pairs.size(),
            Self::WordPieces(words) => words.size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> RawResult<Vec<PathBuf>> {
        let refusal = || Err("a compiled tokenizer cannot be saved".into());
        self.pieces().map_or_else(|own| own.save(folder, prefix), |_| refusal())
    }

    fn get_trainer(&self) -> Self::Trainer {
        match self {
            Self::Standard(model) => model.get_trainer(),
            Self::Unigram(_) => UnigramTrainer::default().into(),
            Self::BytePairs(_) => BpeTrainer::default().into(),
            Self::WordPieces(_) => WordPieceTrainer::default().into(),
        }
    }
}
