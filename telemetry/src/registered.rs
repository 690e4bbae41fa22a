//! Records metrics in a registry.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::registry::{Registry, Storage};

/// Records metrics, but for those with omitted names.
pub struct Registered<S: Storage<Key>> {
    pub registry: Arc<Registry<Key, S>>,
    pub omitted: &'static [&'static str],
}

impl<S> Recorder for Registered<S>
where
    S: Storage<Key, Counter: Into<Counter>, Gauge: Into<Gauge>, Histogram: Into<Histogram>>,
{
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if self.omitted.contains(&key.name()) {
            return Counter::noop();
        }
        self.registry
            .get_or_create_counter(key, |counter| counter.clone().into())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.registry
            .get_or_create_gauge(key, |gauge| gauge.clone().into())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if self.omitted.contains(&key.name()) {
            return Histogram::noop();
        }
        self.registry
            .get_or_create_histogram(key, |histogram| histogram.clone().into())
    }
}
