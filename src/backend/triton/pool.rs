//! The addresses of a fleet: resolved again as they change, the one with the least to do asked first.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::time::timeout;

use super::{
    address::ServerUrl,
    breaker::Admission,
    failure::{Failure, Kind},
    transport::{Access, Target},
    visit::{Address, Visit, locked},
};

/// The time after which names are resolved again.
const FRESH: Duration = Duration::from_secs(10);
/// The same while an address cannot be reached.
const FRESH_IN_NEED: Duration = Duration::from_secs(1);
/// What a probe of an address may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Turns the name in a URL into addresses.
#[async_trait]
pub trait Resolve: Send + Sync {
    /// The addresses that `host` has now.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

/// The addresses behind the URLs of a fleet.
pub(super) struct Pool {
    urls: Vec<ServerUrl>,
    access: Access,
    resolver: Arc<dyn Resolve>,
    known: Mutex<Known>,
    is_resolving: AtomicBool,
    turns: AtomicUsize,
}

#[derive(Default)]
struct Known {
    addresses: Vec<Arc<Address>>,
    resolved_at: Option<Instant>,
}

impl Pool {
    pub(super) fn new(urls: Vec<ServerUrl>, access: Access, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            urls,
            access,
            resolver,
            known: Mutex::default(),
            is_resolving: AtomicBool::new(false),
            turns: AtomicUsize::new(0),
        }
    }

    /// Whether some address may be asked now, as far as is known. Finds out about those that were left alone
    /// long enough.
    pub(super) fn is_available(self: &Arc<Self>, target: &Target) -> bool {
        let known = locked(&self.known).addresses.clone();
        self.probe_in_background(&known, target);
        known.is_empty() || known.iter().any(|address| address.admission() == Admission::Yes)
    }

    /// Forgets all addresses, and with them their connections.
    pub(super) fn disconnect(&self) {
        *locked(&self.known) = Known::default();
    }

    /// Whether there is an address beside those in `tried` that may be asked now.
    pub(super) fn has_other(&self, tried: &[SocketAddr]) -> bool {
        let known = locked(&self.known);
        known
            .addresses
            .iter()
            .any(|address| !tried.contains(&address.socket) && address.admission() == Admission::Yes)
    }

    /// The address with the least to do, one that is not in `tried` if there is any.
    ///
    /// Where all are left alone, one that was left alone long enough is asked how it is.
    pub(super) async fn visit(
        self: &Arc<Self>,
        target: &Target,
        tried: &[SocketAddr],
    ) -> Result<Visit, Failure> {
        self.refresh().await;
        let known = locked(&self.known).addresses.clone();
        if let Some(address) = self.least_busy(&known, tried) {
            self.probe_in_background(&known, target);
            return Ok(Visit::new(address, &self.access));
        }
        let due = known.iter().find(|address| address.admission() == Admission::Probe);
        let address = due.ok_or_else(|| Failure::new(Kind::Unreachable))?;
        address.probe();
        let visit = Visit::new(Arc::clone(address), &self.access);
        probe(&visit, target).await.map(|()| visit)
    }

    /// One that is not in `tried`, at once, if there is any that may be asked.
    pub(super) fn visit_other(&self, tried: &[SocketAddr]) -> Option<Visit> {
        let known = locked(&self.known).addresses.clone();
        let other = self.least_busy(&known, tried).filter(|address| !tried.contains(&address.socket));
        other.map(|address| Visit::new(address, &self.access))
    }

    /// Remembers that an address was slower with a request than another that got it later.
    pub(super) fn overtaken(&self, socket: SocketAddr) {
        let known = locked(&self.known);
        for address in known.addresses.iter().filter(|address| address.socket == socket) {
            address.overtaken();
        }
    }

    fn least_busy(&self, known: &[Arc<Address>], tried: &[SocketAddr]) -> Option<Arc<Address>> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let count = known.len().max(1);
        // Of equals each gets its turn.
        let in_turn = (0..known.len()).map(|step| &known[(turn + step) % count]);
        let healthy = in_turn.filter(|address| address.admission() == Admission::Yes);
        let chosen = healthy.min_by_key(|address| (tried.contains(&address.socket), address.burden()));
        chosen.cloned()
    }

    fn probe_in_background(self: &Arc<Self>, known: &[Arc<Address>], target: &Target) {
        for address in known.iter().filter(|address| address.admission() == Admission::Probe) {
            address.probe();
            let (visit, target) = (Visit::new(Arc::clone(address), &self.access), target.clone());
            tokio::spawn(async move { probe(&visit, &target).await });
        }
    }

    /// Resolves the names if it is time: the first time, or when an address cannot be reached, before the
    /// request goes on; otherwise beside it.
    async fn refresh(self: &Arc<Self>) {
        let (age, has_healthy) = {
            let known = locked(&self.known);
            let has_healthy = known.addresses.iter().any(|address| address.admission() == Admission::Yes);
            (known.resolved_at.map(|at| at.elapsed()), has_healthy)
        };
        match age {
            None => self.resolve().await,
            Some(age) if !has_healthy && age > FRESH_IN_NEED => self.resolve().await,
            Some(age) if age > FRESH && !self.is_resolving.swap(true, Ordering::AcqRel) => {
                let pool = Arc::clone(self);
                tokio::spawn(async move {
                    pool.resolve().await;
                    pool.is_resolving.store(false, Ordering::Release);
                });
            }
            Some(_) => {}
        }
    }

    /// Keeps the addresses that are still there, with their connections, and takes up new ones. Those of a name
    /// that cannot be resolved now stay.
    async fn resolve(&self) {
        let mut found: Vec<(usize, ServerUrl, SocketAddr)> = Vec::new();
        let mut is_complete = true;
        for (server, url) in self.urls.iter().enumerate() {
            match self.resolver.resolve(&url.host, url.port).await {
                Ok(sockets) => {
                    found.extend(sockets.into_iter().map(|socket| (server, url.clone(), socket)));
                }
                Err(error) => {
                    is_complete = false;
                    tracing::warn!(%error, "cannot resolve a server of the fleet");
                }
            }
        }
        let mut known = locked(&self.known);
        if is_complete && !found.is_empty() {
            known.addresses.retain(|address| {
                found.iter().any(|(_, url, socket)| (url, socket) == (&address.url, &address.socket))
            });
        }
        for (server, url, socket) in found {
            if known.addresses.iter().any(|address| (&address.url, address.socket) == (&url, socket)) {
                continue;
            }
            match Address::new(server, &url, socket, &self.access) {
                Ok(address) => known.addresses.push(Arc::new(address)),
                Err(error) => tracing::error!(error = error.chain(), "cannot use a server of the fleet"),
            }
        }
        known.resolved_at = Some(Instant::now());
    }
}

/// Asks an address whether it has the model ready, and remembers the answer.
async fn probe(visit: &Visit, target: &Target) -> Result<(), Failure> {
    let ready = timeout(PROBE_TIMEOUT, visit.transport.is_ready(target)).await;
    let outcome = ready.unwrap_or_else(|_| Err(Failure::new(Kind::Late)));
    // One that answers, but is not ready, stays alone for another while.
    let outcome = outcome
        .map_err(|failure| if failure.kind.is_illness() { failure } else { Failure::new(Kind::Unreachable) });
    visit.ended(&outcome);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers what a test says it should.
    struct Names(Mutex<Vec<SocketAddr>>);

    #[async_trait]
    impl Resolve for Names {
        async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
            let sockets = locked(&self.0).clone();
            if sockets.is_empty() { Err(io::Error::other("no such name")) } else { Ok(sockets) }
        }
    }

    fn socket(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, last], 1))
    }

    fn pool(sockets: &[SocketAddr]) -> (Arc<Pool>, Arc<Names>) {
        let names = Arc::new(Names(Mutex::new(sockets.to_vec())));
        let resolver: Arc<dyn Resolve> = Arc::clone(&names) as _;
        let url = "http://fleet:1".parse().unwrap();
        (Arc::new(Pool::new(vec![url], Access::default(), resolver)), names)
    }

    fn target() -> Target {
        Target { model: "m".into(), version: None }
    }

    #[tokio::test]
    async fn the_least_busy_address_is_asked_and_equals_take_turns() {
        let (pool, _) = pool(&[socket(1), socket(2)]);
        let first = pool.visit(&target(), &[]).await.unwrap();
        let second = pool.visit(&target(), &[]).await.unwrap();
        assert_ne!(first.socket(), second.socket());
        let busy = first.socket();
        drop(second);
        for _ in 0..4 {
            assert_ne!(pool.visit(&target(), &[]).await.unwrap().socket(), busy);
        }
        let other = pool.visit(&target(), &[busy]).await.unwrap();
        assert_ne!(other.socket(), busy, "one that was tried comes last");
        assert!(pool.has_other(&[busy]) && !pool.has_other(&[socket(1), socket(2)]));
    }

    #[tokio::test]
    async fn addresses_follow_the_names() {
        let (pool, names) = pool(&[socket(1)]);
        assert_eq!(pool.visit(&target(), &[]).await.unwrap().socket(), socket(1));
        *locked(&names.0) = vec![socket(2), socket(3)];
        pool.resolve().await;
        for _ in 0..4 {
            assert_ne!(pool.visit(&target(), &[]).await.unwrap().socket(), socket(1));
        }
        locked(&names.0).clear();
        pool.resolve().await;
        assert!(pool.visit(&target(), &[]).await.is_ok(), "a resolver that fails takes nothing away");
    }

    #[tokio::test]
    async fn an_address_that_fails_is_left_alone_and_the_other_asked() {
        let (pool, _) = pool(&[socket(1), socket(2)]);
        let failed: Result<(), Failure> = Err(Failure::new(Kind::Unreachable));
        let ill = pool.visit(&target(), &[socket(2)]).await.unwrap();
        (0..3).for_each(|_| ill.ended(&failed));
        for _ in 0..4 {
            assert_eq!(pool.visit(&target(), &[]).await.unwrap().socket(), socket(2));
        }
        assert!(pool.is_available(&target()));
        let other = pool.visit(&target(), &[]).await.unwrap();
        (0..3).for_each(|_| other.ended(&failed));
        assert!(!pool.is_available(&target()));
        assert_eq!(pool.visit(&target(), &[]).await.err().unwrap().kind, Kind::Unreachable, "at once");
    }
}
