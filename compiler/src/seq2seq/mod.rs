//! Encoder-decoder models: read a text and generate another, token by token.

mod decoder;
pub mod fairseq;
pub mod generation;
mod hugging_face;
mod instructions;
mod model;
mod parts;
mod source_graph;
pub mod t5;
pub mod tokenizer_files;
mod tokenizer_json;
mod tokenizer_settings;
pub mod weight_names;

pub use self::{
    hugging_face::{MODEL_TYPES, is_in, open},
    model::{Memory, Norms, Positions, Seq2SeqModel, Sinusoids, Stack, Table, Tables, Waves},
    weight_names::Names,
};
use super::{
    files::weights::Weights,
    plan::opened_model::{DECODER, ENCODER, WriteGraphs},
};

/// Writes `model`'s encoder and decoder from weights in memory.
pub fn graphs(model: Seq2SeqModel, weights: Weights) -> WriteGraphs<'static> {
    Box::new(move |precision, _| {
        let encoder = source_graph::write(&model, &weights, precision)?;
        let decoder = decoder::write(&model, &weights, precision)?;
        // Student files have tables that only training reads.
        if !model.is_trained_in_int8 {
            weights.check_all(is_unused)?;
        }
        Ok(vec![(ENCODER, encoder), (DECODER, decoder)])
    })
}

/// Whether inference ignores the weight with this name, given without body prefix: a second name for a word table,
/// computed positions, or a T5 table that no version reads.
fn is_unused(name: &str) -> bool {
    const NAMES: [&str; 9] = [
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
        "encoder.embed_positions.weight",
        "decoder.embed_positions.weight",
        "encoder.embed_positions.weights",
        "decoder.embed_positions.weights",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    ];
    NAMES.contains(&name) || ["encoder.version", "decoder.version"].contains(&name)
}
