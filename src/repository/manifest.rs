//! The manifest of a bundle, `manifest.toml`.

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

/// The only version of the manifest's format.
const FORMAT: u32 = 1;

/// The contents of a manifest.
///
/// - The SHA-256 of the file identifies the bundle.
/// - File names stay inside the bundle: [`Manifest::parse`] refuses others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format.
    pub format: u32,
    /// The name under which the model is served, unless the configuration sets another.
    pub name: String,
    /// The task of the model.
    pub task: Task,
    /// The graph's file.
    pub graph: String,
    /// The origin of the model.
    pub source: Source,
    /// The precision and the quality of the weights.
    pub weights: Weights,
    /// Settings of models that produce embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<EmbeddingSettings>,
    /// Settings of models that score labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<ClassificationSettings>,
    /// Settings of models that translate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<TranslationSettings>,
    /// The names of tensors in KServe v2 requests.
    #[serde(default, skip_serializing_if = "TensorNames::is_default")]
    pub tensors: TensorNames,
    /// Inputs and outputs of the graph.
    pub signature: Signature,
    /// All other files of the bundle.
    pub files: Vec<File>,
}

/// The origin of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The model's architecture, by its name in `config.json`.
    pub architecture: String,
    /// The package or folder that it was built from.
    pub from: String,
    /// The SHA-256 of the original weights.
    pub sha256: String,
}

/// How a model's weights are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// The number format of the weights.
    pub precision: Precision,
    /// A description of the quantization.
    pub plan: String,
    /// The quality compared with fp32, measured by the build; `None` for fp32, and for weights that were quantized
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

/// The number format of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 8-bit integers, one scale per output channel: the fastest.
    #[default]
    Int8,
    /// 8-bit integers, one scale per 32 weights or activations: nearly the quality of fp32, at half the speed of `int8`.
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

/// The quality of a quantized model compared with fp32, on sample texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quality {
    /// Of embeddings.
    Embedding {
        /// The number of sample texts.
        texts: usize,
        /// The mean cosine similarity.
        mean_cosine: f32,
        /// The lowest cosine similarity.
        worst_cosine: f32,
    },
    /// Of scores for labels.
    Classification {
        /// The number of sample texts.
        texts: usize,
        /// The share of texts with the same best label.
        agreement: f32,
        /// The mean difference of scores, over all labels.
        mean_difference: f32,
    },
    /// Of translations.
    Translation {
        /// The number of sample texts.
        texts: usize,
        /// The similarity of translations: twice the number of common words, in order, divided by the words of both.
        similarity: f32,
        /// The share of texts with identical translations.
        identical: f32,
        /// The similarity without the shortlist, for models that have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        similarity_without_shortlist: Option<f32>,
        /// The share of steps with the same most likely token, along the translation of fp32.
        token_agreement: f32,
        /// The mean difference of log probabilities of the tokens along that translation.
        token_difference: f32,
    },
}

/// The names of a model's tensors in KServe v2 requests; a recipe can set those that existing clients use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorNames {
    /// Raw text.
    pub text: String,
    /// Token ids.
    pub ids: String,
    /// The attention mask.
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
