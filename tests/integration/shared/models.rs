//! Where the tests find models, and what they need to run them.

#![allow(dead_code, reason = "only `models` uses all of these")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use kivu::{
    cloud::Cloud,
    config::{Config, EngineChoice},
    model::Model,
    onnx::{OnnxBackend, Runtime, library},
    pipeline::{Task, embedding::EmbeddingOptions},
    repository::{Bundle, manifest::Precision},
    tokenizer::{Side, Truncation},
};
use kivu_compiler::{
    Request, build,
    quality::{SENTENCES, Samples, Texts},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{skips::missing, tools::ROOT};

/// Fixtures folder.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(ROOT).join("tests/fixtures")
}

/// The entries of a golden file.
pub(crate) fn golden_entries<T: DeserializeOwned>(name: &str) -> Vec<T> {
    #[derive(Deserialize)]
    struct Golden<T> {
        entries: Vec<T>,
    }
    let golden = fs::read(fixtures().join(format!("goldens/{name}.json"))).unwrap();
    serde_json::from_slice::<Golden<T>>(&golden)
        .unwrap()
        .entries
}

/// Path to ONNX Runtime's library, if it is installed.
pub(crate) fn library_path() -> kivu::Result<PathBuf> {
    library::locate(None, &Path::new(ROOT).join(".kivu"))
}

/// The default configuration, with the checkout's home.
pub(crate) fn config() -> Config {
    Config {
        home: Path::new(ROOT).join(".kivu"),
        ..Config::default()
    }
}

/// ONNX Runtime; `None` if it is not installed: `cargo test` alone fetches nothing, `make test` does.
pub(crate) fn runtime() -> Option<Runtime> {
    match library_path() {
        Ok(path) => Some(Runtime::load(&path).expect("ONNX Runtime is there, but does not load")),
        Err(error) => {
            missing(error);
            None
        }
    }
}

/// A request for a build, with defaults for everything else.
pub(crate) fn request(source: PathBuf, out: PathBuf, precision: Option<Precision>) -> Request {
    let engine = EngineChoice::Auto;
    Request {
        source,
        out,
        name: None,
        task: None,
        is_sparse: false,
        precision,
        engine,
        allow: Vec::new(),
        samples: Samples::default(),
        is_for_comparison: false,
        cache: "/nonexistent".into(),
    }
}

/// The same from a recipe next to `out`, without a quality floor: most fixtures have random weights, so that
/// quantization moves their results more than a trained model's. The quality is measured on few texts, which takes most of
/// a small model's build.
pub(crate) fn request_without_floor(
    task: Task,
    source: &Path,
    out: PathBuf,
    precision: Option<Precision>,
) -> Request {
    let name = source.file_name().expect("a fixture has a name");
    let text = format!(
        "name = {name:?}\ntask = \"{task}\"\n[source]\nfolder = {source:?}\n[quality]\nmean_cosine = 0\n\
         worst_cosine = 0\nneighbours = 0\nagreement = 0\nmean_difference = 1\nsimilarity = 0\ntoken_agreement = 0\nentity_agreement = 0\n\
         terms = 0\nscore_difference = 1\n"
    );
    let recipe = out.with_extension("toml");
    fs::write(&recipe, text).expect("a recipe is written");
    let mut request = request(recipe, out, precision);
    request.samples = few_texts();
    request
}

/// As few texts as a user may give.
fn few_texts() -> Samples {
    let texts = SENTENCES.lines().take(20).map(str::to_owned).collect();
    Samples {
        texts: Some(Texts { texts }),
        pairs: None,
    }
}

pub(crate) fn build_request(request: &Request, runtime: Runtime) -> kivu::Result<Bundle> {
    build(request, &|| Ok(runtime), &()).map(|built| built.bundle)
}

/// Builds a fixture into `folder` and opens it as a served model.
pub(crate) fn open(
    source: PathBuf,
    folder: &Path,
    precision: Option<Precision>,
    runtime: Runtime,
) -> kivu::Result<Model> {
    let name = source.file_name().expect("a fixture has a name").to_owned();
    let out = folder.join(name);
    build_request(&request(source, out.clone(), precision), runtime)?;
    serve(&out)
}

/// Builds a fixture for a task into `folder`, in fp32, and opens it as a served model.
pub(crate) fn open_for(
    task: Task,
    name: &str,
    folder: &Path,
    runtime: Runtime,
) -> kivu::Result<Model> {
    let out = folder.join(format!("{task}-{name}"));
    let mut request = request(
        fixtures().join("models").join(name),
        out.clone(),
        Some(Precision::Fp32),
    );
    request.task = Some(task);
    request.name = Some(format!("{task}-{name}"));
    build_request(&request, runtime)?;
    serve(&out)
}

/// Options of a request that names none.
pub(crate) fn options() -> EmbeddingOptions {
    EmbeddingOptions {
        truncation: Truncation::At(Side::Right),
        normalize: None,
        prompt_name: None,
        prompt: None,
        task: None,
        dimensions: None,
        max_values: usize::MAX,
    }
}

/// Opens a bundle as a served model.
pub(crate) fn serve(bundle: &Path) -> kivu::Result<Model> {
    serve_in(bundle, EngineChoice::Auto)
}

/// The same in an engine.
pub(crate) fn serve_in(bundle: &Path, engine: EngineChoice) -> kivu::Result<Model> {
    let config = Config { engine, ..config() };
    Model::open(bundle, &config, &Cloud::default())
}

/// A bundle's graph on two threads.
pub(crate) fn backend(bundle: &Bundle, runtime: Runtime) -> OnnxBackend {
    let threads = std::num::NonZeroUsize::new(2).expect("two is not zero");
    OnnxBackend::open(runtime, &bundle.path(&bundle.manifest().graph), threads)
        .expect("the graph loads")
}
