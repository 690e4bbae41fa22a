//! Where a request runs: in this process, on a fleet, or wherever it is done sooner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Backend, Deadline, Signature, seq2seq::Seq2SeqBackend, speed::Speed, triton::Fleet};
use crate::{config::Policy, error::Error};

/// Where something ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In this process.
    #[default]
    Here,
    /// On a fleet.
    Fleet,
}

/// The places that a model can run at, and what is known of their speed.
///
/// Models of the same weights share a route, and with it what was learnt. `H` is what runs a model here.
#[derive(Clone, Debug)]
pub struct Route<H = Arc<dyn Backend>> {
    here: Option<H>,
    fleet: Option<Arc<Fleet>>,
    /// That of the bundle's graph, also where it does not run here; empty where there are several graphs.
    signature: Signature,
    loads: Arc<Loads>,
}

#[derive(Debug)]
struct Loads {
    here: Load,
    fleet: Load,
    /// Requests for which the choice was close.
    close: AtomicUsize,
}

/// What a place is doing and how fast it is.
#[derive(Debug)]
struct Load {
    /// Tokens of the requests under way.
    tokens: AtomicUsize,
    speed: Speed,
}

impl Load {
    fn assumed(base: Duration, slope: Duration) -> Self {
        Self { tokens: AtomicUsize::new(0), speed: Speed::assumed(base, slope) }
    }

    /// How long a request of `tokens` will take behind those that are under way.
    fn estimate(&self, tokens: usize) -> Duration {
        self.speed.estimate(self.tokens.load(Ordering::Relaxed).saturating_add(tokens))
    }
}

/// What is taken for true until something is measured: the time of a request and that of each token, here and on
/// the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Assumed {
    here: (Duration, Duration),
    fleet: (Duration, Duration),
}

impl Assumed {
    /// Of a small encoder on one CPU, and one on a GPU behind a network: work of some hundred tokens is worth the
    /// way.
    const READING: Self = Self {
        here: (Duration::from_millis(1), Duration::from_micros(50)),
        fleet: (Duration::from_millis(10), Duration::from_micros(5)),
    };
    /// Of models that write a token for about each that they read, step by step: work of some ten tokens is worth
    /// the way.
    const WRITING: Self = Self {
        here: (Duration::from_millis(5), Duration::from_millis(5)),
        fleet: (Duration::from_millis(50), Duration::from_micros(500)),
    };
}

/// What is kept of a request's time for running it here, if the fleet does not answer: so many times what that
/// is expected to take, and never less than half of what is left.
const RESERVE: u32 = 3;
/// A choice is close where the other place is expected to take no more than so many times as long; of such
/// choices one in so many is made the other way.
const CLOSE: u32 = 4;
const TRIED: usize = 10;

impl From<Arc<dyn Backend>> for Route {
    fn from(here: Arc<dyn Backend>) -> Self {
        let signature = here.signature().clone();
        Self::new(Some(here), None, signature, Assumed::READING)
    }
}

impl Route {
    /// To a fleet only; the signature is that of the graph that the fleet's model was made of.
    pub fn fleet(fleet: Arc<Fleet>, signature: Signature) -> Self {
        Self::new(None, Some(fleet), signature, Assumed::READING)
    }

    /// To both, whichever is done sooner.
    pub fn auto(here: Arc<dyn Backend>, fleet: Arc<Fleet>) -> Self {
        let signature = here.signature().clone();
        Self::new(Some(here), Some(fleet), signature, Assumed::READING)
    }
}

impl From<Arc<dyn Seq2SeqBackend>> for Route<Arc<dyn Seq2SeqBackend>> {
    fn from(here: Arc<dyn Seq2SeqBackend>) -> Self {
        Self::writing(Some(here), None)
    }
}

impl Route<Arc<dyn Seq2SeqBackend>> {
    /// To the places where a model writes sequences, one at least.
    pub fn writing(here: Option<Arc<dyn Seq2SeqBackend>>, fleet: Option<Arc<Fleet>>) -> Self {
        Self::new(here, fleet, Signature::default(), Assumed::WRITING)
    }
}

impl<H> Route<H> {
    /// A route to the places that there are.
    fn new(here: Option<H>, fleet: Option<Arc<Fleet>>, signature: Signature, assumed: Assumed) -> Self {
        let load = |(base, slope)| Load::assumed(base, slope);
        let loads =
            Loads { here: load(assumed.here), fleet: load(assumed.fleet), close: AtomicUsize::default() };
        Self { here, fleet, signature, loads: Arc::new(loads) }
    }

    /// The inputs and outputs of the bundle's graph.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// What runs the model in this process.
    pub fn here(&self) -> Option<&H> {
        self.here.as_ref()
    }

    /// The fleet that runs the model.
    pub fn fleet_if_any(&self) -> Option<&Arc<Fleet>> {
        self.fleet.as_ref()
    }

    /// What decides where the model runs.
    pub fn policy(&self) -> Policy {
        match (&self.here, &self.fleet) {
            (_, None) => Policy::Local,
            (None, Some(_)) => Policy::Fleet,
            (Some(_), Some(_)) => Policy::Auto,
        }
    }

    /// Where a request of `tokens` should run first.
    pub fn choose(&self, tokens: usize) -> Place {
        match (&self.here, &self.fleet) {
            (_, None) => Place::Here,
            (None, Some(_)) => Place::Fleet,
            (Some(_), Some(fleet)) => {
                let place = if self.loads.is_to_be_tried(tokens) {
                    self.loads.sooner(tokens).other()
                } else {
                    self.loads.sooner(tokens)
                };
                if place == Place::Fleet && fleet.is_available() { Place::Fleet } else { Place::Here }
            }
        }
    }

    /// The moment by which a place has to be done with a request of `tokens`: the fleet sooner than the request,
    /// if the request can still run here then.
    pub fn deadline(&self, place: Place, tokens: usize, request: Deadline) -> Deadline {
        match (place, &self.here, &self.fleet) {
            (Place::Fleet, None, Some(fleet)) => fleet.deadline(request),
            (Place::Fleet, Some(_), Some(fleet)) => {
                let left = request.remaining();
                let reserve = (self.loads.here.estimate(tokens) * RESERVE).min(left / 2);
                fleet.deadline(request).or_earlier(Deadline::within(left - reserve))
            }
            _ => request,
        }
    }

    /// Whether a request that failed on the fleet should run here instead.
    pub fn falls_back(&self, error: &Error, request: Deadline) -> bool {
        let is_theirs = matches!(
            error,
            Error::Unavailable { .. }
                | Error::Inference { .. }
                | Error::DeadlineExceeded { .. }
                | Error::Model { .. }
        );
        self.here.is_some() && is_theirs && !request.has_passed()
    }

    /// Counts a request of `tokens` as under way at a place, until the value goes.
    pub fn begin(&self, place: Place, tokens: usize) -> UnderWay {
        let loads = Arc::clone(&self.loads);
        let before = loads.at(place).tokens.fetch_add(tokens, Ordering::Relaxed);
        UnderWay { loads, place, tokens, work: before.saturating_add(tokens), started: Instant::now() }
    }
}

impl Place {
    fn other(self) -> Self {
        match self {
            Self::Here => Self::Fleet,
            Self::Fleet => Self::Here,
        }
    }
}

impl Loads {
    /// Where a request of `tokens` is done sooner, as far as is known.
    fn sooner(&self, tokens: usize) -> Place {
        if self.fleet.estimate(tokens) < self.here.estimate(tokens) { Place::Fleet } else { Place::Here }
    }

    /// Whether a request should try the other place: one in so many of those that lose little by it, since a place
    /// that is never asked is never found to be faster than was assumed.
    fn is_to_be_tried(&self, tokens: usize) -> bool {
        let sooner = self.sooner(tokens);
        let loses_little =
            self.at(sooner.other()).estimate(tokens) <= self.at(sooner).estimate(tokens) * CLOSE;
        loses_little && self.close.fetch_add(1, Ordering::Relaxed) % TRIED == TRIED - 1
    }

    fn at(&self, place: Place) -> &Load {
        match place {
            Place::Here => &self.here,
            Place::Fleet => &self.fleet,
        }
    }
}

/// A request that runs somewhere.
#[derive(Debug)]
pub struct UnderWay {
    loads: Arc<Loads>,
    place: Place,
    tokens: usize,
    /// Its tokens and those that it found there.
    work: usize,
    started: Instant,
}

impl UnderWay {
    /// Remembers how long it took. What failed counts only where it took longer than expected: a place that
    /// fails slowly is slow, but one that fails fast is not fast.
    pub fn ended(self, has_succeeded: bool) {
        let (speed, took) = (&self.loads.at(self.place).speed, self.started.elapsed());
        if has_succeeded || took > speed.estimate(self.work) {
            speed.learn(self.work, took);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.loads.at(self.place).tokens.fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::scripted::ScriptedBackend, config::FleetConfig};

    fn route() -> Route {
        let here = ScriptedBackend::new(Signature::default(), |_| Ok(Vec::new()));
        let config = FleetConfig { urls: vec!["http://127.0.0.1:1".into()], ..FleetConfig::default() };
        Route::auto(Arc::new(here), Arc::new(Fleet::new(&config, "m").unwrap()))
    }

    #[tokio::test]
    async fn small_work_runs_here_and_large_work_on_the_fleet() {
        let route = route();
        assert_eq!(route.choose(20), Place::Here);
        assert_eq!(route.choose(5_000), Place::Fleet);
        let busy = route.begin(Place::Here, 50_000);
        assert_eq!(route.choose(20), Place::Fleet, "there is a queue here");
        drop(busy);
        assert_eq!(route.choose(20), Place::Here);
    }

    #[tokio::test]
    async fn measured_speed_decides() {
        let route = route();
        for tokens in [100, 1_000, 5_000] {
            (0..20).for_each(|_| {
                route.loads.fleet.speed.learn(tokens, Duration::from_secs(2));
                route.loads.here.speed.learn(tokens, Duration::from_micros(10) * tokens as u32);
            });
        }
        assert_eq!(route.choose(5_000), Place::Here, "the fleet was slow");
    }

    /// How long requests of a place take: milliseconds, and microseconds a token.
    type Pace = (u64, u64);

    struct Case {
        what: &'static str,
        here: Pace,
        fleet: Pace,
        small: Place,
        large: Place,
    }

    #[tokio::test]
    async fn requests_go_where_they_turn_out_to_be_done_sooner() {
        let case = |what, [here, fleet]: [Pace; 2], [small, large]: [Place; 2]| Case {
            what,
            here,
            fleet,
            small,
            large,
        };
        use Place::{Fleet, Here};
        for Case { what, here, fleet, small, large } in [
            case("a fleet that is much faster", [(30, 40), (1, 1)], [Fleet, Fleet]),
            case("a fleet that is much slower", [(1, 1), (40, 20)], [Here, Here]),
            case("a fleet that is far but strong", [(1, 30), (15, 1)], [Here, Fleet]),
        ] {
            let route = route();
            let run = |tokens: u64| {
                let place = route.choose(tokens as usize);
                let (base, slope) = if place == Here { here } else { fleet };
                let under_way = route.begin(place, tokens as usize);
                std::thread::sleep(Duration::from_millis(base) + Duration::from_micros(slope * tokens));
                under_way.ended(true);
                place
            };
            for _ in 0..14 {
                run(20);
                run(2000);
            }
            assert_eq!([20, 2000].map(|tokens| route.loads.sooner(tokens)), [small, large], "{what}");
        }
    }

    #[tokio::test]
    async fn time_is_kept_for_running_here() {
        let route = route();
        let request = Deadline::within(Duration::from_secs(4));
        let left = route.deadline(Place::Fleet, 10_000, request).remaining();
        assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&left), "{left:?}");
        assert!(route.deadline(Place::Here, 10_000, request).remaining() > left);
        assert!(route.falls_back(&Error::unavailable("down"), request));
        assert!(!route.falls_back(&Error::invalid("a mistake"), request));
    }
}
