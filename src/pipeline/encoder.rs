//! The step that every task on an encoder shares: encodings to the model's outputs, one row a text, wherever the
//! model runs.

use std::{
    cmp::Reverse,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{StreamExt, TryStreamExt, stream};

pub use super::adapter::{OutputSpec, Row, Source, reads_types};
use super::{
    Encodings,
    adapter::{Adapter, Names},
};
use crate::{
    backend::{
        Backend, Deadline, Schedule,
        routing::{Location, Route},
        triton::{Fleet, TritonBackend},
    },
    error::{Error, Result},
};

/// A model that reads encodings, at the places where it runs.
#[derive(Clone, Debug)]
pub struct Encoder {
    route: Route,
    wanted: Arc<OutputSpec>,
    here: Option<Adapter>,
    /// Of the model as the fleet described it last.
    there: Arc<Mutex<Option<(TritonBackend, Adapter)>>>,
}

/// What a request needs of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Whatever it gives for a text.
    Texts,
    /// A vector for each token.
    Tokens,
}

impl Encoder {
    /// Takes what is wanted from a model whose inputs are those of an encoder.
    ///
    /// A signature of another kind is refused here, when the model loads, with both sides named; that of a fleet
    /// when it is first known.
    pub fn new(route: Route, wanted: OutputSpec) -> Result<Self> {
        let wanted = Arc::new(wanted);
        let here = route
            .local()
            .map(|backend| Adapter::new(Arc::clone(backend), Arc::clone(&wanted), Names::Bundle));
        Ok(Self { here: here.transpose()?, route, wanted, there: Arc::default() })
    }

    /// Whether the model may read texts instead of their tokens.
    pub fn may_read_text(&self) -> bool {
        self.route.fleet().is_some()
    }

    /// Refuses a request for tokens that the model has no vectors for.
    pub async fn require_tokens(&self, output: &str, deadline: Deadline) -> Result<()> {
        let gives_tokens = match &self.here {
            Some(adapter) => adapter.gives_tokens(),
            None => self.adapter(Location::Remote, deadline).await?.gives_tokens(),
        };
        if gives_tokens {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "expected a model with a vector for each token, but its output `{output}` has one for each text"
        )))
    }

    /// The most tokens of a text: what the task allows, or what a fleet that is the only place takes.
    pub async fn most_tokens(&self, most: usize, deadline: Deadline) -> Result<usize> {
        if self.here.is_some() {
            return Ok(most);
        }
        let there = self.adapter(Location::Remote, deadline).await?;
        Ok(there.length().map_or(most, |length| length.min(most)))
    }

    /// Asks the fleet for its description, and refuses one of another kind; a fleet that does not answer is no
    /// error. No connection is kept: this may run before the runtime that requests run on.
    pub async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        let Some(fleet) = self.route.fleet() else { return Ok(()) };
        fleet.check_at_start(self.fleet_adapter(fleet, deadline).await)
    }

    /// Runs all encodings and gives what `finish` makes of each one's row, in the same order, and where it ran.
    ///
    /// What fails on the fleet runs here, if the model is here.
    pub(super) async fn run<T: Send>(
        &self,
        encodings: &Encodings,
        need: Granularity,
        deadline: Deadline,
        finish: impl Fn(Row<'_>) -> T + Send + Sync,
    ) -> Result<(Vec<T>, Location)> {
        let tokens = encodings.tokens();
        if self.route.choose(tokens) == Location::Remote && !self.is_known_to_be_unfit(encodings, need) {
            let until = self.route.remote_deadline(tokens, deadline);
            match self.run_at(Location::Remote, encodings, need, until, &finish).await {
                Ok(rows) => return Ok((rows, Location::Remote)),
                Err(error) if self.here.is_some() && !deadline.has_passed() => {
                    tracing::warn!(error = error.chain(), "the fleet failed; the request runs here");
                }
                Err(error) => return Err(error),
            }
        }
        Ok((self.run_at(Location::Local, encodings, need, deadline, &finish).await?, Location::Local))
    }

    /// Whether the model runs here, and cannot on the fleet as far as that is known.
    fn is_known_to_be_unfit(&self, encodings: &Encodings, need: Granularity) -> bool {
        let known = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        let adapter = known.as_ref().map(|(_, adapter)| adapter);
        self.here.is_some()
            && adapter.is_some_and(|adapter| {
                self.check(adapter, Location::Remote, &encodings.sources(), need).is_err()
            })
    }

    /// How the model is spoken to at a place.
    async fn adapter(&self, place: Location, deadline: Deadline) -> Result<Adapter> {
        let missing = || Error::model("expected a model to run, but there is none");
        match (place, self.route.fleet()) {
            (Location::Local, _) => self.here.clone().ok_or_else(missing),
            (Location::Remote, Some(fleet)) => self.fleet_adapter(fleet, deadline).await,
            (Location::Remote, None) => Err(missing()),
        }
    }

    async fn fleet_adapter(&self, fleet: &Fleet, deadline: Deadline) -> Result<Adapter> {
        let described = fleet.connect(deadline).await?;
        let mut known = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((backend, adapter)) = known.as_ref()
            && (backend.signature(), backend.schedule()) == (described.signature(), described.schedule())
        {
            return Ok(adapter.clone());
        }
        let all = Adapter::new(Arc::new(described.clone()), Arc::clone(&self.wanted), Names::Fleet)?;
        // Outputs that nobody reads are not sent.
        let narrowed = described.with_outputs(&all.outputs());
        let adapter = Adapter::new(Arc::new(narrowed), Arc::clone(&self.wanted), Names::Fleet)?;
        *known = Some((described, adapter.clone()));
        Ok(adapter)
    }

    /// Runs all encodings at one place.
    ///
    /// Each row is finished as soon as it is there, so that the outputs of a large request, which are
    /// hundreds of times its answer, never stand in memory together. Batches are made of neighbours in length,
    /// longest first, so that little is padded and no long text is left for the end; only twice as many calls are
    /// under way as the backend runs at once.
    async fn run_at<T: Send>(
        &self,
        place: Location,
        encodings: &Encodings,
        need: Granularity,
        deadline: Deadline,
        finish: &(impl Fn(Row<'_>) -> T + Send + Sync),
    ) -> Result<Vec<T>> {
        let under_way = self.route.begin(place, encodings.tokens());
        let adapter = &self.adapter(place, deadline).await?;
        let sources = &encodings.sources();
        self.check(adapter, place, sources, need)?;
        let schedule = adapter.schedule();
        let mut order: Vec<usize> = (0..sources.len()).collect();
        order.sort_by_key(|text| Reverse(sources[*text].encoding.len()));
        let calls = calls(&order, schedule, |text| sources[text].encoding.len());
        let calls = calls.into_iter().map(|places| async move {
            let texts =
                |batch: &&[usize]| batch.iter().map(|text| sources[*text]).collect::<Vec<Source<'_>>>();
            let batches: Vec<Vec<Source<'_>>> = places.iter().map(texts).collect();
            let outputs = adapter.infer(&batches, deadline).await?;
            let mut done = Vec::new();
            for ((places, batch), output) in places.iter().zip(&batches).zip(&outputs) {
                let rows = adapter.rows(output, batch.iter().map(|source| source.encoding.len()))?;
                done.extend(places.iter().copied().zip(rows.into_iter().map(finish)));
            }
            Ok::<Vec<(usize, T)>, Error>(done)
        });
        // One more a lane than it runs, so that it finds the next call waiting when it is done with one.
        let most_under_way = 2 * schedule.concurrency.get();
        // Collected first: a borrowed iterator inside the stream would not be `Send` to the executor.
        let calls: Vec<_> = calls.collect();
        let done: Result<Vec<Vec<(usize, T)>>> =
            stream::iter(calls).buffer_unordered(most_under_way).try_collect().await;
        under_way.finish(done.is_ok());
        let mut finished: Vec<(usize, T)> = done?.into_iter().flatten().collect();
        finished.sort_by_key(|(text, _)| *text);
        Ok(finished.into_iter().map(|(_, row)| row).collect())
    }

    /// Refuses what the model at a place cannot do. Where it can be done here it is no fault of the client's.
    fn check(
        &self,
        adapter: &Adapter,
        place: Location,
        sources: &[Source<'_>],
        need: Granularity,
    ) -> Result<()> {
        let lacks_tokens = (need == Granularity::Tokens && !adapter.gives_tokens()).then(|| {
            Error::invalid("expected a model with a vector for each token, but found one for each text")
        });
        let refusal = lacks_tokens.or_else(|| sources.iter().find_map(|source| adapter.refusal(*source)));
        match refusal {
            None => Ok(()),
            Some(error) if place == Location::Remote && self.here.is_some() => {
                Err(Error::unavailable(error.to_string()))
            }
            Some(error) => Err(error),
        }
    }
}

/// Cuts texts into batches, and batches into calls: as few as keep every lane busy, of as many tokens as a call should
/// have.
fn calls(order: &[usize], schedule: Schedule, tokens: impl Fn(usize) -> usize) -> Vec<Vec<&[usize]>> {
    let all: usize = order.iter().map(|text| tokens(*text)).sum();
    let enough = schedule.min_call_tokens.min(all / (2 * schedule.concurrency.get()));
    let (mut calls, mut found) = (Vec::new(), usize::MAX);
    for batch in order.chunks(schedule.max_batch_size.get()) {
        if found >= enough {
            calls.push(Vec::new());
            found = 0;
        }
        found += batch.iter().map(|text| tokens(*text)).sum::<usize>();
        calls.last_mut().into_iter().for_each(|call| call.push(batch));
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_share_calls_and_long_ones_have_their_own() {
        let told = |lengths: &[usize], tokens| {
            let [one, two] = [1, 2].map(|number| number.try_into().unwrap());
            let schedule = Schedule { max_batch_size: one, concurrency: two, min_call_tokens: tokens };
            let order: Vec<usize> = (0..lengths.len()).collect();
            let calls = calls(&order, schedule, |text| lengths[text]);
            calls.iter().map(|call| call.concat()).collect::<Vec<_>>()
        };
        // A text and ten labels, two at a time.
        assert_eq!(told(&[8; 11], 32), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9, 10]]);
        assert_eq!(told(&[8; 3], 32), [[0], [1], [2]]);
        assert_eq!(told(&[200, 90, 20, 20], 32), [vec![0], vec![1], vec![2, 3]]);
        assert_eq!(told(&[8; 5], 0), [[0], [1], [2], [3], [4]]);
        assert!(told(&[], 32).is_empty());
    }
}
