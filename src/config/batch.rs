use std::collections::BTreeMap;

use serde::Deserialize;

/// Batch jobs for objects that are created in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchConfig {
    /// The prefix of input objects that no rule matches.
    pub input: String,
    /// The prefix of their outputs, in the same bucket or as `s3://BUCKET/PREFIX`.
    pub output: String,
    /// Parameters by the prefix of the input; the first match wins.
    pub rules: Vec<BatchRule>,
    /// The maximum interval between checkpoints of a job, in milliseconds.
    pub save_ms: u64,
    /// How long before the function's timeout a job saves a checkpoint and stops, in milliseconds.
    pub margin_ms: u64,
    /// The URL of the queue whose messages the function gets. A job that is unfinished but progresses is continued by a
    /// new message, so that it does not count as failed.
    pub queue: Option<String>,
    /// The name or ARN of the EventBridge bus that gets an event at the end of each job.
    pub event_bus: Option<String>,
}

impl Default for BatchConfig {
    fn default() -> Self {
        let (input, output) = ("in/".into(), "out/".into());
        Self {
            input,
            output,
            rules: Vec::new(),
            save_ms: 60_000,
            margin_ms: 30_000,
            queue: None,
            event_bus: None,
        }
    }
}

/// Parameters of the jobs whose input has a certain prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchRule {
    /// The prefix of input objects.
    pub input: String,
    /// The prefix of their outputs.
    pub output: String,
    /// The parameters of the job, as in object metadata without `kivu-`.
    pub ask: BTreeMap<String, String>,
}
