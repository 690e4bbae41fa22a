//! Models that read a text and are done with it: an encoder, perhaps with a head, in one graph.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
};

use super::{
    Product, Progress, Strategy,
    adapter::Adapter,
    architecture::Architecture,
    cost::{self, Comparison},
    encoder::{self, Facts, MODEL_TYPES},
    export,
    folder::{create_folder, read_tokenizer, write_tokenizer},
    onnx,
    plan::Plan,
    quality::{self, Settings},
    sentence_transformers, translation,
    weights::Weights,
};
use crate::{
    backend::onnx::{Runtime, Session},
    error::{Error, Result, quoted},
    pipeline::{Task, classification::ClassificationSettings},
    repository::{
        bundle::{TOKENIZER, sha256_of},
        manifest::{self, Precision, Quality},
    },
    tokenizer::Tokenizer,
};

/// The name of the graph.
const GRAPH: &str = "model.onnx";

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

/// Compiles the encoder in the source's folder, measures it, and tries it out.
pub(super) fn compile(
    plan: &Plan,
    scratch: &Path,
    runtime: Runtime,
    progress: &dyn Progress,
) -> Result<Product> {
    require_config(&plan.folder)?;
    let tokenizer_file = read_tokenizer(&plan.folder)?;
    let tokenizer = Tokenizer::from_json(&tokenizer_file)?;
    let compiled = if Weights::are_in(&plan.folder) {
        compile_weights(plan, scratch, progress)?
    } else {
        compile_export(plan, scratch, runtime, progress)?
    };
    let compared = match &compiled.reference {
        Some(reference) => Some(compare(&compiled, reference, &tokenizer, runtime, progress)?),
        None => None,
    };
    let (quality, comparison) = compared.unzip();
    let task = task(plan, &compiled.settings)?;
    let session = Session::open(runtime, &compiled.folder.join(GRAPH), NonZeroUsize::MIN)?;
    quality::try_out(&session, &tokenizer, &compiled.settings)?;
    write_tokenizer(&compiled.folder, &tokenizer_file)?;
    Ok(Product {
        folder: compiled.folder,
        architecture: compiled.architecture,
        sha256: compiled.sha256,
        task,
        graph: GRAPH,
        signature: session.signature().clone(),
        settings: compiled.settings.into(),
        weights: manifest::Weights { precision: compiled.precision, plan: compiled.plan.to_owned(), quality },
        comparison,
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
    compiled: &Compiled,
    reference: &Path,
    tokenizer: &Tokenizer,
    runtime: Runtime,
    progress: &dyn Progress,
) -> Result<(Quality, Comparison)> {
    progress.stage("measure the quality", quality::SENTENCES.lines().count());
    let sizes = [cost::size(reference)?, cost::size(&compiled.folder)?];
    let (reference, quantised) = (reference.join(GRAPH), compiled.folder.join(GRAPH));
    let graphs = quality::Graphs { reference: &reference, quantised: &quantised };
    let step = || progress.step();
    let (quality, spent) = quality::measure(runtime, graphs, tokenizer, &compiled.settings, &step)?;
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    Ok((quality, spent.compare(sizes, threads)))
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
