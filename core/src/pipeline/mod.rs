//! Texts to embeddings, scores and translations: one file per task, on top of the steps that tasks share.

mod adapter;
pub mod chunks;
pub mod classification;
pub mod embedding;
pub mod encoder;
mod encoding;
pub mod entities;
mod executor;
pub mod extraction;
pub mod generation;
pub mod instructions;
pub mod label_scores;
pub mod label_vectors;
mod model_inputs;
pub mod multi_vector;
pub mod pair_template;
pub mod pooling;
pub mod ranking;
mod redaction;
pub mod roles;
pub mod schema;
pub mod scores;
pub mod seq2seq;
pub mod similarity;
pub mod sparse;
mod task;
pub mod token_classification;
mod usage;
pub mod vectors;
pub mod zero_shot;
pub mod zero_shot_entities;

pub use self::executor::sharing_turns;
pub use self::{encoding::Input, model_inputs::POOLING_MASK, task::Task, usage::Usage};
