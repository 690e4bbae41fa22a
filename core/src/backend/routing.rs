//! Decides where a request runs: in this process, on a fleet, or wherever it is expected to finish sooner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    Deadline, Engine, RemoteSource, Signature, encoder::EncoderBackend, seq2seq::Seq2SeqBackend,
    speed::Speed,
};
use kivu_base::{Result, clock::Instant};

/// Where a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In this process.
    Local(Engine),
    /// On a fleet.
    Remote,
}

impl Default for Location {
    fn default() -> Self {
        Self::Local(Engine::default())
    }
}

/// Where a model can run, with the load and measured speed per location.
///
/// Models with the same weights share a route and its measurements. `L` runs the model in this process.
#[derive(Clone, Debug)]
pub struct Route<L = Arc<dyn EncoderBackend>> {
    local: Option<L>,
    engine: Engine,
    fleet: Option<Arc<dyn RemoteSource>>,
    signature: Signature,
    loads: Arc<Loads>,
}

/// The time per request and the time per token, locally and on the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Assumed {
    local: (Duration, Duration),
    remote: (Duration, Duration),
}

impl Assumed {
    /// A small encoder on one CPU, and on a GPU behind a network: the fleet is faster above about 200 tokens.
    const ENCODER: Self = Self {
        local: (Duration::from_millis(1), Duration::from_micros(50)),
        remote: (Duration::from_millis(10), Duration::from_micros(5)),
    };
    /// A model that generates about one token per input token: the fleet is faster above about ten tokens.
    const SEQ2SEQ: Self = Self {
        local: (Duration::from_millis(5), Duration::from_millis(5)),
        remote: (Duration::from_millis(50), Duration::from_micros(500)),
    };
}

/// Time reserved for running a request locally after the fleet has failed, as a multiple of the estimated local time;
/// at most half the time left.
const RESERVE: u32 = 3;

impl From<Arc<dyn EncoderBackend>> for Route {
    fn from(local: Arc<dyn EncoderBackend>) -> Self {
        let signature = local.signature().clone();
        Self::encoder(Some(local), None, signature)
    }
}

impl From<Arc<dyn Seq2SeqBackend>> for Route<Arc<dyn Seq2SeqBackend>> {
    fn from(local: Arc<dyn Seq2SeqBackend>) -> Self {
        Self::seq2seq(Some(local), None)
    }
}

impl Route {
    /// A route for an encoder. `signature` comes from the bundle's graph, whether it runs locally or not.
    pub fn encoder(
        local: Option<Arc<dyn EncoderBackend>>,
        fleet: Option<Arc<dyn RemoteSource>>,
        signature: Signature,
    ) -> Self {
        Self::new(local, fleet, signature, Assumed::ENCODER)
    }

    /// Graph inputs and outputs.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }
}

impl Route<Arc<dyn Seq2SeqBackend>> {
    /// A route for a model that generates sequences.
    pub fn seq2seq(
        local: Option<Arc<dyn Seq2SeqBackend>>,
        fleet: Option<Arc<dyn RemoteSource>>,
    ) -> Self {
        Self::new(local, fleet, Signature::default(), Assumed::SEQ2SEQ)
    }
}

impl<L> Route<L> {
    fn new(
        local: Option<L>,
        fleet: Option<Arc<dyn RemoteSource>>,
        signature: Signature,
        assumed: Assumed,
    ) -> Self {
        let load = |(base, slope)| Load {
            tokens: AtomicUsize::new(0),
            speed: Speed::assumed(base, slope),
        };
        let loads = Loads {
            local: load(assumed.local),
            remote: load(assumed.remote),
        };
        Self {
            local,
            engine: Engine::default(),
            fleet,
            signature,
            loads: Arc::new(loads),
        }
    }

    /// The same route, whose local model runs in `engine`.
    pub fn with_engine(self, engine: Engine) -> Self {
        Self { engine, ..self }
    }

    /// Local location.
    pub fn here(&self) -> Location {
        Location::Local(self.engine)
    }

    /// The same route with `map` applied to what runs locally; measurements stay shared.
    pub fn try_map<M>(self, map: impl FnOnce(L) -> Result<M>) -> Result<Route<M>> {
        let Self {
            local,
            engine,
            fleet,
            signature,
            loads,
        } = self;
        Ok(Route {
            local: local.map(map).transpose()?,
            engine,
            fleet,
            signature,
            loads,
        })
    }

    /// The backend in this process.
    pub fn local(&self) -> Option<&L> {
        self.local.as_ref()
    }

    /// The fleet that runs the model.
    pub fn fleet(&self) -> Option<&Arc<dyn RemoteSource>> {
        self.fleet.as_ref()
    }

    /// Forgets measured speeds, and closes the connections to the fleet.
    pub fn forget(&self) {
        self.loads.local.speed.forget();
        self.loads.remote.speed.forget();
        self.fleet.iter().for_each(|fleet| fleet.disconnect());
    }

    /// Selects the first location for a request with `tokens`.
    pub fn choose(&self, tokens: usize) -> Location {
        match (&self.local, &self.fleet) {
            (None, Some(_)) => Location::Remote,
            (Some(_), Some(fleet))
                if fleet.is_available() && self.loads.is_remote_sooner(tokens) =>
            {
                Location::Remote
            }
            _ => self.here(),
        }
    }

    /// The fleet's deadline for a request with `tokens`: earlier than the request's own if it can still
    /// run locally afterwards.
    pub fn remote_deadline(&self, tokens: usize, request: Deadline) -> Deadline {
        let Some(fleet) = &self.fleet else {
            return request;
        };
        if self.local.is_none() {
            return fleet.deadline(request);
        }
        let left = request.remaining();
        let reserve = (self.loads.local.estimate(tokens) * RESERVE).min(left / 2);
        fleet
            .deadline(request)
            .or_earlier(Deadline::within(left - reserve))
    }

    /// Counts a request with `tokens` as running at `location` until the guard is dropped.
    pub fn begin(&self, location: Location, tokens: usize) -> InProgress {
        let loads = Arc::clone(&self.loads);
        let before = loads
            .at(location)
            .tokens
            .fetch_add(tokens, Ordering::Relaxed);
        InProgress {
            loads,
            location,
            tokens,
            work: before.saturating_add(tokens),
            started: Instant::now(),
        }
    }
}

#[derive(Debug)]
struct Loads {
    local: Load,
    remote: Load,
}

/// A location's load and speed.
#[derive(Debug)]
struct Load {
    /// Tokens in all requests in progress.
    tokens: AtomicUsize,
    speed: Speed,
}

impl Load {
    /// Expected time for a request with `tokens`, queued behind the requests in progress.
    fn estimate(&self, tokens: usize) -> Duration {
        self.speed
            .estimate(self.tokens.load(Ordering::Relaxed).saturating_add(tokens))
    }
}

impl Loads {
    fn is_remote_sooner(&self, tokens: usize) -> bool {
        self.remote.estimate(tokens) < self.local.estimate(tokens)
    }

    fn at(&self, location: Location) -> &Load {
        match location {
            Location::Local(_) => &self.local,
            Location::Remote => &self.remote,
        }
    }
}

/// A request in progress at a location.
#[derive(Debug)]
pub struct InProgress {
    loads: Arc<Loads>,
    location: Location,
    tokens: usize,
    /// Its tokens plus all tokens that were in progress when it began.
    work: usize,
    started: Instant,
}

impl InProgress {
    /// Records the time that the request took. A failure counts only if it took longer than estimated, since a quick
    /// failure does not show that the location is fast.
    pub fn finish<T>(self, done: &Result<T>) {
        let took = self.started.elapsed();
        if done.is_ok() || took > self.speed().estimate(self.work) {
            self.speed().learn(self.work, took);
        }
    }

    fn speed(&self) -> &Speed {
        &self.loads.at(self.location).speed
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.loads
            .at(self.location)
            .tokens
            .fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::backend::RemoteBackend;
    use kivu_base::Error;

    const LOCAL: Location = Location::Local(Engine::Onnx);

    /// A fleet that takes requests, with a timeout of a minute.
    #[derive(Debug)]
    struct Available;

    #[async_trait]
    impl RemoteSource for Available {
        fn is_available(&self) -> bool {
            true
        }

        fn deadline(&self, request: Deadline) -> Deadline {
            request.or_earlier(Deadline::within(Duration::from_secs(60)))
        }

        async fn connect(&self, _: Deadline) -> Result<Arc<dyn RemoteBackend>> {
            Err(Error::unavailable("no model is there"))
        }

        fn disconnect(&self) {}
    }

    fn route() -> Route<()> {
        let fleet = Some(Arc::new(Available) as Arc<dyn RemoteSource>);
        Route::new(Some(()), fleet, Signature::default(), Assumed::ENCODER)
    }

    #[tokio::test]
    async fn forgotten_measurements_choose_no_location() {
        let route = route();
        let slow = Duration::from_secs(60);
        let request = route.begin(Location::Remote, 5_000);
        request.speed().learn(request.work, slow);
        drop(request);
        assert_eq!(route.choose(5_000), LOCAL);
        route.forget();
        assert_eq!(route.choose(5_000), Location::Remote);
    }

    #[tokio::test]
    async fn small_requests_run_locally_and_large_ones_on_the_fleet() {
        let route = route();
        assert_eq!(route.choose(20), LOCAL);
        assert_eq!(route.choose(5_000), Location::Remote);
        let busy = route.begin(LOCAL, 50_000);
        assert_eq!(route.choose(20), Location::Remote, "there is a local queue");
        drop(busy);
        assert_eq!(route.choose(20), LOCAL);
    }

    #[tokio::test]
    async fn measured_speed_decides() {
        let route = route();
        for tokens in [100, 1_000, 5_000] {
            (0..20).for_each(|_| {
                route
                    .loads
                    .remote
                    .speed
                    .learn(tokens, Duration::from_secs(2));
                route
                    .loads
                    .local
                    .speed
                    .learn(tokens, Duration::from_micros(10) * tokens as u32);
            });
        }
        assert_eq!(route.choose(5_000), LOCAL, "the fleet was slow");
    }

    /// How long requests take at a location: milliseconds, and microseconds per token.
    type Pace = (u64, u64);

    struct Case {
        what: &'static str,
        local: Pace,
        remote: Pace,
        small: Location,
        large: Location,
    }

    #[tokio::test]
    async fn requests_settle_where_they_finish_sooner() {
        let case = |what, [local, remote]: [Pace; 2], [small, large]: [Location; 2]| Case {
            what,
            local,
            remote,
            small,
            large,
        };
        use Location::Remote;
        for Case {
            what,
            local,
            remote,
            small,
            large,
        } in [
            case("a much faster fleet", [(30, 40), (1, 1)], [Remote, Remote]),
            case("a much slower fleet", [(1, 1), (60, 40)], [LOCAL, LOCAL]),
            case(
                "a distant but powerful fleet",
                [(1, 30), (15, 1)],
                [LOCAL, Remote],
            ),
        ] {
            let route = route();
            let run = |tokens: u64| {
                let location = route.choose(tokens as usize);
                let (base, slope) = if location == LOCAL { local } else { remote };
                let request = route.begin(location, tokens as usize);
                let took = Duration::from_millis(base) + Duration::from_micros(slope * tokens);
                request.speed().learn(request.work, took);
            };
            for _ in 0..14 {
                run(20);
                run(2000);
            }
            assert_eq!(
                [20, 2000].map(|tokens| route.choose(tokens)),
                [small, large],
                "{what}"
            );
        }
    }

    #[tokio::test]
    async fn time_is_reserved_for_a_local_run() {
        let request = Deadline::within(Duration::from_secs(4));
        let before = request.remaining();
        let left = route().remote_deadline(10_000, request).remaining();
        let [one, two] = [1, 2].map(Duration::from_secs);
        let expected = request.remaining().saturating_sub(two)..before.saturating_sub(one);
        assert!(expected.contains(&left), "{left:?}");
    }
}
