//! Options for a model's task, in `kivu run` and `kivu batch`.

use std::str::FromStr;

use clap::{ArgMatches, Args, Command, FromArgMatches, error::ErrorKind};
use serde::{Serialize, de::IgnoredAny};
use serde_json::Value;

use crate::choices::choices;
use kivu::{
    config::{list_text, parse_lists},
    error::quoted,
    pipeline::{
        embedding::vectors::VectorType, entities::Aggregation, redaction::placeholders::Style,
    },
    task::{JobNumberScope, JobOptions, extraction::SchemaForm},
};

/// The options of all tasks, checked as far as clap's messages and help need it.
#[derive(Args, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Given {
    /// Labels for zero-shot classification or entities, separated by commas
    #[arg(long, value_name = "CANDIDATE_LABELS")]
    labels: Vec<String>,
    /// The hypothesis for zero-shot classification, with {} for the label
    #[arg(long, value_name = "HYPOTHESIS_TEMPLATE")]
    template: Option<String>,
    /// Score each label independently
    #[arg(long, num_args = 0, default_missing_value = "true")]
    multi_label: Option<String>,
    /// Add lists with all labels and scores, the best first, to the best label and its score
    #[arg(long, num_args = 0, default_missing_value = "true")]
    all_scores: Option<String>,
    /// How token labels become entities [default: simple]
    #[arg(long, value_name = "STRATEGY", value_parser = choices::<Aggregation>())]
    aggregation: Option<String>,
    /// Entity labels to leave out, separated by commas [default: O]
    #[arg(long, value_name = "LABELS")]
    ignore_labels: Vec<String>,
    /// Read long texts in windows that overlap by this many tokens, or words with a model that takes labels
    #[arg(long, value_name = "TOKENS", value_parser = number::<usize>)]
    stride: Option<String>,
    /// Find more or longer entities, or fewer or shorter ones, with a model whose labels mark ends
    #[arg(long, value_name = "JSON", value_parser = json)]
    transition_biases: Option<String>,
    /// Add texts in which entities are replaced by their labels
    #[arg(long, num_args = 0, default_missing_value = "true")]
    redact: Option<String>,
    /// What replacements have besides labels; `hash` and `encrypt` need the key in KIVU_REDACT_KEY [default: label]
    #[arg(long, value_name = "STYLE", value_parser = choices::<Style>())]
    redact_style: Option<String>,
    /// Where the same original has the same number, with the style `number` [default: text]
    #[arg(long, value_name = "SCOPE", value_parser = choices::<JobNumberScope>())]
    redact_scope: Option<String>,
    /// Also find these patterns, separated by commas, or `all`: numbers with check digits, addresses, keys
    #[arg(long, value_name = "PATTERNS")]
    patterns: Vec<String>,
    /// Find entities with scores above this one, with a model that takes labels [default: 0.5]
    #[arg(long, value_name = "SCORE", value_parser = number::<f32>)]
    threshold: Option<String>,
    /// Also find nested entities, with a model that takes labels
    #[arg(long = "nested", num_args = 0, default_missing_value = "false")]
    flat: Option<String>,
    /// Return logits, cosines or product sums instead of scores from 0 to 1
    #[arg(long, num_args = 0, default_missing_value = "true")]
    raw_scores: Option<String>,
    /// What makes a text relevant: replaces the instruction in the model's template, if it has one
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,
    /// The language of the texts, if the model has several
    #[arg(long, value_name = "LANGUAGE")]
    source_language: Option<String>,
    /// The language to translate to, if the model has several
    #[arg(long, value_name = "LANGUAGE")]
    target_language: Option<String>,
    /// The model's prompt with this name or for this role, such as `query`
    #[arg(long)]
    prompt: Option<String>,
    /// The task that texts are embedded for, in a model with adapters for tasks, with the task's prompt
    #[arg(long, value_name = "TASK")]
    embedding_task: Option<String>,
    /// Whether vectors are scaled to length 1 [default: the model's setting]
    #[arg(long, value_name = "BOOLEAN", value_parser = ["true", "false"])]
    normalize: Option<String>,
    /// Truncate vectors to this many values
    #[arg(long, value_parser = number::<usize>)]
    dimensions: Option<String>,
    /// The vectors' number format [default: float]
    #[arg(long, value_name = "TYPE", value_parser = choices::<VectorType>())]
    vector_type: Option<String>,
    /// Vector kinds, separated by commas [default: the model's first among dense, sparse and multi_vector]
    #[arg(long, value_name = "KINDS")]
    outputs: Vec<String>,
    /// Keep this many of a sparse vector's largest weights
    #[arg(long, value_name = "NUMBER", value_parser = number::<usize>)]
    max_active_dims: Option<String>,
    /// Name sparse vectors' weights by word instead of token id
    #[arg(long, num_args = 0, default_missing_value = "true")]
    words: Option<String>,
    /// The form of `--schema` [default: schema]
    #[arg(long, value_name = "FORM", value_parser = choices::<SchemaForm>())]
    schema_form: Option<String>,
    /// Extract what this schema describes, as in `POST /gliner-2`, with a model that reads schemas
    #[arg(long, value_name = "JSON", value_parser = json)]
    schema: Option<String>,
    /// Add scores to extracted values
    #[arg(long, num_args = 0, default_missing_value = "true")]
    confidence: Option<String>,
    /// Add the places of extracted values in the text
    #[arg(long, num_args = 0, default_missing_value = "true")]
    spans: Option<String>,
    /// A label, which may contain commas; repeatable
    #[arg(long, value_name = "label")]
    #[serde(skip)]
    label: Vec<String>,
}

fn number<T: FromStr>(text: &str) -> Result<String, T::Err> {
    text.parse::<T>().map(|_| text.to_owned())
}

fn json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("invalid JSON: {error}")),
    }
}

/// An option's name on the command line, where a flag negates what it is in rules and metadata.
pub fn argument(name: &str) -> &str {
    match name {
        "flat" => "nested",
        name => name,
    }
}

/// The options of a command line.
#[derive(Debug)]
pub struct TaskOptions(pub JobOptions);

impl Args for TaskOptions {
    fn augment_args(command: Command) -> Command {
        Given::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args(command)
    }
}

impl FromArgMatches for TaskOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Given::from_arg_matches(matches)?;
        let labels = given.label.drain(..).map(|label| list_text(&[label]));
        given.labels.extend(labels);
        let fields = serde_json::to_value(given)
            .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error))?;
        let mut options = JobOptions::default();
        for (name, value) in fields.as_object().into_iter().flatten() {
            let (texts, text) = match value {
                Value::String(text) => (vec![text.as_str()], Ok(text.clone())),
                Value::Array(lists) if !lists.is_empty() => {
                    let lists: Vec<_> = lists.iter().filter_map(Value::as_str).collect();
                    let items = parse_lists(lists.iter().copied());
                    (lists, items.map(|items| list_text(&items)))
                }
                _ => continue,
            };
            let set = text.map(|text| options.set(name, &text));
            if let Err(expected) | Ok(Some(Err(expected))) = set {
                let message = format!(
                    "expected {expected} in `--{name}`, but found {}",
                    quoted(&texts)
                );
                return Err(clap::Error::raw(ErrorKind::ValueValidation, message));
            }
        }
        Ok(Self(options))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kivu::task::{
        classification::ZeroShotParameters, embedding::EmbeddingParameters,
        entities::TokenClassificationParameters,
    };

    use super::*;

    fn options(pairs: &[(&str, &str)]) -> JobOptions {
        let mut options = JobOptions::default();
        pairs
            .iter()
            .for_each(|(name, value)| options.set(name, value).unwrap().unwrap());
        options
    }

    fn try_read(line: &[&str]) -> Result<JobOptions, clap::Error> {
        let parser = TaskOptions::augment_args(Command::new("").no_binary_name(true));
        let matches = parser.try_get_matches_from(line)?;
        TaskOptions::from_arg_matches(&matches).map(|TaskOptions(options)| options)
    }

    #[test]
    fn items_of_lists_may_contain_commas() {
        let read = |line: &[&str]| try_read(line).unwrap();
        let expected = options(&[("labels", r#"["billing", "cancel, close"]"#)]);
        for line in [
            &["--labels", r#"["billing","cancel, close"]"#][..],
            &["--labels", r#"billing,"cancel, close""#],
            &["--labels", "billing", "--labels", r#""cancel, close""#],
            &["--label", "billing", "--label", "cancel, close"],
            &["--labels", "billing", "--label", "cancel, close"],
        ] {
            assert_eq!(read(line), expected, "{line:?}");
        }
        assert_eq!(
            options(&[("labels", r#" billing , "cancel, close""#)]),
            expected
        );
        let labels = |options: JobOptions| {
            let parameters: ZeroShotParameters = options.parameters().unwrap();
            parameters.candidate_labels.read("labels", 9).unwrap()
        };
        assert_eq!(labels(expected), ["billing", "cancel, close"]);
        for label in ["say \"hi\"", "[a]", " a", "a\nb", "-1", "a=b"] {
            assert_eq!(labels(read(&[&format!("--label={label}")])), [label]);
        }
        let ignored: TokenClassificationParameters = read(&["--ignore-labels", r#""B, I",O"#])
            .parameters()
            .unwrap();
        let ignored = ignored.ignore_labels.unwrap();
        assert_eq!(ignored.read("labels", 9).unwrap(), ["B, I", "O"]);
        let kinds: EmbeddingParameters = read(&["--outputs", r#"["dense", "sparse"]"#])
            .parameters()
            .unwrap();
        assert_eq!(kinds.outputs.unwrap().len(), 2);
        // Other texts are no lists.
        let template = read(&["--template", "a, {}"]);
        assert_eq!(template.get("template"), Some("a, {}"));
    }

    #[test]
    fn lists_of_other_forms_are_refused() {
        let lines = [
            &["--labels", "a,,b"][..],
            &["--labels", "a", "--label", "a"],
            &["--label", ""],
            &["--labels", r#"a,"b"#],
            &["--ignore-labels", "[1]"],
            &["--outputs", "dense,x"],
            &["--outputs", "dense,dense"],
        ];
        let messages = lines.map(|line| try_read(line).unwrap_err().to_string());
        insta::assert_snapshot!(messages.join("\n"), @r#"
        error: expected a text as item 2 in `--labels`, but found `a,,b`
        error: expected distinct items (item 2 repeats item 1) in `--labels`, but found `a`, `a`
        error: expected a text as item 1 in `--labels`, but found `[""]`
        error: expected a closing quote for item 2 in `--labels`, but found `a,"b`
        error: expected a JSON list of strings in `--ignore-labels`, but found `[1]`
        error: expected `dense`, `sparse` or `multi_vector` in `--outputs`, but found `dense,x`
        error: expected distinct items (item 2 repeats item 1) in `--outputs`, but found `dense,dense`
        "#);
    }

    #[test]
    fn options_of_the_command_line_are_those_of_metadata() {
        let read = |line: &[&str]| try_read(line).unwrap();
        assert_eq!(
            read(&[
                "--labels",
                "a,b",
                "--labels",
                "c",
                "--nested",
                "--multi-label",
                "--threshold",
                "0.25"
            ]),
            options(&[
                ("labels", "a,b,c"),
                ("flat", "false"),
                ("multi-label", "true"),
                ("threshold", "0.25")
            ])
        );
        let line = [
            "--outputs",
            "dense,sparse",
            "--normalize",
            "false",
            "--words",
        ];
        let found = options(&[
            ("outputs", "dense, sparse"),
            ("normalize", "false"),
            ("words", "true"),
        ]);
        assert_eq!(read(&line), found);
        let parameters: EmbeddingParameters = found.parameters().unwrap();
        assert_eq!(
            (parameters.normalize, parameters.words),
            (Some(false), Some(true))
        );
        assert_eq!(parameters.outputs.unwrap().len(), 2);
    }

    #[test]
    fn the_command_line_has_all_options() {
        let fields = Given::augment_args(Command::new(""));
        let names = fields.get_arguments().map(|argument| {
            let long = argument.get_long().unwrap().to_owned();
            if long == "nested" {
                "flat".to_owned()
            } else {
                long
            }
        });
        let mut names: std::collections::BTreeSet<String> = names.collect();
        assert!(names.remove("label"));
        assert_eq!(names, JobOptions::names());
    }
}
