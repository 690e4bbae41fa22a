//! Job options: task parameters as texts, until the model and so its task is known.
//!
//! Rules, object metadata and the command line have the same options. Lists are kept in one form, whichever they were given
//! in.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};

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
    config::{list_text, parse_lists},
    error::{Error, Result},
    json::Ordered,
    names::{choice, named, names},
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

    /// All option names.
    pub fn names() -> BTreeSet<String> {
        all().map(|option| option.name.to_owned()).collect()
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
pub trait JobParameters: DeserializeOwned {
    /// These options.
    const OPTIONS: &'static [JobOption];
}

/// An option of jobs.
#[derive(Debug)]
pub struct JobOption {
    name: &'static str,
    /// The parameter's name; empty for options that only jobs have.
    field: &'static str,
    form: Form,
}

/// The form of an option's text.
#[derive(Clone, Copy, Debug)]
enum Form {
    Text,
    Flag,
    /// A whole number.
    Count,
    Number,
    /// A list of texts.
    List,
    /// One of these names.
    Choice(fn() -> Vec<String>),
    /// A list of these names.
    Choices(fn() -> Vec<String>),
    Schema,
    Biases,
}

impl Form {
    /// The parameter's value, or what was expected.
    fn json(self, text: &str) -> Result<Box<RawValue>, String> {
        let number = "a number".to_owned();
        let json = match self {
            Self::Text | Self::List => to_raw_value(text),
            Self::Flag => to_raw_value(&text.parse::<bool>().map_err(|_| "`true` or `false`")?),
            Self::Count => to_raw_value(&text.parse::<usize>().map_err(|_| number)?),
            Self::Number => {
                let parsed = text.parse::<f32>().ok().filter(|parsed| parsed.is_finite());
                to_raw_value(&parsed.ok_or(number)?)
            }
            Self::Choice(names) if names().iter().any(|name| name == text) => to_raw_value(text),
            Self::Choices(names) => {
                let items = parse_lists([text])?;
                if !items.iter().all(|item| names().contains(item)) {
                    return Err(choice(&names()));
                }
                to_raw_value(&items)
            }
            Self::Choice(names) => return Err(choice(&names())),
            Self::Biases => {
                let expected = "numbers such as `{\"background_stay\": -1}`";
                serde_json::from_str::<TransitionBiases>(text).map_err(|_| expected)?;
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
const ALL_SCORES: JobOption = option("all-scores", "", Form::Flag);

/// The option for numbers in placeholders.
const NUMBER_SCOPE: JobOption = option("redact-scope", "", Form::Choice(names::<JobNumberScope>));

const fn option(name: &'static str, field: &'static str, form: Form) -> JobOption {
    JobOption { name, field, form }
}

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
            Form::Choice(names::<Aggregation>),
        ),
        option("ignore-labels", "ignore_labels", Form::List),
        option("stride", "stride", Form::Count),
        option("transition-biases", "transition_biases", Form::Biases),
        option("redact", "redact", Form::Flag),
        option("redact-style", "redact_style", Form::Choice(names::<Style>)),
        NUMBER_SCOPE,
        option("patterns", "patterns", Form::List),
    ];
}

impl JobParameters for ZeroShotEntitiesParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("labels", "candidate_labels", Form::List),
        option("threshold", "threshold", Form::Number),
        option("flat", "flat_ner", Form::Flag),
        option("multi-label", "multi_label", Form::Flag),
        option("stride", "stride", Form::Count),
        option("redact", "redact", Form::Flag),
        option("redact-style", "redact_style", Form::Choice(names::<Style>)),
        NUMBER_SCOPE,
        option("patterns", "patterns", Form::List),
    ];
}

impl JobParameters for ClassificationParameters {
    const OPTIONS: &'static [JobOption] = &[ALL_SCORES];
}

impl JobParameters for RankingParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("raw-scores", "raw_scores", Form::Flag),
        option("instruction", "instruction", Form::Text),
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
        option("normalize", "normalize", Form::Flag),
        option("dimensions", "dimensions", Form::Count),
        option(
            "vector-type",
            "output_dtype",
            Form::Choice(names::<VectorType>),
        ),
        option("outputs", "outputs", Form::Choices(names::<VectorKind>)),
        option("max-active-dims", "max_active_dims", Form::Count),
        option("words", "words", Form::Flag),
    ];
}

impl JobParameters for ExtractionParameters {
    const OPTIONS: &'static [JobOption] = &[
        option("schema-form", "task", Form::Choice(names::<SchemaForm>)),
        option(SCHEMA, "schema", Form::Schema),
        option("threshold", "threshold", Form::Number),
        option("confidence", "include_confidence", Form::Flag),
        option("spans", "include_spans", Form::Flag),
    ];
}

/// All tasks' options; some tasks share one.
fn all() -> impl Iterator<Item = &'static JobOption> {
    let tasks = [
        ZeroShotParameters::OPTIONS,
        TokenClassificationParameters::OPTIONS,
        ZeroShotEntitiesParameters::OPTIONS,
        RankingParameters::OPTIONS,
        TextToTextParameters::OPTIONS,
        EmbeddingParameters::OPTIONS,
        ExtractionParameters::OPTIONS,
    ];
    tasks.into_iter().flatten()
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

    /// Each field is a parameter's, since serde ignores unknown ones.
    #[test]
    fn fields_are_those_of_the_parameters() {
        fn check<T: JobParameters + JsonSchema>() {
            let schema = schemars::schema_for!(T);
            let of_task = T::OPTIONS.iter().filter(|option| !option.field.is_empty());
            for option in of_task {
                let field = format!("/properties/{}", option.field);
                assert!(schema.pointer(&field).is_some(), "{}", option.name);
            }
        }
        check::<ZeroShotParameters>();
        check::<TokenClassificationParameters>();
        check::<ZeroShotEntitiesParameters>();
        check::<RankingParameters>();
        check::<TextToTextParameters>();
        check::<EmbeddingParameters>();
        check::<ExtractionParameters>();
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
