//! Job parameters: from the command line, the configuration or object metadata.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    input::format::Format,
    rows::{CsvOptions, Layout},
};
use kivu::{
    error::{Error, Result},
    model::ModelSettings,
    names::{choice, named, names},
    task::JobOptions,
};

/// Prefix for Kivu's metadata keys.
const PREFIX: &str = "kivu-";

/// Job parameters; unset ones are up to the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Parameters {
    /// A model's name; by default the first.
    pub model: Option<String>,
    /// The text column; by default `text`, or another common name.
    pub column: Option<String>,
    /// The input's format; by default detected from the content.
    pub format: Option<Format>,
    /// How a CSV file is written.
    #[serde(flatten)]
    pub csv: CsvOptions,
    /// The ranking query.
    pub query: Option<String>,
    /// Options for the model's task.
    pub options: JobOptions,
    /// Whether texts with too many tokens are truncated; otherwise they have errors. The default is `limits.truncate`.
    pub truncate: Option<bool>,
}

impl Parameters {
    /// Parses a rule's parameters: `model`, `column`, and so on.
    pub fn of(options: &BTreeMap<String, String>) -> Result<Self> {
        Self::default().with_options(options)
    }

    /// Overrides parameters by name: `model`, `column`, and so on.
    pub fn with_options(self, options: &BTreeMap<String, String>) -> Result<Self> {
        self.with(options.iter().map(|(name, value)| (name.as_str(), value)))
    }

    /// The known layout of an input's rows.
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
    pub fn with_metadata(self, metadata: &BTreeMap<String, String>) -> Result<Self> {
        let own = metadata.iter();
        self.with(own.filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value))))
    }

    fn with<'a>(mut self, options: impl Iterator<Item = (&'a str, &'a String)>) -> Result<Self> {
        for (name, value) in options {
            let wrong = |expected: &str| {
                Error::invalid(format!(
                    "expected {expected} in the metadata `{PREFIX}{name}`, but found `{value}`"
                ))
            };
            match name {
                "model" => self.model = Some(value.clone()),
                "column" => self.column = Some(value.clone()),
                "format" => {
                    let format = named(value);
                    self.format = Some(format.ok_or_else(|| wrong(&choice(&names::<Format>())))?);
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
                        return Err(Error::invalid(format!("unknown metadata `{PREFIX}{name}`")));
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
        insta::assert_snapshot!(refused(&[("kivu-colum", "x")]), @"unknown metadata `kivu-colum`");
    }
}
