//! Snapshots of an initialized function, from which Lambda restores its environments (SnapStart).
//!
//! A snapshot has the models, and nothing that environments must not share or that ages: all other things are made after a
//! restore, by the code that makes them at a start without a snapshot.

use std::sync::Arc;

use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use kivu::{backend::native, config::Limits, model::Catalog, repository::s3::Store};
use kivu_http::warm_up;
use lambda_http::{
    Error,
    lambda_runtime::{Runtime, SnapStartResource},
};

/// Whether Lambda takes a snapshot of this environment, instead of invoking it.
pub(crate) fn is_taken() -> bool {
    std::env::var("AWS_LAMBDA_INITIALIZATION_TYPE").is_ok_and(|kind| kind == "snap-start")
}

/// Logs an error at the start of a function or of its restore.
pub(crate) fn log(error: &kivu::Error) {
    tracing::error!(error = error.chain(), "cannot start");
}

/// A function that can be restored.
pub(crate) trait Restorable: Send + Sync {
    /// Loads the models for the snapshot.
    fn load(&self) -> kivu::Result<Arc<Catalog>>;

    /// Limits of a request.
    fn limits(&self) -> &Limits;

    /// Makes what the snapshot does not have.
    fn start(self: Arc<Self>) -> BoxFuture<'static, Result<(), Error>>;
}

/// Registers everything that a snapshot must not have or a restore renews, foundations first: the last one's hook runs first
/// before the snapshot, and last after a restore.
pub(crate) fn register<S>(
    runtime: Runtime<S>,
    store: Option<Arc<dyn Store>>,
    function: Arc<dyn Restorable>,
) -> Runtime<S> {
    runtime
        .register_snapstart_resource(Arc::new(Processor))
        .register_snapstart_resource(Arc::new(Connections(store)))
        .register_snapstart_resource(Arc::new(Models(Arc::clone(&function))))
        .register_snapstart_resource(Arc::new(Service(function)))
}

/// The instructions that the models use.
struct Processor;

impl SnapStartResource for Processor {
    fn after_restore(&self) -> BoxFuture<'_, Result<(), Error>> {
        async {
            if let Some(lost) = native::check_instructions() {
                let now = native::instructions();
                tracing::warn!(%lost, %now, "this processor lacks the snapshot's instructions");
            }
            Ok(())
        }
        .boxed()
    }
}

/// The connections and credentials that models were loaded with.
struct Connections(Option<Arc<dyn Store>>);

impl SnapStartResource for Connections {
    fn before_snapshot(&self) -> BoxFuture<'_, Result<(), Error>> {
        async {
            self.0.iter().for_each(|store| store.disconnect());
            Ok(())
        }
        .boxed()
    }
}

/// The models, loaded and warm.
struct Models(Arc<dyn Restorable>);

impl Models {
    async fn warm_up(&self) -> kivu::Result<()> {
        let function = Arc::clone(&self.0);
        let loaded = tokio::task::spawn_blocking(move || function.load()).await;
        let loaded = loaded.map_err(|_| kivu::Error::model("loading the models panicked"))?;
        warm_up(&loaded?, self.0.limits()).await
    }
}

impl SnapStartResource for Models {
    fn before_snapshot(&self) -> BoxFuture<'_, Result<(), Error>> {
        let reported = |error: kivu::Error| error.chain().into();
        self.warm_up().inspect_err(log).map_err(reported).boxed()
    }
}

/// Keys, quotas, exporters of traces and metrics, and clients of other services.
struct Service(Arc<dyn Restorable>);

impl SnapStartResource for Service {
    fn after_restore(&self) -> BoxFuture<'_, Result<(), Error>> {
        Arc::clone(&self.0).start()
    }
}
