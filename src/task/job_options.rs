//! Job options: task parameters as texts, until the model and so its task is known.
//!
//! Rules, object metadata and the command line have the same options. Lists are kept in one form, whichever they were given
//! in.

use std::collections::{BTreeMap, BTreeSet};

use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

use super::{
    classification::{ClassificationParameters, ZeroShotParameters},
    embedding::EmbeddingParameters,
    entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
    extraction::{ExtractionParameters, SchemaForm},
    ranking::RankingParameters,
    text_to_text::TextToTextParameters,
};
use crate::model::Pipeline;
use kivu_base::{
    Error, Result,
    config::{list_text, parse_lists},
    json::Ordered,
    names::{choice, described, named},
};
use kivu_core::pipeline::{
    embedding::{VectorKind, vectors::VectorType},
    entities::{Aggregation, tags::TransitionBiases},
    redaction::placeholders::Style,
};

/// Where the same original has the same number in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobNumberScope {
    /// Within a text.
    Text,
    /// In all texts of a file.
    File,
}

/// A job's task options, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct JobOptions(BTreeMap<String, String>);

impl JobOptions {
    /// Sets an option, or returns the expected value if it has another form. `None` if there is no such option.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let option = all().find(|option| option.name == name)?;
        let value = match option.form {
            Form::List | Form::Choices(_) => match parse_lists([value]) {
                Ok(items) => list_text(&items),
                Err(expected) => return Some(Err(expected)),
            },
            _ => value.to_owned(),
        };
        let json = option.form.json(&value);
        Some(json.map(|_| drop(self.0.insert(name.to_owned(), value))))
    }

    /// All tasks' options, each once, with what they do.
    pub fn all() -> Vec<(&'static JobOption, String)> {
        let mut names = BTreeSet::new();
        let mut described = Vec::new();
        for (options, schema) in TASKS {
            let schema = schema();
            for option in options.iter().filter(|option| names.insert(option.name)) {
                let field = format!("/properties/{}/description", option.field);
                let description = schema.pointer(&field).and_then(Value::as_str);
                let description = description.filter(|_| option.help.is_empty());
                described.push((option, description.unwrap_or(option.help).to_owned()));
            }
        }
        described
    }

    /// An option's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A task's parameters; other tasks' options are left out.
    pub fn parameters<T: JobParameters>(&self) -> Result<T> {
        let field = |option: &JobOption| {
            let json = option.form.json(self.get(option.name)?);
            let refused =
                |expected| Error::invalid(format!("expected {expected} in `{}`", option.name));
            Some(json.map(|json| (option.field, json)).map_err(refused))
        };
        let of_task = T::OPTIONS.iter().filter(|option| !option.field.is_empty());
        let fields = of_task.filter_map(field);
        let fields = fields.collect::<Result<BTreeMap<_, _>>>()?;
        // As text, which keeps the order of a schema's names.
        let parameters =
            serde_json::to_string(&fields).and_then(|text| serde_json::from_str(&text));
        parameters.map_err(|error| Error::invalid(format!("invalid options: {error}")))
    }

    /// Whether answers have all labels and scores, not only the best.
    pub fn all_scores(&self) -> bool {
        self.get(ALL_SCORES.name) == Some("true")
    }

    /// Where the same original has the same number, if it is given.
    pub fn number_scope(&self) -> Option<JobNumberScope> {
        self.get(NUMBER_SCOPE.name).and_then(named)
    }

    /// Whether a schema says what is extracted, in place of labels.
    pub fn has_schema(&self) -> bool {
        self.0.contains_key(SCHEMA)
    }

    /// Whether an option has an effect on a model's task, next to these options.
    pub fn has_effect(&self, name: &str, pipeline: &Pipeline) -> bool {
        self.own(pipeline).iter().any(|option| option.name == name)
    }

    /// The options of a model's task.
    fn own(&self, pipeline: &Pipeline) -> &'static [JobOption] {
        match pipeline {
            Pipeline::ZeroShotEntities(_) if self.has_schema() => ExtractionParameters::OPTIONS,
            Pipeline::Embedding(_) => EmbeddingParameters::OPTIONS,
            Pipeline::Classification(_) => ClassificationParameters::OPTIONS,
            Pipeline::TokenClassification(_) => TokenClassificationParameters::OPTIONS,
            Pipeline::ZeroShotEntities(_) => ZeroShotEntitiesParameters::OPTIONS,
            Pipeline::ZeroShot(_) => ZeroShotParameters::OPTIONS,
            Pipeline::Ranking(_) => RankingParameters::OPTIONS,
            Pipeline::Translation(_) => TextToTextParameters::OPTIONS,
            Pipeline::TextToText(_) => &[],
        }
    }

    /// An option that has no effect on a model's task, or on the vectors that are requested.
    pub fn without_effect(&self, pipeline: &Pipeline) -> Option<&'static str> {
        let mut set = all().filter(|option| self.0.contains_key(option.name));
        let other = set.find(|option| !self.has_effect(option.name, pipeline));
        let unused = || {
            let parameters = self.parameters::<EmbeddingParameters>().ok()?;
            parameters.without_effect(pipeline.embedding()?)
        };
        other.map(|option| option.name).or_else(unused)
    }
}

/// A task's parameters, some of which are options of jobs.
pub trait JobParameters: DeserializeOwned + JsonSchema {
    /// These options.
    const OPTIONS: &'static [JobOption];
}

/// An option of jobs.
#[derive(Debug)]
pub struct JobOption {
    /// The name in rules and metadata.
    pub name: &'static str,
    /// The parameter's name; empty for options that only jobs have.
    field: &'static str,
    /// What the option takes.
    pub form: Form,
    /// The help, if it is not the parameter's description.
    pub help: &'static str,
}

impl JobOption {
    /// An option that is no parameter of a task.
    pub const fn of_jobs(name: &'static str, form: Form, help: &'static str) -> Self {
        Self {
            name,
            field: "",
            form,
            help,
        }
    }
}

/// Names, each with its description.
type Names = fn() -> Vec<(String, String)>;

/// The form of an option's text.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Any text.
    Text,
    /// `true` or `false`; on the command line, the option alone is `true`.
    Flag,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Count,
    /// A finite number.
    Number,
    /// A list of texts.
    List,
    /// One of these names.
    Choice(Names),
    /// A list of these names.
    Choices(Names),
    /// A schema in JSON.
    Schema,
    /// Transition biases in JSON.
    Biases,
}

impl Form {
    /// The parameter's value, or what was expected.
    fn json(self, text: &str) -> Result<Box<RawValue>, String> {
        let number = "a number".to_owned();
        let names = |described: Names| -> Vec<String> {
            described().into_iter().map(|(name, _)| name).collect()
        };
        let json = match self {
            Self::Text | Self::List => to_raw_value(text),
            Self::Flag | Self::Boolean => {
                to_raw_value(&text.parse::<bool>().map_err(|_| "`true` or `false`")?)
            }
            Self::Count => to_raw_value(&text.parse::<usize>().map_err(|_| number)?),
            Self::Number => {
                let parsed = text.parse::<f32>().ok().filter(|parsed| parsed.is_finite());
                to_raw_value(&parsed.ok_or(number)?)
            }
            Self::Choice(known) if names(known).iter().any(|name| name == text) => {
                to_raw_value(text)
            }
            Self::Choice(known) => return Err(choice(&names(known))),
            Self::Choices(known) => {
                let (items, known) = (parse_lists([text])?, names(known));
                if !items.iter().all(|item| known.contains(item)) {
                    return Err(choice(&known));
                }
                to_raw_value(&items)
            }
            Self::Biases => {
                let expected = "numbers such as `{\"background_stay\": -1}`";
                // A list would be read by the fields' order.
                let is_object = text.trim_start().starts_with('{');
                let biases = serde_json::from_str::<TransitionBiases>(text).ok();
                biases.filter(|_| is_object).ok_or(expected)?;
                RawValue::from_string(text.to_owned())
            }
            Self::Schema => serde_json::from_str::<Ordered>(text)
                .and_then(|_| RawValue::from_string(text.to_owned())),
        };
        json.map_err(|_| "a schema in JSON".to_owned())
    }
}

/// The option with a schema.
const SCHEMA: &str = "schema";

/// The option with lists of labels and scores.
const ALL_SCORES: JobOption = JobOption::of_jobs(
    "all-scores",
    Form::Flag,
    "Add lists with all labels and scores, the best first, to the best label and its score",
);

/// The option for numbers in placeholders.
const NUMBER_SCOPE: JobOption = JobOption::of_jobs(
    "redact-scope",
    Form::Choice(described::<JobNumberScope>),
    "Where the same original has the same number, with the style `number` [default: text]",
);

const fn option(name: &'static str, field: &'static str, form: Form) -> JobOption {
    JobOption {
        field,
        ..JobOption::of_jobs(name, form, "")
    }
}

/// An option with the name of its field.
const fn same(name: &'static str, form: Form) -> JobOption {
    option(name, name, form)
}

const REDACT_STYLE: JobOption = option(
    "redact-style",
    "redact_style",
    Form::Choice(described::<Style>),
);

impl JobParameters for ZeroShotParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("labels", "candidate_labels", Form::List),
        option("template", "hypothesis_template", Form::Text),
        option("multi-label", "multi_label", Form::Flag),
        ALL_SCORES,
    ];
}

impl JobParameters for TokenClassificationParameters {
    const OPTIONS: &'static [JobOption] = &[
        option(
            "aggregation",
            "aggregation_strategy",
            Form::Choice(described::<Aggregation>),
        ),
        option("ignore-labels", "ignore_labels", Form::List),
        same("stride", Form::Count),
        option("transition-biases", "transition_biases", Form::Biases),
        same("redact", Form::Flag),
        REDACT_STYLE,
        NUMBER_SCOPE,
        same("patterns", Form::List),
    ];
}

impl JobParameters for ZeroShotEntitiesParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("labels", "candidate_labels", Form::List),
        same("threshold", Form::Number),
        JobOption {
            help: "Also find nested entities, with a model that takes labels",
            ..option("flat", "flat_ner", Form::Flag)
        },
        option("multi-label", "multi_label", Form::Flag),
        same("stride", Form::Count),
        same("redact", Form::Flag),
        REDACT_STYLE,
        NUMBER_SCOPE,
        same("patterns", Form::List),
    ];
}

impl JobParameters for ClassificationParameters {
    const OPTIONS: &'static [JobOption] = &[ALL_SCORES];
}

impl JobParameters for RankingParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("raw-scores", "raw_scores", Form::Flag),
        same("instruction", Form::Text),
    ];
}

impl JobParameters for TextToTextParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("source-language", "src_lang", Form::Text),
        option("target-language", "tgt_lang", Form::Text),
    ];
}

impl JobParameters for EmbeddingParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("prompt", "prompt_name", Form::Text),
        option("embedding-task", "task", Form::Text),
        same("normalize", Form::Boolean),
        same("dimensions", Form::Count),
        option(
            "vector-type",
            "output_dtype",
            Form::Choice(described::<VectorType>),
        ),
        same("outputs", Form::Choices(described::<VectorKind>)),
        option("max-active-dims", "max_active_dims", Form::Count),
        same("words", Form::Flag),
    ];
}

impl JobParameters for ExtractionParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("schema-form", "task", Form::Choice(described::<SchemaForm>)),
        option(SCHEMA, "schema", Form::Schema),
        same("threshold", Form::Number),
        option("confidence", "include_confidence", Form::Flag),
        option("spans", "include_spans", Form::Flag),
    ];
}

/// A task's options, and its parameters' schema.
type TaskOptions = (&'static [JobOption], fn() -> Schema);

/// All tasks with options; some share one.
const TASKS: [TaskOptions; 7] = [
    task::<ZeroShotParameters>(),
    task::<TokenClassificationParameters>(),
    task::<ZeroShotEntitiesParameters>(),
    task::<RankingParameters>(),
    task::<TextToTextParameters>(),
    task::<EmbeddingParameters>(),
    task::<ExtractionParameters>(),
];

const fn task<T: JobParameters>() -> TaskOptions {
    (T::OPTIONS, || schema_for!(T))
}

fn all() -> impl Iterator<Item = &'static JobOption> {
    TASKS.into_iter().flat_map(|(options, _)| options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> JobOptions {
        let mut options = JobOptions::default();
        pairs
            .iter()
            .for_each(|(name, value)| options.set(name, value).unwrap().unwrap());
        options
    }

    #[test]
    fn options_become_parameters() {
        let found = options(&[
            ("labels", r#"billing, "cancel, close""#),
            ("multi-label", "true"),
            ("ignore-labels", "O"),
            ("outputs", "dense, sparse"),
            ("vector-type", "int8"),
            ("dimensions", "128"),
            ("embedding-task", "retrieval"),
            ("schema-form", "extract_entities"),
            ("schema", r#"["b", "a"]"#),
            ("threshold", "0.25"),
        ]);
        let labels: ZeroShotParameters = found.parameters().unwrap();
        assert_eq!(labels.multi_label, Some(true));
        let labels = labels.candidate_labels.read("labels", 9).unwrap();
        assert_eq!(labels, ["billing", "cancel, close"]);
        let ignored: TokenClassificationParameters = found.parameters().unwrap();
        let ignored = ignored.ignore_labels.unwrap();
        assert_eq!(ignored.read("labels", 9).unwrap(), ["O"]);
        let embedding: EmbeddingParameters = found.parameters().unwrap();
        let expected = EmbeddingParameters {
            outputs: Some(vec![VectorKind::Dense, VectorKind::Sparse]),
            output_dtype: Some(VectorType::Int8),
            dimensions: Some(128),
            task: Some("retrieval".into()),
            ..EmbeddingParameters::default()
        };
        assert_eq!(embedding, expected);
        let extraction: ExtractionParameters = found.parameters().unwrap();
        assert_eq!(
            (extraction.task, extraction.threshold),
            (Some(SchemaForm::ExtractEntities), Some(0.25))
        );
    }

    /// Each field is a parameter's, since serde ignores unknown ones, and describes the option.
    #[test]
    fn fields_are_those_of_the_parameters() {
        for (option, description) in JobOptions::all() {
            assert_ne!(description, "", "{}", option.name);
        }
        for (options, schema) in TASKS {
            let schema = schema();
            for option in options.iter().filter(|option| !option.field.is_empty()) {
                let field = format!("/properties/{}/description", option.field);
                assert!(schema.pointer(&field).is_some(), "{}", option.name);
            }
        }
    }

    #[test]
    fn options_of_other_forms_are_refused() {
        let refused = |name, value| {
            JobOptions::default()
                .set(name, value)
                .map(Result::unwrap_err)
        };
        assert_eq!(
            refused("multi-label", "maybe").unwrap(),
            "`true` or `false`"
        );
        assert_eq!(refused("stride", "x").unwrap(), "a number");
        assert_eq!(
            refused("transition-biases", "[1]").unwrap(),
            "numbers such as `{\"background_stay\": -1}`"
        );
        assert_eq!(
            refused("outputs", "dense,x").unwrap(),
            "`dense`, `sparse` or `multi_vector`"
        );
        assert_eq!(
            refused("labels", "a,\"b").unwrap(),
            "a closing quote for item 2"
        );
        assert_eq!(refused("top-k", "1"), None);
        assert_eq!(refused("threshold", "NaN").unwrap(), "a number");
        assert_eq!(
            refused("transition-biases", "{\"background\": 1}").unwrap(),
            "numbers such as `{\"background_stay\": -1}`"
        );
        assert_eq!(refused("schema", "{} x").unwrap(), "a schema in JSON");
    }
}
