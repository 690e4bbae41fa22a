//! Fleet metrics. A server's label is its index in the URL list, never its address.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

/// Records an attempt at a server and its outcome.
pub fn record_attempt(server: usize, outcome: &'static str, took: Duration) {
    let server = server.to_string();
    counter!("kivu_fleet_requests_total", "server" => server.clone(), "outcome" => outcome)
        .increment(1);
    histogram!("kivu_fleet_request_seconds", "server" => server).record(took);
}

/// Records a retry.
pub fn record_retry() {
    counter!("kivu_fleet_retries_total").increment(1);
}

/// Records that a server's circuit breaker opened.
pub fn record_breaker_opened(server: usize) {
    gauge!("kivu_fleet_open_breakers", "server" => server.to_string()).increment(1.0);
}

/// Records that a server's circuit breaker closed.
pub fn record_breaker_closed(server: usize) {
    gauge!("kivu_fleet_open_breakers", "server" => server.to_string()).decrement(1.0);
}
