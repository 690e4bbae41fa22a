//! Models that translate: an encoder that reads a text, and a decoder that writes another, a token a step.

mod decoder;
mod encoder;
mod model;
mod writer;

pub(super) use self::{
    decoder::decoder,
    encoder::encoder,
    model::{Memory, Norms, Positions, Stack, Table, Tables, TranslationModel, Waves, first_of},
};
