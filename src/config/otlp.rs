//! Traces and metrics over OTLP, configured by OpenTelemetry's environment variables.

use std::{collections::BTreeMap, time::Duration};

use http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use super::auth::Secret;
use crate::error::{Error, Result, quoted};

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PROTOCOL: &str = "http/protobuf";
/// Default for `OTEL_EXPORTER_OTLP_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Default for `OTEL_METRIC_EXPORT_INTERVAL`.
const INTERVAL: Duration = Duration::from_secs(60);
/// Settings of an exporter that are not supported, as the ends of their variables' names.
const UNSUPPORTED: [&str; 3] = ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"];
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

type Variables = BTreeMap<String, String>;

/// Where traces and metrics are sent, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// The receiver of traces; `None` if they are off.
    pub traces: Option<OtlpReceiver>,
    /// The receiver of metrics; `None` if they are off.
    pub metrics: Option<OtlpReceiver>,
    /// The share of traces that begin here and are sampled: `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.
    pub ratio: f64,
    /// Whether a request from a trace is sampled if the trace is.
    pub follows_parent: bool,
    /// Spans that wait for an export.
    pub queue: SpanQueue,
    /// The interval at which metrics are sent: `OTEL_METRIC_EXPORT_INTERVAL`.
    pub interval: Duration,
    /// Whether metrics are differences to the last export: `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`.
    pub has_deltas: bool,
    /// The service's name: `OTEL_SERVICE_NAME`, or `service.name` in `OTEL_RESOURCE_ATTRIBUTES`.
    pub service: Option<String>,
    /// `OTEL_RESOURCE_ATTRIBUTES` without the service's name.
    pub attributes: Vec<(String, String)>,
}

/// Spans that wait for an export; further ones are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanQueue {
    /// Maximum spans: `OTEL_BSP_MAX_QUEUE_SIZE`.
    pub spans: usize,
    /// Maximum spans per export: `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`.
    pub export: usize,
    /// Time between exports: `OTEL_BSP_SCHEDULE_DELAY`.
    pub delay: Duration,
}

impl SpanQueue {
    fn new(variables: &Variables) -> Result<Self> {
        let (spans, export) = ("OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE");
        let delay = milliseconds(variables, "OTEL_BSP_SCHEDULE_DELAY")?;
        let spans = number(variables, spans, "a number of spans")?.unwrap_or(2048) as usize;
        let most = number(variables, export, "a number of spans")?.unwrap_or(512) as usize;
        Ok(Self {
            spans,
            export: most.min(spans),
            delay: delay.unwrap_or(Duration::from_secs(5)),
        })
    }
}

/// A receiver of traces or of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpReceiver {
    /// Its URL, with the path.
    pub url: String,
    /// Headers for each request; they may have a token.
    pub headers: Vec<(String, Secret)>,
    /// Time limit for an export.
    pub timeout: Duration,
}

impl OtlpConfig {
    /// Reads the variables. `None` without an endpoint, or with `OTEL_SDK_DISABLED=true`.
    ///
    /// # Errors
    /// If a variable has a value that is not supported.
    pub fn new(variables: &Variables) -> Result<Option<Self>> {
        if choice(variables, "OTEL_SDK_DISABLED", &["false", "true"])? == Some("true") {
            return Ok(None);
        }
        let traces = OtlpReceiver::new(variables, "TRACES", "v1/traces")?;
        let metrics = OtlpReceiver::new(variables, "METRICS", "v1/metrics")?;
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let (ratio, follows_parent) = sampler(variables)?;
        let temporality = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";
        let (service, attributes) = resource(variables)?;
        Ok(Some(Self {
            traces,
            metrics,
            ratio,
            follows_parent,
            queue: SpanQueue::new(variables)?,
            interval: milliseconds(variables, "OTEL_METRIC_EXPORT_INTERVAL")?.unwrap_or(INTERVAL),
            has_deltas: choice(variables, temporality, &["cumulative", "delta"])? == Some("delta"),
            service,
            attributes,
        }))
    }
}

impl OtlpReceiver {
    /// The receiver of a signal, whose own variables take precedence.
    fn new(variables: &Variables, signal: &str, path: &str) -> Result<Option<Self>> {
        let exporter = format!("OTEL_{signal}_EXPORTER");
        if choice(variables, &exporter, &["none", "otlp"])? == Some("none") {
            return Ok(None);
        }
        let own = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
        let url = match (variable(variables, &own), variable(variables, ENDPOINT)) {
            (Some(url), _) => check_url(&own, url)?.to_owned(),
            (None, Some(url)) => {
                format!("{}/{path}", check_url(ENDPOINT, url)?.trim_end_matches('/'))
            }
            (None, None) => return Ok(None),
        };
        let name = |setting: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_{signal}_{setting}");
            let is_set = variable(variables, &own).is_some();
            if is_set {
                own
            } else {
                format!("OTEL_EXPORTER_OTLP_{setting}")
            }
        };
        choice(variables, &name("PROTOCOL"), &[PROTOCOL])?;
        choice(variables, &name("COMPRESSION"), &["none"])?;
        let mut unsupported = UNSUPPORTED.iter().map(|setting| name(setting));
        if let Some(name) = unsupported.find(|name| variable(variables, name).is_some()) {
            return Err(Error::config(format!(
                "expected `{name}` to be unset, since it is not supported, but found a value; the system's \
                 certificates are trusted, and `SSL_CERT_FILE` names others"
            )));
        }
        let timeout = milliseconds(variables, &name("TIMEOUT"))?.unwrap_or(TIMEOUT);
        let headers = name("HEADERS");
        let headers = pairs(variables, &headers)?
            .into_iter()
            .map(|pair| header(&headers, pair));
        Ok(Some(Self {
            url,
            headers: headers.collect::<Result<_>>()?,
            timeout,
        }))
    }
}

/// A variable's value. As OpenTelemetry specifies, an empty one counts as not set.
fn variable<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    variables
        .get(name)
        .map(|value| value.trim())
        .filter(|value| !value.is_empty())
}

fn choice<'a>(variables: &'a Variables, name: &str, allowed: &[&str]) -> Result<Option<&'a str>> {
    match variable(variables, name) {
        Some(found) if !allowed.contains(&found) => Err(wrong(name, &quoted(allowed), found)),
        found => Ok(found),
    }
}

fn milliseconds(variables: &Variables, name: &str) -> Result<Option<Duration>> {
    let milliseconds = number(variables, name, "a number of milliseconds")?;
    Ok(milliseconds.map(|milliseconds| Duration::from_millis(milliseconds.into())))
}

fn number(variables: &Variables, name: &str, what: &str) -> Result<Option<u32>> {
    let Some(found) = variable(variables, name) else {
        return Ok(None);
    };
    let number = found.parse::<u32>().ok().filter(|value| *value > 0);
    number
        .map(Some)
        .ok_or_else(|| wrong(name, &format!("{what} above 0"), found))
}

fn check_url<'a>(name: &str, found: &'a str) -> Result<&'a str> {
    let is_http =
        |url: &Uri| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some();
    match found.parse::<Uri>().is_ok_and(|url| is_http(&url)) {
        true => Ok(found),
        false => Err(wrong(name, "a URL such as `http://localhost:4318`", found)),
    }
}

/// The share of traces, and whether traces that began elsewhere keep their decision.
fn sampler(variables: &Variables) -> Result<(f64, bool)> {
    let sampler =
        choice(variables, "OTEL_TRACES_SAMPLER", &SAMPLERS)?.unwrap_or("parentbased_always_on");
    let root = sampler.strip_prefix("parentbased_");
    let ratio = match root.unwrap_or(sampler) {
        "always_on" => 1.0,
        "always_off" => 0.0,
        _ => {
            let name = "OTEL_TRACES_SAMPLER_ARG";
            let found = variable(variables, name).unwrap_or("1");
            let ratio = found
                .parse::<f64>()
                .ok()
                .filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or_else(|| wrong(name, "a number from 0 to 1", found))?
        }
    };
    Ok((ratio, root.is_some()))
}

/// Names with their values.
type Pairs = Vec<(String, String)>;

/// The service's name, and the other attributes.
fn resource(variables: &Variables) -> Result<(Option<String>, Pairs)> {
    let attributes = pairs(variables, "OTEL_RESOURCE_ATTRIBUTES")?;
    let (mut names, attributes): (Vec<_>, Vec<_>) = attributes
        .into_iter()
        .partition(|(name, _)| name == "service.name");
    let named = variable(variables, "OTEL_SERVICE_NAME").map(str::to_owned);
    Ok((named.or_else(|| Some(names.pop()?.1)), attributes))
}

/// Reads `NAME=VALUE,…`, where values are percent-encoded. Errors do not repeat the value, which may be a secret.
fn pairs(variables: &Variables, name: &str) -> Result<Pairs> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let value = percent_decode_str(value.trim())
            .decode_utf8()
            .ok()?
            .into_owned();
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), value))
    };
    let parts = variable(variables, name)
        .unwrap_or_default()
        .split(',')
        .filter(|part| !part.trim().is_empty());
    parts
        .map(pair)
        .collect::<Option<_>>()
        .ok_or_else(|| malformed(name))
}

fn header(name: &str, (key, value): (String, String)) -> Result<(String, Secret)> {
    let is_valid = key.parse::<HeaderName>().is_ok() && HeaderValue::from_str(&value).is_ok();
    is_valid
        .then_some((key, Secret(value)))
        .ok_or_else(|| malformed(name))
}

fn malformed(name: &str) -> Error {
    Error::config(format!(
        "expected `{name}` to be like `NAME=VALUE,NAME=VALUE`, with percent-encoded values, but found another form"
    ))
}

fn wrong(name: &str, expected: &str, found: &str) -> Error {
    Error::config(format!(
        "expected `{name}` to be {expected}, but found `{}`",
        found.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<OtlpConfig>> {
        OtlpConfig::new(
            &pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
        )
    }

    fn on(pairs: &[(&str, &str)]) -> Result<OtlpConfig> {
        let endpoint = [(ENDPOINT, "http://localhost:4318/")];
        Ok(read(&[&endpoint[..], pairs].concat())?.unwrap())
    }

    #[test]
    fn an_endpoint_turns_signals_on() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[(ENDPOINT, "")]).unwrap(), None);
        assert_eq!(
            read(&[(ENDPOINT, "http://a"), ("OTEL_SDK_DISABLED", "true")]).unwrap(),
            None
        );
        let urls =
            |config: OtlpConfig| [config.traces, config.metrics].map(|it| it.map(|it| it.url));
        let both = [
            "http://localhost:4318/v1/traces",
            "http://localhost:4318/v1/metrics",
        ];
        assert_eq!(urls(on(&[]).unwrap()), both.map(|url| Some(url.to_owned())));
        let own = on(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://a/in"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ]);
        assert_eq!(urls(own.unwrap()), [Some("https://a/in".to_owned()), None]);
        let only = read(&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://a/m")])
            .unwrap()
            .unwrap();
        assert_eq!(urls(only), [None, Some("http://a/m".to_owned())]);
    }

    #[test]
    fn a_signals_own_settings_take_precedence() {
        let config = on(&[
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer%20a, x=1",
            ),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x=2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "100"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "200"),
        ]);
        let config = config.unwrap();
        assert!(!format!("{config:?}").contains("Bearer"), "{config:?}");
        let (traces, metrics) = (config.traces.unwrap(), config.metrics.unwrap());
        let headers =
            [("authorization", "Bearer a"), ("x", "1")].map(|(k, v)| (k.into(), Secret(v.into())));
        assert_eq!(
            (traces.headers, traces.timeout.as_millis()),
            (headers.into(), 200)
        );
        let headers = [("x".to_owned(), Secret("2".into()))];
        assert_eq!(
            (metrics.headers, metrics.timeout.as_millis()),
            (headers.into(), 100)
        );
    }

    #[test]
    fn samplers_are_a_share_and_whether_the_parent_decides() {
        let sampler = |name: &str, share: &str| {
            let config = on(&[
                ("OTEL_TRACES_SAMPLER", name),
                ("OTEL_TRACES_SAMPLER_ARG", share),
            ])
            .unwrap();
            (config.ratio, config.follows_parent)
        };
        assert_eq!(sampler("", ""), (1.0, true));
        assert_eq!(sampler("always_off", ""), (0.0, false));
        assert_eq!(sampler("traceidratio", "0.1"), (0.1, false));
        assert_eq!(sampler("parentbased_always_off", "0.1"), (0.0, true));
        assert_eq!(sampler("parentbased_traceidratio", "0.5"), (0.5, true));
        assert_eq!(sampler("parentbased_traceidratio", ""), (1.0, true));
    }

    #[test]
    fn resources_have_a_service_and_attributes() {
        let attributes = (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=a,deployment.environment.name=%C3%A9 1",
        );
        let named = on(&[attributes, ("OTEL_SERVICE_NAME", "b")]).unwrap();
        let unnamed = on(&[attributes]).unwrap();
        assert_eq!(
            [named.service.as_deref(), unnamed.service.as_deref()],
            [Some("b"), Some("a")]
        );
        assert_eq!(
            unnamed.attributes,
            [("deployment.environment.name".to_owned(), "é 1".to_owned())]
        );
    }

    #[test]
    fn values_that_are_not_supported_are_refused_by_name() {
        let error = |name: &str, value: &str| on(&[(name, value)]).unwrap_err().to_string();
        insta::assert_snapshot!(error("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), @"expected `OTEL_EXPORTER_OTLP_PROTOCOL` to be `http/protobuf`, but found `grpc`");
        insta::assert_snapshot!(error("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"), @"expected `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` to be `http/protobuf`, but found `http/json`");
        insta::assert_snapshot!(error("OTEL_TRACES_SAMPLER", "xray"), @"expected `OTEL_TRACES_SAMPLER` to be `always_on`, `always_off`, `traceidratio`, `parentbased_always_on`, `parentbased_always_off`, `parentbased_traceidratio`, but found `xray`");
        insta::assert_snapshot!(error("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "localhost:4318"), @"expected `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` to be a URL such as `http://localhost:4318`, but found `localhost:4318`");
        insta::assert_snapshot!(error("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"), @"expected `OTEL_EXPORTER_OTLP_CERTIFICATE` to be unset, since it is not supported, but found a value; the system's certificates are trusted, and `SSL_CERT_FILE` names others");
        insta::assert_snapshot!(error("OTEL_EXPORTER_OTLP_HEADERS", "secret"), @"expected `OTEL_EXPORTER_OTLP_HEADERS` to be like `NAME=VALUE,NAME=VALUE`, with percent-encoded values, but found another form");
        for (name, value) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            (
                "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
                "lowmemory",
            ),
            ("OTEL_RESOURCE_ATTRIBUTES", "a"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
        ] {
            assert!(
                error(name, value).starts_with(&format!("expected `{name}` to be ")),
                "{name}"
            );
        }
        let ratio = on(&[
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ]);
        insta::assert_snapshot!(ratio.unwrap_err(), @"expected `OTEL_TRACES_SAMPLER_ARG` to be a number from 0 to 1, but found `2`");
    }
}
