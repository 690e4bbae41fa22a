//! What `manifest.toml` says of a bundle.

use std::{
    fmt,
    path::{Component, Path},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use crate::{
    backend::Signature,
    error::{Error, Result},
    pipeline::{
        Task, classification::ClassificationSettings, embedding::EmbeddingSettings,
        translation::TranslationSettings,
    },
};

/// The only form of manifest that there is so far.
const FORMAT: u32 = 1;

/// Everything that is known of a bundle.
///
/// - The digest of its text is the bundle's identity.
/// - File names stay inside the bundle: [`Manifest::parse`] refuses others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of this file.
    pub format: u32,
    /// The name under which the model is served unless another is chosen.
    pub name: String,
    /// What the model is for.
    pub task: Task,
    /// The graph's file.
    pub graph: String,
    /// Where the model came from.
    pub source: Source,
    /// How its weights are stored, and what that cost.
    pub weights: Weights,
    /// How it makes vectors, for models of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<EmbeddingSettings>,
    /// How it scores labels, for models that do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<ClassificationSettings>,
    /// How it translates, for models that do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<TranslationSettings>,
    /// What its tensors are called by clients that speak of tensors.
    #[serde(default, skip_serializing_if = "TensorNames::is_default")]
    pub tensors: TensorNames,
    /// Inputs and outputs of the graph.
    pub signature: Signature,
    /// Every other file of the bundle.
    pub files: Vec<File>,
}

/// Where a model came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The model's architecture, as its `config.json` calls it.
    pub architecture: String,
    /// The package or folder that it was built from.
    pub from: String,
    /// The SHA-256 of the weights that it was built from.
    pub sha256: String,
}

/// How a model's weights are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// The numbers that weights are stored as.
    pub precision: Precision,
    /// What was quantised, and how.
    pub plan: String,
    /// How close it comes to fp32, measured when it was built; nothing for fp32 itself, and for weights that
    /// somebody else quantised, whose original is not at hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

/// The numbers that weights are stored as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 8-bit integers, one scale an output channel: the fastest.
    #[default]
    Int8,
    /// 8-bit integers, one scale for every 32 weights, and activations likewise: nearly fp32 at half the speed.
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

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "int8" => Ok(Self::Int8),
            "int8-blocks" => Ok(Self::Int8Blocks),
            "fp32" => Ok(Self::Fp32),
            _ => Err(Error::config(format!(
                "expected a precision of `int8`, `int8-blocks`, `fp32`, but found `{name}`"
            ))),
        }
    }
}

/// How close a quantised model comes to its fp32 form, over real texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quality {
    /// Of vectors.
    Embedding {
        /// The number of texts that it was measured on.
        texts: usize,
        /// The mean cosine between the vectors of both.
        mean_cosine: f32,
        /// The cosine of the text that came out worst.
        worst_cosine: f32,
    },
    /// Of scores for labels.
    Classification {
        /// The number of texts that it was measured on.
        texts: usize,
        /// The share of texts for which both put the same label first.
        agreement: f32,
        /// The mean difference between the scores of both, over all labels.
        mean_difference: f32,
    },
    /// Of translations.
    Translation {
        /// The number of texts that it was measured on.
        texts: usize,
        /// How similar the translations of both are: twice the words in common, in order, over the words of both.
        similarity: f32,
        /// The share of texts of which both make the same translation.
        identical: f32,
        /// The similarity where all tokens can be written, for models that have a shortlist.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        similarity_without_shortlist: Option<f32>,
        /// The share of steps at which both find the same token likeliest, on the way to what fp32 writes.
        token_agreement: f32,
        /// The mean difference between the logarithms of the probabilities of the tokens on that way.
        token_difference: f32,
    },
}

/// What a model's tensors are called by clients of KServe v2: a recipe can name them as a fleet's clients do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorNames {
    /// Raw text.
    pub text: String,
    /// Token ids.
    pub ids: String,
    /// Which of the token ids count.
    pub mask: String,
    /// The labels of zero-shot classification.
    pub labels: String,
    /// The query of ranking.
    pub query: String,
    /// The output; by default it is called after what it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
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

/// One file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its name, relative to the bundle.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in hexadecimal: what the rest of the world checks files by.
    pub sha256: String,
    /// Its BLAKE3, in hexadecimal: what is checked whenever the bundle is loaded, in a third of the time.
    pub blake3: String,
}

impl Manifest {
    /// The form that this version writes.
    pub const FORMAT: u32 = FORMAT;

    /// Reads the text of a manifest.
    pub fn parse(text: &str) -> Result<Self> {
        let manifest: Self = toml::from_str(text)
            .map_err(|error| Error::model_because("the manifest cannot be read", error))?;
        if manifest.format != FORMAT {
            return Err(Error::model(format!(
                "expected a manifest of format {FORMAT}, but found {}; build the bundle again",
                manifest.format
            )));
        }
        for name in manifest.files.iter().map(|file| &file.name).chain([&manifest.graph]) {
            if !stays_inside(name) {
                return Err(Error::model(format!(
                    "expected file names inside the bundle, but found `{name}`"
                )));
            }
        }
        Ok(manifest)
    }

    /// The text of the manifest.
    pub fn to_text(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::model_because("the manifest cannot be written", error))
    }

    /// The entry of the file called `name`.
    pub fn file(&self, name: &str) -> Option<&File> {
        self.files.iter().find(|file| file.name == name)
    }
}

fn stays_inside(name: &str) -> bool {
    let mut components = Path::new(name).components().peekable();
    components.peek().is_some() && components.all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_bundle_are_seen() {
        assert!(stays_inside("model.onnx"));
        assert!(stays_inside("1/model.onnx"));
        for name in ["", "../model.onnx", "/etc/passwd", "a/../../b", "."] {
            assert!(!stays_inside(name), "{name}");
        }
    }
}
