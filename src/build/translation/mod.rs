//! Models that translate: an encoder that reads a text, and a decoder that generates another, token by token.

mod decoder;
mod encoder;
mod graphs;
pub(super) mod hugging_face;
mod model;
mod parts;
pub(super) mod tokenizer_files;

pub(super) use self::{
    graphs::graphs,
    hugging_face::{MODEL_TYPES, is_in, open},
    model::{Memory, Norms, Positions, Stack, Table, Tables, TranslationModel, Waves},
};
