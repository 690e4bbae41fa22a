//! Models: bundles, opened as pipelines for their tasks.

mod load;
mod memory;
mod pipeline;
mod settings;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use self::{
    load::{Loaded, Placement, engine, load},
    memory::LongestText,
};
pub use self::{
    pipeline::Pipeline,
    settings::{FleetSettings, ModelSettings},
};
use crate::{
    backend::{Deadline, MappedFiles, native},
    config::{Config, FleetConfig, ModelConfig, Policy},
    error::{Error, Result, quoted},
    repository::{
        Bundle, Manifest,
        bundle::MANIFEST,
        remote,
        s3::{Store, Url},
    },
};

/// Timeout for the fleet's model description at startup; if it expires, the first request fetches the description.
const FLEET_TIMEOUT: Duration = Duration::from_secs(1);

/// A model that serves requests.
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
        let store = Store::new(config.s3.timeout());
        let mut models: Vec<Self> = Vec::new();
        let mut shared: Vec<(Placement, Loaded)> = Vec::new();
        for model in &config.models {
            for bundle in bundles(model, &store)? {
                let mut manifest = bundle.manifest().clone();
                let name = model.name.clone().unwrap_or_else(|| manifest.name.clone());
                if models.iter().any(|known| known.name == name) {
                    return Err(Error::config(format!(
                        "expected a unique name for each model, but found `{name}` twice; \
                         set `name` in `kivu.toml`"
                    )));
                }
                // If two bundles come from one hub repository, the first has the repository's name.
                let repository = manifest.source.from.split('@').next().unwrap_or_default();
                if models.iter().any(|known| known.manifest.aliases.iter().any(|alias| alias == repository)) {
                    manifest.aliases.retain(|alias| alias != repository);
                }
                let of_config = config.aliases.iter().filter(|(_, model)| **model == name);
                manifest.aliases.extend(of_config.map(|(alias, _)| alias.clone()));
                let placement = placement(model, config, &manifest, &name)?;
                let known = shared.iter().position(|(known, _)| *known == placement);
                let index = known.unwrap_or(shared.len());
                if known.is_none() {
                    let loaded = load(&bundle, config, &placement)?;
                    shared.push((placement, loaded));
                }
                let (placement, loaded) = &shared[index];
                let (arithmetic, files) = (loaded.arithmetic.clone(), Arc::clone(&loaded.files));
                let backend = loaded.route.local_encoder().cloned();
                let pipeline = Pipeline::new(&manifest, loaded.clone(), config.limits.tokens)?;
                check_fleet(&name, &pipeline)?;
                let engine = engine(config, &manifest);
                let settings = ModelSettings::new(config, placement, engine, pipeline.max_tokens());
                let digest = bundle.digest().to_owned();
                let max_input_memory = backend.and_then(|backend| backend.text_bytes(pipeline.max_tokens()));
                models.push(Self {
                    name,
                    manifest,
                    digest,
                    arithmetic,
                    settings,
                    pipeline,
                    max_input_memory,
                    files,
                });
            }
        }
        if models.is_empty() {
            return Err(Error::config(
                "expected at least one model, but found none; name one, such as a bundle or ORG/NAME of the Hugging Face \
                 hub, or set `models` in `kivu.toml`",
            ));
        }
        check_aliases(&models, config)?;
        memory::warn(models.iter().filter_map(Self::longest_text), config.memory_limit);
        Ok(models)
    }

    fn longest_text(&self) -> Option<LongestText<'_>> {
        let (model, tokens) = (&self.name, self.pipeline.max_tokens());
        self.max_input_memory.map(|bytes| LongestText { model, tokens, bytes })
    }
}

/// Refuses aliases for unknown models, and names shared by two models.
fn check_aliases(models: &[Model], config: &Config) -> Result<()> {
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    if let Some((alias, name)) = config.aliases.iter().find(|(_, name)| !names.contains(&name.as_str())) {
        return Err(Error::config(format!(
            "expected `aliases.{alias}` to be the name of a served model, {}, but found `{name}`",
            quoted(&names)
        )));
    }
    let mut known = names;
    for alias in models.iter().flat_map(|model| &model.manifest.aliases) {
        if known.contains(&alias.as_str()) {
            return Err(Error::config(format!(
                "expected different aliases and names, but found `{alias}` twice; change `aliases` in \
                 `kivu.toml` or in the recipe"
            )));
        }
        known.push(alias);
    }
    Ok(())
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

/// The bundle at a model's path, or the bundles in its folder.
fn bundles(model: &ModelConfig, store: &Store) -> Result<Vec<Bundle>> {
    if let Some(url) = Url::of(&model.path) {
        return Ok(vec![remote::open(store, &url?)?]);
    }
    if model.path.join(MANIFEST).is_file() {
        return Ok(vec![Bundle::open(&model.path)?]);
    }
    let mut folders = folders_with_manifest(&model.path)?;
    folders.sort();
    if folders.is_empty() {
        // Fails, with an error that suggests what to do.
        return Ok(vec![Bundle::open(&model.path)?]);
    }
    if model.name.is_some() && folders.len() > 1 {
        let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        return Err(Error::config(format!(
            "expected one bundle for a model with a name, but found {}",
            quoted(&names)
        )));
    }
    folders.iter().map(|folder| Bundle::open(folder)).collect()
}

fn folders_with_manifest(path: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(Vec::new()) };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        // Builds in progress are in hidden folders.
        if !entry.file_name().as_encoded_bytes().starts_with(b".") && entry.path().join(MANIFEST).is_file() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}
