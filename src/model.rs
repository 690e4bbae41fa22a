//! Models: bundles, opened as pipelines for their tasks.

#[cfg(not(target_family = "wasm"))]
mod catalog;
#[cfg(not(target_family = "wasm"))]
pub mod gauges;
mod incoming;
#[cfg(not(target_family = "wasm"))]
mod listing;
#[cfg(not(target_family = "wasm"))]
mod load;
mod loaded;
#[cfg(not(target_family = "wasm"))]
mod mapped_files;
#[cfg(not(target_family = "wasm"))]
mod memory;
#[cfg(not(target_family = "wasm"))]
mod open;
mod pipeline;
mod settings;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

#[cfg(not(target_family = "wasm"))]
pub use self::catalog::{Catalog, Entry, ModelLease, ModelState};
use self::loaded::{Listed, Loaded, Placement, Tokenizers, engine, load_natively};
pub use self::{
    incoming::IncomingModel,
    loaded::Local,
    pipeline::{EncoderPipeline, Pipeline},
    settings::{FleetSettings, ModelSettings},
};
use crate::repository::{Bundle, Manifest};
use kivu_base::{
    Error, Result,
    config::{Config, ModelConfig},
};
use kivu_core::{
    backend::{Engine, MappedFiles},
    pipeline::Task,
};
use kivu_text::Tokenizer;

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
    /// Memory-mapped weight files; `None` if the weights are in memory or on a fleet.
    pub files: Option<Arc<dyn MappedFiles>>,
}

impl Model {
    /// Opens a bundle whose files are in memory, by name, for the native engine: an encoder or static embeddings. `manifest`
    /// is the text of its `manifest.toml`. The weights are used in place.
    ///
    /// # Errors
    /// A file is missing or damaged, or the bundle is for ONNX Runtime.
    pub fn from_memory(manifest: &str, files: BTreeMap<String, Bytes>) -> Result<Self> {
        let files = files
            .into_iter()
            .map(|(name, contents)| (name, contents.into()));
        Self::from_bundle(Bundle::in_memory(manifest, files.collect())?)
    }

    /// A model without files: a manifest's, with this tokenizer and backend.
    pub fn from_parts(manifest: &str, tokenizer: Arc<Tokenizer>, local: Local) -> Result<Self> {
        let bundle = Bundle::in_memory(manifest, BTreeMap::new())?;
        let (route, label_encoder) = local.route(None, bundle.manifest(), Engine::Onnx);
        let loaded = Loaded {
            tokenizers: Tokenizers {
                target: Arc::clone(&tokenizer),
                source: tokenizer,
                shortlist: None,
                ranges: None,
                query_weights: None,
                labels: None,
            },
            route,
            label_encoder,
            arithmetic: None,
            files: None,
        };
        Self::of_bundle(bundle, &Config::default(), loaded)
    }

    fn from_bundle(bundle: Bundle) -> Result<Self> {
        let config = Config::default();
        let loaded = load_natively(&bundle, &config)?;
        Self::of_bundle(bundle, &config, loaded)
    }

    fn of_bundle(bundle: Bundle, config: &Config, loaded: Loaded) -> Result<Self> {
        let manifest = bundle.manifest().clone();
        let placement = Placement::local(&manifest);
        let listed = Listed {
            name: manifest.name.clone(),
            manifest,
            bundle,
            config: ModelConfig::default(),
        };
        Self::new(&listed, config, &placement, loaded)
    }

    /// Error for a model that is used for another task.
    pub fn wrong_task(name: &str, found: Task, expected: Task) -> Error {
        Error::invalid(format!(
            "expected a model for `{expected}`, but `{name}` is for `{found}`"
        ))
    }

    fn new(
        listed: &Listed,
        config: &Config,
        placement: &Placement,
        loaded: Loaded,
    ) -> Result<Self> {
        let Listed {
            name,
            manifest,
            bundle,
            ..
        } = listed;
        let (arithmetic, files) = (loaded.arithmetic.clone(), loaded.files.clone());
        let backend = loaded.route.local_encoder().cloned();
        let pipeline = Pipeline::new(manifest, loaded, config.limits.tokens)?;
        let settings = ModelSettings::new(
            config,
            placement,
            engine(config, manifest),
            pipeline.max_tokens(),
        );
        let max_input_memory =
            backend.and_then(|backend| backend.text_bytes(pipeline.max_tokens()));
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
}
