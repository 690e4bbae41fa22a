//! The options of jobs and of models' tasks, in `kivu run` and `kivu batch`.

use std::slice;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind};
use serde::de::IgnoredAny;

use crate::choices::{one_line, values};
use kivu::{
    config::{list_text, parse_lists},
    error::quoted,
    task::{JobOption, JobOptions, OptionForm},
};
use kivu_jobs::{OPTIONS, Parameters};

/// The list that `--label` adds to.
const LABELS: &str = "labels";
const LABEL: &str = "label";

fn json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("invalid JSON: {error}")),
    }
}

/// An option's name on the command line, where some flags negate what they are in rules and metadata.
pub fn argument(name: &str) -> &str {
    match name {
        "flat" => "nested",
        "header" => "no-header",
        "truncate" => "no-truncate",
        name => name,
    }
}

/// The options of `kivu batch`; with `IN_FILES` false, without those about files.
#[derive(Debug)]
pub struct GivenOptions<const IN_FILES: bool>(pub Parameters);

/// All options of jobs that are not about files.
const OF_TEXTS: [&str; 2] = ["query", "truncate"];

impl<const IN_FILES: bool> GivenOptions<IN_FILES> {
    fn all() -> impl Iterator<Item = (&'static JobOption, String)> {
        let of_jobs = OPTIONS
            .iter()
            .filter(|option| IN_FILES || OF_TEXTS.contains(&option.name));
        let of_jobs = of_jobs.map(|option| (option, option.help.to_owned()));
        of_jobs.chain(JobOptions::all())
    }
}

/// An option for clap's help and messages.
fn argument_for(option: &JobOption, description: &str) -> Arg {
    let long = argument(option.name);
    let given = Arg::new(option.name).long(long).help(one_line(description));
    match option.form {
        OptionForm::Flag => {
            let value = if long == option.name { "true" } else { "false" };
            let given = given.action(ArgAction::Set);
            given.num_args(0).default_missing_value(value)
        }
        OptionForm::Boolean => given.value_name("BOOLEAN").value_parser(["true", "false"]),
        OptionForm::Text => given.value_name("TEXT"),
        OptionForm::Count | OptionForm::Number => given.value_name("NUMBER"),
        OptionForm::List | OptionForm::Choices(_) => {
            given.value_name("LIST").action(ArgAction::Append)
        }
        OptionForm::Choice(names) => given.value_name("NAME").value_parser(values(names())),
        OptionForm::Schema | OptionForm::Biases => given.value_name("JSON").value_parser(json),
    }
}

impl<const IN_FILES: bool> Args for GivenOptions<IN_FILES> {
    fn augment_args(command: Command) -> Command {
        let label = Arg::new(LABEL).long(LABEL).value_name("LABEL");
        let label = label.help("A label, which may contain commas; repeatable");
        command
            .args(Self::all().map(|(option, description)| argument_for(option, &description)))
            .arg(label.action(ArgAction::Append))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const IN_FILES: bool> FromArgMatches for GivenOptions<IN_FILES> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = |name: &str| matches.get_many::<String>(name).into_iter().flatten();
        let mut parameters = Parameters::default();
        for (option, _) in Self::all() {
            let mut given: Vec<String> = texts(option.name).cloned().collect();
            if option.name == LABELS {
                given.extend(texts(LABEL).map(|label| list_text(slice::from_ref(label))));
            }
            if given.is_empty() {
                continue;
            }
            let text = match option.form {
                OptionForm::List | OptionForm::Choices(_) => {
                    parse_lists(given.iter().map(String::as_str)).map(|items| list_text(&items))
                }
                _ => Ok(given.concat()),
            };
            let set = text.map(|text| parameters.set(option.name, &text));
            if let Err(expected) | Ok(Some(Err(expected))) = set {
                let message = format!(
                    "expected {expected} in `--{}`, but found {}",
                    argument(option.name),
                    quoted(&given)
                );
                return Err(clap::Error::raw(ErrorKind::ValueValidation, message));
            }
        }
        Ok(Self(parameters))
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
        let parser = GivenOptions::<true>::augment_args(Command::new("").no_binary_name(true));
        let matches = parser.try_get_matches_from(line)?;
        GivenOptions::<true>::from_arg_matches(&matches).map(|given| given.0.options)
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
}
