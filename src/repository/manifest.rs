//! A bundle's manifest, `manifest.toml`.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Component, Path},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kivu_base::error::{Error, Result};
use kivu_core::{
    backend::{Engine, Signature},
    pipeline::{
        Task,
        classification::{ClassificationSettings, label_scores::LabelScoresSettings},
        embedding::{EmbeddingSettings, VectorKind},
        entities::{
            token_classification::TokenClassificationSettings,
            zero_shot_entities::ZeroShotEntitiesSettings,
        },
        seq2seq::Seq2SeqSettings,
    },
};

/// First line's prefix, a comment; the BLAKE3 of all other lines follows.
const SEAL: &str = "# BLAKE3 of the lines below: ";

/// Manifest contents. The SHA-256 of its text identifies the bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version, [`Manifest::FORMAT`].
    pub format: u32,
    /// Default model name.
    pub name: String,
    /// Model aliases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Model task.
    pub task: Task,
    /// Graph file name.
    pub graph: String,
    /// The engine that the graph is written for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub engine: Engine,
    /// Model origin.
    pub source: Source,
    /// Weight precision and quality loss.
    pub weights: Weights,
    /// Quality of an embedding model's int8 and binary vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<VectorQuality>,
    /// Only for embedding models.
    pub embedding: Option<EmbeddingSettings>,
    /// Only for classifiers and rankers.
    pub classification: Option<ClassificationSettings>,
    /// Only for token classifiers.
    pub token_classification: Option<TokenClassificationSettings>,
    /// Only for models that read the request's labels together with a text.
    pub label_scores: Option<LabelScoresSettings>,
    /// Only for zero-shot entity models.
    pub zero_shot_entities: Option<ZeroShotEntitiesSettings>,
    /// Only for models that generate texts from texts.
    #[serde(alias = "translation")]
    pub seq2seq: Option<Seq2SeqSettings>,
    /// Tensor names in the KServe API.
    #[serde(default, skip_serializing_if = "TensorNames::is_default")]
    pub tensors: TensorNames,
    /// Keys in the model's files that the build ignored on request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// Sentences about their values, which may change results, and about a model card that cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Graph inputs and outputs.
    pub signature: Signature,
    /// All other bundle files.
    pub files: Vec<File>,
}

/// Checks the name of a model that is built: it is a segment of the paths of routes, a folder's name, and a word in lists of
/// models, keys and prompts.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.starts_with(|c: char| c.is_alphanumeric() || c == '_') && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(Error::config(format!(
        "expected a model name of letters, digits, `-`, `_` and `.` that begins with a letter, a digit or `_`, but found \
         `{}`",
        name.escape_debug()
    )))
}

fn is_default(engine: &Engine) -> bool {
    *engine == Engine::default()
}

/// Model origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The architecture according to its `config.json`.
    pub architecture: String,
    /// The package, folder or repository, such as `ORG/NAME@COMMIT`.
    pub from: String,
    /// SHA-256 of the original weights.
    pub sha256: String,
}

/// Weight precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Number format of the stored weights.
    pub precision: Precision,
    /// Quantization scheme, and why it was chosen if it is not the default.
    pub plan: String,
    /// The quality compared with fp32, measured by the build; `None` for fp32, and for weights that were quantized
    /// before the build.
    pub quality: Option<Quality>,
    /// Quality per additional vector kind, for an embedding model with several kinds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_vectors: BTreeMap<VectorKind, Quality>,
}

/// Number format of stored weights.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
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

/// A quantized model's quality compared with fp32, over real texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quality {
    /// Embeddings. For multi-vectors, cosines are computed between single vectors, and the nearest texts are the best
    /// scored with a text as the query.
    Embedding {
        /// Measured texts.
        texts: usize,
        /// Mean cosine between fp32 and quantized embeddings.
        mean_cosine: f32,
        /// The lowest cosine.
        worst_cosine: f32,
        /// Nearest neighbours compared with fp32; `None` in older versions' bundles.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        neighbours: Option<Neighbours>,
        /// Sparse vectors only: mean overlap of the ten tokens with the largest weights, 0 to 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        terms: Option<f32>,
        /// Multi-vectors only: mean absolute score difference over all text pairs; scores are at most 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        score_difference: Option<f32>,
    },
    /// Token label scores.
    TokenClassification {
        /// Measured texts.
        texts: usize,
        /// Measured tokens, without special tokens.
        tokens: usize,
        /// Share of tokens with the same best label.
        agreement: f32,
        /// Mean absolute score difference, over all tokens and labels.
        mean_difference: f32,
        /// The largest difference.
        worst_difference: f32,
    },
    /// Word span scores, for a fixed set of sample labels.
    ZeroShotEntities {
        /// Measured texts.
        texts: usize,
        /// Measured spans.
        spans: usize,
        /// Share of entities that both models find: twice the common ones, divided by the sum of both counts.
        agreement: f32,
        /// Mean absolute score difference, over all spans and labels.
        mean_difference: f32,
        /// The largest difference.
        worst_difference: f32,
    },
    /// Scores for a single label, which rank texts.
    Ranking {
        /// Measured texts.
        texts: usize,
        /// Share of text pairs that both models rank in the same order.
        rank_agreement: f32,
        /// Mean absolute score difference.
        mean_difference: f32,
    },
    /// Label scores.
    Classification {
        /// Measured texts.
        texts: usize,
        /// Share of texts with the same best label.
        agreement: f32,
        /// Mean absolute score difference, over all labels.
        mean_difference: f32,
    },
    /// Generated texts, including translations.
    Seq2Seq {
        /// Measured texts.
        texts: usize,
        /// chrF2 against fp32, 0 to 100; `None` in older versions' bundles.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chrf: Option<f32>,
        /// Text similarity: twice the common words, in order, divided by the sum of both word counts.
        similarity: f32,
        /// Share of identical texts.
        identical: f32,
        /// The similarity without the shortlist, for models that have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        similarity_without_shortlist: Option<f32>,
        /// Share of tokens in the fp32 text for which both models have the same most likely token.
        token_agreement: f32,
        /// Mean absolute log-probability difference over these tokens.
        token_difference: f32,
    },
}

/// Recall of each text's fp32 nearest neighbours, by cosine among all measured texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbours {
    /// Mean recall@10.
    pub ten_nearest: f32,
    /// Recall@1.
    pub nearest: f32,
}

/// Recall@10 for sample texts if vectors are stored as integers or bits, without reranking the results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorQuality {
    /// Measured texts.
    pub texts: usize,
    /// For `int8` and `uint8`, by cosine similarity.
    pub int8: f32,
    /// For `binary` and `ubinary`, by Hamming distance; absent if 8 does not divide the dimensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<f32>,
}

/// A model's tensor names in the KServe API, which a recipe can adapt to existing clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorNames {
    /// The input with texts.
    pub text: String,
    /// The input with token ids.
    pub ids: String,
    /// The input with the attention mask.
    pub mask: String,
    /// Input with the labels for zero-shot classification.
    pub labels: String,
    /// Input with the query for ranking.
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

/// A bundle file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The path in the bundle.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// In hexadecimal, for other tools.
    pub sha256: String,
    /// In hexadecimal. Verified when the bundle is loaded, in a third of the time that SHA-256 takes.
    pub blake3: String,
}

impl Manifest {
    /// Supported format version.
    pub const FORMAT: u32 = 1;

    /// Parses a manifest. Refuses file names outside the bundle, and a text that does not match the BLAKE3 in its first
    /// line. Manifests from versions before 0.3 have no such line.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some((expected, rest)) = text
            .strip_prefix(SEAL)
            .and_then(|text| text.split_once('\n'))
        {
            let found = blake3::hash(rest.as_bytes()).to_hex();
            if found.as_str() != expected {
                return Err(Error::model(format!(
                    "expected the BLAKE3 {expected} of all lines after the first one of the \
                     manifest, but found {found}"
                ))
                .with_hint("the bundle is damaged or was edited: build or fetch it again"));
            }
        }
        let manifest: Self = toml::from_str(text)
            .map_err(|error| Error::model_because("the manifest cannot be read", error))?;
        if manifest.format != Self::FORMAT {
            return Err(Error::model(format!(
                "expected a manifest of format {}, but found {}",
                Self::FORMAT,
                manifest.format
            ))
            .with_hint("build the bundle again"));
        }
        let labels = manifest
            .zero_shot_entities
            .iter()
            .flat_map(|settings| &settings.label_encoder);
        let labels = labels.flat_map(|labels| [&labels.graph, &labels.tokenizer]);
        for name in manifest
            .files
            .iter()
            .map(|file| &file.name)
            .chain([&manifest.graph])
            .chain(labels)
        {
            if !is_inside(name) {
                return Err(Error::model(format!(
                    "expected file names inside the bundle, but found `{name}`"
                )));
            }
        }
        Ok(manifest)
    }

    /// Manifest text.
    pub fn to_text(&self) -> Result<String> {
        let text = toml::to_string(self)
            .map_err(|error| Error::model_because("the manifest cannot be written", error))?;
        Ok(format!(
            "{SEAL}{}\n{text}",
            blake3::hash(text.as_bytes()).to_hex()
        ))
    }

    /// An encoder's maximum input tokens; `None` for models that translate.
    pub fn max_tokens(&self) -> Option<usize> {
        let embedding = self.embedding.as_ref().map(|settings| settings.max_tokens);
        let classification = self
            .classification
            .as_ref()
            .map(|settings| settings.max_tokens);
        let token_classification = self
            .token_classification
            .as_ref()
            .map(|settings| settings.max_tokens);
        let label_scores = self
            .label_scores
            .as_ref()
            .map(|settings| settings.max_tokens);
        let zero_shot_entities = self
            .zero_shot_entities
            .as_ref()
            .map(|settings| settings.max_tokens);
        embedding
            .or(classification)
            .or(token_classification)
            .or(label_scores)
            .or(zero_shot_entities)
    }

    /// Looks up a file's entry.
    pub fn file(&self, name: &str) -> Option<&File> {
        self.files.iter().find(|file| file.name == name)
    }
}

fn is_inside(name: &str) -> bool {
    let mut components = Path::new(name).components().peekable();
    components.peek().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
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
        let sealed =
            |text: &str| format!("{SEAL}{}\n{text}", blake3::hash(text.as_bytes()).to_hex());
        let refused = |text: &str| Manifest::parse(text).unwrap_err().to_string();
        assert!(
            !refused(&sealed(text)).contains("BLAKE3"),
            "only the other fields are missing"
        );
        for damaged in [
            sealed(text).replace("tiny", "tinz"),
            sealed(text) + "\n",
            sealed(text).replacen(": ", ": 0", 1),
        ] {
            assert!(
                refused(&damaged).contains("the bundle is damaged or was edited"),
                "{damaged}"
            );
        }
    }
}
