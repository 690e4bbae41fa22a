//! A loaded bundle, and its parts that need neither ONNX Runtime nor threads.

use std::sync::Arc;

use crate::repository::{
    Bundle, Int8Products, Manifest, WeightForm,
    bundle::{Home, RANGES},
    manifest::File,
};
use kivu_base::{
    Error, Result,
    config::{Config, EngineChoice, FleetConfig, ModelConfig, Policy},
};
use kivu_core::{
    backend::{
        Engine, MappedFiles, RemoteSource, Signature,
        encoder::EncoderBackend,
        external_files::require_known_files,
        native::{Buffer, NativeBackend, NativeModel, TableBackend, TableModel, WeightFiles},
        routing::Route,
        seq2seq::Seq2SeqBackend,
    },
    observer::time_start,
    pipeline::{
        embedding::{sparse::QueryWeights, vectors::Ranges},
        seq2seq::{Seq2SeqSettings, shortlist::Shortlist},
    },
};
use kivu_text::Tokenizer;

/// A served model that is not loaded.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name in requests.
    pub name: String,
    /// The bundle's manifest, with aliases from the configuration.
    pub manifest: Manifest,
    pub bundle: Bundle,
    pub config: ModelConfig,
}

/// Where a model runs. Models with equal placements share what is loaded.
#[derive(Debug, PartialEq)]
pub struct Placement {
    pub files: Vec<File>,
    pub policy: Policy,
    pub fleet: FleetConfig,
    /// Model name on the fleet.
    pub remote_name: String,
}

impl Placement {
    /// In this process.
    pub fn local(manifest: &Manifest) -> Self {
        let (files, fleet) = (manifest.files.clone(), FleetConfig::default());
        Self {
            files,
            policy: Policy::Local,
            fleet,
            remote_name: String::new(),
        }
    }
}

/// A loaded bundle, to be shared.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub tokenizers: Tokenizers,
    pub route: LoadedRoute,
    /// The local model that reads labels, if the bundle has one.
    pub label_encoder: Option<Arc<dyn EncoderBackend>>,
    /// How the local model multiplies matrices.
    pub arithmetic: Option<String>,
    /// What a local model's weights are mapped from.
    pub files: Option<Arc<dyn MappedFiles>>,
}

#[derive(Clone, Debug)]
pub enum LoadedRoute {
    Encoder(Route),
    Seq2Seq(Route<Arc<dyn Seq2SeqBackend>>),
}

impl LoadedRoute {
    /// The local encoder, if there is one.
    pub fn local_encoder(&self) -> Option<&Arc<dyn EncoderBackend>> {
        match self {
            Self::Encoder(route) => route.local(),
            Self::Seq2Seq(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Tokenizers {
    pub source: Arc<Tokenizer>,
    /// Equals `source`, unless the bundle has a target tokenizer.
    pub target: Arc<Tokenizer>,
    pub shortlist: Option<Arc<Shortlist>>,
    /// Ranges for int8 vectors.
    pub ranges: Option<Arc<Ranges>>,
    /// Query weights for sparse vectors.
    pub query_weights: Option<Arc<QueryWeights>>,
    /// For labels, if another model reads them.
    pub labels: Option<Arc<Tokenizer>>,
}

/// A bundle's graphs, opened in an engine.
pub enum Local {
    /// With the encoder for labels, if there is one.
    Encoder(Arc<dyn EncoderBackend>, Option<Arc<dyn EncoderBackend>>),
    /// A model that generates texts.
    Seq2Seq(Arc<dyn Seq2SeqBackend>),
}

impl Local {
    /// The route to these graphs in `engine` or to the model on a fleet, and the encoder for labels.
    pub fn route(
        self,
        fleet: Option<Arc<dyn RemoteSource>>,
        manifest: &Manifest,
        engine: Engine,
    ) -> (LoadedRoute, Option<Arc<dyn EncoderBackend>>) {
        match self {
            Self::Encoder(backend, labels) => {
                let route = Route::encoder(Some(backend), fleet, manifest.signature.clone());
                (LoadedRoute::Encoder(route.with_engine(engine)), labels)
            }
            Self::Seq2Seq(backend) => {
                let route = Route::seq2seq(Some(backend), fleet);
                (LoadedRoute::Seq2Seq(route), None)
            }
        }
    }
}

/// Reads a bundle's tokenizers, and its other files that tasks need.
pub fn read_tokenizers(bundle: &Bundle, settings: Option<&Seq2SeqSettings>) -> Result<Tokenizers> {
    let source = Arc::new(time_start("tokenizer", || bundle.tokenizer())?);
    let target = match settings.and_then(|settings| settings.target_tokenizer.as_ref()) {
        Some(name) => Arc::new(Tokenizer::from_json(&bundle.read(name)?)?),
        None => Arc::clone(&source),
    };
    let shortlist = settings.and_then(|settings| settings.shortlist.as_ref());
    let shortlist = shortlist
        .map(|name| Shortlist::from_bytes(&bundle.read(name)?).map(Arc::new))
        .transpose()?;
    let manifest = bundle.manifest();
    let embedding = manifest.settings.embedding();
    let dense = embedding.and_then(|embedding| embedding.dense.as_ref());
    let ranges = dense
        .filter(|_| manifest.file(RANGES).is_some())
        .map(|dense| Ranges::from_bytes(&bundle.read(RANGES)?, dense.dimensions).map(Arc::new))
        .transpose()?;
    let sparse = embedding.and_then(|embedding| embedding.sparse.as_ref());
    let query_weights = sparse
        .and_then(|sparse| Some((sparse.queries.as_ref()?, sparse.dimensions)))
        .map(|(queries, dimensions)| {
            QueryWeights::from_bytes(&bundle.read(&queries.weights)?, dimensions).map(Arc::new)
        })
        .transpose()?;
    let labels = manifest
        .settings
        .label_encoder()
        .map(|labels| Tokenizer::from_json(&bundle.read(&labels.tokenizer)?).map(Arc::new))
        .transpose()?;
    Ok(Tokenizers {
        source,
        target,
        shortlist,
        ranges,
        query_weights,
        labels,
    })
}

/// Engine for a local model.
pub fn engine(config: &Config, manifest: &Manifest) -> Engine {
    match config.engine {
        EngineChoice::Auto => manifest.engine,
        EngineChoice::Native => Engine::Native,
        EngineChoice::Onnx => Engine::Onnx,
    }
}

/// Opens an encoder graph in the native engine, which needs no library.
pub fn open_natively(
    bundle: &Bundle,
    config: &Config,
    mapped: Option<&Arc<dyn MappedFiles>>,
) -> Result<(Local, String)> {
    let manifest = bundle.manifest();
    if manifest.settings.seq2seq().is_some() {
        return Err(Error::config(format!(
            "expected an encoder for the native engine, but found that `{}` generates texts",
            manifest.name
        ))
        .with_hint("use `engine = \"auto\"`"));
    }
    let graph = bundle.read(&manifest.graph)?;
    require_known_files(&graph, |name| manifest.file(name).is_some())?;
    let labels = manifest
        .settings
        .label_encoder()
        .map(|settings| bundle.read(&settings.graph))
        .transpose()?;
    let mut names = WeightFiles::names(&graph)?;
    if let Some(labels) = &labels {
        require_known_files(labels, |name| manifest.file(name).is_some())?;
        names.extend(WeightFiles::names(labels)?);
    }
    let size = |name: &String| {
        let size = manifest
            .file(name)
            .and_then(|file| usize::try_from(file.size).ok());
        size.ok_or_else(|| {
            Error::model(format!(
                "expected `{name}` in the manifest of `{}`",
                manifest.name
            ))
        })
    };
    let files = match (mapped, bundle.home()) {
        (Some(mapped), _) => {
            names.iter().try_for_each(|name| size(name).map(drop))?;
            let paths = names
                .into_iter()
                .map(|name| (name.clone(), bundle.path(&name)));
            WeightFiles::map(paths, Some(Arc::clone(mapped)))?
        }
        (None, Home::Memory(_)) => {
            let shared = names
                .into_iter()
                .map(|name| Ok((name.clone(), bundle.bytes(&name)?)));
            WeightFiles::in_memory(shared.collect::<Result<_>>()?)
        }
        (None, Home::Folder(_) | Home::S3(..)) => {
            let mut files = WeightFiles::default();
            for name in &names {
                let mut buffer = Buffer::new(size(name)?);
                time_start("weights", || {
                    bundle.stream(name, |piece| buffer.fill(piece))
                })?;
                files.insert(name, buffer)?;
            }
            files
        }
    };
    let products = || Ok::<_, Error>(Int8Products::Fp32);
    let arithmetic = WeightForm::of(manifest).arithmetic(Engine::Native, products)?;
    if TableModel::is_in(&graph)? {
        let model = time_start("session", || TableModel::open(&graph, files))?;
        check_signature(manifest, &manifest.signature, model.signature())?;
        let backend = TableBackend::new(model, config.threads());
        return Ok((Local::Encoder(Arc::new(backend), None), arithmetic));
    }
    let open = |graph: &[u8]| time_start("session", || NativeModel::open(graph, files.clone()));
    let model = open(&graph)?;
    check_signature(manifest, &manifest.signature, model.signature())?;
    let start = |model| NativeBackend::start(model, config.threads());
    let backend = Arc::new(start(model)?);
    let labels: Option<Arc<dyn EncoderBackend>> = match labels {
        Some(labels) => Some(Arc::new(start(open(&labels)?)?)),
        None => None,
    };
    Ok((Local::Encoder(backend, labels), arithmetic))
}

pub fn check_signature(manifest: &Manifest, expected: &Signature, found: &Signature) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected `{}` to be {expected}, as its manifest says, but its graph is {found}",
        manifest.name
    )))
}

/// An error for a bundle that runs in ONNX Runtime.
pub fn require_native(config: &Config, manifest: &Manifest) -> Result<()> {
    match engine(config, manifest) {
        Engine::Native => Ok(()),
        Engine::Onnx => Err(Error::config(format!(
            "expected a bundle for the native engine, but found that `{}` is for ONNX Runtime",
            manifest.name
        ))
        .with_hint("build it with `--engine native`")),
    }
}

/// Loads a bundle for the native engine, on this thread.
pub fn load_natively(bundle: &Bundle, config: &Config) -> Result<Loaded> {
    let manifest = bundle.manifest();
    require_native(config, manifest)?;
    let tokenizers = read_tokenizers(bundle, None)?;
    let (local, arithmetic) = open_natively(bundle, config, None)?;
    let (route, label_encoder) = local.route(None, manifest, Engine::Native);
    Ok(Loaded {
        tokenizers,
        route,
        label_encoder,
        arithmetic: Some(arithmetic),
        files: None,
    })
}
