//! A request's spans. The server span begins with the request, for the ids that other servers get; the spans of its
//! stages are made at its end, and only if the request is sampled.

use std::{sync::OnceLock, time::Instant};

use opentelemetry::{
    Context, KeyValue,
    trace::{
        Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt,
        TraceFlags, TraceId, TraceState, Tracer,
    },
};
use opentelemetry_sdk::trace::{
    Sampler, SamplingDecision, SamplingResult, SdkTracer, ShouldSample, Span,
};

use crate::{
    stages::{Clock, JobOutcome, Outcome, RequestDetails, TimedStage},
    trace::Trace,
};
use kivu_base::{Error, Result};
use kivu_core::observer::Ending;

/// The methods that HTTP defines. Others may be any text, which must not get into spans.
const METHODS: [&str; 9] = [
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
];

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Traces requests from now on.
pub fn install(tracer: SdkTracer) -> Result<()> {
    TRACER
        .set(tracer)
        .map_err(|_| Error::config("expected one OTLP exporter per process, but found two"))
}

/// A context whose trace has no sampling decision.
#[derive(Clone, Copy, Debug)]
struct Undecided;

/// Samples a share of traces. If it follows parents, the decision of a request's trace is kept.
#[derive(Clone, Debug)]
pub struct RequestSampler {
    pub ratio: f64,
    pub follows_parent: bool,
}

impl ShouldSample for RequestSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let decided =
            parent.filter(|context| self.follows_parent && context.get::<Undecided>().is_none());
        let decided = decided
            .map(|context| context.span().span_context().clone())
            .filter(SpanContext::is_valid);
        let root = Sampler::TraceIdRatioBased(self.ratio);
        let result = root.should_sample(parent, trace, name, kind, attributes, links);
        let decision = match decided.map(|parent| parent.is_sampled()) {
            Some(true) => SamplingDecision::RecordAndSample,
            Some(false) => SamplingDecision::Drop,
            None => result.decision,
        };
        SamplingResult { decision, ..result }
    }
}

/// A request's server span.
#[derive(Debug)]
pub struct RequestSpan(Span);

/// Begins a request's span, if requests are traced.
pub fn begin(method: &str, parent: Option<&Trace>, clock: Clock) -> Option<RequestSpan> {
    let tracer = TRACER.get()?;
    let builder = SpanBuilder::from_name(span_name(method))
        .with_kind(SpanKind::Server)
        .with_start_time(clock.began());
    let context = parent.and_then(remote_context).unwrap_or_default();
    let span = tracer.build_with_context(builder, &context);
    // Invalid once the exporter has stopped.
    span.span_context().is_valid().then_some(RequestSpan(span))
}

/// A job's span, from now until its end.
#[derive(Debug)]
pub struct JobSpan(Span);

/// Begins a job's span, if there is an exporter of traces.
pub fn begin_job(parent: Option<&Trace>) -> Option<JobSpan> {
    let tracer = TRACER.get()?;
    let builder = SpanBuilder::from_name("batch job").with_kind(SpanKind::Internal);
    let context = parent.and_then(remote_context).unwrap_or_default();
    Some(JobSpan(tracer.build_with_context(builder, &context)))
}

impl JobSpan {
    pub fn end(mut self, outcome: &JobOutcome) {
        let JobOutcome {
            model,
            task,
            status,
            rows,
            failed_rows,
            tokens,
        } = outcome;
        let span = &mut self.0;
        if !model.is_empty() {
            span.set_attribute(KeyValue::new("kivu.model", model.clone()));
        }
        span.set_attribute(KeyValue::new("kivu.task", task.clone()));
        span.set_attribute(KeyValue::new("kivu.status", *status));
        for (name, count) in [
            ("kivu.rows", rows),
            ("kivu.failed_rows", failed_rows),
            ("kivu.tokens", tokens),
        ] {
            span.set_attribute(KeyValue::new(name, *count as i64));
        }
        if outcome.is_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// The context of a client's span.
fn remote_context(parent: &Trace) -> Option<Context> {
    let flags = TraceFlags::default().with_sampled(parent.is_sampled == Some(true));
    let (trace, span) = (
        TraceId::from_hex(&parent.id).ok()?,
        SpanId::from_hex(&parent.parent).ok()?,
    );
    // An invalid state is dropped, as W3C specifies.
    let state = parent
        .state
        .as_deref()
        .and_then(|state| state.parse::<TraceState>().ok())
        .unwrap_or_default();
    let context =
        Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, state));
    Some(if parent.is_sampled.is_none() {
        context.with_value(Undecided)
    } else {
        context
    })
}

/// A method, or what stands for one that is not defined.
fn span_name(method: &str) -> &'static str {
    METHODS
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("HTTP")
}

impl RequestSpan {
    /// This span, for requests to other servers.
    pub fn trace(&self) -> Trace {
        let context = self.0.span_context();
        Trace {
            id: context.trace_id().to_string(),
            parent: context.span_id().to_string(),
            is_sampled: Some(context.is_sampled()),
            state: Some(context.trace_state().header()).filter(|state| !state.is_empty()),
        }
    }

    /// Ends the span, with a child for each stage.
    pub fn end(
        mut self,
        clock: Clock,
        outcome: &Outcome<'_>,
        details: &RequestDetails,
        stages: &[TimedStage],
    ) {
        if !self.0.is_recording() {
            return;
        }
        self.describe(outcome, details);
        let context = Context::new().with_remote_span_context(self.0.span_context().clone());
        for timed in stages {
            add_child(timed, &context, clock);
        }
        self.0.end_with_timestamp(clock.time(Instant::now()));
    }

    /// Adds attributes by OpenTelemetry's conventions for HTTP servers, without the path, which may contain a text.
    fn describe(&mut self, outcome: &Outcome<'_>, details: &RequestDetails) {
        let Outcome {
            method,
            route,
            status,
        } = *outcome;
        let name = span_name(method);
        let span = &mut self.0;
        span.set_attribute(KeyValue::new(
            "http.request.method",
            if name == "HTTP" { "_OTHER" } else { name },
        ));
        span.set_attribute(KeyValue::new(
            "http.response.status_code",
            i64::from(status),
        ));
        if let Some(route) = route {
            span.update_name(format!("{name} {route}"));
            span.set_attribute(KeyValue::new("http.route", route.to_owned()));
        }
        if let Some(model) = &details.model {
            span.set_attribute(KeyValue::new("kivu.model", model.clone()));
            span.set_attribute(KeyValue::new("kivu.texts", details.texts as i64));
            span.set_attribute(KeyValue::new("kivu.tokens", details.tokens as i64));
        }
        if status >= 500 {
            span.set_attribute(KeyValue::new("error.type", status.to_string()));
            span.set_status(Status::error(""));
        }
    }
}

fn add_child(timed: &TimedStage, context: &Context, clock: Clock) {
    let Some(tracer) = TRACER.get() else { return };
    let backend = timed
        .backend
        .map(|backend| KeyValue::new("kivu.backend", backend));
    let builder = SpanBuilder::from_name(timed.stage.name())
        .with_kind(SpanKind::Internal)
        .with_start_time(clock.time(timed.started))
        .with_attributes(backend);
    let mut span = tracer.build_with_context(builder, context);
    if timed.ending == Ending::Failed {
        span.set_status(Status::error(""));
    }
    span.end_with_timestamp(clock.time(timed.ended));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decides(sampler: &RequestSampler, parent: Option<Option<bool>>, id: u128) -> bool {
        let parent = parent.map(|is_sampled| Trace {
            id: format!("{id:032x}"),
            parent: format!("{:016x}", 7),
            is_sampled,
            state: Some("a=1".to_owned()),
        });
        let context = parent.as_ref().and_then(remote_context).unwrap_or_default();
        let result = sampler.should_sample(
            Some(&context),
            TraceId::from(id),
            "GET",
            &SpanKind::Server,
            &[],
            &[],
        );
        assert_eq!(
            result.trace_state.header(),
            if parent.is_some() { "a=1" } else { "" }
        );
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn sampling_respects_the_parent_unless_it_is_told_not_to() {
        let sampler = |ratio, follows_parent| RequestSampler {
            ratio,
            follows_parent,
        };
        assert!(decides(&sampler(1.0, true), None, 1));
        assert!(!decides(&sampler(0.0, true), None, 1));
        assert!(decides(&sampler(0.0, true), Some(Some(true)), 1));
        assert!(!decides(&sampler(1.0, true), Some(Some(false)), 1));
        assert!(
            decides(&sampler(1.0, true), Some(None), 1),
            "an undecided parent"
        );
        assert!(
            !decides(&sampler(0.0, true), Some(None), 1),
            "an undecided parent"
        );
        assert!(decides(&sampler(1.0, false), Some(Some(false)), 1));
        assert!(!decides(&sampler(0.0, false), Some(Some(true)), 1));
        // Multiples of the golden ratio are spread evenly.
        let ids = (1..=10_000_u64).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let sampled = ids
            .filter(|id| decides(&sampler(0.1, true), None, u128::from(*id)))
            .count();
        assert!((990..=1010).contains(&sampled), "{sampled}");
    }

    #[test]
    fn spans_have_no_method_that_a_client_made_up() {
        assert_eq!(
            [span_name("POST"), span_name("GET SECRET")],
            ["POST", "HTTP"]
        );
    }
}
