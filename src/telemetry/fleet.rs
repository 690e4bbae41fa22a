//! What is counted of a fleet. Its servers go by their places in the list of URLs, never by their addresses.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

/// A try at a server is over: what became of it, in a word, and how long it took.
pub fn tried(server: usize, outcome: &'static str, took: Duration) {
    let server = server.to_string();
    counter!("kivu_fleet_requests_total", "server" => server.clone(), "outcome" => outcome).increment(1);
    histogram!("kivu_fleet_request_seconds", "server" => server).record(took);
}

/// A request is tried again.
pub fn retried() {
    counter!("kivu_fleet_retries_total").increment(1);
}

/// A server fails and is left alone, …
pub fn left_alone(server: usize) {
    gauge!("kivu_fleet_open_breakers", "server" => server.to_string()).increment(1.0);
}

/// … or is asked again.
pub fn taken_back(server: usize) {
    gauge!("kivu_fleet_open_breakers", "server" => server.to_string()).decrement(1.0);
}
