//! The model compiler: weights in, a bundle out, with its quality measured. No Python, no PyTorch.

mod adapter;
mod architecture;
mod bergamot;
pub mod cost;
mod deberta;
pub mod encoder;
mod encoding;
mod export;
pub mod exported;
pub mod fetch;
mod folder;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/readers/build.rs"]
pub(crate) mod fuzzing;
mod layers;
pub mod onnx;
mod plan;
pub mod quality;
pub mod quantise;
mod recipe;
mod scratch;
mod sentence_transformers;
mod sentencepiece;
mod translation;
pub mod weights;

use std::path::PathBuf;

use self::{cost::Comparison, plan::Plan, scratch::Scratch};
pub use self::{
    recipe::{LanguagePair, QualityFloor, Recipe, Strategy},
    scratch::abandon,
};
use crate::{
    backend::{Signature, onnx::Runtime},
    error::Result,
    pipeline::{
        Task, classification::ClassificationSettings, embedding::EmbeddingSettings,
        translation::TranslationSettings,
    },
    repository::{
        bundle::{Bundle, MANIFEST},
        folder::Destination,
        manifest::{self, Manifest, Precision},
    },
};

/// What to build, and where to.
#[derive(Clone, Debug)]
pub struct Request {
    /// A recipe, a Hugging Face folder or an ONNX export.
    pub source: PathBuf,
    /// The bundle's folder; a bundle that is there is replaced once the new one is whole.
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

/// What a source was turned into: whole but for its manifest.
struct Product {
    folder: PathBuf,
    architecture: String,
    sha256: String,
    task: Task,
    graph: &'static str,
    signature: Signature,
    settings: TaskSettings,
    weights: manifest::Weights,
    comparison: Option<Comparison>,
}

/// What came of a build.
#[derive(Debug)]
pub struct Built {
    /// The bundle, where it was wanted.
    pub bundle: Bundle,
    /// What quantising saved, where it was quantised here.
    pub comparison: Option<Comparison>,
}

/// What a manifest says of how its task is done.
enum TaskSettings {
    Embedding(EmbeddingSettings),
    Classification(ClassificationSettings),
    Translation(Box<TranslationSettings>),
}

impl From<quality::Settings> for TaskSettings {
    fn from(settings: quality::Settings) -> Self {
        match settings {
            quality::Settings::Embedding(settings) => Self::Embedding(settings),
            quality::Settings::Classification(settings) => Self::Classification(settings),
        }
    }
}

/// Builds a bundle.
///
/// - Nothing is written to [`Request::out`] before the bundle is whole and its quality above the floor.
/// - Nothing but a bundle is replaced there: see [`Destination`].
/// - Sources that are not supported are refused by name, with what is supported.
pub fn build(request: &Request, runtime: Runtime, progress: &dyn Progress) -> Result<Built> {
    let destination = Destination::new(&request.out)?;
    let plan = plan::plan(request, progress)?;
    let scratch = Scratch::new_in(destination.parent())?;

    let product = match open_translation(&plan, progress)? {
        Some(opened) => translation::compile(opened, &plan, scratch.path(), runtime, progress)?,
        None => encoding::compile(&plan, scratch.path(), runtime, progress)?,
    };
    if let Some(quality) = &product.weights.quality {
        quality::require(quality, &plan.floor)?;
    }
    let comparison = product.comparison;
    progress.stage("write the bundle", 1);
    let folder = write_manifest(product, plan)?;
    destination.replace(&folder)?;
    progress.step();
    Ok(Built { bundle: Bundle::open(&request.out)?, comparison })
}

/// Writes what is known of a bundle beside its files; gives their folder.
fn write_manifest(product: Product, plan: Plan) -> Result<PathBuf> {
    let Product { folder, architecture, sha256, task, graph, signature, settings, weights, comparison: _ } =
        product;
    let mut manifest = Manifest {
        format: Manifest::FORMAT,
        name: plan.name,
        task,
        graph: graph.to_owned(),
        source: manifest::Source { architecture, from: plan.from, sha256 },
        weights,
        embedding: None,
        classification: None,
        translation: None,
        tensors: plan.tensors,
        signature,
        files: folder::files(&folder)?,
    };
    match settings {
        TaskSettings::Embedding(settings) => manifest.embedding = Some(settings),
        TaskSettings::Classification(settings) => manifest.classification = Some(settings),
        TaskSettings::Translation(settings) => manifest.translation = Some(*settings),
    }
    folder::write_file(&folder.join(MANIFEST), manifest.to_text()?.as_bytes())?;
    Ok(folder)
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
