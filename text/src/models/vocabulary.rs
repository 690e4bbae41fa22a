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
        ModelWrapper, TrainerWrapper, bpe::BpeTrainer, unigram::UnigramTrainer,
        wordpiece::WordPieceTrainer,
    },
};

use super::{
    byte_pairs::{self, BytePairs},
    fast_text::FastText,
    trie::{PieceTrie, take},
    unigram::{self, Unigram},
    word_pieces::{self, WordPieces},
};

/// A tokenizer model, which splits words into pieces.
pub enum Vocabulary {
    /// The crate's model, in hash maps.
    Standard(ModelWrapper),
    Unigram(Unigram),
    BytePairs(BytePairs),
    WordPieces(WordPieces),
    FastText(FastText),
}

/// A model's tokens, in the form in which they are kept.
enum Pieces<'a> {
    /// In the crate's model.
    Standard(&'a ModelWrapper),
    Compiled(&'a PieceTrie),
    Features(&'a FastText),
}

impl Vocabulary {
    /// Compiles a model; `None` for unsupported kinds. `json` is the model in `tokenizer.json`.
    pub fn file_of(model: &ModelWrapper, json: &Value) -> Option<Vec<u8>> {
        match model {
            ModelWrapper::Unigram(model) => Unigram::file_of(model),
            ModelWrapper::BPE(_) => BytePairs::file_of(json),
            ModelWrapper::WordPiece(_) => WordPieces::file_of(json),
            ModelWrapper::WordLevel(_) => None,
        }
    }

    /// Reads the output from [`file_of`](Self::file_of); `None` if it is invalid.
    pub fn read(mut file: Bytes) -> Option<Self> {
        let magic = take(&mut file, 1, unigram::MAGIC.len())?;
        match magic.first_chunk() {
            Some(&unigram::MAGIC) => Unigram::read(file).map(Self::Unigram),
            Some(&(byte_pairs::MAGIC | byte_pairs::MAGIC_OF_BYTES)) => {
                BytePairs::read(file).map(Self::BytePairs)
            }
            Some(&word_pieces::MAGIC) => WordPieces::read(file).map(Self::WordPieces),
            _ => None,
        }
    }

    fn pieces(&self) -> Pieces<'_> {
        match self {
            Self::Standard(model) => Pieces::Standard(model),
            Self::Unigram(unigram) => Pieces::Compiled(unigram.pieces()),
            Self::BytePairs(pairs) => Pieces::Compiled(pairs.pieces()),
            Self::WordPieces(words) => Pieces::Compiled(words.pieces()),
            Self::FastText(features) => Pieces::Features(features),
        }
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary")
            .field("size", &self.get_vocab_size())
            .finish_non_exhaustive()
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
            Self::FastText(features) => Ok(features.tokenize(word)),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self.pieces() {
            Pieces::Standard(model) => model.token_to_id(token),
            Pieces::Compiled(pieces) => pieces.id_of(token),
            Pieces::Features(features) => features.id_of(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self.pieces() {
            Pieces::Standard(model) => model.id_to_token(id),
            Pieces::Compiled(pieces) => pieces.piece(id).map(str::to_owned),
            Pieces::Features(features) => features.word(id).map(str::to_owned),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self.pieces() {
            Pieces::Standard(model) => model.get_vocab(),
            Pieces::Compiled(pieces) => {
                let ids = 0..pieces.count() as u32;
                ids.filter_map(|id| Some((pieces.piece(id)?.to_owned(), id)))
                    .collect()
            }
            Pieces::Features(features) => features.vocabulary().clone(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Standard(model) => model.get_vocab_size(),
            Self::Unigram(unigram) => unigram.pieces().count(),
            Self::BytePairs(pairs) => pairs.size(),
            Self::WordPieces(words) => words.size(),
            Self::FastText(features) => features.size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> RawResult<Vec<PathBuf>> {
        match self.pieces() {
            Pieces::Standard(model) => model.save(folder, prefix),
            Pieces::Compiled(_) | Pieces::Features(_) => {
                Err("this tokenizer cannot be saved".into())
            }
        }
    }

    fn get_trainer(&self) -> Self::Trainer {
        match self {
            Self::Standard(model) => model.get_trainer(),
            Self::Unigram(_) => UnigramTrainer::default().into(),
            Self::BytePairs(_) => BpeTrainer::default().into(),
            // A trainer is required; none is used.
            Self::WordPieces(_) | Self::FastText(_) => WordPieceTrainer::default().into(),
        }
    }
}
