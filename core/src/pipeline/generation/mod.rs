//! Token-by-token generation with the semantics of `generate` in `transformers`: greedy decoding,
//! sampling and beam search.

mod beam_search;
mod config;
mod decode_loop;
mod hypothesis;
mod logits_processors;
mod sampler;
mod scores;
mod settings;

pub use self::{
    config::{Bounds, GenerationConfig, MAX_BEAMS},
    decode_loop::{SourceInfo, generate},
    hypothesis::Generated,
    settings::{EarlyStopping, GenerationOptions, GenerationSettings, TokenIds},
};
