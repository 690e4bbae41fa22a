//! The function behind a bucket: events in, files of answers out.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    Ended, Existing, Job, Parameters, Sink, Source, event,
    event::{Message, Written},
    large::{self, Batch, Join},
};
use crate::{
    config::{self, Config},
    error::{Error, Result},
    model::Model,
    repository::s3::{Object, Store, Url, fit_key},
};

/// Models, and what is asked of files by their prefixes.
#[derive(Debug)]
pub struct Function {
    models: Vec<Model>,
    rules: Vec<Rule>,
    interval: Duration,
    margin: Duration,
}

/// What is done with the files of a prefix.
#[derive(Clone, Debug)]
struct Rule {
    input: String,
    /// The bucket of answers, where it is another.
    bucket: Option<String>,
    output: String,
    parameters: Parameters,
}

/// What came of an object.
#[derive(Debug)]
enum Outcome {
    Ended(Box<Ended>),
    /// There was nothing to do, for that reason.
    Skipped(&'static str),
}

impl Outcome {
    fn is_unfinished(&self) -> bool {
        matches!(self, Self::Ended(ended) if matches!(**ended, Ended::Unfinished(_)))
    }
}

impl Function {
    /// Checks the rules: answers must not come back as questions.
    pub fn new(models: Vec<Model>, config: &Config) -> Result<Self> {
        let batch = &config.batch;
        let general =
            config::Rule { input: batch.input.clone(), output: batch.output.clone(), ask: BTreeMap::new() };
        let rules = batch.rules.iter().chain([&general]).map(Rule::new).collect::<Result<Vec<_>>>()?;
        for output in rules.iter().filter(|rule| rule.bucket.is_none()) {
            if let Some(input) = rules.iter().find(|input| output.output.starts_with(&input.input)) {
                return Err(Error::config(format!(
                    "expected answers outside of `{}`, which files are taken from, but found the output `{}`; \
                     they would be taken for files",
                    input.input, output.output
                )));
            }
        }
        Ok(Self {
            models,
            rules,
            interval: Duration::from_millis(batch.save_ms),
            margin: Duration::from_millis(batch.margin_ms),
        })
    }

    /// Does what an event asks for, until shortly before `deadline`.
    ///
    /// - A queue is told which of its messages are to come again: those that failed, and those whose job is not
    ///   finished.
    /// - A state machine is told how its job stands.
    /// - Everybody else is told by an error that the event is to come again.
    pub async fn handle(&self, event: Value, deadline: Option<Instant>) -> Result<Value> {
        let until = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Half of the time is for work, however short it is: a job that never gets on never ends.
            deadline.checked_sub(self.margin.min(left / 2)).unwrap_or(deadline)
        });
        if let Some(join) = Join::of(&event)? {
            return large::join(self, &join).await;
        }
        if let Some(batch) = Batch::of(&event)? {
            return large::answer(self, &batch, until).await;
        }
        if let Some(url) = event.get("input").and_then(Value::as_str) {
            let written = Written { url: url.parse()?, version: None, etag: None };
            return Ok(told(&self.object(&written, until).await?));
        }
        let messages = event::messages(&event);
        let is_queue = messages.iter().any(|message| message.id.is_some());
        let mut failures = Vec::new();
        for message in messages {
            let id = message.id.clone();
            if let Err(error) = self.message(message, until).await {
                if !is_queue {
                    return Err(error);
                }
                tracing::error!(message = id, error = error.chain(), "the message is to come again");
                failures.push(json!({ "itemIdentifier": id }));
            }
        }
        Ok(if is_queue { json!({ "batchItemFailures": failures }) } else { json!({ "status": "done" }) })
    }

    /// Does what one message asks for; an error where it is to come again.
    async fn message(&self, message: Message, until: Option<Instant>) -> Result<()> {
        for written in message.objects? {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(unfinished(&written.url));
            }
            if self.object(&written, until).await?.is_unfinished() {
                return Err(unfinished(&written.url));
            }
        }
        Ok(())
    }

    async fn object(&self, written: &Written, until: Option<Instant>) -> Result<Outcome> {
        let outcome = self.run(written, until).await?;
        let url = &written.url;
        match &outcome {
            Outcome::Skipped(reason) => tracing::info!(%url, reason, "nothing to do"),
            Outcome::Ended(ended) => match &**ended {
                Ended::Known => tracing::info!(%url, "done before"),
                Ended::Unfinished(progress) => {
                    tracing::info!(%url, rows = progress.rows, "to be gone on with");
                }
                Ended::Done(report) => {
                    let (progress, error) = (&report.progress, &report.error);
                    tracing::info!(%url, rows = progress.rows, seconds = progress.seconds, error, "done");
                }
            },
        }
        Ok(outcome)
    }

    async fn run(&self, written: &Written, until: Option<Instant>) -> Result<Outcome> {
        let url = &written.url;
        if url.key.ends_with('/') {
            return Ok(Outcome::Skipped("it is the mark of a folder"));
        }
        let Some(rule) = self.rules.iter().find(|rule| url.key.starts_with(&rule.input)) else {
            return Ok(Outcome::Skipped("it has no prefix that files are taken from"));
        };
        let sink = rule.sink(url)?;
        if self.rules.iter().any(|rule| sink.bucket == url.bucket && sink.key.starts_with(&rule.input)) {
            return Err(Error::config(format!(
                "expected answers where no files are taken from, but found `{sink}`"
            )));
        }
        let store = Store::open()?;
        let Some(object) = store.head(url, written.version.as_deref())? else {
            return Ok(Outcome::Skipped("it is gone"));
        };
        if written.version.is_none()
            && written.etag.as_ref().is_some_and(|etag| *etag != object.etag.trim_matches('"'))
        {
            return Ok(Outcome::Skipped("it was replaced, of which another event tells"));
        }
        let asked = self.asked(rule, url, &object);
        let source = Source::Object(url.clone(), object);
        let (model, parameters, refusal) = match asked {
            Ok((model, parameters)) => (model, parameters, None),
            // Said in the report, by the first model, since no other is known.
            Err(error) => match self.models.first() {
                Some(model) => (model, rule.parameters.clone(), Some(error)),
                None => return Err(error),
            },
        };
        let job = Job {
            source,
            sink: Sink::Object(sink),
            model: model.clone(),
            parameters,
            watcher: Arc::new(()),
            until,
            interval: self.interval,
            existing: Existing::default(),
        };
        Ok(Outcome::Ended(Box::new(match refusal {
            None => job.run().await?,
            Some(error) => job.fail(error)?,
        })))
    }

    /// The model for a file, and what is asked of it: what the file's own metadata say, its prefix, or the rule.
    fn asked(&self, rule: &Rule, url: &Url, object: &Object) -> Result<(&Model, Parameters)> {
        let parameters = rule.parameters.clone().with_metadata(&object.metadata)?;
        Ok((self.model(parameters.model.as_deref(), &url.key[rule.input.len()..])?, parameters))
    }

    fn model(&self, name: Option<&str>, rest: &str) -> Result<&Model> {
        let named = |name: &str| self.models.iter().find(|model| model.name == name);
        let known = || self.models.iter().map(|model| model.name.clone()).collect();
        let model = match name {
            Some(name) => named(name),
            None => {
                rest.split_once('/').and_then(|(folder, _)| named(folder)).or_else(|| self.models.first())
            }
        };
        let name = name.unwrap_or_default().to_owned();
        model.ok_or_else(|| Error::UnknownModel { name, known: known() })
    }

    /// What answers the rows of a large file, and where the whole of them goes.
    pub(super) fn plan(&self, url: &Url, object: &Object) -> Result<(Model, Parameters, Url)> {
        let rule = self.rules.iter().find(|rule| url.key.starts_with(&rule.input)).ok_or_else(|| {
            let known: Vec<_> = self.rules.iter().map(|rule| rule.input.as_str()).collect();
            Error::invalid(format!(
                "expected a file under {}, but found `{url}`",
                crate::error::quoted(&known)
            ))
        })?;
        let (model, parameters) = self.asked(rule, url, object)?;
        Ok((model.clone(), parameters, rule.sink(url)?))
    }

    /// Does the files of a listing.
    pub(super) async fn listed(&self, urls: Vec<Url>, until: Option<Instant>) -> Result<Value> {
        let mut outcomes = Vec::new();
        for url in urls {
            let written = Written { url, version: None, etag: None };
            let outcome = self.object(&written, until).await?;
            if outcome.is_unfinished() {
                return Err(unfinished(&written.url));
            }
            outcomes.push(told(&outcome));
        }
        Ok(Value::from(outcomes))
    }
}

impl Rule {
    fn new(rule: &config::Rule) -> Result<Self> {
        let (bucket, output) = match rule.output.parse::<Url>() {
            Ok(url) => (Some(url.bucket), url.key),
            Err(_) => (None, rule.output.clone()),
        };
        Ok(Self { input: rule.input.clone(), bucket, output, parameters: Parameters::of(&rule.ask)? })
    }

    /// Where the answers of a file go.
    fn sink(&self, url: &Url) -> Result<Url> {
        let rest = &url.key[self.input.len()..];
        if rest.is_empty() {
            return Err(Error::config(format!("expected a file under `{}`, but found `{url}`", self.input)));
        }
        let bucket = self.bucket.clone().unwrap_or_else(|| url.bucket.clone());
        Ok(Url { bucket, key: fit_key(&format!("{}{rest}", self.output)) })
    }
}

/// How a job stands, for a state machine.
fn told(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Skipped(reason) => json!({ "status": "skipped", "reason": reason }),
        Outcome::Ended(ended) => match &**ended {
            Ended::Known => json!({ "status": "known" }),
            Ended::Unfinished(progress) => json!({ "status": "unfinished", "rows": progress.rows }),
            Ended::Done(report) => json!(report),
        },
    }
}

/// The error by which an event comes again.
fn unfinished(url: &Url) -> Error {
    Error::Io {
        action: format!("expected `{url}` to be done in time, but it is not; it goes on where it stopped"),
        source: std::io::Error::new(std::io::ErrorKind::TimedOut, "time is up"),
    }
}
