//! Runs a request's work locally or on a fleet. The rules are the same for all tasks:
//!
//! - The [route](Route) chooses the location by the request's token count.
//! - Work that the fleet's model is known not to support runs locally if the model is local.
//! - The fleet's deadline leaves time for a local run.
//! - Work that fails on the fleet runs locally if the model is local and there is time left.

use std::{
    fmt,
    future::Future,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    backend::{
        Deadline, RemoteBackend,
        routing::{Location, Route},
    },
    observer::{record_fallback, timed_run, timed_tokenization},
};
use kivu_base::{Error, Result, locked};

/// A request's work, for a local model `L` or the fleet's model `R`.
#[async_trait]
pub trait Work<L, R>: Sync {
    /// The result of a run.
    type Output: Send;

    /// Token count of all inputs, by which the route chooses the location.
    fn tokens(&self) -> usize;

    /// Refuses work that the fleet's model cannot do.
    fn check_remote(&self, remote: &R) -> Result<()>;

    /// Runs the work on the local model.
    async fn run_locally(&self, local: &L, deadline: Deadline) -> Result<Self::Output>;

    /// Runs work that [`check_remote`](Self::check_remote) has accepted.
    async fn run_remotely(&self, remote: &R, deadline: Deadline) -> Result<Self::Output>;
}

/// A model on a fleet, ready to be run.
pub trait RemoteModel: Clone + Send + Sync {
    /// The task's requirements for the model.
    type Spec: Clone + fmt::Debug + Send + Sync;

    /// Opens the model as its servers describe it. Fails for a different kind of model; the error names the expected
    /// and the found one.
    fn open(described: &dyn RemoteBackend, spec: &Self::Spec) -> Result<Self>;
}

/// A model at all locations where it runs.
#[derive(Clone, Debug)]
pub struct Executor<L, R: RemoteModel> {
    route: Arc<Route<L>>,
    spec: R::Spec,
    /// The fleet's model, as its servers last described it.
    remote: Arc<Mutex<Option<Opened<R>>>>,
}

/// A fleet's model, opened as its servers described it.
#[derive(Debug)]
struct Opened<R> {
    described: Arc<dyn RemoteBackend>,
    model: R,
}

impl<L: Sync, R: RemoteModel> Executor<L, R> {
    /// An executor for `route`; the fleet's model must meet `spec`, which is checked once its description is known.
    pub fn new(route: Route<L>, spec: R::Spec) -> Self {
        Self {
            route: Arc::new(route),
            spec,
            remote: Arc::default(),
        }
    }

    /// The local model, if there is one.
    pub fn local(&self) -> Option<&L> {
        self.route.local()
    }

    /// Whether work may run on a fleet.
    pub fn has_fleet(&self) -> bool {
        self.route.fleet().is_some()
    }

    /// Forgets measured speeds, and closes the connections to the fleet.
    pub fn forget(&self) {
        self.route.forget();
    }

    /// No model: without connections, there are no fleets.
    #[cfg(target_family = "wasm")]
    pub async fn remote(&self, _: Deadline) -> Result<R> {
        Err(not_loaded())
    }

    /// The fleet's model, opened again whenever its description changes.
    #[cfg(not(target_family = "wasm"))]
    pub async fn remote(&self, deadline: Deadline) -> Result<R> {
        let fleet = self.route.fleet().ok_or_else(not_loaded)?;
        let described = fleet.connect(deadline).await?;
        let mut known = locked(&self.remote);
        if let Some(opened) = known.as_ref()
            && opened.described.interface() == described.interface()
        {
            return Ok(opened.model.clone());
        }
        let model = R::open(&*described, &self.spec)?;
        *known = Some(Opened {
            described,
            model: model.clone(),
        });
        Ok(model)
    }

    /// Fails if the fleet's model is of a different kind. An unreachable fleet is not an error. No connection is
    /// kept, since this may run on a different Tokio runtime.
    pub async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        let Some(fleet) = self.route.fleet() else {
            return Ok(());
        };
        let opened = self.remote(deadline).await;
        fleet.disconnect();
        match opened {
            Ok(_) => Ok(()),
            Err(error @ Error::Model { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(error = error.chain(), "the fleet does not respond yet");
                Ok(())
            }
        }
    }

    /// Runs `work`, and returns its output with the location where it ran.
    pub async fn run<W: Work<L, R>>(
        &self,
        work: &W,
        deadline: Deadline,
    ) -> Result<(W::Output, Location)> {
        timed_run(self.run_somewhere(work, deadline)).await
    }

    async fn run_somewhere<W: Work<L, R>>(
        &self,
        work: &W,
        deadline: Deadline,
    ) -> Result<(W::Output, Location)> {
        let (tokens, local) = (work.tokens(), self.local());
        #[cfg(not(target_family = "wasm"))]
        if self.route.choose(tokens) == Location::Remote
            && !(local.is_some() && self.is_known_unfit(work))
        {
            let request = self.route.begin(Location::Remote, tokens);
            let done = self
                .run_remotely(work, self.route.remote_deadline(tokens, deadline))
                .await;
            request.finish(&done);
            match done {
                Err(error) if local.is_some() && !deadline.has_passed() => {
                    record_fallback();
                    tracing::warn!(
                        error = error.chain(),
                        "the fleet failed; the request runs locally"
                    );
                }
                done => return done.map(|output| (output, Location::Remote)),
            }
        }
        let request = self.route.begin(self.route.here(), tokens);
        let done = work
            .run_locally(local.ok_or_else(not_loaded)?, deadline)
            .await;
        request.finish(&done);
        done.map(|output| (output, self.route.here()))
    }

    async fn run_remotely<W: Work<L, R>>(&self, work: &W, deadline: Deadline) -> Result<W::Output> {
        let remote = self.remote(deadline).await?;
        work.check_remote(&remote)?;
        work.run_remotely(&remote, deadline).await
    }

    fn is_known_unfit<W: Work<L, R>>(&self, work: &W) -> bool {
        let known = locked(&self.remote);
        known
            .as_ref()
            .is_some_and(|opened| work.check_remote(&opened.model).is_err())
    }
}

fn not_loaded() -> Error {
    Error::model("no model is loaded")
}

/// Runs a request's batches and returns the results in input order, which their indexes determine.
///
/// At most two per parallel run of the backend are in progress: the backend never waits for a request's next batch, and
/// requests take turns.
pub async fn run_batches<T: Send>(
    batches: Vec<impl Future<Output = Result<Vec<(usize, T)>>> + Send>,
    concurrency: NonZeroUsize,
    deadline: Deadline,
) -> Result<Vec<T>> {
    let max = deadline.share(2 * concurrency.get());
    let done = stream::iter(batches).buffer_unordered(max).try_concat();
    let mut done: Vec<(usize, T)> = done.await?;
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// Runs a tokenization; texts above a few kB are tokenized outside the threads that serve connections.
pub async fn tokenize<T: Send + 'static>(
    bytes: usize,
    deadline: Deadline,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    timed_tokenization(deadline.run_sized(bytes, work)).await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        time::Duration,
    };

    use super::*;

    /// Peak batches in progress while two parts of a request run.
    async fn in_progress(deadline: Deadline) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let batch = async |index| {
            most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, SeqCst);
            Ok(vec![(index, ())])
        };
        let part = || run_batches((0..8).map(batch).collect(), NonZeroUsize::MIN, deadline);
        let (one, other) = futures::join!(part(), part());
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (8, 8));
        most.into_inner()
    }

    #[tokio::test]
    async fn the_parts_of_a_request_share_its_turns() {
        let deadline = Deadline::within(Duration::from_secs(60));
        assert_eq!(in_progress(deadline).await, 4, "two requests");
        let part = deadline.shared_by(2).or_earlier(deadline);
        assert_eq!(in_progress(part).await, 2, "one request");
        assert_eq!(in_progress(part.shared_by(9)).await, 2, "one batch of each");
    }
}
