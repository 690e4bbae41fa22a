//! CloudWatch's embedded metric format: JSON log lines from which CloudWatch extracts metrics.
//!
//! `metrics_cloudwatch_embedded` is not used: it drops values beyond a hundred per metric and makes each label a
//! dimension, and CloudWatch charges for each combination of dimensions.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use metrics::{Key, Recorder};
use metrics_util::registry::{AtomicStorage, Registry};
use serde_json::{Map, Value, json};

use super::{Otlp, install, registered::Registered, request::record_reports};
use kivu_base::Result;

const NAMESPACE: &str = "Kivu";
const DIMENSION: &str = "Function";
/// Metrics that are not written, since CloudWatch charges for each: the log and API Gateway's metrics have statuses, and
/// a function's requests do not wait for each other.
const OMITTED: [&str; 2] = ["kivu_errors_total", "kivu_queue_seconds"];
/// CloudWatch's limit: values per metric and line.
const MAX_VALUES: usize = 100;

/// A function's metrics since the last flush.
#[derive(Clone)]
pub struct Embedded {
    registry: Arc<Registry<Key, AtomicStorage>>,
    function: Arc<str>,
}

impl Embedded {
    /// An exporter for the function with this name, which is not installed.
    pub fn new(function: &str) -> Self {
        record_reports();
        Self {
            registry: Arc::new(Registry::atomic()),
            function: function.into(),
        }
    }

    /// Installs the exporter for this process, and the one for OTLP beside it.
    ///
    /// # Errors
    /// If the process has an exporter already.
    pub fn install(function: &str, otlp: Option<&Otlp>) -> Result<Self> {
        let embedded = Self::new(function);
        install(embedded.recorder(), otlp)?;
        Ok(embedded)
    }

    /// Records metrics in this exporter.
    pub fn recorder(&self) -> impl Recorder + Send + Sync + 'static {
        Registered {
            registry: Arc::clone(&self.registry),
            omitted: &OMITTED,
        }
    }

    /// Writes the metrics to standard output, which Lambda sends to CloudWatch, and resets them.
    pub fn flush(&self) {
        for line in self.lines(SystemTime::now()) {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// The metrics as lines; resets counters and histograms.
    pub fn lines(&self, now: SystemTime) -> Vec<Value> {
        let mut metrics: BTreeMap<String, (&str, Vec<f64>)> = BTreeMap::new();
        self.registry.visit_counters(|key, counter| {
            let count = counter.swap(0, Ordering::Relaxed);
            if count > 0 {
                metrics.insert(name(key), ("Count", vec![count as f64]));
            }
        });
        self.registry.visit_gauges(|key, gauge| {
            // All gauges count failures, so zeros are omitted.
            let value = f64::from_bits(gauge.load(Ordering::Relaxed));
            if value != 0.0 {
                metrics.insert(name(key), ("Count", vec![value]));
            }
        });
        self.registry.visit_histograms(|key, histogram| {
            let mut ms = Vec::new();
            histogram
                .clear_with(|seconds| ms.extend(seconds.iter().map(|seconds| seconds * 1000.0)));
            if !ms.is_empty() {
                metrics.insert(name(key), ("Milliseconds", ms));
            }
        });
        let millis = now
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis() as u64;
        let lines = metrics
            .values()
            .map(|(_, values)| values.len().div_ceil(MAX_VALUES))
            .max()
            .unwrap_or(0);
        (0..lines)
            .map(|line| self.line(millis, line, &metrics))
            .collect()
    }

    /// Line with the `number`th hundred values per metric.
    fn line(
        &self,
        millis: u64,
        number: usize,
        metrics: &BTreeMap<String, (&str, Vec<f64>)>,
    ) -> Value {
        let (mut line, mut described) = (Map::new(), Vec::new());
        for (name, (unit, values)) in metrics {
            let Some(values) = values.chunks(MAX_VALUES).nth(number) else {
                continue;
            };
            described.push(json!({ "Name": name, "Unit": unit }));
            line.insert(
                name.clone(),
                if let [value] = values {
                    json!(value)
                } else {
                    json!(values)
                },
            );
        }
        let metrics =
            json!([{ "Namespace": NAMESPACE, "Dimensions": [[DIMENSION]], "Metrics": described }]);
        line.insert(
            "_aws".to_owned(),
            json!({ "Timestamp": millis, "CloudWatchMetrics": metrics }),
        );
        line.insert(DIMENSION.to_owned(), json!(&*self.function));
        Value::Object(line)
    }
}

/// Metric name in CloudWatch: `kivu_cold_seconds{part="session"}` is `ColdSessionMs`.
fn name(key: &Key) -> String {
    let plain = key.name().strip_prefix("kivu_").unwrap_or(key.name());
    let (stem, end) = match plain.strip_suffix("_seconds") {
        Some(stem) => (stem, "Ms"),
        None => (plain.strip_suffix("_total").unwrap_or(plain), ""),
    };
    let labels = key.labels().flat_map(|label| label.value().split('_'));
    let capitalized = stem.split('_').chain(labels).map(|word| {
        let (first, rest) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        first.to_uppercase() + rest
    });
    capitalized.collect::<String>() + end
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{fleet, record_cold_start, record_response};
    use kivu_core::observer::{record_batch, record_encoding, time_start};

    #[test]
    fn metrics_are_one_line_in_the_embedded_metric_format() {
        let embedded = Embedded::new("kivu-api");
        metrics::with_local_recorder(&embedded.recorder(), || {
            record_response(200, Duration::from_millis(5));
            record_response(503, Duration::from_millis(7));
            record_encoding(30, Duration::from_millis(1), Duration::from_millis(4));
            record_batch("onnx");
            time_start("session", || ());
            record_cold_start(Duration::from_millis(90));
        });
        let lines = embedded.lines(UNIX_EPOCH + Duration::from_millis(1_700_000_000_000));
        insta::assert_json_snapshot!(lines, { "[0].ColdSessionMs" => "[ms]" }, @r#"
        [
          {
            "ColdSessionMs": "[ms]",
            "ColdStartMs": 90.0,
            "ColdStarts": 1.0,
            "Function": "kivu-api",
            "InferMs": 4.0,
            "RequestMs": [
              5.0,
              7.0
            ],
            "Requests": 2.0,
            "Responses2xx": 1.0,
            "Responses5xx": 1.0,
            "RunsOnnx": 1.0,
            "TokenizeMs": 1.0,
            "Tokens": 30.0,
            "_aws": {
              "CloudWatchMetrics": [
                {
                  "Dimensions": [
                    [
                      "Function"
                    ]
                  ],
                  "Metrics": [
                    {
                      "Name": "ColdSessionMs",
                      "Unit": "Milliseconds"
                    },
                    {
                      "Name": "ColdStartMs",
                      "Unit": "Milliseconds"
                    },
                    {
                      "Name": "ColdStarts",
                      "Unit": "Count"
                    },
                    {
                      "Name": "InferMs",
                      "Unit": "Milliseconds"
                    },
                    {
                      "Name": "RequestMs",
                      "Unit": "Milliseconds"
                    },
                    {
                      "Name": "Requests",
                      "Unit": "Count"
                    },
                    {
                      "Name": "Responses2xx",
                      "Unit": "Count"
                    },
                    {
                      "Name": "Responses5xx",
                      "Unit": "Count"
                    },
                    {
                      "Name": "RunsOnnx",
                      "Unit": "Count"
                    },
                    {
                      "Name": "TokenizeMs",
                      "Unit": "Milliseconds"
                    },
                    {
                      "Name": "Tokens",
                      "Unit": "Count"
                    }
                  ],
                  "Namespace": "Kivu"
                }
              ],
              "Timestamp": 1700000000000
            }
          }
        ]
        "#);
        assert!(
            embedded.lines(SystemTime::now()).is_empty(),
            "metrics are reset"
        );
    }

    #[test]
    fn fleet_metrics_identify_servers_by_index() {
        let embedded = Embedded::new("kivu-api");
        let line = |count: &dyn Fn()| {
            metrics::with_local_recorder(&embedded.recorder(), count);
            let mut lines = embedded.lines(UNIX_EPOCH);
            let mut line = lines.pop().unwrap_or_default();
            line.as_object_mut().map(|line| line.remove("_aws"));
            line.to_string()
        };
        let happened = line(&|| {
            fleet::record_attempt(0, "ok", Duration::from_millis(3));
            fleet::record_attempt(1, "not_ready", Duration::from_millis(2));
            fleet::record_retry();
            fleet::record_breaker_opened(1);
        });
        insta::assert_snapshot!(happened, @r#"{"FleetOpenBreakers1":1.0,"FleetRequest0Ms":3.0,"FleetRequest1Ms":2.0,"FleetRequests0Ok":1.0,"FleetRequests1NotReady":1.0,"FleetRetries":1.0,"Function":"kivu-api"}"#);
        insta::assert_snapshot!(line(&|| ()), @r#"{"FleetOpenBreakers1":1.0,"Function":"kivu-api"}"#);
        insta::assert_snapshot!(line(&|| fleet::record_breaker_closed(1)), @"null");
    }

    #[test]
    fn a_line_has_at_most_100_values_per_metric() {
        let embedded = Embedded::new("kivu-api");
        metrics::with_local_recorder(&embedded.recorder(), || {
            for _ in 0..250 {
                record_response(200, Duration::from_millis(5));
            }
        });
        let lines = embedded.lines(SystemTime::now());
        let lengths: Vec<usize> = lines
            .iter()
            .map(|line| line["RequestMs"].as_array().unwrap().len())
            .collect();
        assert_eq!(lengths, [100, 100, 50]);
        assert_eq!(
            (&lines[0]["Requests"], lines[1].get("Requests")),
            (&json!(250.0), None)
        );
    }
}
