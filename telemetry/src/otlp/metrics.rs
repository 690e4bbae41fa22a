//! Records this process's metrics in the instruments of the OpenTelemetry SDK, under the same names as for Prometheus.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use ::metrics::{CounterFn, GaugeFn, HistogramFn, Key, Recorder};
use metrics_util::registry::{Registry, Storage};
use opentelemetry::{
    KeyValue,
    metrics::{self, Meter},
};

use crate::{buckets::BUCKETS, registered::Registered};
use kivu_base::locked;

/// Creates an instrument for each metric.
pub struct Instruments(pub Meter);

pub fn recorder(instruments: Instruments) -> impl Recorder + Send + Sync + 'static {
    Registered {
        registry: Arc::new(Registry::new(instruments)),
        omitted: &[],
    }
}

fn attributes(key: &Key) -> Vec<KeyValue> {
    key.labels()
        .map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned()))
        .collect()
}

impl Storage<Key> for Instruments {
    type Counter = Arc<CounterInstrument>;
    type Gauge = Arc<GaugeInstrument>;
    type Histogram = Arc<HistogramInstrument>;

    fn counter(&self, key: &Key) -> Self::Counter {
        let counter = self.0.u64_counter(key.name().to_owned()).build();
        Arc::new(CounterInstrument {
            counter,
            attributes: attributes(key),
            total: AtomicU64::new(0),
        })
    }

    fn gauge(&self, key: &Key) -> Self::Gauge {
        let sum = self.0.f64_up_down_counter(key.name().to_owned()).build();
        Arc::new(GaugeInstrument {
            sum,
            attributes: attributes(key),
            value: Mutex::new(0.0),
        })
    }

    /// All histograms are durations in seconds.
    fn histogram(&self, key: &Key) -> Self::Histogram {
        let histogram = self.0.f64_histogram(key.name().to_owned()).with_unit("s");
        let histogram = histogram.with_boundaries(BUCKETS.to_vec()).build();
        Arc::new(HistogramInstrument {
            histogram,
            attributes: attributes(key),
        })
    }
}

pub struct CounterInstrument {
    counter: metrics::Counter<u64>,
    attributes: Vec<KeyValue>,
    total: AtomicU64,
}

impl CounterFn for CounterInstrument {
    fn increment(&self, value: u64) {
        self.total.fetch_add(value, Relaxed);
        self.counter.add(value, &self.attributes);
    }

    fn absolute(&self, value: u64) {
        let before = self.total.fetch_max(value, Relaxed);
        self.counter
            .add(value.saturating_sub(before), &self.attributes);
    }
}

/// A value that goes up and down, as the sum of its changes.
pub struct GaugeInstrument {
    sum: metrics::UpDownCounter<f64>,
    attributes: Vec<KeyValue>,
    value: Mutex<f64>,
}

impl GaugeInstrument {
    fn change(&self, to: impl FnOnce(f64) -> f64) {
        let mut value = locked(&self.value);
        let after = to(*value);
        self.sum.add(after - *value, &self.attributes);
        *value = after;
    }
}

impl GaugeFn for GaugeInstrument {
    fn increment(&self, value: f64) {
        self.change(|before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|before| before - value);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

pub struct HistogramInstrument {
    histogram: metrics::Histogram<f64>,
    attributes: Vec<KeyValue>,
}

impl HistogramFn for HistogramInstrument {
    fn record(&self, value: f64) {
        self.histogram.record(value, &self.attributes);
    }
}
