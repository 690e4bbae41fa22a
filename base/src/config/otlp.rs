//! Traces and metrics over OTLP, configured by OpenTelemetry's environment variables.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use super::auth::Secret;
use crate::{
    address::{shown, without_user},
    error::quoted,
};

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
    fn read(variables: &Reader<'_>) -> Self {
        let spans = |name| variables.number(name, "a number of spans");
        let most = spans("OTEL_BSP_MAX_QUEUE_SIZE").unwrap_or(2048) as usize;
        let export = spans("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").unwrap_or(512) as usize;
        let delay = variables.milliseconds("OTEL_BSP_SCHEDULE_DELAY");
        Self {
            spans: most,
            export: export.min(most),
            delay: delay.unwrap_or(Duration::from_secs(5)),
        }
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
    /// As OpenTelemetry specifies, values that are not supported are ignored with a warning in the log.
    pub fn new(variables: &Variables) -> Option<Self> {
        let reader = Reader {
            variables,
            warnings: RefCell::default(),
        };
        let config = Self::read(&reader);
        for warning in reader.warnings.take() {
            tracing::warn!("{warning}");
        }
        config
    }

    fn read(variables: &Reader<'_>) -> Option<Self> {
        if variables.choice("OTEL_SDK_DISABLED", &["false", "true"]) == Some("true") {
            return None;
        }
        let traces = OtlpReceiver::read(variables, "TRACES", "v1/traces");
        let metrics = OtlpReceiver::read(variables, "METRICS", "v1/metrics");
        let (ratio, follows_parent) = variables.sampler();
        let temporality = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";
        let (service, attributes) = variables.resource();
        let interval = variables.milliseconds("OTEL_METRIC_EXPORT_INTERVAL");
        let config = Self {
            ratio,
            follows_parent,
            queue: SpanQueue::read(variables),
            interval: interval.unwrap_or(INTERVAL),
            has_deltas: variables.choice(temporality, &["cumulative", "delta"]) == Some("delta"),
            service,
            attributes,
            traces,
            metrics,
        };
        (config.traces.is_some() || config.metrics.is_some()).then_some(config)
    }
}

impl OtlpReceiver {
    /// The receiver of a signal, whose own variables take precedence.
    fn read(variables: &Reader<'_>, signal: &str, path: &str) -> Option<Self> {
        if !variables.has_exporter(&format!("OTEL_{signal}_EXPORTER")) {
            return None;
        }
        let name = |setting: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_{signal}_{setting}");
            let is_set = variables.get(&own).is_some();
            if is_set {
                own
            } else {
                format!("OTEL_EXPORTER_OTLP_{setting}")
            }
        };
        variables.choice(&name("PROTOCOL"), &[PROTOCOL]);
        variables.choice(&name("COMPRESSION"), &["none"]);
        for name in UNSUPPORTED.iter().map(|setting| name(setting)) {
            if variables.get(&name).is_some() {
                variables.warn(format!(
                    "`{name}` is not supported, and ignored; the system's certificates are trusted, and \
                     `SSL_CERT_FILE` names others"
                ));
            }
        }
        let timeout = variables.milliseconds(&name("TIMEOUT")).unwrap_or(TIMEOUT);
        let headers = variables.headers(&name("HEADERS"));
        let own = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
        let url = match variables.url(&own) {
            Some(url) => url.to_owned(),
            None => format!("{}/{path}", variables.url(ENDPOINT)?.trim_end_matches('/')),
        };
        Some(Self {
            url,
            headers,
            timeout,
        })
    }
}

/// Reads variables. Values that are not supported count as not set.
struct Reader<'a> {
    variables: &'a Variables,
    warnings: RefCell<Vec<String>>,
}

/// Names with their values.
type Pairs = Vec<(String, String)>;

impl<'a> Reader<'a> {
    /// A variable's value. As OpenTelemetry specifies, an empty one counts as not set.
    fn get(&self, name: &str) -> Option<&'a str> {
        self.variables
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    /// Adds a warning. Traces and metrics share variables, so one may come twice.
    fn warn(&self, warning: String) {
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    fn wrong(&self, name: &str, expected: &str, found: &str) {
        self.warn(format!(
            "ignored `{name}`: expected {expected}, but found `{}`",
            found.escape_debug()
        ));
    }

    /// One of several values, in any case.
    fn choice<'b>(&self, name: &str, allowed: &[&'b str]) -> Option<&'b str> {
        let found = self.get(name)?;
        let choice = allowed
            .iter()
            .copied()
            .find(|value| value.eq_ignore_ascii_case(found));
        if choice.is_none() {
            self.wrong(name, &quoted(allowed), found);
        }
        choice
    }

    /// Whether a list of exporters, by default `otlp`, has `otlp`.
    fn has_exporter(&self, name: &str) -> bool {
        let (mut is_named, mut is_off) = (false, false);
        for found in self.get(name).unwrap_or_default().split(',').map(str::trim) {
            match found.to_ascii_lowercase().as_str() {
                "" => {}
                "otlp" => is_named = true,
                "none" => is_off = true,
                _ => self.wrong(name, "`none`, `otlp`", found),
            }
        }
        is_named || !is_off
    }

    fn milliseconds(&self, name: &str) -> Option<Duration> {
        let milliseconds = self.number(name, "a number of milliseconds")?;
        Some(Duration::from_millis(milliseconds.into()))
    }

    fn number(&self, name: &str, what: &str) -> Option<u32> {
        let found = self.get(name)?;
        let number = found.parse::<u32>().ok().filter(|value| *value > 0);
        if number.is_none() {
            self.wrong(name, &format!("{what} above 0"), found);
        }
        number
    }

    fn url(&self, name: &str) -> Option<&'a str> {
        let found = self.get(name)?;
        if without_user(found) != found {
            self.warn(format!(
                "ignored `{name}`: user information is not supported; put an `authorization` header into \
                 `OTEL_EXPORTER_OTLP_HEADERS`"
            ));
            return None;
        }
        let is_http =
            |url: &Uri| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some();
        let is_valid = found.parse::<Uri>().is_ok_and(|url| is_http(&url));
        if !is_valid {
            let expected = "a URL such as `http://localhost:4318`";
            self.wrong(name, expected, &shown(found));
        }
        is_valid.then_some(found)
    }

    /// The share of traces, and whether traces that began elsewhere keep their decision.
    fn sampler(&self) -> (f64, bool) {
        let sampler = self
            .choice("OTEL_TRACES_SAMPLER", &SAMPLERS)
            .unwrap_or("parentbased_always_on");
        let root = sampler.strip_prefix("parentbased_");
        let ratio = match root.unwrap_or(sampler) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            _ => self.ratio("OTEL_TRACES_SAMPLER_ARG").unwrap_or(1.0),
        };
        (ratio, root.is_some())
    }

    fn ratio(&self, name: &str) -> Option<f64> {
        let found = self.get(name)?;
        let ratio = found.parse::<f64>().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        if ratio.is_none() {
            self.wrong(name, "a number from 0 to 1", found);
        }
        ratio
    }

    /// The service's name, and the other attributes.
    fn resource(&self) -> (Option<String>, Pairs) {
        let attributes = self.pairs("OTEL_RESOURCE_ATTRIBUTES", |_, _| true);
        let (mut names, attributes): (Vec<_>, Vec<_>) = attributes
            .into_iter()
            .partition(|(name, _)| name == "service.name");
        let named = self.get("OTEL_SERVICE_NAME").map(str::to_owned);
        (named.or_else(|| Some(names.pop()?.1)), attributes)
    }

    fn headers(&self, name: &str) -> Vec<(String, Secret)> {
        let is_header = |key: &str, value: &str| {
            key.parse::<HeaderName>().is_ok() && HeaderValue::from_str(value).is_ok()
        };
        let headers = self.pairs(name, is_header).into_iter();
        headers.map(|(key, value)| (key, Secret(value))).collect()
    }

    /// Reads `NAME=VALUE,…`, where values are percent-encoded; all or none. Warnings do not repeat the value, which may be
    /// a secret.
    fn pairs(&self, name: &str, is_valid: impl Fn(&str, &str) -> bool) -> Pairs {
        let pair = |part: &str| {
            let (key, value) = part.split_once('=')?;
            let value = percent_decode_str(value.trim())
                .decode_utf8()
                .ok()?
                .into_owned();
            let key = key.trim();
            (!key.is_empty() && is_valid(key, &value)).then(|| (key.to_owned(), value))
        };
        let parts = self
            .get(name)
            .unwrap_or_default()
            .split(',')
            .filter(|part| !part.trim().is_empty());
        parts.map(pair).collect::<Option<_>>().unwrap_or_else(|| {
            self.warn(format!(
                "ignored `{name}`: expected `NAME=VALUE,NAME=VALUE` with percent-encoded values, but found another form"
            ));
            Pairs::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration, and warnings.
    fn read_all(pairs: &[(&str, &str)]) -> (Option<OtlpConfig>, Vec<String>) {
        let variables = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        let reader = Reader {
            variables: &variables,
            warnings: RefCell::default(),
        };
        (OtlpConfig::read(&reader), reader.warnings.take())
    }

    fn read(pairs: &[(&str, &str)]) -> Option<OtlpConfig> {
        let (config, warnings) = read_all(pairs);
        assert_eq!(warnings, [""; 0]);
        config
    }

    const ON: (&str, &str) = (ENDPOINT, "http://localhost:4318/");

    fn on(pairs: &[(&str, &str)]) -> OtlpConfig {
        read(&[&[ON], pairs].concat()).unwrap()
    }

    #[test]
    fn an_endpoint_turns_signals_on() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[(ENDPOINT, "")]), None);
        assert_eq!(
            read(&[(ENDPOINT, "http://a"), ("OTEL_SDK_DISABLED", "True")]),
            None
        );
        let urls =
            |config: OtlpConfig| [config.traces, config.metrics].map(|it| it.map(|it| it.url));
        let both = [
            "http://localhost:4318/v1/traces",
            "http://localhost:4318/v1/metrics",
        ];
        assert_eq!(urls(on(&[])), both.map(|url| Some(url.to_owned())));
        let own = on(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://a/in"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ]);
        assert_eq!(urls(own), [Some("https://a/in".to_owned()), None]);
        let only = read(&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://a/m")]).unwrap();
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
            ]);
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
        let named = on(&[attributes, ("OTEL_SERVICE_NAME", "b")]);
        let unnamed = on(&[attributes]);
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
    fn addresses_with_user_information_are_ignored_and_not_shown() {
        for (name, value) in [
            (ENDPOINT, "http://me:word@a"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "me:word@a:4318"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://me:w/ord@a"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "ftp://a?key=word"),
        ] {
            let (config, warnings) = read_all(&[(name, value)]);
            assert_eq!(config, None, "{name}");
            let warnings = warnings.concat();
            assert!(warnings.contains(name), "{warnings}");
            assert!(
                !warnings.contains("me:") && !warnings.contains("word"),
                "{warnings}"
            );
        }
        let (_, warnings) = read_all(&[(ENDPOINT, "http://me@a")]);
        insta::assert_snapshot!(warnings.concat(), @"ignored `OTEL_EXPORTER_OTLP_ENDPOINT`: user information is not supported; put an `authorization` header into `OTEL_EXPORTER_OTLP_HEADERS`");
    }

    #[test]
    fn values_that_are_not_supported_are_ignored_with_a_warning() {
        let warning = |name: &str, value: &str| {
            let (config, warnings) = read_all(&[ON, (name, value)]);
            assert_eq!(config, Some(on(&[])), "{name}");
            assert_eq!(warnings.len(), 1, "{name}: {warnings:?}");
            warnings.concat()
        };
        insta::assert_snapshot!(warning("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), @"ignored `OTEL_EXPORTER_OTLP_PROTOCOL`: expected `http/protobuf`, but found `grpc`");
        insta::assert_snapshot!(warning("OTEL_METRICS_EXPORTER", "prometheus"), @"ignored `OTEL_METRICS_EXPORTER`: expected `none`, `otlp`, but found `prometheus`");
        insta::assert_snapshot!(warning("OTEL_TRACES_EXPORTER", "otlp,console"), @"ignored `OTEL_TRACES_EXPORTER`: expected `none`, `otlp`, but found `console`");
        insta::assert_snapshot!(warning("OTEL_TRACES_SAMPLER", "xray"), @"ignored `OTEL_TRACES_SAMPLER`: expected `always_on`, `always_off`, `traceidratio`, `parentbased_always_on`, `parentbased_always_off`, `parentbased_traceidratio`, but found `xray`");
        insta::assert_snapshot!(warning("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"), @"`OTEL_EXPORTER_OTLP_CERTIFICATE` is not supported, and ignored; the system's certificates are trusted, and `SSL_CERT_FILE` names others");
        insta::assert_snapshot!(warning("OTEL_EXPORTER_OTLP_HEADERS", "secret"), @"ignored `OTEL_EXPORTER_OTLP_HEADERS`: expected `NAME=VALUE,NAME=VALUE` with percent-encoded values, but found another form");
        for (name, value) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            (
                "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
                "lowmemory",
            ),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b,c"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=%ff"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x=1,a b=c"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x=%0a"),
        ] {
            let warning = warning(name, value);
            assert!(
                warning.starts_with(&format!("ignored `{name}`: expected ")),
                "{warning}"
            );
        }
        let ratio = ("OTEL_TRACES_SAMPLER", "traceidratio");
        let (config, warnings) = read_all(&[ON, ratio, ("OTEL_TRACES_SAMPLER_ARG", "2")]);
        assert_eq!(config, Some(on(&[ratio])));
        insta::assert_snapshot!(warnings.concat(), @"ignored `OTEL_TRACES_SAMPLER_ARG`: expected a number from 0 to 1, but found `2`");
    }

    #[test]
    fn warnings_do_not_depend_on_an_endpoint() {
        let (config, warnings) = read_all(&[("OTEL_METRICS_EXPORTER", "prometheus")]);
        assert_eq!((config, warnings.len()), (None, 1));
        let (config, warnings) = read_all(&[(ENDPOINT, "localhost:4318")]);
        assert_eq!((config, warnings.len()), (None, 1));
        let off = ("OTEL_SDK_DISABLED", "TRUE");
        assert_eq!(
            read_all(&[ON, off, ("OTEL_TRACES_SAMPLER", "xray")]),
            (None, Vec::new())
        );
    }

    #[test]
    fn choices_have_any_case_and_lists_of_exporters_several_names() {
        let config = on(&[
            ("OTEL_TRACES_SAMPLER", "ALWAYS_OFF"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "HTTP/protobuf"),
            ("OTEL_METRICS_EXPORTER", "None"),
            ("OTEL_TRACES_EXPORTER", "none, OTLP"),
        ]);
        assert_eq!((config.ratio, config.follows_parent), (0.0, false));
        assert_eq!(
            (config.traces.is_some(), config.metrics.is_some()),
            (true, false)
        );
    }
}
