//! A model that was read from its source and can be written as a bundle.

use super::onnx::WEIGHTS;
use kivu::{
    backend::{Engine, Signature},
    error::Result,
    onnx_proto::ModelProto,
    pipeline::{
        Task,
        classification::ClassificationSettings,
        embedding::EmbeddingSettings,
        seq2seq::{Decoder, Seq2SeqSettings},
        token_classification::TokenClassificationSettings,
        zero_shot_entities::ZeroShotEntitiesSettings,
    },
    repository::{
        bundle::{PIECES, RANGES, TOKENIZER},
        manifest::Precision,
    },
};

/// The graph of an encoder.
pub(super) const MODEL: &str = "model.onnx";
/// The graphs of a model that translates.
pub(super) const ENCODER: &str = "encoder.onnx";
pub(super) const DECODER: &str = "decoder.onnx";
/// The tokenizer of targets, if it is not that of sources.
pub(super) const TARGET_TOKENIZER: &str = "target.json";
/// The shortlist of a model that has one.
pub(super) const SHORTLIST: &str = "shortlist.bin";

/// The weights of an embedding model's queries, if these are static.
pub(super) const QUERY_WEIGHTS: &str = "query-weights.bin";

/// The names of the files that bundles have, apart from the manifest.
pub const FILES: [&str; 10] =
    [MODEL, ENCODER, DECODER, TARGET_TOKENIZER, SHORTLIST, QUERY_WEIGHTS, WEIGHTS, TOKENIZER, PIECES, RANGES];

/// Graphs by file name; the manifest's graph is the first.
pub(super) type Graphs = Vec<(&'static str, ModelProto)>;

/// Writes the graphs with weights in a precision.
pub(super) type WriteGraphs<'a> = Box<dyn Fn(Precision) -> Result<Graphs> + 'a>;

/// A model that was read from its source.
pub(super) struct Source<'a> {
    /// The class that the weights were trained as.
    pub(super) architecture: String,
    /// The SHA-256 of the weights.
    pub(super) sha256: String,
    pub(super) settings: TaskSettings,
    /// The `tokenizer.json` of texts that the model reads.
    pub(super) tokenizer: Vec<u8>,
    /// Other files of the bundle.
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
    /// Whether the source's own weights are quantized. They are kept, and their quality cannot be measured.
    pub(super) is_quantized: bool,
    /// The engine that the quantized graph is written for.
    pub(super) engine: Engine,
    pub(super) graphs: WriteGraphs<'a>,
}

/// The decoder of a model that translates, until its graph is written.
pub(super) fn unread_decoder() -> Decoder {
    Decoder { graph: DECODER.to_owned(), signature: Signature { inputs: Vec::new(), outputs: Vec::new() } }
}

/// The settings of a task in the manifest.
#[derive(Clone, Debug)]
pub(super) enum TaskSettings {
    Encoder(EncoderSettings),
    /// With the tasks of the model, the most likely one first. The settings are those of the chosen one.
    Seq2Seq(Box<Seq2SeqSettings>, &'static [Task]),
}

#[derive(Clone, Debug)]
pub(super) enum EncoderSettings {
    Embedding(EmbeddingSettings),
    Classification(ClassificationSettings),
    TokenClassification(TokenClassificationSettings),
    ZeroShotEntities(ZeroShotEntitiesSettings),
}

impl EncoderSettings {
    /// The limit of tokens.
    pub(super) fn max_tokens(&self) -> usize {
        match self {
            Self::Embedding(settings) => settings.max_tokens,
            Self::Classification(settings) => settings.max_tokens,
            Self::TokenClassification(settings) => settings.max_tokens,
            Self::ZeroShotEntities(settings) => settings.max_tokens,
        }
    }
}
