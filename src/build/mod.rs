//! The model compiler: weights in, a bundle out, with its quality measured. No Python, no PyTorch.

mod adapter;
mod architecture;
mod bergamot;
mod deberta;
pub mod encoder;
mod export;
pub mod exported;
pub mod fetch;
mod layers;
pub mod onnx;
pub mod quality;
pub mod quantise;
mod recipe;
mod sentence_transformers;
mod sentencepiece;
mod translation;
pub mod weights;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use self::recipe::{LanguagePair, QualityFloor, Recipe, Strategy};
use self::{
    adapter::Adapter,
    architecture::Architecture,
    encoder::{Facts, MODEL_TYPES},
    quality::Settings,
    weights::Weights,
};
use crate::{
    backend::onnx::{Runtime, Session},
    error::{Error, Result, quoted},
    pipeline::{Task, classification::ClassificationSettings, translation::Languages},
    repository::{
        bundle::{Bundle, MANIFEST, PIECES, TOKENIZER, describe, sha256_of},
        manifest::{self, File, Manifest, Precision, Quality, TensorNames},
    },
    tokenizer::Tokenizer,
};

/// The name of a bundle's graph.
const GRAPH: &str = "model.onnx";

/// What to build, and where to.
#[derive(Clone, Debug)]
pub struct Request {
    /// A recipe, a Hugging Face folder or an ONNX export.
    pub source: PathBuf,
    /// The bundle's folder; what is there is replaced once the new bundle is whole.
    pub out: PathBuf,
    /// The model's name, where it is not the recipe's or the folder's.
    pub name: Option<String>,
    /// What the model is for, where the source does not say.
    pub task: Option<Task>,
    /// The numbers to store weights as, where it is not the recipe's choice.
    pub precision: Option<Precision>,
    /// Where fetched packages are kept.
    pub cache: PathBuf,
}

/// Who is told how far a build has come.
pub trait Progress: Sync {
    /// A stage of so many steps begins.
    fn stage(&self, name: &str, steps: usize);
    /// A step of the stage is done.
    fn step(&self);
}

/// Where the model is and what is wanted of it, from the command line and the recipe together.
struct Plan {
    name: String,
    from: String,
    folder: PathBuf,
    /// The folder of an adapter to be merged.
    adapter: Option<PathBuf>,
    /// What is wanted of the model, if anything was said.
    task: Option<Task>,
    strategy: Strategy,
    tensors: TensorNames,
    languages: Option<Languages>,
    precision: Precision,
    floor: QualityFloor,
}

/// What a source was turned into, before it is measured.
struct Compiled {
    architecture: String,
    sha256: String,
    precision: Precision,
    plan: &'static str,
    settings: Settings,
    /// The folder of the fp32 graph, where there is another to be compared with it.
    reference: Option<PathBuf>,
    /// The folder of the graph that goes into the bundle.
    folder: PathBuf,
}

/// Builds a bundle.
///
/// - Nothing is written to [`Request::out`] before the bundle is whole and its quality above the floor.
/// - Sources that are not supported are refused by name, with what is supported.
pub fn build(request: &Request, runtime: Runtime, progress: &dyn Progress) -> Result<Bundle> {
    let plan = plan(request, progress)?;
    require_replaceable(&request.out)?;
    let parent = request.out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(Error::io(format!("cannot create `{}`", parent.display())))?;
    let scratch = tempfile::Builder::new()
        .prefix(".kivu-build-")
        .tempdir_in(parent)
        .map_err(Error::io(format!("cannot create a folder in `{}`", parent.display())))?;

    if let Some(opened) = open_translation(&plan, progress)? {
        let folder = build_translation(plan, opened, scratch.path(), runtime, progress)?;
        replace(&folder, &request.out, scratch.path())?;
        progress.step();
        return Bundle::open(&request.out);
    }
    require_config(&plan.folder)?;
    let tokenizer_file = read_tokenizer(&plan.folder)?;
    let tokenizer = Tokenizer::from_json(&tokenizer_file)?;

    let compiled = if Weights::are_in(&plan.folder) {
        compile_weights(&plan, scratch.path(), progress)?
    } else {
        compile_export(&plan, scratch.path(), runtime, progress)?
    };
    let quality = match &compiled.reference {
        Some(reference) => Some(compare(&plan, &compiled, reference, &tokenizer, runtime, progress)?),
        None => None,
    };

    let task = task(&plan, &compiled.settings)?;
    progress.stage("write the bundle", 1);
    let session = Session::open(runtime, &compiled.folder.join(GRAPH), std::num::NonZeroUsize::MIN)?;
    quality::try_out(&session, &tokenizer, &compiled.settings)?;
    write_file(&compiled.folder.join(TOKENIZER), &tokenizer_file)?;
    if let Some(pieces) = Tokenizer::pieces_of(&tokenizer_file)? {
        write_file(&compiled.folder.join(PIECES), &pieces)?;
    }
    let (embedding, classification) = match compiled.settings {
        Settings::Embedding(settings) => (Some(settings), None),
        Settings::Classification(settings) => (None, Some(settings)),
    };
    let manifest = Manifest {
        format: Manifest::FORMAT,
        name: plan.name,
        task,
        graph: GRAPH.to_owned(),
        source: manifest::Source {
            architecture: compiled.architecture,
            from: plan.from,
            sha256: compiled.sha256,
        },
        weights: manifest::Weights { precision: compiled.precision, plan: compiled.plan.to_owned(), quality },
        embedding,
        classification,
        translation: None,
        tensors: plan.tensors,
        signature: session.signature().clone(),
        files: files(&compiled.folder)?,
    };
    write_file(&compiled.folder.join(MANIFEST), manifest.to_text()?.as_bytes())?;
    replace(&compiled.folder, &request.out, scratch.path())?;
    progress.step();
    Bundle::open(&request.out)
}

/// The translation model that is the source; nothing where the source is another model.
fn open_translation(plan: &Plan, progress: &dyn Progress) -> Result<Option<translation::Opened>> {
    let open = if bergamot::is_in(&plan.folder) {
        bergamot::open
    } else if translation::is_in(&plan.folder) {
        translation::open
    } else if translation::is_export_in(&plan.folder) {
        translation::open_export
    } else {
        return Ok(None);
    };
    progress.stage("read the weights", 1);
    let opened = open(&plan.folder)?;
    progress.step();
    Ok(Some(opened))
}

/// Builds the bundle of a translation model in a folder of `scratch`.
fn build_translation(
    plan: Plan,
    opened: translation::Opened,
    scratch: &Path,
    runtime: Runtime,
    progress: &dyn Progress,
) -> Result<PathBuf> {
    if let Some(task) = plan.task.filter(|task| *task != Task::Translation) {
        return Err(Error::model(format!("expected a model for `{task}`, but found one that translates")));
    }
    let compiled = translation::compile(opened, &plan, scratch, runtime, progress)?;
    let quality = compiled.quality(runtime, progress)?;
    if let Some(quality) = &quality {
        quality::require(quality, &plan.floor)?;
    }
    progress.stage("write the bundle", 1);
    let manifest = Manifest {
        format: Manifest::FORMAT,
        name: plan.name,
        task: Task::Translation,
        graph: translation::graph().to_owned(),
        source: manifest::Source {
            architecture: compiled.architecture,
            from: plan.from,
            sha256: compiled.sha256,
        },
        weights: manifest::Weights {
            precision: plan.precision,
            plan: translation::plan_of(plan.precision).to_owned(),
            quality,
        },
        embedding: None,
        classification: None,
        translation: Some(compiled.settings),
        tensors: plan.tensors,
        signature: compiled.signature,
        files: files(&compiled.folder)?,
    };
    write_file(&compiled.folder.join(MANIFEST), manifest.to_text()?.as_bytes())?;
    Ok(compiled.folder)
}

fn plan(request: &Request, progress: &dyn Progress) -> Result<Plan> {
    let source = &request.source;
    let is_recipe = source.extension().is_some_and(|extension| extension == "toml") && source.is_file();
    if is_recipe {
        let recipe = Recipe::open(source)?;
        if let Some(task) = request.task.filter(|task| *task != recipe.task) {
            return Err(Error::config(format!(
                "expected the recipe's task `{}`, but found `--task {task}`",
                recipe.task
            )));
        }
        progress.stage("fetch the weights", 1);
        let folder = recipe.folder(source, &request.cache)?;
        progress.step();
        let adapter = recipe.source.adapter.as_ref();
        let adapter = adapter.map(|adapter| source.parent().unwrap_or(Path::new(".")).join(adapter));
        let from =
            recipe.source.package.clone().unwrap_or_else(|| recipe.source.folder.display().to_string());
        return Ok(Plan {
            name: request.name.clone().unwrap_or(recipe.name),
            from,
            folder,
            adapter,
            task: Some(recipe.task),
            strategy: recipe.strategy,
            tensors: recipe.tensors,
            languages: recipe
                .languages
                .map(|LanguagePair { source, target }| Languages::Pair { source, target }),
            precision: request.precision.unwrap_or(recipe.precision),
            floor: recipe.quality,
        });
    }
    if !source.is_dir() {
        return Err(Error::config(format!(
            "expected a recipe (`….toml`) or a folder, but found {} at `{}`",
            if source.exists() { "another file" } else { "nothing" },
            source.display()
        )));
    }
    let folder_name = source.canonicalize().ok();
    let folder_name = folder_name.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let folder_name = folder_name.unwrap_or("model").to_owned();
    Ok(Plan {
        name: request.name.clone().unwrap_or_else(|| folder_name.clone()),
        from: folder_name,
        folder: source.clone(),
        adapter: None,
        task: request.task,
        strategy: Strategy::default(),
        tensors: TensorNames::default(),
        languages: None,
        precision: request.precision.unwrap_or_default(),
        floor: QualityFloor::default(),
    })
}

fn compile_weights(plan: &Plan, scratch: &Path, progress: &dyn Progress) -> Result<Compiled> {
    // An adapter's own `config.json` says what the whole is.
    let described = plan.adapter.as_ref().filter(|adapter| adapter.join("config.json").is_file());
    let mut architecture = Architecture::open(described.unwrap_or(&plan.folder))?;
    progress.stage("read the weights", 1);
    let (prefix, landmark) = architecture.prefix();
    let mut weights = Weights::open(&plan.folder)?.with_prefix(prefix, landmark);
    if let Some(folder) = &plan.adapter
        && let Some(labels) = Adapter::open(folder)?.merge(&mut weights, prefix)?
    {
        architecture = architecture.with_head(labels);
    }
    progress.step();
    let facts = architecture.facts();
    let settings = match architecture.head() {
        Some(head) => Settings::Classification(ClassificationSettings {
            output: encoder::LOGITS.to_owned(),
            labels: head.labels.clone(),
            function: head.function,
            max_tokens: sentence_transformers::max_tokens(&plan.folder, facts.max_positions)?,
        }),
        None => Settings::Embedding(sentence_transformers::settings(
            &plan.folder,
            encoder::OUTPUT,
            facts.hidden,
            facts.max_positions,
        )?),
    };
    let write = |precision, name: &str| {
        let folder = create_folder(&scratch.join(name))?;
        onnx::write(architecture.graph(&weights, precision)?, &folder, GRAPH)?;
        progress.step();
        Ok::<_, Error>(folder)
    };
    progress.stage("write the graphs", if plan.precision == Precision::Fp32 { 1 } else { 2 });
    let fp32 = write(Precision::Fp32, "fp32")?;
    let (reference, folder) = match plan.precision {
        Precision::Fp32 => (None, fp32),
        quantised => (Some(fp32), write(quantised, "quantised")?),
    };
    Ok(Compiled {
        architecture: facts.architecture.clone(),
        sha256: weights.sha256().to_owned(),
        precision: plan.precision,
        plan: plan_of(plan.precision),
        settings,
        reference,
        folder,
    })
}

fn compile_export(
    plan: &Plan,
    scratch: &Path,
    runtime: Runtime,
    progress: &dyn Progress,
) -> Result<Compiled> {
    let source = export::find(&plan.folder).ok_or_else(|| {
        Error::model(format!(
            "expected `model.safetensors` of an encoder ({}) or of a model that translates ({}), or an ONNX export \
             (`model.onnx`) in `{}`, but found none of these",
            quoted(&MODEL_TYPES),
            quoted(&translation::MODEL_TYPES),
            plan.folder.display()
        ))
    })?;
    let facts = Facts::open(&plan.folder)?;
    let original = onnx::read(&source)?;
    let says_how_to_pool = plan.folder.join("modules.json").is_file();
    let output = export::output(&original, says_how_to_pool)?;
    let settings = sentence_transformers::settings(&plan.folder, output, facts.hidden, facts.max_positions)?;
    let sha256 = sha256_of(&source)?;
    let write = |model: onnx::proto::ModelProto, name: &str| {
        let raw = create_folder(&scratch.join(format!("{name}-raw")))?;
        onnx::write(model, &raw, GRAPH)?;
        let optimised = raw.join("optimised.onnx");
        Session::optimise(runtime, &raw.join(GRAPH), &optimised)?;
        let folder = create_folder(&scratch.join(name))?;
        onnx::write(onnx::read(&optimised)?, &folder, GRAPH)?;
        progress.step();
        Ok::<_, Error>(folder)
    };
    let is_quantised = export::is_quantised(&original);
    if plan.precision == Precision::Int8Blocks {
        return Err(Error::model(
            "expected `int8` or `fp32` for an ONNX export, but found `int8-blocks`, which is for weights",
        ));
    }
    if is_quantised && plan.precision == Precision::Fp32 {
        return Err(Error::model(format!(
            "expected fp32 weights in `{}`, but found quantised ones; leave `--precision` out to take them",
            source.display()
        )));
    }
    let quantises = !is_quantised && plan.precision == Precision::Int8;
    progress.stage("optimise the graphs", if quantises { 2 } else { 1 });
    let (reference, folder) = if quantises {
        let mut quantised = original.clone();
        export::quantise(&mut quantised);
        (Some(write(original, "fp32")?), write(quantised, "int8")?)
    } else {
        (None, write(original, "as-exported")?)
    };
    Ok(Compiled {
        architecture: facts.architecture,
        sha256,
        precision: plan.precision,
        plan: if is_quantised { "as the export has them" } else { plan_of(plan.precision) },
        settings: Settings::Embedding(settings),
        reference,
        folder,
    })
}

fn plan_of(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp32 => "none",
        Precision::Int8Blocks => {
            "matrices: int8, one scale for every 32 weights, activations likewise; \
             word embeddings: int8, one scale a row; the rest: fp32"
        }
        Precision::Int8 => {
            "matrices: int8, one scale an output channel, activations quantised as they come; \
             word embeddings: int8, one scale a row; the rest: fp32"
        }
    }
}

fn compare(
    plan: &Plan,
    compiled: &Compiled,
    reference: &Path,
    tokenizer: &Tokenizer,
    runtime: Runtime,
    progress: &dyn Progress,
) -> Result<Quality> {
    progress.stage("measure the quality", quality::SENTENCES.lines().count());
    let (reference, quantised) = (reference.join(GRAPH), compiled.folder.join(GRAPH));
    let graphs = quality::Graphs { reference: &reference, quantised: &quantised };
    let step = || progress.step();
    let quality = quality::measure(runtime, graphs, tokenizer, &compiled.settings, &step)?;
    quality::require(&quality, &plan.floor)?;
    Ok(quality)
}

/// The task of the bundle: the one that is wanted, if the model can do it, or what the model is most likely for.
fn task(plan: &Plan, settings: &Settings) -> Result<Task> {
    let likely = match settings {
        Settings::Embedding(_) => Task::FeatureExtraction,
        Settings::Classification(settings) if settings.labels.len() == 1 => Task::TextRanking,
        Settings::Classification(_) => Task::TextClassification,
    };
    let task = plan.task.unwrap_or(likely);
    let can = match (settings, task) {
        (Settings::Embedding(_), Task::FeatureExtraction) => true,
        (Settings::Embedding(_), Task::TextRanking | Task::ZeroShotClassification) => {
            plan.strategy == Strategy::Embedding
        }
        (_, Task::Translation)
        | (Settings::Embedding(_), Task::TextClassification)
        | (Settings::Classification(_), Task::FeatureExtraction) => false,
        (Settings::Classification(_), _) => plan.strategy == Strategy::Model,
    };
    if can {
        return Ok(task);
    }
    let found = match settings {
        Settings::Embedding(_) => "a model without a head for labels, which makes embeddings",
        Settings::Classification(_) => "a model with a head for labels",
    };
    Err(Error::model(format!(
        "expected a model for `{task}`, but found {found}; an embedding model does zero-shot classification and \
         ranking with `strategy = \"embedding\"` in a recipe"
    )))
}

/// The entries of all files in `folder`, by name.
fn files(folder: &Path) -> Result<Vec<File>> {
    let unreadable = || Error::io(format!("cannot read `{}`", folder.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable())? {
        let entry = entry.map_err(unreadable())?;
        files.push(describe(&entry.path(), entry.file_name().to_string_lossy().into_owned())?);
    }
    files.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(files)
}

/// Refuses to build where files of another kind would be lost.
fn require_replaceable(out: &Path) -> Result<()> {
    let is_bundle = out.join(MANIFEST).is_file();
    let is_empty = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if out.exists() && !is_bundle && !is_empty {
        return Err(Error::config(format!(
            "expected `{}` to be a bundle, an empty folder or nothing, but found other files there",
            out.display()
        )));
    }
    Ok(())
}

/// Moves the finished `folder` to `out`, in place of what was there, which comes back if that fails.
fn replace(folder: &Path, out: &Path, scratch: &Path) -> Result<()> {
    let failed = || Error::io(format!("cannot write `{}`", out.display()));
    let replaced = scratch.join("replaced");
    if out.exists() {
        fs::rename(out, &replaced).map_err(failed())?;
    }
    fs::rename(folder, out).map_err(|error| {
        // The first error is the one to be told.
        let _ = fs::rename(&replaced, out);
        failed()(error)
    })
}

/// Refuses a folder that is no model.
fn require_config(folder: &Path) -> Result<()> {
    if folder.join("config.json").is_file() {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected a model in `{}` (`config.json`, `{TOKENIZER}`, and `model.safetensors` or `model.onnx`; or \
         `model.….bin`, `lex.….bin` and `{TOKENIZER}` of a Bergamot student), but found neither `config.json` nor \
         `model.….bin`",
        folder.display()
    )))
}

fn read_tokenizer(folder: &Path) -> Result<Vec<u8>> {
    let path = folder.join(TOKENIZER);
    fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::model(format!(
            "expected `{TOKENIZER}` in `{}`, but found none; the fast tokenizers of `transformers` save it \
             (`save_pretrained`)",
            folder.display()
        )),
        _ => Error::Io { action: format!("cannot read `{}`", path.display()), source },
    })
}

fn create_folder(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path).map_err(Error::io(format!("cannot create `{}`", path.display())))?;
    Ok(path.to_owned())
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(Error::io(format!("cannot write `{}`", path.display())))
}
