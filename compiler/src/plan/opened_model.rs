//! A model read from its source, ready to be written as a bundle.

use crate::{onnx::WEIGHTS, quantize::layer_calibration::Calibration};
use kivu::{
    Result,
    backend::{Engine, Signature},
    onnx_proto::ModelProto,
    pipeline::{Task, seq2seq::Decoder},
    repository::{
        TaskSettings,
        bundle::{PIECES, RANGES, TOKENIZER},
        manifest::Precision,
    },
};

/// Encoder graph.
pub const MODEL: &str = "model.onnx";
/// Translation graphs.
pub const ENCODER: &str = "encoder.onnx";
pub const DECODER: &str = "decoder.onnx";
/// Target tokenizer, if different.
pub const TARGET_TOKENIZER: &str = "target.json";
/// Shortlist, for models that have one.
pub const SHORTLIST: &str = "shortlist.bin";

/// The graph and the tokenizer for labels, for models that read labels by themselves.
pub const LABELS: &str = "labels.onnx";
pub const LABEL_TOKENIZER: &str = "labels.json";

/// Static query weights for an embedding model.
pub const QUERY_WEIGHTS: &str = "query-weights.bin";

/// File names in bundles, apart from the manifest.
pub const FILES: [&str; 12] = [
    MODEL,
    ENCODER,
    DECODER,
    TARGET_TOKENIZER,
    SHORTLIST,
    LABELS,
    LABEL_TOKENIZER,
    QUERY_WEIGHTS,
    WEIGHTS,
    TOKENIZER,
    PIECES,
    RANGES,
];

/// Graphs by file name; the manifest's graph is the first.
pub type Graphs = Vec<(&'static str, ModelProto)>;

/// Writes the graphs with weights in a precision; an encoder's layers in 8 bits are fitted to sample texts, if given.
pub type WriteGraphs<'a> = Box<dyn Fn(Precision, Option<&Calibration>) -> Result<Graphs> + 'a>;

/// A model read from its source.
pub struct OpenedModel<'a> {
    /// Class that the weights were trained as.
    pub architecture: String,
    /// SHA-256 over the weights.
    pub sha256: String,
    pub settings: TaskSettings,
    /// Tasks of a model that generates texts, most likely first; its settings belong to the chosen one.
    pub generates: &'static [Task],
    /// `tokenizer.json` for texts that the model reads.
    pub tokenizer: Vec<u8>,
    /// Other files in the bundle.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// Heads in the weights that vectors do not need, by the first parts of their weights' names.
    pub unused_heads: Vec<String>,
    /// Whether the source's own weights are quantized. They are kept, and their quality cannot be measured.
    pub is_quantized: bool,
    /// Whether graphs in `int8-blocks` keep attention's matrices in fp32.
    pub keeps_attention: bool,
    /// Whether the graphs are an export's, whose weights are not written in blocks.
    pub is_export: bool,
    /// Target engine for the quantized graph.
    pub engine: Engine,
    /// Target engine for the graph in fp32.
    pub fp32_engine: Engine,
    pub graphs: WriteGraphs<'a>,
}

/// A translation model's decoder, until its graph is written.
pub fn unread_decoder() -> Decoder {
    Decoder {
        graph: DECODER.to_owned(),
        signature: Signature {
            inputs: Vec::new(),
            outputs: Vec::new(),
        },
    }
}
