//! fastText's classifiers: `.bin` files, and `.ftz` files, whose vectors are quantized and whose dictionary may be pruned.
//!
//! The bundle has the features as a tokenizer, a table with their vectors, and the output layer. Vectors are stored as fp32,
//! in which quantized ones are exact.

mod dictionary;
pub mod file;
mod matrix;
mod model;
mod reader;
mod tree;

use std::path::{Path, PathBuf};

use kivu::{
    Error, Result,
    backend::{
        Engine,
        native::{HIERARCHICAL_SOFTMAX, MEAN_OF_ROWS, ROW_PRODUCTS},
    },
    config::EngineChoice,
    pipeline::{
        Task,
        classification::{ClassificationSettings, scores::ScoreFunction},
        seq2seq::are_languages,
    },
    repository::{FAST_TEXT, TaskSettings, bundle::sha256_of, manifest::Precision},
};

use self::{
    file::is_model,
    matrix::Matrix,
    model::{FastText, Loss},
    tree::Tree,
};
use super::{
    files::io as files,
    onnx::{GraphBuilder, ModelProto, any, fixed, functions},
    plan::{
        Plan,
        opened_model::{MODEL, OpenedModel},
    },
};

/// The architecture in the manifest.
pub const ARCHITECTURE: &str = FAST_TEXT;
/// Maximum features per text; some 350,000 characters with n-grams of 2 to 4 characters.
const MAX_FEATURES: usize = 1 << 20;

/// The model files in `folder`.
fn model_files(folder: &Path) -> Vec<PathBuf> {
    let entries = files::list(folder).unwrap_or_default();
    entries
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| is_model(path))
        .collect()
}

/// Whether `folder` has a model file.
pub fn is_in(folder: &Path) -> bool {
    !model_files(folder).is_empty()
}

/// Opens the model in the plan's folder.
pub fn open(plan: &Plan) -> Result<OpenedModel<'static>> {
    let path = match (&plan.file, &model_files(&plan.folder)[..]) {
        (Some(file), _) => file.clone(),
        (None, [only]) => only.clone(),
        (None, all) => {
            let names: Vec<_> = all.iter().filter_map(|path| path.file_name()).collect();
            return Err(Error::model(format!(
                "expected one fastText model in `{}`, but found {names:?}",
                plan.folder.display()
            ))
            .with_hint("build one of these files"));
        }
    };
    check(plan)?;
    let in_file = |error| Error::model_because(format!("cannot read `{}`", path.display()), error);
    let bytes = files::read_weights(&path)?;
    let model = FastText::read(&bytes).map_err(in_file)?;
    let tokenizer = model.tokenizer()?;
    let head = match model.loss {
        Loss::HierarchicalSoftmax => {
            Some(Tree::new(&model.dictionary.label_counts()).map_err(in_file)?)
        }
        Loss::Softmax => None,
    };
    let labels = model.dictionary.label_names().map_err(in_file)?;
    let settings = ClassificationSettings {
        output: if head.is_some() { "scores" } else { "logits" }.to_owned(),
        identifies_languages: are_languages(&labels),
        labels,
        function: if head.is_some() {
            ScoreFunction::None
        } else {
            ScoreFunction::Softmax
        },
        max_tokens: MAX_FEATURES,
        template: None,
        query_prompt: None,
        padding: None,
    };
    let FastText { input, output, .. } = model;
    let engine = match plan.engine {
        EngineChoice::Onnx => Engine::Onnx,
        EngineChoice::Auto | EngineChoice::Native => Engine::Native,
    };
    Ok(OpenedModel {
        architecture: ARCHITECTURE.to_owned(),
        sha256: sha256_of(&path)?,
        tokenizer,
        files: Vec::new(),
        unused_heads: Vec::new(),
        keeps_attention: false,
        is_export: false,
        is_quantized: false,
        engine,
        fp32_engine: engine,
        graphs: Box::new({
            let name = settings.output.clone();
            move |_, _| {
                Ok(vec![(
                    MODEL,
                    graph([&input, &output], head.as_ref(), &name),
                )])
            }
        }),
        settings: TaskSettings::Classification(settings),
        generates: &[],
    })
}

/// Refuses plans for other tasks and precisions.
fn check(plan: &Plan) -> Result<()> {
    if let Some(task) = plan.task.filter(|task| *task != Task::TextClassification) {
        return Err(Error::model(format!(
            "expected `{}` for a fastText model, but found `{task}`",
            Task::TextClassification
        )));
    }
    match plan.precision {
        precision if plan.is_precision_fixed && precision != Precision::Fp32 => Err(Error::model(
            format!("expected `--precision fp32` for a fastText model, but found `{precision}`"),
        )
        .with_hint("`fasttext quantize` makes models smaller")),
        _ => Ok(()),
    }
}

/// Writes the graph for a vector per feature, and a vector per label or inner node.
fn graph([input, output]: [&Matrix; 2], tree: Option<&Tree>, name: &str) -> ModelProto {
    let mut graph = GraphBuilder::with_functions();
    let ids = graph.input("input_ids", &["batch", "sequence"]);
    let mask = graph.input("attention_mask", &["batch", "sequence"]);
    let table = graph.floats("input.weight", &[input.rows, input.columns], &input.values);
    let weights = graph.floats(
        "output.weight",
        &[output.rows, output.columns],
        &output.values,
    );
    let mean = graph.function(MEAN_OF_ROWS, [&table, &ids, &mask], functions::mean_of_rows);
    let products = graph.function(ROW_PRODUCTS, [&mean, &weights], functions::row_products);
    let (scores, count) = match tree {
        None => (products, output.rows),
        Some(tree) => {
            let paths = graph.integers("paths", &tree.paths);
            let shape = graph.integers("paths.shape", &[0, tree.labels as i64, tree.depth as i64]);
            let inputs = [&products, &paths, &shape];
            let scores = graph.function(
                HIERARCHICAL_SOFTMAX,
                inputs,
                functions::hierarchical_softmax,
            );
            (scores, tree.labels)
        }
    };
    graph.output(&scores, name, [any("batch"), fixed(count)]);
    graph.finish(ARCHITECTURE)
}
