//! Models that translate: an encoder that reads a text, and a decoder that writes another, a token a step.

mod bundle;
mod decoder;
mod encoder;
mod hugging_face;
mod model;
mod vocabulary;
mod writer;

pub(super) use self::{
    bundle::{Compiled, Opened, OpenedSettings, compile, graph, plan_of},
    decoder::decoder,
    encoder::encoder,
    hugging_face::{MODEL_TYPES, is_in, open},
    model::{Memory, Norms, Positions, Stack, Table, Tables, TranslationModel, Waves},
};
