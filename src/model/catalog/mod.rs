//! The models that a server knows: all of them are loaded at start, or each by its first request.
//!
//! On demand, loaded models share a memory budget. The least recently used ones leave when another one needs their
//! memory; requests keep the models that they use. All requests that wait for a model share one load.

mod budget;
mod entry;
mod loads;
mod refresh;
mod shared;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use self::entry::{Entry, ModelLease, ModelState};
use self::{loads::Loads, refresh::Refresh, shared::Shared};
use super::Model;
use crate::cloud::Cloud;
use kivu_base::{
    Error, Result,
    config::{Config, Load},
};
use kivu_core::backend::{Deadline, MappedFiles, native};

/// A server's models.
#[derive(Debug)]
pub struct Catalog {
    shared: Arc<Shared>,
    /// `None` if all models stay loaded.
    demand: Option<Demand>,
}

/// The threads that load models on demand.
#[derive(Debug)]
struct Demand {
    loads: Loads,
    refresh: Refresh,
}

impl Catalog {
    /// Reads the configured models, and loads them unless they are loaded on demand.
    pub fn open(config: &Config, cloud: &Cloud) -> Result<Self> {
        config.check_load()?;
        match config.load {
            Load::Start => Model::open_all(config, cloud).map(Self::of_models),
            Load::OnDemand => Self::on_demand(config, cloud),
        }
    }

    /// Models that stay loaded.
    pub fn of_models(models: Vec<Model>) -> Self {
        let entries = models
            .into_iter()
            .map(|model| Arc::new(Entry::of_model(model)));
        Self {
            shared: Arc::new(Shared::new(entries.collect())),
            demand: None,
        }
    }

    fn on_demand(config: &Config, cloud: &Cloud) -> Result<Self> {
        native::use_instructions(config.instructions)?;
        let shared = Arc::new(Shared::new(Arc::new([])));
        let refresh = Refresh::start(config, cloud, Arc::clone(&shared))?;
        let loads = Loads::start(config, Arc::clone(&shared))?;
        Ok(Self {
            shared,
            demand: Some(Demand { loads, refresh }),
        })
    }

    /// All models, in configuration order.
    pub fn entries(&self) -> Arc<[Arc<Entry>]> {
        self.shared.entries()
    }

    /// Whether models are loaded by their first request.
    pub fn is_on_demand(&self) -> bool {
        self.demand.is_some()
    }

    /// Bytes that loaded models may take, and those that they take; `None` without a budget.
    pub fn budget(&self) -> Option<(u64, u64)> {
        self.demand
            .as_ref()
            .map(|demand| (demand.loads.budget.max(), demand.loads.budget.used()))
    }

    /// Uses a model, which is loaded first if necessary; `None` if it was removed.
    pub async fn lease(
        &self,
        entry: &Arc<Entry>,
        deadline: Deadline,
    ) -> Result<Option<ModelLease>> {
        let budget = self.demand.as_ref().map(|demand| &demand.loads.budget);
        if let Some(demand) = &self.demand {
            demand.refresh.request_if_due();
        }
        if let Some(lease) = entry.lease(budget) {
            return Ok(Some(lease));
        }
        let loaded = tokio::time::timeout(deadline.remaining(), self.load(entry)).await;
        loaded.unwrap_or_else(|_| {
            Err(Error::unavailable(format!(
                "`{}` was not loaded within the request's time",
                entry.name
            ))
            .with_hint("try again in a moment"))
        })
    }

    /// Takes a model out of memory once no request uses it; `false` if it is not loaded, or always loaded.
    pub fn unload(&self, entry: &Entry) -> bool {
        self.is_on_demand() && entry.unload()
    }

    /// Sets how long a model stays loaded after its last use; `None` for as long as possible. Has no effect on models
    /// that are always loaded.
    pub fn keep(&self, name: &str, time: Option<Duration>) {
        let entries = self.entries();
        let entry = entries
            .iter()
            .find(|entry| entry.name == name)
            .filter(|_| self.is_on_demand());
        entry.into_iter().for_each(|entry| entry.keep_for(time));
    }

    /// Reads the models again, unless that was done a moment ago, and waits for it until the deadline.
    pub async fn refresh(&self, deadline: Deadline) {
        if let Some(demand) = &self.demand {
            let _ = tokio::time::timeout(deadline.remaining(), demand.refresh.run()).await;
        }
    }

    /// Serves the bundle at `path`, too, from the next [`Catalog::refresh`] on.
    pub fn add(&self, path: PathBuf) {
        if let Some(demand) = &self.demand {
            demand.refresh.add(path);
        }
    }

    /// Whether a model is in this folder.
    pub fn has_bundle(&self, folder: &Path) -> bool {
        self.entries().iter().any(|entry| entry.is_in(folder))
    }

    /// Does what is due: reads the models again, and lets models leave whose time is over or whose files were written
    /// to. Servers call it regularly. In functions, whose threads sleep between requests, requests ask for the list.
    pub fn tend(&self) {
        let Some(demand) = &self.demand else { return };
        demand.refresh.request_if_due();
        for entry in self.entries().iter().filter(|entry| entry.must_leave()) {
            entry.unload();
        }
    }

    /// Mapped files of the models that stay loaded.
    pub fn mapped_files(&self) -> Vec<Arc<dyn MappedFiles>> {
        if self.is_on_demand() {
            return Vec::new();
        }
        let files = |entry: &Arc<Entry>| entry.with_model(|model| model.files.clone()).flatten();
        self.entries().iter().filter_map(files).collect()
    }

    async fn load(&self, entry: &Arc<Entry>) -> Result<Option<ModelLease>> {
        let Some(demand) = &self.demand else {
            return Ok(entry.lease(None));
        };
        /// Times in a row that a replaced bundle is listed as before. It may have been replaced twice meanwhile.
        const MAX_UNCHANGED: usize = 8;
        let (mut entry, mut unchanged) = (Arc::clone(entry), 0);
        loop {
            let awaited = Arc::clone(&entry);
            let changed = awaited.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(lease) = entry.lease(Some(&demand.loads.budget)) {
                return Ok(Some(lease));
            }
            match demand.loads.request(&entry) {
                Ok(true) => changed.await,
                Ok(false) => {
                    demand.refresh.run_now().await;
                    unchanged += 1;
                }
                Err(error) => {
                    // It may have been replaced or removed.
                    demand.refresh.request_soon();
                    return Err(error);
                }
            }
            // The bundle may have been replaced or removed.
            match self.entries().iter().find(|now| now.name == entry.name) {
                Some(now) if Arc::ptr_eq(now, &entry) => {
                    if unchanged <= MAX_UNCHANGED {
                        continue;
                    }
                    return Err(Error::unavailable(format!(
                        "`{}` was replaced, and its new bundle cannot be read",
                        entry.name
                    ))
                    .with_hint("the server's log has the cause"));
                }
                Some(now) => (entry, unchanged) = (Arc::clone(now), 0),
                None => return Ok(None),
            }
        }
    }
}
