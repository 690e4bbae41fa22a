//! Job parameters: from the command line, the configuration or object metadata.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{
    input::format::Format,
    rows::{CsvOptions, Layout},
};
use kivu::{
    error::{Error, Result},
    model::ModelSettings,
    task::JobOptions,
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
    /// How a CSV file is written.
    #[command(flatten)]
    #[serde(flatten)]
    pub csv: CsvOptions,
    /// The ranking query
    #[arg(long)]
    pub query: Option<String>,
    /// Options for the model's task.
    #[command(flatten)]
    pub options: JobOptions,
    /// Report texts with too many tokens as errors instead of truncating them [default: `limits.truncate`]
    #[arg(long = "no-truncate", num_args = 0, default_missing_value = "false")]
    pub truncate: Option<bool>,
}

impl Parameters {
    /// Parses a rule's parameters: `model`, `column`, and so on.
    pub fn of(options: &BTreeMap<String, String>) -> Result<Self> {
        Self::default().with_options(options)
    }

    /// Overrides parameters by name: `model`, `column`, and so on.
    pub fn with_options(self, options: &BTreeMap<String, String>) -> Result<Self> {
        let metadata = options
            .iter()
            .map(|(name, value)| (format!("{PREFIX}{name}"), value.clone()));
        self.with_metadata(&metadata.collect())
    }

    /// What is known about an input's rows.
    pub fn layout(&self) -> Layout {
        Layout {
            column: self.column.clone(),
            csv: self.csv.clone(),
        }
    }

    /// Whether texts with too many tokens are truncated.
    pub fn truncates(&self, settings: &ModelSettings) -> bool {
        self.truncate.unwrap_or(settings.truncate)
    }

    /// Overrides parameters by object metadata: `kivu-model`, `kivu-column`, and so on.
    pub fn with_metadata(mut self, metadata: &BTreeMap<String, String>) -> Result<Self> {
        for (name, value) in metadata {
            let Some(name) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let wrong = |expected: &str| {
                Error::invalid(format!(
                    "expected {expected} in the metadata `{PREFIX}{name}`, but found `{value}`"
                ))
            };
            match name {
                "model" => self.model = Some(value.clone()),
                "column" => self.column = Some(value.clone()),
                "format" => {
                    let format = Format::from_str(value, false);
                    self.format = Some(
                        format.map_err(|_| wrong("`json-lines`, `csv`, `parquet` or `openai`"))?,
                    );
                }
                "query" => self.query = Some(value.clone()),
                "truncate" => {
                    self.truncate = Some(value.parse().map_err(|_| wrong("`true` or `false`"))?)
                }
                // Kivu writes it to its outputs.
                "job" => {}
                _ => match self
                    .csv
                    .set(name, value)
                    .or_else(|| self.options.set(name, value))
                {
                    Some(set) => set.map_err(|expected| wrong(&expected))?,
                    None => {
                        return Err(Error::invalid(format!(
                            "expected known metadata, but found `{PREFIX}{name}`"
                        )));
                    }
                },
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mark;

    fn metadata(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect()
    }

    #[test]
    fn metadata_override_the_configuration() {
        let configured = Parameters {
            model: Some("a".into()),
            truncate: Some(true),
            ..Parameters::default()
        };
        let metadata = metadata(&[
            ("kivu-model", "b"),
            ("kivu-labels", "x, y"),
            ("kivu-delimiter", "^A"),
            ("kivu-quote", "none"),
            ("kivu-escape", "\\"),
            ("kivu-null", "\\N"),
            ("kivu-header", "false"),
            ("owner", "me"),
        ]);
        let parameters = configured.with_metadata(&metadata).unwrap();
        assert_eq!(
            (parameters.model.as_deref(), parameters.truncate),
            (Some("b"), Some(true))
        );
        assert_eq!(parameters.options.get("labels"), Some("x,y"));
        assert_eq!(
            parameters.csv,
            CsvOptions {
                delimiter: Some(1),
                quote: Some(Mark::None),
                escape: Some(Mark::Character(b'\\')),
                null: Some("\\N".into()),
                header: Some(false),
            }
        );
    }

    #[test]
    fn invalid_metadata_are_refused() {
        let refused = |pairs| {
            Parameters::default()
                .with_metadata(&metadata(pairs))
                .unwrap_err()
                .to_string()
        };
        insta::assert_snapshot!(refused(&[("kivu-truncate", "maybe")]), @"expected `true` or `false` in the metadata `kivu-truncate`, but found `maybe`");
        insta::assert_snapshot!(refused(&[("kivu-format", "xml")]), @"expected `json-lines`, `csv`, `parquet` or `openai` in the metadata `kivu-format`, but found `xml`");
        insta::assert_snapshot!(refused(&[("kivu-labels", "a,,b")]), @"expected a text as item 2 in the metadata `kivu-labels`, but found `a,,b`");
        insta::assert_snapshot!(refused(&[("kivu-delimiter", "||")]), @r#"expected an ASCII character, itself or as `\t`, `^A` or `\x01` in the metadata `kivu-delimiter`, but found `||`"#);
        insta::assert_snapshot!(refused(&[("kivu-colum", "x")]), @"expected known metadata, but found `kivu-colum`");
    }
}
