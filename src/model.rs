//! Models: bundles, opened as pipelines for their tasks.

mod catalog;
pub mod gauges;
mod listing;
mod load;
mod memory;
mod pipeline;
mod settings;

use std::{collections::BTreeMap, path::Path, sync::Arc, thread, time::Duration};

pub use self::{
    catalog::{Catalog, Entry, ModelLease, ModelState},
    pipeline::Pipeline,
    settings::{FleetSettings, ModelSettings},
};
use self::{
    listing::{Bundles, Listed, none_found},
    load::{Loaded, Placement, engine, load},
    memory::LongestText,
};
use crate::{
    backend::{Deadline, MappedFiles, native},
    config::{Config, FleetConfig, ModelConfig, Policy},
    error::{Error, Result},
    pipeline::Task,
    repository::Manifest,
};

/// Timeout for the fleet's model description at startup; if it expires, the first request fetches the description.
const FLEET_TIMEOUT: Duration = Duration::from_secs(1);

/// A model that serves requests, or runs in a program.
///
/// The methods that [`crate::task`] defines, such as [`embedder`](Self::embedder), check a task's parameters and return
/// a value that runs the model on texts any number of times, on any number of threads.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name in requests.
    pub name: String,
    /// The bundle's manifest, with aliases from the configuration.
    pub manifest: Manifest,
    /// SHA-256 of its manifest, in hexadecimal.
    pub digest: String,
    /// Matmul arithmetic on this processor; `None` if it runs only on a fleet.
    pub arithmetic: Option<String>,
    /// Configuration settings that its results depend on.
    pub settings: ModelSettings,
    /// Runs requests for its task.
    pub pipeline: Pipeline,
    /// Peak memory for a text with the maximum tokens, in bytes; `None` if unknown.
    pub max_input_memory: Option<u64>,
    /// Memory-mapped weight files; empty if the weights are in memory or on a fleet.
    pub files: Arc<MappedFiles>,
}

impl Model {
    /// Opens all models in configuration order. Models share the weights from equal files.
    pub fn open_all(config: &Config) -> Result<Vec<Self>> {
        native::use_instructions(config.instructions)?;
        let listed = Bundles::new(config).list(config, &mut Err)?;
        if listed.is_empty() {
            return Err(none_found());
        }
        let mut shared: Vec<(Placement, Loaded)> = Vec::new();
        let mut models: Vec<Self> = Vec::new();
        for one in &listed {
            let placement = placement(&one.config, config, &one.manifest, &one.name)?;
            let known = shared.iter().position(|(known, _)| *known == placement);
            let index = known.unwrap_or(shared.len());
            if known.is_none() {
                let loaded = load(&one.bundle, config, &placement)?;
                shared.push((placement, loaded));
            }
            let (placement, loaded) = &shared[index];
            models.push(Self::new(one, config, placement, loaded.clone())?);
        }
        memory::warn(models.iter().filter_map(Self::longest_text), config.memory_limit);
        Ok(models)
    }

    /// Opens one bundle: a local folder, or `s3://BUCKET/PREFIX`. Requests for other models are not in `config`'s way:
    /// its models and aliases are left out.
    ///
    /// To load a model by its name in the Hugging Face hub, use `load` in the crate `kivu-compiler`.
    ///
    /// # Errors
    /// There is no bundle, or more than one; or it is damaged, or for an engine that this machine lacks.
    ///
    /// # Examples
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use kivu::{Model, config::Config};
    ///
    /// let model = Model::open(Path::new("my-model"), &Config::default())?;
    /// println!("{} is for {}", model.name, model.manifest.task);
    /// # Ok::<(), kivu::Error>(())
    /// ```
    pub fn open(bundle: &Path, config: &Config) -> Result<Self> {
        let models = vec![bundle.to_owned().into()];
        let mut models = Self::open_all(&Config { models, aliases: BTreeMap::new(), ..config.clone() })?;
        match models.len() {
            1 => Ok(models.remove(0)),
            found => Err(Error::config(format!(
                "expected one bundle in `{}`, but found {found}; name one of them",
                bundle.display()
            ))),
        }
    }

    /// Error for a model that is used for another task.
    pub(crate) fn wrong_task(name: &str, found: Task, expected: Task) -> Error {
        Error::invalid(format!("expected a model for `{expected}`, but `{name}` is for `{found}`"))
    }

    /// Opens one model of a list.
    fn open_listed(listed: &Listed, config: &Config) -> Result<Self> {
        let placement = placement(&listed.config, config, &listed.manifest, &listed.name)?;
        let loaded = load(&listed.bundle, config, &placement)?;
        Self::new(listed, config, &placement, loaded)
    }

    fn new(listed: &Listed, config: &Config, placement: &Placement, loaded: Loaded) -> Result<Self> {
        let Listed { name, manifest, bundle, .. } = listed;
        let (arithmetic, files) = (loaded.arithmetic.clone(), Arc::clone(&loaded.files));
        let backend = loaded.route.local_encoder().cloned();
        let pipeline = Pipeline::new(manifest, loaded, config.limits.tokens)?;
        check_fleet(name, &pipeline)?;
        let settings = ModelSettings::new(config, placement, engine(config, manifest), pipeline.max_tokens());
        let max_input_memory = backend.and_then(|backend| backend.text_bytes(pipeline.max_tokens()));
        Ok(Self {
            name: name.clone(),
            manifest: manifest.clone(),
            digest: bundle.digest().to_owned(),
            arithmetic,
            settings,
            pipeline,
            max_input_memory,
            files,
        })
    }

    fn longest_text(&self) -> Option<LongestText<'_>> {
        let (model, tokens) = (&self.name, self.pipeline.max_tokens());
        self.max_input_memory.map(|bytes| LongestText { model, tokens, bytes })
    }
}

/// Where the model `name` runs.
fn placement(model: &ModelConfig, config: &Config, manifest: &Manifest, name: &str) -> Result<Placement> {
    let policy = model.policy(&config.fleet);
    let files = manifest.files.clone();
    let local =
        Placement { files, policy: Policy::Local, fleet: FleetConfig::default(), remote_name: String::new() };
    // Only Kivu reads shortlists, and models that have one are small.
    if manifest.seq2seq.as_ref().is_some_and(|settings| settings.shortlist.is_some()) {
        if policy == Policy::Fleet {
            return Err(Error::config(format!(
                "expected the policy `local` or `auto` for `{name}`, since models with a shortlist do not run on a \
                 fleet, but found `fleet`"
            )));
        }
        return Ok(local);
    }
    if policy == Policy::Local {
        if model.policy.is_some_and(|policy| policy != Policy::Local) {
            return Err(Error::config(format!(
                "expected servers for `{name}`, whose policy needs a fleet, but found none; set `fleet.urls`"
            )));
        }
        return Ok(local);
    }
    let remote_name = model.remote.clone().unwrap_or_else(|| name.to_owned());
    Ok(Placement { policy, fleet: model.fleet(&config.fleet), remote_name, ..local })
}

/// Refuses a model on the fleet that does not fit the bundle. A fleet that does not respond is not an error.
fn check_fleet(name: &str, pipeline: &Pipeline) -> Result<()> {
    if !pipeline.has_fleet() {
        return Ok(());
    }
    // On another thread, since the caller may or may not be in a runtime.
    let check = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("cannot start a runtime"))?;
        runtime.block_on(pipeline.check_fleet(Deadline::within(FLEET_TIMEOUT)))
    };
    let checked = thread::scope(|scope| scope.spawn(check).join());
    let checked = checked.unwrap_or_else(|_| Err(Error::model("the check panicked")));
    checked.map_err(|error| Error::model_because(format!("`{name}` cannot run on the fleet"), error))
}
