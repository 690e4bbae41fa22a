//! A served model: a bundle, opened as the pipeline of its task.

mod translation;

use std::{path::Path, sync::Arc, thread, time::Duration};

use crate::{
    backend::{
        Backend, Deadline,
        onnx::{
            ExternalWeights, Graph, MappedFiles, OnnxBackend, Runtime, keeps_signed_weights, library,
            require_known_files,
        },
        processor::Int8Instructions,
        routing::Route,
        triton::Fleet,
    },
    config::{Config, FleetConfig, ModelConfig, Policy},
    error::{Error, Result, quoted},
    pipeline::{
        Task, classification::ClassificationPipeline, embedding::EmbeddingPipeline, encoder::Encoder,
        ranking::RankingPipeline, translation::TranslationPipeline, zero_shot::ZeroShotPipeline,
    },
    repository::{
        Bundle, Manifest,
        bundle::{Home, MANIFEST, PIECES, TOKENIZER},
        manifest::{File, Precision},
        remote,
        s3::{Store, Url},
    },
    telemetry::starting,
    tokenizer::Tokenizer,
};

/// A model that answers requests.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name that requests know it by.
    pub name: String,
    /// What is known of it.
    pub manifest: Manifest,
    /// The identity of its bundle.
    pub digest: String,
    /// What its matrices are multiplied in by this processor; nothing where only a fleet runs it.
    pub arithmetic: Option<String>,
    /// What it does.
    pub pipeline: Pipeline,
    /// The files that its weights are mapped from; none where they are in memory, or on a fleet.
    pub files: Arc<MappedFiles>,
}

/// The pipeline of a task.
#[derive(Clone, Debug)]
pub enum Pipeline {
    /// A text to a vector.
    Embedding(EmbeddingPipeline),
    /// A text to scores for the model's labels.
    Classification(ClassificationPipeline),
    /// A text to scores for a request's labels.
    ZeroShot(ZeroShotPipeline),
    /// A query and texts to scores for the texts.
    Ranking(RankingPipeline),
    /// A text to a text in another language.
    Translation(TranslationPipeline),
}

impl Pipeline {
    /// The encoder, of all tasks but translation.
    fn encoder(&self) -> Result<&Encoder, &TranslationPipeline> {
        match self {
            Self::Embedding(pipeline)
            | Self::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _))
            | Self::Ranking(RankingPipeline::Embedding(pipeline)) => Ok(pipeline.encoder()),
            Self::Classification(pipeline)
            | Self::ZeroShot(ZeroShotPipeline::Entailment(pipeline))
            | Self::Ranking(RankingPipeline::CrossEncoder(pipeline)) => Ok(pipeline.encoder()),
            Self::Translation(pipeline) => Err(pipeline),
        }
    }

    /// The tokenizer of the model's input.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.encoder().map_or_else(TranslationPipeline::tokenizer, Encoder::tokenizer)
    }

    /// The maximum number of tokens of an input.
    pub fn max_tokens(&self) -> usize {
        self.encoder().map_or_else(|pipeline| pipeline.settings().max_tokens, Encoder::max_tokens)
    }

    fn has_fleet(&self) -> bool {
        self.encoder().map_or_else(TranslationPipeline::has_fleet, Encoder::has_fleet)
    }

    /// Refuses a model on a fleet that is not the one of the bundle.
    async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        match self.encoder() {
            Ok(encoder) => encoder.check_fleet(deadline).await,
            Err(pipeline) => pipeline.check_fleet(deadline).await,
        }
    }

    fn new(manifest: &Manifest, loaded: Loaded, limit: Option<usize>) -> Result<Self> {
        let (tokenizer, route) = match loaded.parts {
            LoadedParts::Encoder { tokenizer, route } => (tokenizer, route),
            LoadedParts::Translator(pipeline) => return Ok(Self::Translation(pipeline)),
        };
        let bounded = |tokens: usize| limit.map_or(tokens, |limit| limit.min(tokens));
        if let Some(mut settings) = manifest.classification.clone() {
            settings.max_tokens = bounded(settings.max_tokens);
            let pipeline = ClassificationPipeline::new(tokenizer, route, settings)?;
            return match manifest.task {
                Task::TextClassification => Ok(Self::Classification(pipeline)),
                Task::TextRanking => RankingPipeline::cross_encoder(pipeline).map(Self::Ranking),
                Task::ZeroShotClassification => ZeroShotPipeline::entailment(pipeline).map(Self::ZeroShot),
                Task::FeatureExtraction => Err(lacks(manifest, "embedding")),
                Task::Translation => Err(lacks(manifest, "translation")),
            };
        }
        let Some(mut settings) = manifest.embedding.clone() else {
            return Err(lacks(manifest, "classification"));
        };
        settings.max_tokens = bounded(settings.max_tokens);
        let pipeline = EmbeddingPipeline::new(tokenizer, route, settings)?;
        match manifest.task {
            Task::FeatureExtraction => Ok(Self::Embedding(pipeline)),
            Task::TextRanking => Ok(Self::Ranking(RankingPipeline::Embedding(pipeline))),
            Task::ZeroShotClassification => Ok(Self::ZeroShot(ZeroShotPipeline::embedding(pipeline))),
            Task::TextClassification => Err(lacks(manifest, "classification")),
            Task::Translation => Err(lacks(manifest, "translation")),
        }
    }
}

fn lacks(manifest: &Manifest, settings: &str) -> Error {
    Error::model(format!(
        "expected `{settings}` in the manifest of `{}`, whose task is `{}`",
        manifest.name, manifest.task
    ))
}

/// What models of the same weights share.
#[derive(Clone, Debug)]
struct Loaded {
    parts: LoadedParts,
    arithmetic: Option<String>,
    files: Arc<MappedFiles>,
}

#[derive(Clone, Debug)]
enum LoadedParts {
    Encoder { tokenizer: Arc<Tokenizer>, route: Route },
    Translator(TranslationPipeline),
}

/// What must be the same for models to share what is loaded: the files, where they run, and as what.
type Sharing = (Vec<File>, Policy, FleetConfig, String);

/// How long a fleet is waited for at the start; one that comes later is found when it is needed.
const FLEET_PATIENCE: Duration = Duration::from_secs(1);

impl Model {
    /// Opens every model of the configuration, in its order. Models of the same files share what is loaded.
    pub fn open_all(config: &Config) -> Result<Vec<Self>> {
        let store = Store::new(config.s3.timeout());
        let mut models: Vec<Self> = Vec::new();
        let mut shared: Vec<(Sharing, Loaded)> = Vec::new();
        for model in &config.models {
            for bundle in bundles(model, &store)? {
                let manifest = bundle.manifest().clone();
                let name = model.name.clone().unwrap_or_else(|| manifest.name.clone());
                if models.iter().any(|known| known.name == name) {
                    return Err(Error::config(format!(
                        "expected a name of its own for each model, but found `{name}` twice; \
                         set `name` in `kivu.toml`"
                    )));
                }
                let sharing = sharing(model, config, &manifest, &name)?;
                let known = shared.iter().find(|(known, _)| *known == sharing);
                let loaded = match known {
                    Some((_, loaded)) => loaded.clone(),
                    None => {
                        let loaded = load(&bundle, config, &sharing)?;
                        shared.push((sharing, loaded.clone()));
                        loaded
                    }
                };
                let (arithmetic, files) = (loaded.arithmetic.clone(), Arc::clone(&loaded.files));
                let pipeline = Pipeline::new(&manifest, loaded, config.limits.tokens)?;
                check_fleet(&name, &pipeline)?;
                models.push(Self {
                    name,
                    digest: bundle.digest().to_owned(),
                    arithmetic,
                    manifest,
                    pipeline,
                    files,
                });
            }
        }
        if models.is_empty() {
            return Err(Error::config(
                "expected at least one model, but found none; name a bundle: `kivu serve BUNDLE`",
            ));
        }
        Ok(models)
    }
}

/// How a model of this name runs.
fn sharing(model: &ModelConfig, config: &Config, manifest: &Manifest, name: &str) -> Result<Sharing> {
    let (policy, fleet) = (model.policy(&config.fleet), model.fleet(&config.fleet));
    // A server that would read the shortlist is not written, and what has one is small.
    if manifest.translation.as_ref().is_some_and(|settings| settings.shortlist.is_some()) {
        if policy == Policy::Fleet {
            return Err(Error::config(format!(
                "expected the policy `local` or `auto` for `{name}`, since models with a shortlist run here, but \
                 found `fleet`"
            )));
        }
        return Ok((manifest.files.clone(), Policy::Local, FleetConfig::default(), String::new()));
    }
    if policy == Policy::Local {
        if model.policy.is_some_and(|policy| policy != Policy::Local) {
            return Err(Error::config(format!(
                "expected servers for `{name}`, whose policy wants a fleet, but found none; set `fleet.urls`"
            )));
        }
        return Ok((manifest.files.clone(), policy, FleetConfig::default(), String::new()));
    }
    let remote = model.remote.clone().unwrap_or_else(|| name.to_owned());
    Ok((manifest.files.clone(), policy, fleet, remote))
}

/// Loads what is in a bundle. One in S3 goes straight into memory, unless there is a cache for it.
///
/// What takes time runs side by side: the tokenizer loads and the weights are hashed while ONNX Runtime makes the
/// session. Nothing is served before every hash is verified. A model that runs on a fleet only needs no graph:
/// neither it nor the weights are looked at.
fn load(bundle: &Bundle, config: &Config, sharing: &Sharing) -> Result<Loaded> {
    let (_, policy, fleet, remote) = sharing;
    let cached = match (&config.cache, bundle.home()) {
        (Some(cache), Home::S3(..)) => Some(remote::cached(bundle, cache)?),
        _ => None,
    };
    let bundle = cached.as_ref().unwrap_or(bundle);
    let manifest = bundle.manifest();
    if manifest.task == Task::Translation {
        return translation::load(bundle, config, sharing);
    }
    if *policy == Policy::Fleet {
        let tokenizer = Arc::new(starting("tokenizer", || bundle.tokenizer())?);
        let route =
            Route::encoder(None, Some(Arc::new(Fleet::new(fleet, remote)?)), manifest.signature.clone());
        let parts = LoadedParts::Encoder { tokenizer, route };
        return Ok(Loaded { parts, arithmetic: None, files: Arc::default() });
    }
    let read = [TOKENIZER, PIECES, &manifest.graph];
    let files = mapped_files(bundle, config, &read)?;
    thread::scope(|scope| {
        // One thread for both, since two CPUs are all that most functions have.
        let tokenizer = scope.spawn(|| {
            let tokenizer = starting("tokenizer", || bundle.tokenizer())?;
            // What is read into memory is hashed on its way.
            if is_mapped(bundle, config) {
                starting("verify", || bundle.verify(&read))?;
            }
            Ok(tokenizer)
        });
        let backend = open_graph(bundle, config, &files);
        let tokenizer = tokenizer.join().unwrap_or_else(|_| Err(panicked(&manifest.name)));
        let (tokenizer, (backend, arithmetic)) = (Arc::new(tokenizer?), backend?);
        let backend: Arc<dyn Backend> = Arc::new(backend);
        files.require_loaded()?;
        let fleet = (*policy == Policy::Auto).then(|| Fleet::new(fleet, remote).map(Arc::new)).transpose()?;
        let route = Route::encoder(Some(backend), fleet, manifest.signature.clone());
        let parts = LoadedParts::Encoder { tokenizer, route };
        Ok(Loaded { parts, arithmetic: Some(arithmetic), files: Arc::clone(&files) })
    })
}

/// Whether the weights of a bundle are mapped from their files, rather than read into memory.
fn is_mapped(bundle: &Bundle, config: &Config) -> bool {
    config.map_weights && matches!(bundle.home(), Home::Folder(_))
}

/// The files of a bundle that will be mapped: all but those that are `read`.
fn mapped_files(bundle: &Bundle, config: &Config, read: &[&str]) -> Result<Arc<MappedFiles>> {
    if !is_mapped(bundle, config) {
        return Ok(Arc::default());
    }
    let names = bundle.manifest().files.iter().map(|file| file.name.as_str());
    let mapped = names.filter(|name| !read.contains(name)).map(|name| bundle.path(name));
    MappedFiles::open(mapped).map(Arc::new)
}

/// Refuses a model on a fleet that is not the one of the bundle. A fleet that does not answer now is no error.
fn check_fleet(name: &str, pipeline: &Pipeline) -> Result<()> {
    if !pipeline.has_fleet() {
        return Ok(());
    }
    // On a thread and a runtime of its own, since this may be called with or without one.
    let check = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("cannot start a runtime"))?;
        runtime.block_on(pipeline.check_fleet(Deadline::within(FLEET_PATIENCE)))
    };
    let checked = thread::scope(|scope| scope.spawn(check).join().unwrap_or_else(|_| Err(panicked(name))));
    checked.map_err(|error| Error::model_because(format!("`{name}` cannot run on the fleet"), error))
}

fn runtime(config: &Config) -> Result<Runtime> {
    let library = library::locate(config.onnxruntime.as_deref(), &config.home)?;
    starting("library", || Runtime::load(&library))
}

fn open_graph(bundle: &Bundle, config: &Config, files: &Arc<MappedFiles>) -> Result<(OnnxBackend, String)> {
    let runtime = runtime(config)?;
    let manifest = bundle.manifest();
    let ([graph], arithmetic) = read_graphs(bundle, [&manifest.graph], config, files)?;
    let backend = starting("session", || OnnxBackend::open(runtime, graph, config.threads()))?;
    if *backend.signature() != manifest.signature {
        return Err(Error::model(format!(
            "expected `{}` to be {}, as its manifest says, but its graph is {}",
            manifest.name,
            manifest.signature,
            backend.signature()
        )));
    }
    Ok((backend, arithmetic))
}

/// The graphs of these names, and the arithmetic that they run in. Those whose weights are not mapped are read into
/// memory with them, once for all.
fn read_graphs<const COUNT: usize>(
    bundle: &Bundle,
    names: [&str; COUNT],
    config: &Config,
    files: &Arc<MappedFiles>,
) -> Result<([Graph; COUNT], String)> {
    let manifest = bundle.manifest();
    // Graphs are small, and they are parsed: they are verified before.
    let graphs = names.iter().map(|name| bundle.read(name)).collect::<Result<Vec<_>>>()?;
    let arithmetic = arithmetic(manifest, &graphs)?;
    if is_mapped(bundle, config) {
        for graph in &graphs {
            require_known_files(graph, |name| manifest.file(name).is_some())?;
        }
        let graphs = names.map(|name| Graph::File { path: bundle.path(name), mapped: Arc::clone(files) });
        return Ok((graphs, arithmetic));
    }
    let mut weights = ExternalWeights::of(&graphs, |name| manifest.file(name).map(|file| file.size))?;
    starting("weights", || {
        weights.files().iter().try_for_each(|name| {
            let mut file = weights.file(name);
            bundle.stream(name, |piece| file.fill(piece))
        })
    })?;
    let graphs = Graph::in_memory(graphs, weights)?;
    let graphs = graphs.try_into().map_err(|_| Error::model("expected as many graphs as names"))?;
    Ok((graphs, arithmetic))
}

/// What the matrices of these graphs are multiplied in by this processor.
fn arithmetic(manifest: &Manifest, graphs: &[Vec<u8>]) -> Result<String> {
    let instructions = Int8Instructions::detected();
    Ok(match manifest.weights.precision {
        Precision::Fp32 => "fp32".into(),
        Precision::Int8Blocks => format!("int8-blocks ({instructions})"),
        Precision::Int8 if !instructions.saturate() => format!("int8 (u8·s8, {instructions})"),
        Precision::Int8 => {
            for graph in graphs {
                if keeps_signed_weights(graph)? {
                    tracing::warn!(
                        model = manifest.name,
                        "int8 products of this bundle saturate on this processor ({instructions}), which costs \
                         quality; build it again"
                    );
                    return Ok(format!("int8 (u8·s8, {instructions}, saturating)"));
                }
            }
            format!("int8 (u8·u8, {instructions})")
        }
    })
}

fn panicked(name: &str) -> Error {
    Error::model(format!("loading `{name}` panicked"))
}

/// The bundle at a model's path, or the bundles in it.
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
        // The error of a folder that is no bundle says what to do.
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

fn folders_with_manifest(path: &Path) -> Result<Vec<std::path::PathBuf>> {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(Vec::new()) };
    entries
        // Hidden folders are those of builds under way, and of other programs.
        .filter(|entry| {
            entry.as_ref().map_or(true, |entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        })
        .map(|entry| entry.map(|entry| entry.path()))
        .filter(|path| path.as_ref().map_or(true, |path| path.join(MANIFEST).is_file()))
        .collect::<std::io::Result<_>>()
        .map_err(Error::io(format!("cannot read `{}`", path.display())))
}
