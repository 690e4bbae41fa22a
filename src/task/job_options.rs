//! Job options: task parameters as texts, until the model and so its task is known.
//!
//! They are declared by the parameter types: each argument of the command line is an option of jobs, which rules and object
//! metadata set by the argument's name. Lists are kept in one form, whichever they were given in.

use std::{borrow::Cow, collections::BTreeMap, ffi::OsStr};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind,
    parser::ValueSource, value_parser,
};
use serde::Serialize;

use super::{
    classification::{ClassificationParameters, ZeroShotParameters},
    embedding::EmbeddingParameters,
    entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
    extraction::ExtractionParameters,
    ranking::RankingParameters,
    text_to_text::TextToTextParameters,
};
use crate::model::Pipeline;
use kivu_base::{
    config::{list_text, parse_lists},
    error::{Error, Result, quoted},
};

/// A job's task options, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct JobOptions(BTreeMap<String, String>);

impl JobOptions {
    /// Sets an option, or returns the expected value if it has another form. `None` if there is no such option.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let argument = all()
            .into_iter()
            .find(|argument| option_name(argument) == name)?;
        let value = match is_list(&argument) {
            true => match parse_lists([value]) {
                Ok(items) => list_text(&items),
                Err(expected) => return Some(Err(expected)),
            },
            false => value.to_owned(),
        };
        let flag = flag(&argument, &value);
        let choices: Vec<_> = match name {
            SCHEMA => vec!["a schema in JSON".to_owned()],
            _ => argument
                .get_possible_values()
                .iter()
                .map(|value| format!("`{}`", value.get_name()))
                .collect(),
        };
        if parser().arg(argument).try_get_matches_from([flag]).is_err() {
            return Some(Err(expected(&choices)));
        }
        self.0.insert(name.to_owned(), value);
        Some(Ok(()))
    }

    /// All option names.
    pub fn names() -> Vec<String> {
        all()
            .iter()
            .map(|argument| option_name(argument).to_owned())
            .collect()
    }

    /// An option's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A task's parameters; other tasks' options are left out.
    pub fn parameters<T: Args>(&self) -> Result<T> {
        let own = arguments::<T>();
        let flags = own
            .iter()
            .filter_map(|argument| Some(flag(argument, self.get(option_name(argument))?)));
        let matches = T::augment_args(parser()).try_get_matches_from(flags);
        let parameters = matches.and_then(|matches| T::from_arg_matches(&matches));
        parameters
            .map_err(|error| Error::invalid(format!("expected other options, but found: {error}")))
    }

    /// Whether a schema says what is extracted, in place of labels.
    pub fn has_schema(&self) -> bool {
        self.0.contains_key(SCHEMA)
    }

    /// Whether an option has an effect on a model's task, next to these options.
    pub fn has_effect(&self, name: &str, pipeline: &Pipeline) -> bool {
        own(pipeline, self.has_schema())
            .iter()
            .any(|argument| option_name(argument) == name)
    }

    /// The argument for an option that has no effect on a model's task, or on the vectors that are requested.
    pub fn without_effect(&self, pipeline: &Pipeline) -> Option<String> {
        let other = all().into_iter().find(|argument| {
            let name = option_name(argument);
            self.0.contains_key(name) && !self.has_effect(name, pipeline)
        });
        let other = other.map(|argument| argument.get_long().unwrap_or_default().to_owned());
        let unused = || {
            let parameters = self.parameters::<EmbeddingParameters>().ok()?;
            parameters
                .without_effect(pipeline.embedding()?)
                .map(str::to_owned)
        };
        other.or_else(unused).map(|name| format!("--{name}"))
    }
}

/// The option with a schema.
const SCHEMA: &str = "schema";
/// The option with labels, and the one on the command line for one of them.
const LABELS: &str = "labels";
const LABEL: &str = "label";

/// The arguments of a model's task.
fn own(pipeline: &Pipeline, has_schema: bool) -> Vec<Arg> {
    match pipeline {
        Pipeline::ZeroShotEntities(_) if has_schema => arguments::<ExtractionParameters>(),
        Pipeline::Embedding(_) => arguments::<EmbeddingParameters>(),
        Pipeline::Classification(_) => arguments::<ClassificationParameters>(),
        Pipeline::TokenClassification(_) => arguments::<TokenClassificationParameters>(),
        Pipeline::ZeroShotEntities(_) => arguments::<ZeroShotEntitiesParameters>(),
        Pipeline::ZeroShot(_) => arguments::<ZeroShotParameters>(),
        Pipeline::Ranking(_) => arguments::<RankingParameters>(),
        Pipeline::Translation(_) => arguments::<TextToTextParameters>(),
        Pipeline::TextToText(_) => Vec::new(),
    }
}

/// All tasks' arguments. Where tasks share one, the first describes it.
fn all() -> Vec<Arg> {
    let tasks = [
        arguments::<ZeroShotParameters>(),
        arguments::<TokenClassificationParameters>(),
        arguments::<ZeroShotEntitiesParameters>(),
        arguments::<ClassificationParameters>(),
        arguments::<RankingParameters>(),
        arguments::<TextToTextParameters>(),
        arguments::<EmbeddingParameters>(),
        arguments::<ExtractionParameters>(),
    ];
    let mut all: Vec<Arg> = Vec::new();
    for argument in tasks.into_iter().flatten() {
        if all.iter().all(|known| known.get_id() != argument.get_id()) {
            all.push(argument.required(false));
        }
    }
    all
}

fn arguments<T: Args>() -> Vec<Arg> {
    T::augment_args(Command::new(""))
        .get_arguments()
        .cloned()
        .collect()
}

/// Whether an option's value is a list.
fn is_list(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

fn parser() -> Command {
    Command::new("").no_binary_name(true)
}

/// An argument's name in rules and metadata. A flag that negates its parameter has the parameter's name there.
fn option_name(argument: &Arg) -> &str {
    match argument.get_long().unwrap_or_default() {
        "nested" => "flat",
        long => long,
    }
}

fn flag(argument: &Arg, value: &str) -> String {
    format!("--{}={value}", argument.get_long().unwrap_or_default())
}

/// An option's values, as an error describes them; a number if there are none.
fn expected(choices: &[String]) -> String {
    match choices {
        [] => "a number".to_owned(),
        [only] => only.clone(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

impl Args for JobOptions {
    fn augment_args(command: Command) -> Command {
        // On the command line, a flag has no value. Each task has numbered its own arguments from 0.
        let as_flag = |argument: Arg| match argument.get_num_args() {
            Some(count) if count.min_values() == 0 => argument.num_args(0).require_equals(false),
            _ => argument,
        };
        // Lists are read when all of an option's values are known.
        let as_text = |argument: Arg| match is_list(&argument) {
            true => argument
                .value_delimiter(None)
                .value_parser(value_parser!(String)),
            false => argument,
        };
        let as_flag = |argument: Arg| as_text(as_flag(argument.display_order(None)));
        let label = Arg::new(LABEL)
            .long(LABEL)
            .help("A label, which may contain commas; repeatable")
            .action(ArgAction::Append);
        command
            .args(all().into_iter().map(as_flag))
            .arg(label.value_parser(value_parser!(String)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for JobOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let values = |id: &str| -> Vec<Cow<'_, str>> {
            let is_set = matches.value_source(id) == Some(ValueSource::CommandLine);
            let values = matches.get_raw(id).filter(|_| is_set);
            values
                .into_iter()
                .flatten()
                .map(OsStr::to_string_lossy)
                .collect()
        };
        for argument in all() {
            let (name, mut given) = (option_name(&argument), values(argument.get_id().as_str()));
            if name == LABELS {
                let one = |label: Cow<'_, str>| list_text(&[label.into_owned()]).into();
                given.extend(values(LABEL).into_iter().map(one));
            }
            if given.is_empty() {
                continue;
            }
            if !is_list(&argument) {
                self.0.insert(name.to_owned(), given.join(","));
                continue;
            }
            let lists = parse_lists(given.iter().map(AsRef::as_ref));
            let set = lists.map(|items| self.set(name, &list_text(&items)));
            if let Err(expected) | Ok(Some(Err(expected))) = set {
                return Err(clap::Error::raw(
                    ErrorKind::ValueValidation,
                    format!(
                        "expected {expected} in `--{name}`, but found {}",
                        quoted(&given)
                    ),
                ));
            }
        }
        Ok(())
    }
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

    fn try_read(line: &[&str]) -> Result<JobOptions, clap::Error> {
        let matches = JobOptions::augment_args(parser()).try_get_matches_from(line)?;
        JobOptions::from_arg_matches(&matches)
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
        // Each option is one of a parameter type, so that serde knows it as well.
        assert!(all().iter().all(|argument| argument.get_long().is_some()));
    }
}
