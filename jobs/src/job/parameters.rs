//! Job parameters: from the command line, the configuration or object metadata.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    input::format::Format,
    rows::{CsvOptions, Layout},
};
use kivu::{
    Error, Result,
    model::ModelSettings,
    names::{choice, described, named, names},
    task::{JobOption, JobOptions, OptionForm},
};

/// Prefix for Kivu's metadata keys.
const PREFIX: &str = "kivu-";
/// Begins metadata keys that others do not use, so that `kivu_model` is a mistake.
const NAME: &str = "kivu";
/// The name, behind the prefix, of the job that wrote an output.
const JOB: &str = "job";

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

/// The options of all jobs, besides those of the model's task.
pub static OPTIONS: [JobOption; 9] = [
    JobOption::of_jobs(
        "column",
        OptionForm::Text,
        "The text column [default: `text`, or another common name]",
    ),
    JobOption::of_jobs(
        "format",
        OptionForm::Choice(described::<Format>),
        "INPUT's format [default: detected from the content]",
    ),
    JobOption::of_jobs(
        "delimiter",
        OptionForm::Text,
        r"CSV: the character between fields, such as `;`, `\t` or `^A` [default: detected in the header]",
    ),
    JobOption::of_jobs(
        "quote",
        OptionForm::Text,
        "CSV: the character around fields, or `none` if quotes are part of the fields [default: `\"`]",
    ),
    JobOption::of_jobs(
        "escape",
        OptionForm::Text,
        r"CSV: the character before quotes within fields, such as `\`, or `none` if they are doubled [default: detected]",
    ),
    JobOption::of_jobs(
        "null",
        OptionForm::Text,
        r"CSV: an unquoted field that means NULL, such as `\N` [default: an empty one, or `\N` with --escape and without quotes]",
    ),
    JobOption::of_jobs(
        "header",
        OptionForm::Flag,
        "CSV: the first line is a row, and the columns are `column1`, `column2`, …",
    ),
    JobOption::of_jobs("query", OptionForm::Text, "The ranking query"),
    JobOption::of_jobs(
        "truncate",
        OptionForm::Flag,
        "Report texts with too many tokens as errors instead of truncating them [default: `limits.truncate`]",
    ),
];

impl Parameters {
    /// Parses a rule's parameters: `model`, `column`, and so on.
    pub fn of(options: &BTreeMap<String, String>) -> Result<Self> {
        Self::default().with_options(options)
    }

    /// Overrides parameters by name: `model`, `column`, and so on.
    pub fn with_options(self, options: &BTreeMap<String, String>) -> Result<Self> {
        let options = options.iter().map(|(name, value)| (name.as_str(), value));
        self.with(options, |name| format!("option `{name}`"))
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
        let is_wrong = |name: &&String| name.starts_with(NAME) && !name.starts_with(PREFIX);
        if let Some(name) = metadata.keys().find(is_wrong) {
            let hint = format!("Kivu's begin with `{PREFIX}`");
            return Err(Error::invalid(format!("unknown metadata `{name}`")).with_hint(hint));
        }
        let own = metadata.iter();
        let own = own.filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)));
        // Kivu writes it to its outputs, which may become inputs.
        let own: Vec<_> = own.filter(|(name, _)| *name != JOB).collect();
        // S3 returns other characters than ASCII in the form of mail headers.
        let is_encoded = |value: &str| value.to_ascii_uppercase().contains("=?UTF-8?");
        if let Some((name, _)) = own.iter().find(|(_, value)| is_encoded(value)) {
            return Err(Error::invalid(format!(
                "the metadata `{PREFIX}{name}` has characters other than ASCII, which S3 encodes"
            ))
            .with_hint("use a rule, or for a list JSON with `\\u00e9` and so on"));
        }
        self.with(own.into_iter(), |name| format!("metadata `{PREFIX}{name}`"))
    }

    /// Overrides parameters; `shown` is an option's name in errors.
    fn with<'a>(
        mut self,
        options: impl Iterator<Item = (&'a str, &'a String)>,
        shown: impl Fn(&str) -> String,
    ) -> Result<Self> {
        for (name, value) in options {
            match name {
                "model" => self.model = Some(value.clone()),
                _ => match self.set(name, value) {
                    Some(set) => set.map_err(|expected| {
                        let name = shown(name);
                        Error::invalid(format!(
                            "expected {expected} in the {name}, but found `{value}`"
                        ))
                    })?,
                    None => {
                        return Err(Error::invalid(format!("unknown {}", shown(name))));
                    }
                },
            }
        }
        Ok(self)
    }

    /// Sets an option, or returns the expected value if it has another form. `None` if there is no such option.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        match name {
            "column" => self.column = Some(value.to_owned()),
            "format" => match named(value) {
                Some(format) => self.format = Some(format),
                None => return Some(Err(choice(&names::<Format>()))),
            },
            "query" => self.query = Some(value.to_owned()),
            "truncate" => match value.parse() {
                Ok(truncate) => self.truncate = Some(truncate),
                Err(_) => return Some(Err("`true` or `false`".to_owned())),
            },
            _ => {
                let csv = self.csv.set(name, value);
                return csv.or_else(|| self.options.set(name, value));
            }
        }
        Some(Ok(()))
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
            ("kivu-job", "0f3a"),
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
        insta::assert_snapshot!(refused(&[("kivu-format", "xml")]), @"expected `json-lines`, `csv`, `text`, `parquet` or `openai` in the metadata `kivu-format`, but found `xml`");
        insta::assert_snapshot!(refused(&[("kivu-labels", "a,,b")]), @"expected a text as item 2 in the metadata `kivu-labels`, but found `a,,b`");
        insta::assert_snapshot!(refused(&[("kivu-delimiter", "||")]), @r#"expected an ASCII character, itself or as `\t`, `^A` or `\x01` in the metadata `kivu-delimiter`, but found `||`"#);
        insta::assert_snapshot!(refused(&[("kivu-colum", "x")]), @"unknown metadata `kivu-colum`");
        insta::assert_snapshot!(refused(&[("kivu_model", "x")]), @"unknown metadata `kivu_model`; Kivu's begin with `kivu-`");
        insta::assert_snapshot!(refused(&[("kivu-query", "un =?utf-8?Q?caf=C3=A9?=")]), @r"the metadata `kivu-query` has characters other than ASCII, which S3 encodes; use a rule, or for a list JSON with `\u00e9` and so on");
        // In rules, and in a data warehouse's headers.
        let refused = |pairs| Parameters::of(&metadata(pairs)).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&[("truncate", "maybe")]), @"expected `true` or `false` in the option `truncate`, but found `maybe`");
        insta::assert_snapshot!(refused(&[("colum", "x")]), @"unknown option `colum`");
        insta::assert_snapshot!(refused(&[("job", "x")]), @"unknown option `job`");
    }
}
