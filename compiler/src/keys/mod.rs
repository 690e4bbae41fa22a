//! Accounts for a model's settings: every key in every file is read, or known to have no effect on results, or refused.
//!
//! Only the tables in this module say which keys a file may have. A family's new key is an entry in its list.

mod encoders;
mod generation;
mod generators;
mod gliclass;
mod gliner;
mod gliner2;
mod rules;
mod sentence_transformers;
mod shared;
mod tokenizer;
mod walk;

pub use self::walk::{Kind, check};
