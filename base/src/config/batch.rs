use std::collections::BTreeMap;

use serde::Deserialize;

/// Batch jobs for objects that are created in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct BatchConfig {
    /// Prefix for input objects that no rule matches.
    pub input: String,
    /// Prefix for their outputs, in the same bucket or as `s3://BUCKET/PREFIX`.
    pub output: String,
    /// URL of the sink that stores the vectors for these inputs; the output then has only the rows with errors.
    pub sink: Option<String>,
    /// Column with the ids in the sink, `id` by default.
    pub id: Option<String>,
    /// Columns that are stored with the vectors.
    pub metadata: Vec<String>,
    /// Parameters by input prefix; the first match wins.
    pub rules: Vec<BatchRule>,
    /// Maximum interval between a job's checkpoints, in milliseconds.
    pub save_ms: u64,
    /// How long before the function's timeout a job saves a checkpoint and stops, in milliseconds.
    pub margin_ms: u64,
    /// URL of the queue that triggers the function. A job that is unfinished but progresses is continued by a new
    /// message, so that it does not count as failed.
    pub queue: Option<String>,
    /// Name or ARN of the EventBridge bus that gets an event at the end of each job.
    pub event_bus: Option<String>,
}

impl Default for BatchConfig {
    fn default() -> Self {
        let (input, output) = ("in/".into(), "out/".into());
        Self {
            input,
            output,
            sink: None,
            id: None,
            metadata: Vec::new(),
            rules: Vec::new(),
            save_ms: 60_000,
            margin_ms: 30_000,
            queue: None,
            event_bus: None,
        }
    }
}

/// Parameters for jobs whose input has a certain prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct BatchRule {
    /// Input object prefix.
    pub input: String,
    /// Output prefix.
    pub output: String,
    /// The sink's URL.
    pub sink: Option<String>,
    /// Column with the ids in the sink, `id` by default.
    pub id: Option<String>,
    /// Columns that are stored with the vectors.
    pub metadata: Vec<String>,
    /// Job parameters, as in object metadata without `kivu-`.
    pub ask: BTreeMap<String, String>,
}
