//! One fleet address: its client, its health, and its requests under way.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    breaker::{Admission, Breaker},
    connect::FleetSettings,
    failure::{Attempt, FailureKind},
    wire::{
        grpc::GrpcClient,
        http::HttpClient,
        protocol::KserveClient,
        server_url::{Protocol, ServerUrl},
    },
};
use kivu_base::{Result, locked};
use kivu_telemetry::fleet::{record_attempt, record_breaker_closed, record_breaker_opened};

/// A request that times out replaces the connections if none received a response for this time: they may have
/// been dropped silently.
const MAX_SILENCE: Duration = Duration::from_secs(5);

pub struct Endpoint {
    pub url: ServerUrl,
    pub socket: SocketAddr,
    settings: Arc<FleetSettings>,
    /// Its URL's index in the configuration, for metrics.
    server: usize,
    in_flight: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    breaker: Breaker,
    client: Arc<dyn KserveClient>,
    responded_at: Instant,
}

impl Endpoint {
    pub fn new(
        server: usize,
        url: ServerUrl,
        socket: SocketAddr,
        settings: Arc<FleetSettings>,
    ) -> Result<Self> {
        let client = client(&url, socket, &settings)?;
        let state = State {
            breaker: Breaker::default(),
            client,
            responded_at: Instant::now(),
        };
        let (in_flight, state) = (AtomicUsize::default(), Mutex::new(state));
        Ok(Self {
            url,
            socket,
            settings,
            server,
            in_flight,
            state,
        })
    }

    pub fn admission(&self) -> Admission {
        locked(&self.state).breaker.admission(Instant::now())
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Records a probe's start.
    pub fn probe(&self) {
        locked(&self.state).breaker.probe(Instant::now());
    }

    /// Records an attempt's outcome; `change` updates the breaker.
    fn record(&self, failure: Option<FailureKind>, change: fn(&mut Breaker, Instant)) {
        let now = Instant::now();
        let mut state = locked(&self.state);
        let was_closed = state.breaker.is_closed();
        change(&mut state.breaker, now);
        if !failure.is_some_and(FailureKind::is_unhealthy) {
            state.responded_at = now;
        }
        match (was_closed, state.breaker.is_closed()) {
            (true, false) => record_breaker_opened(self.server),
            (false, true) => record_breaker_closed(self.server),
            _ => {}
        }
        let silence = now.saturating_duration_since(state.responded_at);
        if failure == Some(FailureKind::Timeout)
            && silence > MAX_SILENCE
            && let Ok(client) = client(&self.url, self.socket, &self.settings)
        {
            state.client = client;
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !locked(&self.state).breaker.is_closed() {
            record_breaker_closed(self.server);
        }
    }
}

fn client(
    url: &ServerUrl,
    socket: SocketAddr,
    settings: &FleetSettings,
) -> Result<Arc<dyn KserveClient>> {
    Ok(match url.protocol {
        Protocol::Http => Arc::new(HttpClient::new(url, socket, settings)?),
        Protocol::Grpc => Arc::new(GrpcClient::new(url, socket, settings)?),
    })
}

/// An attempt under way at an endpoint, which counts it until this value is dropped.
pub struct InFlight {
    endpoint: Arc<Endpoint>,
    pub client: Arc<dyn KserveClient>,
    started: Instant,
    /// The label in metrics.
    outcome: Mutex<&'static str>,
}

impl InFlight {
    pub fn new(endpoint: &Arc<Endpoint>) -> Self {
        endpoint.in_flight.fetch_add(1, Ordering::Relaxed);
        let client = Arc::clone(&locked(&endpoint.state).client);
        // Outcome for an attempt that the caller has cancelled.
        let outcome = Mutex::new("abandoned");
        Self {
            endpoint: Arc::clone(endpoint),
            client,
            started: Instant::now(),
            outcome,
        }
    }

    pub fn socket(&self) -> SocketAddr {
        self.endpoint.socket
    }

    pub fn ended<T>(&self, outcome: &Attempt<T>) {
        let failure = outcome.as_ref().err().map(|failure| failure.kind);
        *locked(&self.outcome) = failure.map_or("ok", FailureKind::label);
        let change = match failure.is_some_and(FailureKind::is_unhealthy) {
            true => Breaker::failed,
            false => |breaker: &mut Breaker, _| breaker.succeeded(),
        };
        self.endpoint.record(failure, change);
    }

    /// Replaces the endpoint's connections. Requests under way keep theirs.
    pub fn reconnect(&self) -> Result<Arc<dyn KserveClient>> {
        let Endpoint {
            url,
            socket,
            settings,
            ..
        } = &*self.endpoint;
        let client = client(url, *socket, settings)?;
        locked(&self.endpoint.state).client = Arc::clone(&client);
        Ok(client)
    }

    /// Records a timeout. If the endpoint still reports the model ready, it is slow, not broken.
    pub fn timed_out(&self, ready: &Attempt<()>) {
        *locked(&self.outcome) = FailureKind::Timeout.label();
        match ready {
            Ok(()) => self.endpoint.record(None, |breaker, _| breaker.succeeded()),
            Err(_) => self
                .endpoint
                .record(Some(FailureKind::Timeout), Breaker::open),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        record_attempt(
            self.endpoint.server,
            *locked(&self.outcome),
            self.started.elapsed(),
        );
        self.endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
