//! The Lambda function for batch jobs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::LocalBoxFuture;
use serde_json::{Map, Value, json};

use super::{
    distributed_map::{self, Files, Listed, Listing, MapEvent},
    event::{Event, Message, ObjectEvent, Reached},
    rules::Rules,
};
use crate::{
    input::location::{JobInput, JobOutput},
    job::{Ended, Job, unfinished},
    output::report_file,
    rows::Parquet,
    sink::Sinks,
};
use kivu::{
    Error, Result,
    cloud::{Cloud, EventBus, Queue},
    config::Config,
    model::Model,
    repository::s3::{Change, Object, Url},
    task::requests::Requests,
    telemetry::trace::Trace,
};

/// Handles events about objects in S3.
#[derive(Debug)]
pub struct Handler {
    rules: Rules,
    cloud: Cloud,
    parquet: Parquet,
    interval: Duration,
    margin: Duration,
    queue: Option<Box<dyn Queue>>,
    event_bus: Option<Box<dyn EventBus>>,
    requests: Option<Requests>,
}

/// Type of the event at a job's end.
const JOB_ENDED: &str = "Job Ended";
/// Report fields in the event.
const EVENT_FIELDS: [&str; 12] = [
    "status",
    "error",
    "input",
    "version",
    "output",
    "sink",
    "model",
    "rows",
    "errors",
    "tokens",
    "truncated",
    "seconds",
];

/// The outcome for an object.
#[derive(Debug)]
enum Outcome {
    Ended(Ended),
    /// Nothing was to be done, for this reason.
    Skipped(&'static str),
}

impl Outcome {
    /// The result for an object that is not the current one.
    fn outdated(change: Change) -> Self {
        Self::Skipped(match change {
            Change::Replaced => "it was replaced, which is another event",
            Change::Deleted => "it was deleted",
        })
    }

    fn is_unfinished(&self) -> bool {
        matches!(self, Self::Ended(Ended::Unfinished(_)))
    }

    fn log(&self, url: &Url) {
        match self {
            Self::Skipped(reason) => tracing::info!(%url, reason, "skipped"),
            Self::Ended(Ended::Known) => tracing::info!(%url, "the output exists"),
            Self::Ended(Ended::Unfinished(progress)) => {
                tracing::info!(%url, rows = progress.rows, "unfinished");
            }
            Self::Ended(Ended::Done(report)) => {
                let (progress, error) = (&report.progress, &report.error);
                tracing::info!(%url, rows = progress.rows, seconds = progress.seconds, error, "done");
            }
        }
    }

    /// The result for a state machine.
    fn json(&self) -> Value {
        match self {
            Self::Skipped(reason) => json!({ "status": "skipped", "reason": reason }),
            Self::Ended(Ended::Known) => json!({ "status": "known" }),
            Self::Ended(Ended::Unfinished(progress)) => {
                json!({ "status": "unfinished", "rows": progress.rows })
            }
            Self::Ended(Ended::Done(report)) => json!(report),
        }
    }
}

impl Handler {
    /// A handler for the rules in `config`, with objects, queues and events in `cloud`.
    pub fn new(models: Vec<Model>, config: &Config, cloud: Cloud, sinks: Sinks) -> Result<Self> {
        let (queue, event_bus) = (&config.batch.queue, &config.batch.event_bus);
        Ok(Self {
            rules: Rules::new(models, &config.batch, sinks)?,
            interval: Duration::from_millis(config.batch.save_ms),
            margin: Duration::from_millis(config.batch.margin_ms),
            queue: queue.as_deref().map(|url| cloud.queue(url)).transpose()?,
            event_bus: event_bus
                .as_deref()
                .map(|name| cloud.event_bus(name))
                .transpose()?,
            cloud,
            parquet: Parquet::default(),
            requests: None,
        })
    }

    /// Answers rows that are requests.
    #[must_use]
    pub fn with_requests(self, requests: Requests) -> Self {
        Self {
            requests: Some(requests),
            ..self
        }
    }

    /// Reads and writes Parquet.
    #[must_use]
    pub fn with_parquet(self, parquet: Parquet) -> Self {
        Self { parquet, ..self }
    }

    /// Handles an event until shortly before `deadline`.
    ///
    /// - For a queue event, the result lists the messages that failed or whose job is unfinished, so that the
    ///   queue repeats them.
    /// - For a state machine task, the result is the job status.
    /// - For rows from a data warehouse or a stream, the result is the response that it expects.
    /// - Other events that must be repeated return errors.
    ///
    /// The spans of its jobs belong to `trace`.
    pub fn handle(
        &self,
        event: Value,
        deadline: Option<Instant>,
        trace: Option<Trace>,
    ) -> LocalBoxFuture<'_, Result<Value>> {
        let until = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rows get at least half the time; otherwise, the job would never end.
            deadline
                .checked_sub(self.margin.min(left / 2))
                .unwrap_or(deadline)
        });
        let invocation = Invocation {
            handler: self,
            until,
            trace,
        };
        Box::pin(async move { invocation.handle(&event).await })
    }
}

/// The function's call with an event.
struct Invocation<'a> {
    handler: &'a Handler,
    /// When work stops that can be continued later.
    until: Option<Instant>,
    trace: Option<Trace>,
}

impl Invocation<'_> {
    async fn handle(&self, event: &Value) -> Result<Value> {
        let (rules, cloud) = (&self.handler.rules, &self.handler.cloud);
        let until = self.until;
        match Event::parse(event)? {
            Event::Redshift(call) => Ok(call.answer(rules, until).await),
            Event::Snowflake(request) => Ok(request.answer(rules, until).await),
            Event::Firehose(batch) => batch.answer(rules, until).await,
            Event::Stream(batch) => batch.answer(rules, cloud, until).await,
            Event::Map(event) => self.map(event).await,
            Event::Object(object) => Ok(self.object(&object).await?.json()),
            Event::Objects(objects) => match self.objects(&objects).await? {
                Some((url, _)) => Err(unfinished(url)),
                None => Ok(json!({ "status": "done" })),
            },
            Event::Queue(messages) => self.queue(messages).await,
        }
    }

    /// Handles messages of a queue; returns those that it must deliver again.
    async fn queue(&self, messages: Vec<Message>) -> Result<Value> {
        let mut failures = Vec::new();
        for mut message in messages {
            let id = message.id.take();
            if let Err(error) = self.message(message).await {
                let Some(id) = id else {
                    return Err(error);
                };
                tracing::error!(
                    message = id,
                    error = error.chain(),
                    "the queue will repeat the message"
                );
                failures.push(json!({ "itemIdentifier": id }));
            }
        }
        Ok(json!({ "batchItemFailures": failures }))
    }

    /// Handles a state machine's event.
    async fn map(&self, event: MapEvent) -> Result<Value> {
        let files = Files {
            rules: &self.handler.rules,
            store: &self.handler.cloud.store()?,
            parquet: self.handler.parquet,
        };
        let until = self.until;
        match event {
            MapEvent::Index { index } => distributed_map::index(&files, index, until).await,
            MapEvent::Range { range, of } => {
                distributed_map::process_range(&files, &of, range, until).await
            }
            MapEvent::Join { join } => {
                let trace = self.trace.clone();
                let (output, ended) = distributed_map::join(&files, &join, until, trace).await?;
                self.announce(&output).await?;
                Ok(Outcome::Ended(ended).json())
            }
            MapEvent::Listing {
                batch_input: Listing { bucket },
                items,
            } => {
                let urls = items.into_iter().map(|Listed { key }| Url {
                    bucket: bucket.clone(),
                    key,
                });
                self.listed(urls).await
            }
        }
    }

    /// Handles objects in order; returns the first that is unfinished, and the progress.
    async fn objects<'a>(&self, objects: &'a [ObjectEvent]) -> Result<Option<(&'a Url, Reached)>> {
        for (objects, object) in (0..).zip(objects) {
            let rows = if self.until.is_some_and(|until| Instant::now() >= until) {
                0
            } else if let Outcome::Ended(Ended::Unfinished(progress)) = self.object(object).await? {
                progress.rows
            } else {
                continue;
            };
            return Ok(Some((&object.url, Reached { objects, rows })));
        }
        Ok(None)
    }

    /// Handles a message; returns an error if the queue must deliver it again.
    ///
    /// An unfinished message that has made progress is continued by a new one with the same body, since the queue limits
    /// how often a message is delivered.
    async fn message(&self, message: Message) -> Result<()> {
        let objects = message.objects?;
        let Some((url, reached)) = self.objects(&objects).await? else {
            return Ok(());
        };
        let body = message.body.filter(|_| reached > message.reached);
        let (Some(queue), Some(body)) = (&self.handler.queue, body) else {
            return Err(unfinished(url));
        };
        queue
            .send(&body, Reached::ATTRIBUTE, &reached.to_string())
            .await?;
        tracing::info!(%url, rows = reached.rows, "another message continues it");
        Ok(())
    }

    /// Handles the objects in a listing.
    async fn listed(&self, urls: impl Iterator<Item = Url>) -> Result<Value> {
        let mut outcomes = Vec::new();
        for url in urls {
            let outcome = self.object(&ObjectEvent::new(url.clone())).await?;
            if outcome.is_unfinished() {
                return Err(unfinished(&url));
            }
            outcomes.push(outcome.json());
        }
        Ok(Value::from(outcomes))
    }

    async fn object(&self, object: &ObjectEvent) -> Result<Outcome> {
        let outcome = self.run(object).await?;
        outcome.log(&object.url);
        Ok(outcome)
    }

    async fn run(&self, event: &ObjectEvent) -> Result<Outcome> {
        let (url, rules) = (&event.url, &self.handler.rules);
        if url.key.ends_with('/') {
            return Ok(Outcome::Skipped("its key is a folder's"));
        }
        if !rules.is_input(url) {
            return Ok(Outcome::Skipped("it has no input prefix"));
        }
        if rules.is_hidden(url) {
            return Ok(Outcome::Skipped(
                "its name is one of a marker or a hidden file",
            ));
        }
        let output = rules.output(url)?;
        let store = self.handler.cloud.store()?;
        let Some(current) = store.current(url)? else {
            return Ok(Outcome::outdated(Change::Deleted));
        };
        if current.size == 0 {
            return Ok(Outcome::Skipped("it is empty"));
        }
        if !current.is_version(event.version.as_deref(), event.etag.as_deref()) {
            return Ok(Outcome::outdated(Change::Replaced));
        }
        // Only a version that the event names is read by its id, which needs another permission.
        let object = Object {
            version: event.version.clone(),
            ..current
        };
        let (model, parameters, error) = match rules.model(url, &object) {
            Ok((model, parameters)) => (model, parameters, None),
            Err(error) => match rules.fallback(url)? {
                (Some(model), parameters) => (model.clone(), parameters, Some(error)),
                (None, _) => return Err(error),
            },
        };
        let input = JobInput::Object(Arc::clone(&store), url.clone(), object);
        let target = JobOutput::Object(store, output.clone());
        let sink = rules.sink(url)?.cloned();
        let job = Job {
            until: self.until,
            trace: self.trace.clone(),
            interval: self.handler.interval,
            sink,
            parquet: self.handler.parquet,
            requests: self.handler.requests.clone(),
            ..Job::new(input, target, model, parameters)
        };
        let ended = match error {
            None => job.run().await,
            Some(error) => job.fail(error),
        };
        let ended = match ended {
            Err(error) => match Change::of(&error) {
                // Another event announces the new object, unless the sender named the input itself and has to repeat it.
                Some(Change::Replaced) if event.is_by_name() => return Err(error),
                Some(change) => return Ok(Outcome::outdated(change)),
                None => return Err(error),
            },
            Ok(ended) => ended,
        };
        if !matches!(ended, Ended::Unfinished(_)) {
            self.announce(&output).await?;
        }
        Ok(Outcome::Ended(ended))
    }

    /// Sends the event at a job's end. If sending fails, the run fails; the next run finds the output and sends the
    /// event.
    async fn announce(&self, output: &Url) -> Result<()> {
        let Some(bus) = &self.handler.event_bus else {
            return Ok(());
        };
        let url = report_file::url_of(output);
        let Some((bytes, _)) = self.handler.cloud.store()?.read(&url)? else {
            return Ok(());
        };
        let report: Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|error| Error::inference_because(format!("`{url}` cannot be read"), error))?;
        let fields = EVENT_FIELDS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), report.get(*name)?.clone())));
        let mut detail: Map<String, Value> = fields.collect();
        detail.insert("report".into(), url.to_string().into());
        bus.send(JOB_ENDED, &Value::Object(detail)).await
    }
}
