//! Texts to embeddings, scores and translations: one file per task, on top of the steps that tasks share.

pub mod classification;
pub mod embedding;
pub mod encoder;
pub mod entities;
pub mod generation;
pub mod redaction;
pub mod seq2seq;
mod task;

pub use self::{
    encoder::{encoding::Input, usage::Usage},
    task::Task,
};
pub use crate::backend::model_inputs::POOLING_MASK;
