//! Rules for objects in a bucket: which are inputs, which model and options they get, and where their outputs go.

use std::{collections::BTreeMap, path::Path};

use super::row_function::RowFunction;
use crate::{
    input::format::NamedForm,
    job::parameters::Parameters,
    rows::CsvOptions,
    sink::{SinkSettings, Sinks},
};
use kivu::{
    Error, Result, config,
    error::quoted,
    model::Model,
    repository::s3::{Object, Url, fit_key},
};

/// Models, and rules in precedence order.
#[derive(Debug)]
pub struct Rules {
    models: Vec<Model>,
    rules: Vec<Rule>,
    /// Rules for rows that are not in objects: `input` is `KIND:NAME`.
    callers: Vec<Rule>,
}

/// Kinds of callers that send rows, and whether their answers are written to S3.
const CALLERS: [(&str, bool); 5] = [
    ("redshift", false),
    ("snowflake", false),
    ("firehose", false),
    ("kinesis", true),
    ("dynamodb", true),
];

/// How objects with a prefix are processed.
#[derive(Debug)]
struct Rule {
    input: String,
    /// Output bucket, by default the input's.
    bucket: Option<String>,
    output: String,
    sink: Option<SinkSettings>,
    parameters: Parameters,
}

impl Rules {
    /// Parses the configuration. No output prefix may begin with an input prefix: outputs would become inputs.
    pub fn new(models: Vec<Model>, config: &config::BatchConfig, sinks: Sinks) -> Result<Self> {
        let default = config::BatchRule {
            input: config.input.clone(),
            output: config.output.clone(),
            sink: config.sink.clone(),
            id: config.id.clone(),
            metadata: config.metadata.clone(),
            ..config::BatchRule::default()
        };
        let (callers, objects): (Vec<_>, Vec<_>) = config
            .rules
            .iter()
            .partition(|rule| writes_answers(&rule.input).is_some());
        let objects: Vec<_> = objects.into_iter().chain([&default]).collect();
        callers.iter().copied().try_for_each(check_caller)?;
        callers
            .iter()
            .chain(&objects)
            .copied()
            .try_for_each(check_output)?;
        check_order(&callers, str::eq_ignore_ascii_case)?;
        // The default may have no file that is left to it.
        let ordered = objects.len() - usize::from(default.sink.is_none());
        check_order(&objects[..ordered], |input, earlier| {
            input.starts_with(earlier)
        })?;
        let rules = objects
            .into_iter()
            .map(|rule| Rule::new(rule, sinks))
            .collect::<Result<Vec<_>>>()?;
        let callers = callers
            .into_iter()
            .map(|rule| Rule::new(rule, sinks))
            .collect::<Result<Vec<_>>>()?;
        let written = callers.iter().filter(|rule| rule.bucket.is_some());
        for output in rules
            .iter()
            .filter(|rule| rule.bucket.is_none())
            .chain(written)
        {
            let is_input = |rule: &&Rule| output.output.starts_with(&rule.input);
            if let Some(input) = rules.iter().find(is_input) {
                return Err(Error::config(format!(
                    "expected an output outside the input prefix `{}`, but found `{}`",
                    input.input, output.output
                ))
                .with_hint("outputs would be processed as inputs"));
            }
        }
        Ok(Self {
            models,
            rules,
            callers,
        })
    }

    fn rule(&self, url: &Url) -> Result<&Rule> {
        self.rules
            .iter()
            .find(|rule| url.key.starts_with(&rule.input))
            .ok_or_else(|| {
                let known: Vec<_> = self.rules.iter().map(|rule| rule.input.as_str()).collect();
                Error::invalid(format!(
                    "expected a file under {}, but found `{url}`",
                    quoted(&known)
                ))
            })
    }

    pub fn is_input(&self, url: &Url) -> bool {
        self.rule(url).is_ok()
    }

    /// Whether an input is hidden, or not data: `_SUCCESS`, `_temporary/…` and `.part-0.crc`, as Hadoop and Spark write
    /// them. A file such as `_a.csv` is data by its extension.
    pub fn is_hidden(&self, url: &Url) -> bool {
        let Ok(rule) = self.rule(url) else {
            return false;
        };
        let rest = &url.key[rule.input.len()..];
        let (folders, name) = rest.rsplit_once('/').unwrap_or(("", rest));
        let named = NamedForm::of(name);
        name.starts_with('.')
            || name.starts_with('_') && named.format.is_none() && !named.is_text
            || folders.split('/').any(|name| name.starts_with(['_', '.']))
    }

    /// Output URL for an input.
    pub fn output(&self, url: &Url) -> Result<Url> {
        let rule = self.rule(url)?;
        let rest = &url.key[rule.input.len()..];
        if rest.is_empty() {
            return Err(Error::config(format!(
                "expected a file under `{}`, but found `{url}`",
                rule.input
            )));
        }
        let bucket = rule.bucket.clone().unwrap_or_else(|| url.bucket.clone());
        let output = Url {
            bucket,
            key: fit_key(&format!("{}{rest}", rule.output)),
        };
        // Another rule's output bucket may be this bucket.
        if output.bucket == url.bucket && self.is_input(&output) {
            return Err(Error::config(format!(
                "expected an output outside the input prefixes, but found `{output}`"
            )));
        }
        Ok(output)
    }

    /// The sink for an input's vectors. Objects' metadata cannot choose it.
    pub fn sink(&self, url: &Url) -> Result<Option<&SinkSettings>> {
        Ok(self.rule(url)?.sink.as_ref())
    }

    /// The model and the options for rows from a caller, whose `options` override its rule's. Without a named model it
    /// is the one with the caller's name, if any, or the first.
    pub fn function(
        &self,
        kind: &str,
        name: &str,
        options: &BTreeMap<String, String>,
    ) -> Result<RowFunction> {
        check_options(kind, options)?;
        let parameters = self
            .caller(kind, name)
            .map(|rule| rule.parameters.clone())
            .unwrap_or_default();
        let parameters = parameters.with_options(options)?;
        let own_name = own_name(kind, name);
        let is_own = |model: &&Model| model.name.eq_ignore_ascii_case(own_name);
        let model = match &parameters.model {
            Some(name) => self.models.iter().find(|model| model.name == *name),
            None => self
                .models
                .iter()
                .find(is_own)
                .or_else(|| self.models.first()),
        };
        let model = model.ok_or_else(|| self.unknown(&parameters))?;
        Ok(RowFunction {
            model: model.clone(),
            parameters,
        })
    }

    /// The prefix for answers to a stream's records.
    pub fn stream_output(&self, kind: &str, name: &str) -> Result<Url> {
        let rule = self.caller(kind, name);
        let output = rule.and_then(|rule| {
            Some(Url {
                bucket: rule.bucket.clone()?,
                key: rule.output.clone(),
            })
        });
        output.ok_or_else(|| {
            Error::config(format!(
                "expected a rule with the input `{kind}:{name}` and an output in S3, but found \
                 none"
            ))
            .with_hint("add it to `batch.rules`")
        })
    }

    fn caller(&self, kind: &str, name: &str) -> Option<&Rule> {
        let is_for = |rule: &&Rule| {
            let own_name = rule
                .input
                .strip_prefix(kind)
                .and_then(|rest| rest.strip_prefix(':'));
            own_name.is_some_and(|own| own.eq_ignore_ascii_case(name))
        };
        self.callers.iter().find(is_for)
    }

    fn unknown(&self, parameters: &Parameters) -> Error {
        Error::UnknownModel {
            name: parameters.model.clone().unwrap_or_default(),
            known: self.models.iter().map(|model| model.name.clone()).collect(),
        }
    }

    /// The model and the options for an input, by its metadata, its folder or its rule.
    pub fn model(&self, url: &Url, object: &Object) -> Result<(Model, Parameters)> {
        let rule = self.rule(url)?;
        let parameters = rule.parameters.clone().with_metadata(&object.metadata)?;
        let named = |name: &str| self.models.iter().find(|model| model.name == name);
        let rest = &url.key[rule.input.len()..];
        let model = match &parameters.model {
            Some(name) => named(name),
            None => rest
                .split_once('/')
                .and_then(|(folder, _)| named(folder))
                .or_else(|| self.models.first()),
        };
        let model = model.ok_or_else(|| self.unknown(&parameters))?;
        Ok((model.clone(), parameters))
    }

    /// The first model and the rule's options, for reporting an input whose own model or options are invalid.
    pub fn fallback(&self, url: &Url) -> Result<(Option<&Model>, Parameters)> {
        Ok((self.models.first(), self.rule(url)?.parameters.clone()))
    }
}

/// Whether answers are written to S3 for a rule's caller; `None` for a rule for objects.
fn writes_answers(input: &str) -> Option<bool> {
    let kind = input.split_once(':')?.0;
    CALLERS
        .iter()
        .find(|(known, _)| *known == kind)
        .map(|(_, is_written)| *is_written)
}

/// A caller's name as models have it: a warehouse's function without its schema.
fn own_name<'a>(kind: &str, name: &'a str) -> &'a str {
    match kind {
        "redshift" | "snowflake" => name.rsplit('.').next().unwrap_or_default(),
        _ => name,
    }
}

/// Checks the options in a caller's rule.
fn check_caller(rule: &config::BatchRule) -> Result<()> {
    let kind = rule.input.split(':').next().unwrap_or_default();
    check_options(kind, &rule.ask)
}

/// Refuses options of files, and of objects in rows that are lists of arguments.
fn check_options(kind: &str, options: &BTreeMap<String, String>) -> Result<()> {
    let has_arguments = matches!(kind, "redshift" | "snowflake");
    let is_unread = |(name, value): &(&String, &String)| {
        let is_of_csv = CsvOptions::default().set(name, value).is_some();
        is_of_csv || *name == "format" || has_arguments && *name == "column"
    };
    match options.iter().find(is_unread) {
        Some((name, _)) => Err(Error::invalid(format!(
            "the option `{name}` has no effect on rows from `{kind}`"
        ))
        .with_hint("omit it")),
        None => Ok(()),
    }
}

/// Refuses rules that never apply, since an earlier one does.
fn check_order(rules: &[&config::BatchRule], hides: fn(&str, &str) -> bool) -> Result<()> {
    for (place, rule) in rules.iter().enumerate() {
        let mut earlier = rules[..place].iter();
        if let Some(earlier) = earlier.find(|earlier| hides(&rule.input, &earlier.input)) {
            return Err(Error::config(format!(
                "the rule for `{}` never applies, since the one for `{}` comes first",
                rule.input, earlier.input
            ))
            .with_hint("put it before that one, or remove it"));
        }
    }
    Ok(())
}

/// Checks whether a rule has an output, if it needs one.
fn check_output(rule: &config::BatchRule) -> Result<()> {
    let is_url = Url::of_location(Path::new(&rule.output))?.is_some();
    let (is_valid, expected) = match writes_answers(&rule.input) {
        Some(true) => (is_url, "`s3://BUCKET/PREFIX` as"),
        Some(false) => (rule.output.is_empty(), "no"),
        None => (!rule.output.is_empty(), "an"),
    };
    if is_valid {
        return Ok(());
    }
    let error = Error::config(format!(
        "expected {expected} output in the rule for `{}`, but found `{}`",
        rule.input, rule.output
    ));
    let kinds = CALLERS.map(|(kind, _)| format!("{kind}:"));
    Err(match writes_answers(&rule.input) {
        None => error.with_hint(format!("a rule for rows begins with {}", quoted(&kinds))),
        Some(_) => error,
    })
}

/// The rule's sink, if it has one.
fn sink(rule: &config::BatchRule, sinks: Sinks) -> Result<Option<SinkSettings>> {
    let wrong =
        |found: &str| Error::config(format!("expected {found} in the rule for `{}`", rule.input));
    match rule.sink.as_deref() {
        None if rule.id.is_some() || !rule.metadata.is_empty() => {
            Err(wrong("`sink`, which `id` and `metadata` belong to,"))
        }
        None => Ok(None),
        Some(_) if writes_answers(&rule.input).is_some() => {
            Err(wrong("no `sink`, which only files have,"))
        }
        Some(url) => {
            SinkSettings::new(sinks.parse(url)?, rule.id.as_deref(), &rule.metadata).map(Some)
        }
    }
}

impl Rule {
    fn new(rule: &config::BatchRule, sinks: Sinks) -> Result<Self> {
        let (bucket, output) = match Url::of_location(Path::new(&rule.output))? {
            Some(url) => (Some(url.bucket), url.key),
            None => (None, rule.output.clone()),
        };
        if Url::of_location(Path::new(&rule.input))?.is_some() {
            return Err(Error::config(format!(
                "expected a key's prefix for a rule's `input`, such as `in/`, but found `{}`",
                rule.input
            ))
            .with_hint("omit the bucket"));
        }
        let parameters = Parameters::of(&rule.ask)?;
        Ok(Self {
            input: rule.input.clone(),
            bucket,
            output,
            sink: sink(rule, sinks)?,
            parameters,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn markers_of_other_programs_are_hidden() {
        let rules = Rules::new(
            Vec::new(),
            &config::BatchConfig::default(),
            Sinks::default(),
        )
        .unwrap();
        let is_hidden = |key: &str| {
            rules.is_hidden(&Url {
                bucket: "files".into(),
                key: key.into(),
            })
        };
        for key in [
            "in/_SUCCESS",
            "in/year=2026/_SUCCESS",
            "in/_committed_123",
            "in/_metadata",
            "in/.part-0.csv.crc",
            "in/a/._b.csv",
            "in/_temporary/0/part-0.csv",
            "in/table/_delta_log/00.json",
        ] {
            assert!(is_hidden(key), "{key}");
        }
        for key in [
            "in/_a.csv",
            "in/_a.txt",
            "in/a_SUCCESS",
            "in/a/part-0.csv.gz",
            "in/_b.jsonl.zst",
            "out/_SUCCESS",
        ] {
            assert!(!is_hidden(key), "{key}");
        }
    }

    #[test]
    fn only_functions_of_warehouses_have_a_schema() {
        for kind in ["redshift", "snowflake"] {
            assert_eq!(own_name(kind, "public.minilm"), "minilm");
        }
        assert_eq!(own_name("kinesis", "bge-small-v1.5"), "bge-small-v1.5");
    }

    #[test]
    fn what_has_no_effect_is_refused() {
        let refused = |config: serde_json::Value| {
            let config = serde_json::from_value(config).unwrap();
            let rules = Rules::new(Vec::new(), &config, Sinks::default());
            rules.map(drop).map_err(|error| error.to_string())
        };
        let rule = |input: &str| match writes_answers(input) {
            Some(_) => json!({ "input": input }),
            None => json!({ "input": input, "output": "out/" }),
        };
        let ordered = |inputs: &[&str]| {
            let rules: Vec<_> = inputs.iter().map(|input| rule(input)).collect();
            refused(json!({ "rules": rules }))
        };
        assert_eq!(
            ordered(&[
                "in/a/b",
                "in/a/",
                "snowflake:a",
                "redshift:a",
                "in/",
                "redshift:ab"
            ]),
            Ok(())
        );
        insta::assert_snapshot!(ordered(&["in/a", "in/a/b/"]).unwrap_err(), @"the rule for `in/a/b/` never applies, since the one for `in/a` comes first; put it before that one, or remove it");
        insta::assert_snapshot!(ordered(&["redshift:s.f", "redshift:S.F"]).unwrap_err(), @"the rule for `redshift:S.F` never applies, since the one for `redshift:s.f` comes first; put it before that one, or remove it");
        insta::assert_snapshot!(refused(json!({ "sink": "s3vectors://b/i", "rules": [rule("in/")] })).unwrap_err(), @"the rule for `in/` never applies, since the one for `in/` comes first; put it before that one, or remove it");
        insta::assert_snapshot!(refused(json!({ "rules": [{ "input": "Redshift:f" }] })).unwrap_err(), @"expected an output in the rule for `Redshift:f`, but found ``; a rule for rows begins with `redshift:`, `snowflake:`, `firehose:`, `kinesis:`, `dynamodb:`");
        for (kind, name) in [
            ("firehose", "delimiter"),
            ("redshift", "format"),
            ("snowflake", "column"),
        ] {
            let rules = json!([{ "input": format!("{kind}:a"), "ask": { name: "|" } }]);
            let error = refused(json!({ "rules": rules })).unwrap_err();
            assert_eq!(
                error,
                format!("the option `{name}` has no effect on rows from `{kind}`; omit it")
            );
        }
        let rules = json!([{ "input": "firehose:a", "ask": { "column": "b" } }]);
        assert_eq!(refused(json!({ "rules": rules })), Ok(()));
    }

    #[test]
    fn urls_of_other_schemes_are_no_prefixes() {
        let refused = |input: &str, output: &str, sink: Option<&str>| {
            let rule = config::BatchRule {
                input: input.into(),
                output: output.into(),
                sink: sink.map(str::to_owned),
                ..config::BatchRule::default()
            };
            let config = config::BatchConfig {
                rules: vec![rule],
                ..config::BatchConfig::default()
            };
            Rules::new(Vec::new(), &config, Sinks::default())
                .unwrap_err()
                .to_string()
        };
        insta::assert_snapshot!(refused("a/", "S3://me:secret@bucket/out/", None), @"the URL begins with `S3:`, but has another form; begin it with `s3://`");
        insta::assert_snapshot!(refused("s3://bucket/a/", "b/", None), @"expected a key's prefix for a rule's `input`, such as `in/`, but found `s3://bucket/a/`; omit the bucket");
        for (input, output, sink) in [
            ("a/", "Postgres://me:secret@host/db", None),
            ("https://me:secret@host/a/", "b/", None),
            ("kinesis:a", "https://me:secret@host/", None),
            ("redshift:a", "Postgres://me:secret@host/", None),
            ("a/", "b/", Some("Postgres://me:secret@host/db?table=t")),
        ] {
            let error = refused(input, output, sink);
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
