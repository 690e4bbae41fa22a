//! One address of a fleet: its connections, its health, and the requests that are at it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    address::ServerUrl,
    breaker::{Admission, Breaker},
    failure::{Failure, Kind},
    transport::{Access, LONGEST_IDLE, Transport},
};
use crate::{error::Result, telemetry};

/// A connection of which nothing was heard for so long is made anew when a request gets no answer on it.
const SILENCE: Duration = Duration::from_secs(5);
/// An address that was overtaken counts as so many requests busier for so long.
const OVERTAKEN: Duration = Duration::from_secs(1);
const OVERTAKEN_BURDEN: usize = 8;

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One address, with what is known of it.
pub(super) struct Address {
    pub(super) url: ServerUrl,
    pub(super) socket: SocketAddr,
    /// The place of its URL in the list, by which it is counted.
    server: usize,
    outstanding: AtomicUsize,
    breaker: Mutex<Breaker>,
    connections: Mutex<Connections>,
    /// When another address was sooner done with a request that this one had first.
    overtaken_at: Mutex<Option<Instant>>,
}

struct Connections {
    transport: Arc<Transport>,
    used_at: Instant,
    heard_at: Instant,
}

impl Address {
    pub(super) fn new(server: usize, url: &ServerUrl, socket: SocketAddr, access: &Access) -> Result<Self> {
        let (transport, now) = (Arc::new(Transport::new(url, socket, access)?), Instant::now());
        Ok(Self {
            url: url.clone(),
            socket,
            server,
            outstanding: AtomicUsize::new(0),
            breaker: Mutex::default(),
            connections: Mutex::new(Connections { transport, used_at: now, heard_at: now }),
            overtaken_at: Mutex::default(),
        })
    }

    /// The connections to it; new ones where nobody used those that there were for long.
    fn transport(&self, access: &Access) -> Arc<Transport> {
        let mut connections = locked(&self.connections);
        let now = Instant::now();
        if now.saturating_duration_since(connections.used_at) > LONGEST_IDLE {
            self.renew(&mut connections, access);
        }
        connections.used_at = now;
        Arc::clone(&connections.transport)
    }

    fn renew(&self, connections: &mut Connections, access: &Access) {
        // What could be made once can be made again; otherwise the old ones have to do.
        if let Ok(transport) = Transport::new(&self.url, self.socket, access) {
            connections.transport = Arc::new(transport);
        }
    }

    pub(super) fn admission(&self) -> Admission {
        locked(&self.breaker).admission(Instant::now())
    }

    /// What counts when the one with the least to do is looked for.
    pub(super) fn burden(&self) -> usize {
        let was_overtaken = locked(&self.overtaken_at).is_some_and(|at| at.elapsed() < OVERTAKEN);
        self.outstanding.load(Ordering::Relaxed) + if was_overtaken { OVERTAKEN_BURDEN } else { 0 }
    }

    fn answered(&self) {
        locked(&self.connections).heard_at = Instant::now();
        self.change(Breaker::succeeded);
    }

    /// Begins to find out how it is.
    pub(super) fn probe(&self) {
        self.change(|breaker| breaker.probe(Instant::now()));
    }

    /// Remembers that it was slower with a request than another that got it later.
    pub(super) fn overtaken(&self) {
        *locked(&self.overtaken_at) = Some(Instant::now());
    }

    /// Changes the breaker, and counts that it opened or closed.
    fn change(&self, change: impl FnOnce(&mut Breaker)) {
        let mut breaker = locked(&self.breaker);
        let was_open = breaker.is_open();
        change(&mut breaker);
        match (was_open, breaker.is_open()) {
            (false, true) => telemetry::fleet::left_alone(self.server),
            (true, false) => telemetry::fleet::taken_back(self.server),
            _ => {}
        }
    }

    fn failed(&self, kind: Kind, access: &Access) {
        let now = Instant::now();
        let mut connections = locked(&self.connections);
        if kind.is_illness() {
            self.change(|breaker| breaker.failed(now));
        } else {
            connections.heard_at = now;
            self.change(Breaker::succeeded);
        }
        if kind == Kind::Late && now.saturating_duration_since(connections.heard_at) > SILENCE {
            self.renew(&mut connections, access);
        }
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        if self.breaker.get_mut().unwrap_or_else(PoisonError::into_inner).is_open() {
            telemetry::fleet::taken_back(self.server);
        }
    }
}

/// An address that a request is at; it counts as busy until this value goes.
pub(super) struct Visit {
    address: Arc<Address>,
    access: Access,
    pub(super) transport: Arc<Transport>,
    started: Instant,
    /// What is counted if nobody waits for its end.
    outcome: Mutex<&'static str>,
}

/// What became of a try that somebody else was quicker at, or whose caller has gone.
const ABANDONED: &str = "abandoned";

impl Visit {
    pub(super) fn new(address: Arc<Address>, access: &Access) -> Self {
        address.outstanding.fetch_add(1, Ordering::Relaxed);
        let transport = address.transport(access);
        let (started, outcome) = (Instant::now(), Mutex::new(ABANDONED));
        Self { address, access: access.clone(), transport, started, outcome }
    }

    pub(super) fn socket(&self) -> SocketAddr {
        self.address.socket
    }

    /// How long it takes so far.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Remembers how the address did.
    pub(super) fn ended<T>(&self, outcome: &Result<T, Failure>) {
        *locked(&self.outcome) = outcome.as_ref().map_or_else(|failure| failure.kind.name(), |_| "ok");
        match outcome {
            Ok(_) => self.address.answered(),
            Err(failure) => self.address.failed(failure.kind, &self.access),
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        telemetry::fleet::tried(self.address.server, *locked(&self.outcome), self.elapsed());
        self.address.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
