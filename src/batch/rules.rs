//! Rules for objects in a bucket: which are inputs, which model and options they get, and where their outputs go.

use super::parameters::Parameters;
use crate::{
    config,
    error::{Error, Result, quoted},
    model::Model,
    repository::s3::{Object, Url, fit_key},
};

/// Models, and rules in precedence order.
#[derive(Debug)]
pub(super) struct Rules {
    models: Vec<Model>,
    rules: Vec<Rule>,
}

/// How objects with a prefix are processed.
#[derive(Debug)]
struct Rule {
    input: String,
    /// Output bucket, by default the input's.
    bucket: Option<String>,
    output: String,
    parameters: Parameters,
}

impl Rules {
    /// Parses the configuration. No output prefix may begin with an input prefix: outputs would become inputs.
    pub(super) fn new(models: Vec<Model>, config: &config::BatchConfig) -> Result<Self> {
        let default = config::BatchRule {
            input: config.input.clone(),
            output: config.output.clone(),
            ..config::BatchRule::default()
        };
        let rules = config.rules.iter().chain([&default]).map(Rule::new).collect::<Result<Vec<_>>>()?;
        for output in rules.iter().filter(|rule| rule.bucket.is_none()) {
            if let Some(input) = rules.iter().find(|input| output.output.starts_with(&input.input)) {
                return Err(Error::config(format!(
                    "expected an output outside the input prefix `{}`, but found `{}`; outputs would be \
                     processed as inputs",
                    input.input, output.output
                )));
            }
        }
        Ok(Self { models, rules })
    }

    fn rule(&self, url: &Url) -> Result<&Rule> {
        self.rules.iter().find(|rule| url.key.starts_with(&rule.input)).ok_or_else(|| {
            let known: Vec<_> = self.rules.iter().map(|rule| rule.input.as_str()).collect();
            Error::invalid(format!("expected a file under {}, but found `{url}`", quoted(&known)))
        })
    }

    pub(super) fn is_input(&self, url: &Url) -> bool {
        self.rule(url).is_ok()
    }

    /// Output URL for an input.
    pub(super) fn output(&self, url: &Url) -> Result<Url> {
        let rule = self.rule(url)?;
        let rest = &url.key[rule.input.len()..];
        if rest.is_empty() {
            return Err(Error::config(format!("expected a file under `{}`, but found `{url}`", rule.input)));
        }
        let bucket = rule.bucket.clone().unwrap_or_else(|| url.bucket.clone());
        let output = Url { bucket, key: fit_key(&format!("{}{rest}", rule.output)) };
        // Another rule's output bucket may be this bucket.
        if output.bucket == url.bucket && self.is_input(&output) {
            return Err(Error::config(format!(
                "expected an output outside the input prefixes, but found `{output}`"
            )));
        }
        Ok(output)
    }

    /// The model and the options for an input, by its metadata, its folder or its rule.
    pub(super) fn model(&self, url: &Url, object: &Object) -> Result<(Model, Parameters)> {
        let rule = self.rule(url)?;
        let parameters = rule.parameters.clone().with_metadata(&object.metadata)?;
        let named = |name: &str| self.models.iter().find(|model| model.name == name);
        let rest = &url.key[rule.input.len()..];
        let model = match &parameters.model {
            Some(name) => named(name),
            None => {
                rest.split_once('/').and_then(|(folder, _)| named(folder)).or_else(|| self.models.first())
            }
        };
        let model = model.ok_or_else(|| Error::UnknownModel {
            name: parameters.model.clone().unwrap_or_default(),
            known: self.models.iter().map(|model| model.name.clone()).collect(),
        })?;
        Ok((model.clone(), parameters))
    }

    /// The first model and the rule's options, for reporting an input whose own model or options are invalid.
    pub(super) fn fallback(&self, url: &Url) -> Result<(Option<&Model>, Parameters)> {
        Ok((self.models.first(), self.rule(url)?.parameters.clone()))
    }
}

impl Rule {
    fn new(rule: &config::BatchRule) -> Result<Self> {
        let (bucket, output) = match rule.output.parse::<Url>() {
            Ok(url) => (Some(url.bucket), url.key),
            Err(_) => (None, rule.output.clone()),
        };
        Ok(Self { input: rule.input.clone(), bucket, output, parameters: Parameters::of(&rule.ask)? })
    }
}
