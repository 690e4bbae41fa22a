//! The graphs of a model whose weights were read.

use super::{decoder, encoder, model::TranslationModel};
use crate::build::{
    source::{DECODER, ENCODER, WriteGraphs},
    weights::Weights,
};

/// Writes the encoder and the decoder of `model`.
pub(in crate::build) fn graphs(model: TranslationModel, weights: Weights) -> WriteGraphs<'static> {
    Box::new(move |precision| {
        let encoder = encoder::write(&model, &weights, precision)?;
        Ok(vec![(ENCODER, encoder), (DECODER, decoder::write(&model, &weights, precision)?)])
    })
}
