//! Models that translate: an encoder that reads a text, and a decoder that writes another, a token a step.

mod bundle;
mod decoder;
mod encoder;
mod hugging_face;
mod model;
mod quality;
pub(super) mod vocabulary;
mod writer;

pub(super) use self::{
    bundle::{Opened, OpenedSettings, Origin, compile},
    decoder::decoder,
    encoder::encoder,
    hugging_face::{MODEL_TYPES, is_export_in, is_in, open, open_export},
    model::{Memory, Norms, Positions, Stack, Table, Tables, TranslationModel, Waves},
};
