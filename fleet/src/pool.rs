//! Fleet endpoints: resolved from URLs at intervals, and chosen by load and health.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::time::timeout;

use super::{
    breaker::Admission,
    connect::FleetSettings,
    endpoint::{Endpoint, InFlight},
    failure::{Attempt, FailureKind},
    wire::{protocol::KserveClient, server_url::ServerUrl},
};
use kivu_base::locked;

/// DNS refresh interval.
const MAX_AGE: Duration = Duration::from_secs(10);
/// DNS refresh interval while no endpoint is healthy.
const MAX_AGE_WITHOUT_HEALTHY: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Resolves host names. Tests replace it.
#[async_trait]
pub trait Resolve: Send + Sync {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

pub struct Pool {
    urls: Vec<ServerUrl>,
    settings: Arc<FleetSettings>,
    resolver: Arc<dyn Resolve>,
    resolved: Mutex<Resolved>,
    is_resolving: AtomicBool,
    /// Counts choices, so that equal endpoints take turns.
    turns: AtomicUsize,
}

#[derive(Default)]
struct Resolved {
    endpoints: Vec<Arc<Endpoint>>,
    at: Option<Instant>,
}

impl Pool {
    pub fn new(urls: Vec<ServerUrl>, settings: FleetSettings, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            urls,
            settings: Arc::new(settings),
            resolver,
            resolved: Mutex::default(),
            is_resolving: AtomicBool::new(false),
            turns: AtomicUsize::new(0),
        }
    }

    /// Whether a request may be sent to an endpoint now, as far as is known. Probes endpoints that are due.
    pub fn is_available(&self) -> bool {
        let endpoints = self.endpoints();
        probe_in_background(&endpoints);
        endpoints.is_empty() || endpoints.iter().any(is_healthy)
    }

    /// Closes all connections and forgets all endpoints.
    pub fn disconnect(&self) {
        *locked(&self.resolved) = Resolved::default();
    }

    /// Whether a healthy endpoint is not in `tried`.
    pub fn has_other(&self, tried: &[SocketAddr]) -> bool {
        let endpoints = self.endpoints();
        endpoints
            .iter()
            .any(|endpoint| !tried.contains(&endpoint.socket) && is_healthy(endpoint))
    }

    /// Chooses the endpoint with the fewest requests under way, preferably one outside `tried`.
    ///
    /// If no endpoint is healthy, probes one that is due, and chooses it if it responds.
    pub async fn choose(self: &Arc<Self>, tried: &[SocketAddr]) -> Attempt<InFlight> {
        self.refresh().await;
        let endpoints = self.endpoints();
        if let Some(endpoint) = self.least_busy(&endpoints, tried) {
            probe_in_background(&endpoints);
            return Ok(InFlight::new(endpoint));
        }
        let due = endpoints
            .iter()
            .find(|endpoint| endpoint.admission() == Admission::Probe);
        let endpoint = due.ok_or(FailureKind::Unreachable)?;
        endpoint.probe();
        let attempt = InFlight::new(endpoint);
        probe(&attempt).await.map(|()| attempt)
    }

    /// Ends an attempt that was given less than the request's time, at the last healthy endpoint, after checking the
    /// endpoint for at most `time`. If the model is ready, the endpoint is slow and stays in use; if not, it hangs.
    pub async fn check_slow(&self, attempt: &InFlight, time: Duration) {
        // The old connections may have been dropped silently.
        let ready = match attempt.reconnect() {
            Ok(client) => timeout(time, check_ready(&*client)).await.ok(),
            Err(_) => None,
        };
        match ready {
            Some(ready) => attempt.timed_out(&ready),
            None => attempt.ended::<()>(&Err(FailureKind::Timeout.into())),
        }
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        locked(&self.resolved).endpoints.clone()
    }

    fn least_busy<'a>(
        &self,
        endpoints: &'a [Arc<Endpoint>],
        tried: &[SocketAddr],
    ) -> Option<&'a Arc<Endpoint>> {
        let first = self.turns.fetch_add(1, Ordering::Relaxed) % endpoints.len().max(1);
        let in_turn = endpoints.iter().cycle().skip(first).take(endpoints.len());
        let healthy = in_turn.filter(|endpoint| is_healthy(endpoint));
        healthy.min_by_key(|endpoint| (tried.contains(&endpoint.socket), endpoint.in_flight()))
    }

    /// Resolves the names if it is time: before the request if there is no healthy endpoint, in the background
    /// otherwise.
    async fn refresh(self: &Arc<Self>) {
        let age = locked(&self.resolved)
            .at
            .map_or(Duration::MAX, |at| at.elapsed());
        let has_healthy = self.endpoints().iter().any(is_healthy);
        if !has_healthy && age > MAX_AGE_WITHOUT_HEALTHY {
            self.resolve().await;
        } else if age > MAX_AGE && !self.is_resolving.swap(true, Ordering::AcqRel) {
            let pool = Arc::clone(self);
            tokio::spawn(async move {
                pool.resolve().await;
                pool.is_resolving.store(false, Ordering::Release);
            });
        }
    }

    /// Adds new endpoints and removes stale ones; the others keep their connections. If a name cannot be
    /// resolved, none are removed.
    async fn resolve(&self) {
        let mut found: Vec<(usize, &ServerUrl, SocketAddr)> = Vec::new();
        let mut is_complete = true;
        for (server, url) in self.urls.iter().enumerate() {
            match self.resolver.resolve(&url.host, url.port).await {
                Ok(sockets) => {
                    found.extend(sockets.into_iter().map(|socket| (server, url, socket)))
                }
                Err(error) => {
                    is_complete = false;
                    tracing::warn!(%error, "cannot resolve a fleet server");
                }
            }
        }
        let mut resolved = locked(&self.resolved);
        let is_same = |endpoint: &Endpoint, url: &ServerUrl, socket| {
            endpoint.socket == socket && endpoint.url == *url
        };
        if is_complete && !found.is_empty() {
            resolved.endpoints.retain(|endpoint| {
                found
                    .iter()
                    .any(|(_, url, socket)| is_same(endpoint, url, *socket))
            });
        }
        for (server, url, socket) in found {
            if resolved
                .endpoints
                .iter()
                .any(|endpoint| is_same(endpoint, url, socket))
            {
                continue;
            }
            match Endpoint::new(server, url.clone(), socket, Arc::clone(&self.settings)) {
                Ok(endpoint) => resolved.endpoints.push(Arc::new(endpoint)),
                Err(error) => tracing::error!(error = error.chain(), "cannot use a fleet server"),
            }
        }
        resolved.at = Some(Instant::now());
    }
}

fn is_healthy(endpoint: &Arc<Endpoint>) -> bool {
    endpoint.admission() == Admission::Yes
}

fn probe_in_background(endpoints: &[Arc<Endpoint>]) {
    for endpoint in endpoints
        .iter()
        .filter(|endpoint| endpoint.admission() == Admission::Probe)
    {
        endpoint.probe();
        let attempt = InFlight::new(endpoint);
        tokio::spawn(async move { probe(&attempt).await });
    }
}

/// Checks whether the model is ready on an endpoint, and records the outcome.
async fn probe(attempt: &InFlight) -> Attempt<()> {
    let outcome = check_ready(&*attempt.client).await;
    attempt.ended(&outcome);
    outcome
}

async fn check_ready(client: &dyn KserveClient) -> Attempt<()> {
    let ready = timeout(PROBE_TIMEOUT, client.check_ready()).await;
    let outcome = ready.unwrap_or_else(|_| Err(FailureKind::Timeout.into()));
    // A server that responds without being ready must not close the breaker.
    outcome.map_err(|failure| match failure.kind.is_unhealthy() {
        true => failure,
        false => FailureKind::Unreachable.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves every name to the given addresses.
    struct Names(Mutex<Vec<SocketAddr>>);

    #[async_trait]
    impl Resolve for Names {
        async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
            let sockets = locked(&self.0).clone();
            if sockets.is_empty() {
                Err(io::Error::other("no such name"))
            } else {
                Ok(sockets)
            }
        }
    }

    fn socket(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, last], 1))
    }

    fn pool(sockets: &[SocketAddr]) -> (Arc<Pool>, Arc<Names>) {
        let names = Arc::new(Names(Mutex::new(sockets.to_vec())));
        let resolver: Arc<dyn Resolve> = Arc::clone(&names) as _;
        let url = "http://fleet:1".parse().unwrap();
        (
            Arc::new(Pool::new(vec![url], FleetSettings::default(), resolver)),
            names,
        )
    }

    #[tokio::test]
    async fn the_least_busy_endpoint_is_chosen_and_equals_take_turns() {
        let (pool, _) = pool(&[socket(1), socket(2)]);
        let first = pool.choose(&[]).await.unwrap();
        let second = pool.choose(&[]).await.unwrap();
        assert_ne!(first.socket(), second.socket());
        let busy = first.socket();
        drop(second);
        for _ in 0..4 {
            assert_ne!(pool.choose(&[]).await.unwrap().socket(), busy);
        }
        let other = pool.choose(&[busy]).await.unwrap();
        assert_ne!(
            other.socket(),
            busy,
            "one that was tried is the last choice"
        );
        assert!(pool.has_other(&[busy]) && !pool.has_other(&[socket(1), socket(2)]));
    }

    #[tokio::test]
    async fn endpoints_follow_the_resolved_names() {
        let (pool, names) = pool(&[socket(1)]);
        assert_eq!(pool.choose(&[]).await.unwrap().socket(), socket(1));
        *locked(&names.0) = vec![socket(2), socket(3)];
        pool.resolve().await;
        for _ in 0..4 {
            assert_ne!(pool.choose(&[]).await.unwrap().socket(), socket(1));
        }
        locked(&names.0).clear();
        pool.resolve().await;
        assert!(
            pool.choose(&[]).await.is_ok(),
            "a failed resolution removes nothing"
        );
    }

    #[tokio::test]
    async fn requests_avoid_an_endpoint_that_fails() {
        let (pool, _) = pool(&[socket(1), socket(2)]);
        let failed: Attempt<()> = Err(FailureKind::Unreachable.into());
        let unhealthy = pool.choose(&[socket(2)]).await.unwrap();
        (0..3).for_each(|_| unhealthy.ended(&failed));
        for _ in 0..4 {
            assert_eq!(pool.choose(&[]).await.unwrap().socket(), socket(2));
        }
        assert!(pool.is_available());
        let other = pool.choose(&[]).await.unwrap();
        (0..3).for_each(|_| other.ended(&failed));
        assert!(!pool.is_available());
        assert_eq!(
            pool.choose(&[]).await.err().unwrap().kind,
            FailureKind::Unreachable,
            "at once"
        );
    }
}
