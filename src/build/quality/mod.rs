//! The quality gate: how close a quantised model comes to its fp32 form on sample texts.

pub(super) mod encoder;
mod floor;
mod samples;
pub(super) mod translation;

pub use self::{encoder::inputs, floor::require, samples::SENTENCES};
