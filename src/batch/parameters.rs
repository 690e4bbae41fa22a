//! Job parameters: from the command line, the configuration or object metadata.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::format::Format;
use crate::{
    error::{Error, Result},
    model::ModelSettings,
    pipeline::{embedding::VectorKind, entities::Aggregation, vectors::VectorType, zero_shot::Labels},
};

/// Prefix for Kivu's metadata keys.
const PREFIX: &str = "kivu-";

/// Job parameters, which are also options for `kivu batch`; unset ones are up to the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Args)]
pub struct Parameters {
    /// A model in kivu.toml, or a name as in `kivu serve` [default: the first in kivu.toml]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The text column [default: `text`, or another common name]
    #[arg(long)]
    pub column: Option<String>,
    /// INPUT's format [default: detected from the content]
    #[arg(long)]
    pub format: Option<Format>,
    /// Labels for zero-shot classification or entities, separated by commas
    #[arg(long)]
    pub labels: Vec<String>,
    /// The hypothesis for zero-shot classification, with {} for the label
    #[arg(long)]
    pub template: Option<String>,
    /// Score each label independently
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub multi_label: Option<bool>,
    /// How token labels become entities [default: simple]
    #[arg(long, value_name = "STRATEGY")]
    pub aggregation: Option<Aggregation>,
    /// Entity labels to leave out, separated by commas [default: O]
    #[arg(long, value_name = "LABELS")]
    pub ignore_labels: Vec<String>,
    /// Find entities with scores above this one, with a model that takes labels [default: 0.5]
    #[arg(long, value_name = "SCORE")]
    pub threshold: Option<f32>,
    /// Also find nested entities, with a model that takes labels
    #[arg(long = "nested", num_args = 0, default_missing_value = "false")]
    pub flat: Option<bool>,
    /// Read long texts in windows that overlap by this many tokens, or words with a model that takes labels
    #[arg(long, value_name = "TOKENS")]
    pub stride: Option<usize>,
    /// Add texts in which entities are replaced by their labels
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub redact: Option<bool>,
    /// The ranking query
    #[arg(long)]
    pub query: Option<String>,
    /// The language of the texts, if the model has several
    #[arg(long, value_name = "LANGUAGE")]
    pub source_language: Option<String>,
    /// The language to translate to, if the model has several
    #[arg(long, value_name = "LANGUAGE")]
    pub target_language: Option<String>,
    /// Whether vectors are scaled to length 1
    #[arg(skip)]
    pub normalize: Option<bool>,
    /// Truncate vectors to this many values
    #[arg(long)]
    pub dimensions: Option<usize>,
    /// The vectors' number format [default: float]
    #[arg(long, value_name = "TYPE")]
    pub vector_type: Option<VectorType>,
    /// Vector kinds, separated by commas [default: the model's first among dense, sparse and multi_vector]
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub outputs: Vec<VectorKind>,
    /// Keep this many of a sparse vector's largest weights
    #[arg(long, value_name = "NUMBER")]
    pub max_active_dims: Option<usize>,
    /// Name sparse vectors' weights by word instead of token id
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub words: Option<bool>,
    /// The model's prompt with this name or for this role, such as `query`
    #[arg(long)]
    pub prompt: Option<String>,
    /// Report texts with too many tokens as errors instead of truncating them [default: `limits.truncate`]
    #[arg(long = "no-truncate", num_args = 0, default_missing_value = "false")]
    pub truncate: Option<bool>,
}

impl Parameters {
    /// Parses a rule's parameters: `model`, `column`, and so on.
    pub fn of(options: &BTreeMap<String, String>) -> Result<Self> {
        let metadata = options.iter().map(|(name, value)| (format!("{PREFIX}{name}"), value.clone()));
        Self::default().with_metadata(&metadata.collect())
    }

    /// Whether texts with too many tokens are truncated.
    pub(super) fn truncates(&self, settings: &ModelSettings) -> bool {
        self.truncate.unwrap_or(settings.truncate)
    }

    /// Overrides parameters by object metadata: `kivu-model`, `kivu-column`, and so on.
    pub fn with_metadata(mut self, metadata: &BTreeMap<String, String>) -> Result<Self> {
        for (name, value) in metadata {
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            let wrong = |expected: &str| {
                Error::invalid(format!(
                    "expected {expected} in the metadata `{PREFIX}{name}`, but found `{value}`"
                ))
            };
            let flag = || value.parse::<bool>().map(Some).map_err(|_| wrong("`true` or `false`"));
            match name {
                "model" => self.model = Some(value.clone()),
                "column" => self.column = Some(value.clone()),
                "format" => {
                    let format = Format::from_str(value, false);
                    self.format = Some(format.map_err(|_| wrong("`json-lines`, `csv` or `parquet`"))?);
                }
                "labels" => self.labels = Labels::split(value),
                "template" => self.template = Some(value.clone()),
                "multi-label" => self.multi_label = flag()?,
                "aggregation" => {
                    let found = Aggregation::from_str(value, false);
                    self.aggregation =
                        Some(found.map_err(|_| wrong("`none`, `simple`, `first`, `average` or `max`"))?);
                }
                "ignore-labels" => self.ignore_labels = Labels::split(value),
                "threshold" => self.threshold = Some(value.parse().map_err(|_| wrong("a number"))?),
                "flat" => self.flat = flag()?,
                "stride" => self.stride = Some(value.parse().map_err(|_| wrong("a number"))?),
                "redact" => self.redact = flag()?,
                "query" => self.query = Some(value.clone()),
                "source-language" => self.source_language = Some(value.clone()),
                "target-language" => self.target_language = Some(value.clone()),
                "normalize" => self.normalize = flag()?,
                "dimensions" => self.dimensions = Some(value.parse().map_err(|_| wrong("a number"))?),
                "vector-type" => {
                    let found = VectorType::from_str(value, false);
                    self.vector_type =
                        Some(found.map_err(|_| wrong("`float`, `int8`, `uint8`, `binary` or `ubinary`"))?);
                }
                "outputs" => {
                    let kinds = value.split(',').map(|kind| VectorKind::from_str(kind.trim(), false));
                    let kinds = kinds.collect::<Result<_, _>>();
                    self.outputs = kinds.map_err(|_| wrong("`dense`, `sparse` or `multi_vector`"))?;
                }
                "max-active-dims" => {
                    self.max_active_dims = Some(value.parse().map_err(|_| wrong("a number"))?);
                }
                "words" => self.words = flag()?,
                "prompt" => self.prompt = Some(value.clone()),
                "truncate" => self.truncate = flag()?,
                // Kivu writes it to its outputs.
                "job" => {}
                _ => {
                    return Err(Error::invalid(format!(
                        "expected known metadata, but found `{PREFIX}{name}`"
                    )));
                }
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn metadata_override_the_configuration() {
        let configured =
            Parameters { model: Some("a".into()), truncate: Some(true), ..Parameters::default() };
        let metadata = metadata(&[("kivu-model", "b"), ("kivu-labels", "x, y"), ("owner", "me")]);
        let parameters = configured.with_metadata(&metadata).unwrap();
        assert_eq!((parameters.model.as_deref(), parameters.truncate), (Some("b"), Some(true)));
        assert_eq!(parameters.labels, ["x", "y"]);
    }

    #[test]
    fn invalid_metadata_are_refused() {
        let refused = |pairs| Parameters::default().with_metadata(&metadata(pairs)).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&[("kivu-truncate", "maybe")]), @"expected `true` or `false` in the metadata `kivu-truncate`, but found `maybe`");
        insta::assert_snapshot!(refused(&[("kivu-format", "xml")]), @"expected `json-lines`, `csv` or `parquet` in the metadata `kivu-format`, but found `xml`");
        insta::assert_snapshot!(refused(&[("kivu-colum", "x")]), @"expected known metadata, but found `kivu-colum`");
    }
}
