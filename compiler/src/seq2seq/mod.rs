//! Models with an encoder that reads a text, and a decoder that generates another, token by token.

mod decoder;
mod encoder;
pub(super) mod hugging_face;
mod model;
mod names;
mod parts;
pub(super) mod t5;
pub(super) mod tokenizer_files;

pub(super) use self::{
    hugging_face::{MODEL_TYPES, is_in, open},
    model::{Memory, Norms, Positions, Seq2SeqModel, Sinusoids, Stack, Table, Tables, Waves},
    names::Names,
};
use super::{
    source::{DECODER, ENCODER, WriteGraphs},
    weights::Weights,
};

/// Writes the encoder and the decoder of `model`, whose weights were read.
pub(super) fn graphs(model: Seq2SeqModel, weights: Weights) -> WriteGraphs<'static> {
    Box::new(move |precision| {
        let encoder = encoder::write(&model, &weights, precision)?;
        Ok(vec![(ENCODER, encoder), (DECODER, decoder::write(&model, &weights, precision)?)])
    })
}
