//! The accounts of a model's settings: every key of every file is read, or known to have no effect on results, or refused.
//!
//! The tables of this module are the only place that says which keys a file may have. A new key of a family is an entry in
//! its list.

mod encoders;
mod generation;
mod gliner;
mod rules;
mod sentence_transformers;
mod seq2seq;
mod shared;
mod tokenizer;
mod walk;

pub(super) use self::walk::{Kind, check};

/// The keys that the reader of an encoder family must read, for its test.
#[cfg(test)]
pub(crate) use self::encoders::own_keys;
