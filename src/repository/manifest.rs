//! The manifest of a bundle, `manifest.toml`.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Component, Path},
};

use serde::{Deserialize, Serialize};

use crate::{
    backend::{Engine, Signature},
    error::{Error, Result},
    pipeline::{
        Task,
        classification::ClassificationSettings,
        embedding::{EmbeddingSettings, VectorKind},
        seq2seq::Seq2SeqSettings,
        token_classification::TokenClassificationSettings,
        zero_shot_entities::ZeroShotEntitiesSettings,
    },
};

/// The beginning of the first line, a comment; the BLAKE3 of all other lines follows.
const SEAL: &str = "# BLAKE3 of the lines below: ";

/// The contents of a manifest. The SHA-256 of its text identifies the bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this format, [`Manifest::FORMAT`].
    pub format: u32,
    /// The default name of the model.
    pub name: String,
    /// Other names of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The task of the model.
    pub task: Task,
    /// The file name of the graph.
    pub graph: String,
    /// The engine that the graph is written for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub engine: Engine,
    /// The origin of the model.
    pub source: Source,
    /// The precision of the weights, and the loss of quality.
    pub weights: Weights,
    /// The quality of an embedding model's vectors as integers and bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<VectorQuality>,
    /// The settings of embedding models.
    pub embedding: Option<EmbeddingSettings>,
    /// The settings of classifiers and rankers.
    pub classification: Option<ClassificationSettings>,
    /// The settings of models that label tokens.
    pub token_classification: Option<TokenClassificationSettings>,
    /// The settings of models that find entities with labels of the request.
    pub zero_shot_entities: Option<ZeroShotEntitiesSettings>,
    /// The settings of models that generate texts from texts.
    #[serde(alias = "translation")]
    pub seq2seq: Option<Seq2SeqSettings>,
    /// The names of tensors in the KServe API.
    #[serde(default, skip_serializing_if = "TensorNames::is_default")]
    pub tensors: TensorNames,
    /// Settings of the model's files that the build ignored on request, so that results may differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The inputs and outputs of the graph.
    pub signature: Signature,
    /// All other files of the bundle.
    pub files: Vec<File>,
}

fn is_default(engine: &Engine) -> bool {
    *engine == Engine::default()
}

/// The origin of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The architecture according to its `config.json`.
    pub architecture: String,
    /// The package, folder or repository, such as `ORG/NAME@COMMIT`.
    pub from: String,
    /// The SHA-256 of the original weights.
    pub sha256: String,
}

/// The precision of a model's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// The numbers that weights are stored as.
    pub precision: Precision,
    /// A description of the quantization, and why it was chosen if it is not the default.
    pub plan: String,
    /// The quality compared with fp32, measured by the build; `None` for fp32, and for weights that were quantized
    /// before the build.
    pub quality: Option<Quality>,
    /// The quality of the other vectors of an embedding model that has several kinds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_vectors: BTreeMap<VectorKind, Quality>,
}

/// The numbers that weights are stored as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 8-bit integers with one scale per output channel: the fastest.
    #[default]
    Int8,
    /// 8-bit integers with one scale per 32 weights and 32 activations: nearly fp32, but slower.
    Int8Blocks,
    /// 32-bit floating point.
    Fp32,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::Int8Blocks => "int8-blocks",
            Self::Fp32 => "fp32",
        })
    }
}

/// The quality of a quantized model compared with fp32, over real texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quality {
    /// Of embeddings. Of multi-vectors, cosines are those of single vectors, and the nearest texts those with the highest
    /// scores for a text as a query.
    Embedding {
        /// The number of texts.
        texts: usize,
        /// The mean cosine between embeddings of both.
        mean_cosine: f32,
        /// The lowest cosine.
        worst_cosine: f32,
        /// The nearest texts of each text; `None` in bundles of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        neighbours: Option<Neighbours>,
        /// Of sparse vectors: the mean share of the ten tokens with the largest weights that are the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        terms: Option<f32>,
        /// Of multi-vectors: the mean absolute difference of the scores of all pairs of texts, which are at most 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        score_difference: Option<f32>,
    },
    /// Of scores for the labels of tokens.
    TokenClassification {
        /// The number of texts.
        texts: usize,
        /// The number of their tokens, without special tokens.
        tokens: usize,
        /// The share of tokens with the same best label.
        agreement: f32,
        /// The mean absolute difference of scores, over all tokens and labels.
        mean_difference: f32,
        /// The largest difference.
        worst_difference: f32,
    },
    /// Of scores for the spans of words, with labels of the build.
    ZeroShotEntities {
        /// The number of texts.
        texts: usize,
        /// The number of spans.
        spans: usize,
        /// The share of entities that both find: twice the common ones, divided by those of both.
        agreement: f32,
        /// The mean absolute difference of scores, over all spans and labels.
        mean_difference: f32,
        /// The largest difference.
        worst_difference: f32,
    },
    /// Of scores for a single label, which rank texts.
    Ranking {
        /// The number of texts.
        texts: usize,
        /// The share of pairs of texts that both rank in the same order.
        rank_agreement: f32,
        /// The mean absolute difference of scores.
        mean_difference: f32,
    },
    /// Of scores for labels.
    Classification {
        /// The number of texts.
        texts: usize,
        /// The share of texts with the same best label.
        agreement: f32,
        /// The mean absolute difference of scores, over all labels.
        mean_difference: f32,
    },
    /// Of generated texts, which translations are as well.
    Seq2Seq {
        /// The number of texts.
        texts: usize,
        /// The similarity of the texts: twice the common words, in order, divided by the words of both.
        similarity: f32,
        /// The share of identical texts.
        identical: f32,
        /// The similarity without the shortlist, for models that have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        similarity_without_shortlist: Option<f32>,
        /// The share of tokens of the fp32 text for which both have the same most likely token.
        token_agreement: f32,
        /// The mean absolute difference of the log-probabilities of these tokens.
        token_difference: f32,
    },
}

/// How many of each text's nearest texts, by cosine among all measured texts, are the same as in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbours {
    /// The mean share of the ten nearest.
    pub ten_nearest: f32,
    /// The share of texts with the same nearest.
    pub nearest: f32,
}

/// How many of the ten nearest vectors of each sample text are still among the ten nearest if vectors are stored as
/// integers or bits, without another ranking of the results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorQuality {
    /// The number of texts.
    pub texts: usize,
    /// The share for `int8` and `uint8`, by cosine similarity.
    pub int8: f32,
    /// The share for `binary` and `ubinary`, by Hamming distance; absent if 8 does not divide the dimensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<f32>,
}

/// The names of a model's tensors in the KServe API, which a recipe can adapt to existing clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorNames {
    /// The input with texts.
    pub text: String,
    /// The input with token ids.
    pub ids: String,
    /// The input with the attention mask.
    pub mask: String,
    /// The input with the labels of zero-shot classification.
    pub labels: String,
    /// The input with the query of ranking.
    pub query: String,
    /// The output, by default named after its contents.
    pub output: Option<String>,
}

impl Default for TensorNames {
    fn default() -> Self {
        Self {
            text: "TEXT".into(),
            ids: "input_ids".into(),
            mask: "attention_mask".into(),
            labels: "LABELS".into(),
            query: "QUERY".into(),
            output: None,
        }
    }
}

impl TensorNames {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The path in the bundle.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// In hexadecimal, for other tools.
    pub sha256: String,
    /// In hexadecimal. It is verified when the bundle is loaded, in a third of the time of SHA-256.
    pub blake3: String,
}

impl Manifest {
    /// The supported version of the format.
    pub const FORMAT: u32 = 1;

    /// Parses a manifest. File names outside of the bundle are refused, and so is a text without the BLAKE3 of its first
    /// line. Manifests of versions before 0.3 have no such line.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some((expected, rest)) = text.strip_prefix(SEAL).and_then(|text| text.split_once('\n')) {
            let found = blake3::hash(rest.as_bytes()).to_hex();
            if found.as_str() != expected {
                return Err(Error::model(format!(
                    "expected the BLAKE3 {expected} of all lines after the first one of the manifest, but found {found}; \
                     the bundle is damaged or was edited: build or fetch it again"
                )));
            }
        }
        let manifest: Self = toml::from_str(text)
            .map_err(|error| Error::model_because("the manifest cannot be read", error))?;
        if manifest.format != Self::FORMAT {
            return Err(Error::model(format!(
                "expected a manifest of format {}, but found {}; build the bundle again",
                Self::FORMAT,
                manifest.format
            )));
        }
        for name in manifest.files.iter().map(|file| &file.name).chain([&manifest.graph]) {
            if !is_inside(name) {
                return Err(Error::model(format!(
                    "expected file names inside the bundle, but found `{name}`"
                )));
            }
        }
        Ok(manifest)
    }

    /// The text of the file.
    pub fn to_text(&self) -> Result<String> {
        let text = toml::to_string(self)
            .map_err(|error| Error::model_because("the manifest cannot be written", error))?;
        Ok(format!("{SEAL}{}\n{text}", blake3::hash(text.as_bytes()).to_hex()))
    }

    /// The maximum number of tokens of an encoder's input; `None` in models that translate.
    pub fn max_tokens(&self) -> Option<usize> {
        let embedding = self.embedding.as_ref().map(|settings| settings.max_tokens);
        let classification = self.classification.as_ref().map(|settings| settings.max_tokens);
        let token_classification = self.token_classification.as_ref().map(|settings| settings.max_tokens);
        let zero_shot_entities = self.zero_shot_entities.as_ref().map(|settings| settings.max_tokens);
        embedding.or(classification).or(token_classification).or(zero_shot_entities)
    }

    /// The entry of a file.
    pub fn file(&self, name: &str) -> Option<&File> {
        self.files.iter().find(|file| file.name == name)
    }
}

fn is_inside(name: &str) -> bool {
    let mut components = Path::new(name).components().peekable();
    components.peek().is_some() && components.all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_of_the_bundle_are_detected() {
        assert!(is_inside("model.onnx"));
        assert!(is_inside("1/model.onnx"));
        for name in ["", "../model.onnx", "/etc/passwd", "a/../../b", "."] {
            assert!(!is_inside(name), "{name}");
        }
    }
    #[test]
    fn a_manifest_is_protected_by_its_first_line() {
        let text = "format = 1\nname = \"tiny\"\n";
        let sealed = |text: &str| format!("{SEAL}{}\n{text}", blake3::hash(text.as_bytes()).to_hex());
        let refused = |text: &str| Manifest::parse(text).unwrap_err().to_string();
        assert!(!refused(&sealed(text)).contains("BLAKE3"), "only the other fields are missing");
        for damaged in
            [sealed(text).replace("tiny", "tinz"), sealed(text) + "\n", sealed(text).replacen(": ", ": 0", 1)]
        {
            assert!(refused(&damaged).contains("the bundle is damaged or was edited"), "{damaged}");
        }
    }
}
