//! A served model: a bundle, opened as the pipeline of its task.

use std::{num::NonZeroUsize, path::Path, sync::Arc, thread};

use crate::{
    backend::{
        Backend,
        onnx::{OnnxBackend, Runtime, library},
    },
    config::{Config, ModelConfig},
    error::{Error, Result, quoted},
    pipeline::{Task, embedding::EmbeddingPipeline},
    repository::{
        Bundle, Manifest,
        bundle::{MANIFEST, TOKENIZER},
    },
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
    /// What it does.
    pub pipeline: Pipeline,
}

/// The pipeline of a task.
#[derive(Clone, Debug)]
pub enum Pipeline {
    /// Texts to vectors.
    Embedding(EmbeddingPipeline),
}

impl Pipeline {
    /// The task that it is for.
    pub fn task(&self) -> Task {
        match self {
            Self::Embedding(_) => Task::FeatureExtraction,
        }
    }
}

impl Model {
    /// Opens every model of the configuration, in its order.
    pub fn open_all(config: &Config) -> Result<Vec<Self>> {
        let mut models: Vec<Self> = Vec::new();
        for model in &config.models {
            for bundle in bundles(model)? {
                let name = model.name.clone().unwrap_or_else(|| bundle.manifest().name.clone());
                if models.iter().any(|known| known.name == name) {
                    return Err(Error::config(format!(
                        "expected a name of its own for each model, but found `{name}` twice; \
                         set `name` in `kivu.toml`"
                    )));
                }
                models.push(Self::open(name, &bundle, config)?);
            }
        }
        if models.is_empty() {
            return Err(Error::config(
                "expected at least one model, but found none; name a bundle: `kivu serve BUNDLE`",
            ));
        }
        Ok(models)
    }

    /// Opens a bundle.
    ///
    /// What takes time runs side by side: the tokenizer loads and the weights are hashed while ONNX Runtime
    /// makes the session. Nothing is served before every hash is verified.
    fn open(name: String, bundle: &Bundle, config: &Config) -> Result<Self> {
        let manifest = bundle.manifest();
        let threads = config.threads();
        let (tokenizer, backend) = thread::scope(|scope| {
            // One thread for both, since two CPUs are all that most functions have.
            let tokenizer = scope.spawn(|| {
                let tokenizer = Tokenizer::from_json(&bundle.read(TOKENIZER)?)?;
                bundle.verify(&[TOKENIZER, &manifest.graph])?;
                Ok(tokenizer)
            });
            let backend = load(bundle, config, threads);
            let tokenizer = tokenizer.join().unwrap_or_else(|_| Err(panicked(&name)));
            Ok::<_, Error>((tokenizer?, backend?))
        })?;
        let pipeline = match manifest.task {
            Task::FeatureExtraction => {
                let mut settings = manifest.embedding.clone().ok_or_else(|| {
                    Error::model(format!(
                        "expected `embedding` in the manifest of `{name}`, whose task is `{}`",
                        manifest.task
                    ))
                })?;
                if let Some(tokens) = config.limits.tokens {
                    settings.max_tokens = settings.max_tokens.min(tokens);
                }
                let pipeline = EmbeddingPipeline::new(Arc::new(tokenizer), Arc::new(backend), settings);
                Pipeline::Embedding(pipeline?)
            }
        };
        Ok(Self { name, manifest: manifest.clone(), digest: bundle.digest().to_owned(), pipeline })
    }
}

fn load(bundle: &Bundle, config: &Config, threads: NonZeroUsize) -> Result<OnnxBackend> {
    let runtime = Runtime::load(&library::locate(config.onnxruntime.as_deref(), &config.home)?)?;
    let manifest = bundle.manifest();
    // The graph is small, and it is parsed: it is verified before.
    bundle.read(&manifest.graph)?;
    let backend = OnnxBackend::open(runtime, &bundle.path(&manifest.graph), threads)?;
    if *backend.signature() != manifest.signature {
        return Err(Error::model(format!(
            "expected `{}` to be {}, as its manifest says, but its graph is {}",
            manifest.name,
            manifest.signature,
            backend.signature()
        )));
    }
    Ok(backend)
}

fn panicked(name: &str) -> Error {
    Error::model(format!("loading `{name}` panicked"))
}

/// The bundle at a model's path, or the bundles in it.
fn bundles(model: &ModelConfig) -> Result<Vec<Bundle>> {
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
        .map(|entry| entry.map(|entry| entry.path()))
        .filter(|path| path.as_ref().map_or(true, |path| path.join(MANIFEST).is_file()))
        .collect::<std::io::Result<_>>()
        .map_err(Error::io(format!("cannot read `{}`", path.display())))
}
