//! The build request, and the plan that results from it and its recipe.

pub mod label_maps;
pub mod model_card;
pub mod opened_model;
pub mod path_id;
pub mod progress;
pub mod recipe;
pub mod recipes;
pub mod scratch;
pub mod task;

use std::{
    mem,
    path::{Path, PathBuf},
};

use super::{
    fast_text::file::is_model,
    files::{
        config::ConfigFile, io::known_format, lora, model_folder::ModelFolder,
        module_list::has_pooling,
    },
    library::links::check_links,
    plan::{
        progress::Progress,
        recipe::{Prompts, QualityFloor, Recipe, Strategy},
    },
    quality::Samples,
    sentence_transformers::transformer_folder,
};
use kivu::{
    Error, Result,
    config::EngineChoice,
    error::Message,
    onnx::Runtime,
    pipeline::{
        Task,
        seq2seq::{LanguagePair, Languages},
    },
    repository::manifest::{Precision, TensorNames},
};

/// A build's source and destination, and settings that override the source's.
#[derive(Clone, Debug)]
pub struct Request {
    /// A recipe, a Hugging Face folder, an ONNX export or a fastText model.
    pub source: PathBuf,
    /// The bundle's folder. An existing bundle is replaced when the new one is complete.
    pub out: PathBuf,
    /// Model name; by default the recipe's or the folder's.
    pub name: Option<String>,
    /// Model task; by default the recipe's, or the most likely one.
    pub task: Option<Task>,
    /// Whether an embedding model's vectors have to be sparse, whatever its files say.
    pub is_sparse: bool,
    /// Weight precision; by default the recipe's, or int8 unless its quality is below the floor.
    pub precision: Option<Precision>,
    /// Target engine for an encoder.
    pub engine: EngineChoice,
    /// Keys in the model's files that the build ignores at the user's risk, though they may change results.
    pub allow: Vec<String>,
    /// Texts and pairs to measure the bundle with.
    pub samples: Samples,
    /// Whether the bundle is only measured, so that its quality has no floor.
    pub is_for_comparison: bool,
    /// Folder for downloaded packages.
    pub cache: PathBuf,
}

/// A build's source and settings.
#[derive(Clone, Default)]
pub struct Plan {
    pub name: String,
    pub aliases: Vec<String>,
    /// The source package or folder, for the manifest.
    pub from: String,
    pub folder: ModelFolder,
    /// The fastText model to build, if its folder has others.
    pub file: Option<PathBuf>,
    /// Folder with an adapter to merge into the weights.
    pub adapter: Option<ModelFolder>,
    /// Folder with the weights, if `folder` has only an adapter and its modules.
    pub base: Option<ModelFolder>,
    /// Folder with GLiNER's encoder files, if the model's own has none.
    pub encoder: Option<ModelFolder>,
    /// The requested task; by default the model's most likely one.
    pub task: Option<Task>,
    /// Whether the vectors have to be sparse.
    pub is_sparse: bool,
    /// How the model has to do zero-shot classification and ranking, if the recipe says.
    pub strategy: Option<Strategy>,
    pub tensors: TensorNames,
    pub prompts: Prompts,
    /// The template for pairs that the recipe names.
    pub template: Option<String>,
    pub languages: Option<LanguagePair>,
    /// Whether a classifier's labels are languages; by default the build decides.
    pub identifies_languages: Option<bool>,
    pub precision: Precision,
    /// Whether the precision was requested. Otherwise, the build may choose a better one.
    pub is_precision_fixed: bool,
    pub engine: EngineChoice,
    /// `None` for a bundle that is only measured.
    pub floor: Option<QualityFloor>,
    pub samples: Samples,
    /// Keys in the model's files that are ignored, though they may change results.
    pub allow: Vec<String>,
}

impl Plan {
    /// The folder with the weights, the `config.json` and the tokenizer.
    pub fn transformer(&self) -> Result<ModelFolder> {
        transformer_folder(self.base.as_ref().unwrap_or(&self.folder))
    }

    /// The folder with the `config.json` that describes the model: an adapter's own one describes the merged model.
    pub fn described(&self) -> Result<ModelFolder> {
        let has_config = |adapter: &&ModelFolder| adapter.join(ConfigFile::NAME).is_file();
        match self.adapter.as_ref().filter(has_config) {
            Some(adapter) => Ok(adapter.clone()),
            None => self.transformer(),
        }
    }

    /// Takes sentence-transformers modules from the adapter's folder, if it has its own. Refuses a folder with an
    /// adapter that the build would ignore, and links out of any of the folders.
    pub fn with_adapters_modules(mut self) -> Result<Self> {
        let folder = Some(&self.folder).filter(|_| self.file.is_none());
        let folders = [folder, self.adapter.as_ref(), self.encoder.as_ref()];
        folders
            .into_iter()
            .flatten()
            .try_for_each(|folder| check_links(folder))?;
        let adapter = self
            .adapter
            .as_ref()
            .and_then(|adapter| adapter.canonicalize().ok());
        let folders = [self.folder.clone(), self.transformer()?];
        let ignored = folders.iter().find(|folder| {
            folder.join(lora::CONFIG).is_file()
                && (adapter.is_none() || folder.canonicalize().ok() != adapter)
        });
        if let Some(folder) = ignored {
            return Err(lora::ignored(folder));
        }
        if let Some(adapter) = self.adapter.clone().filter(has_pooling) {
            self.base = Some(mem::replace(&mut self.folder, adapter));
        }
        Ok(self)
    }

    /// Languages for a translation model: the recipe's, or else the ones named by the model's files.
    pub fn languages(&self, of_files: Option<Languages>) -> Result<Languages> {
        let pair = |LanguagePair { source, target }| Languages::Pair { source, target };
        self.languages
            .clone()
            .map(pair)
            .or(of_files)
            .ok_or_else(|| {
                Error::model(format!(
                    "expected the languages of `{}` in its files, but found none",
                    self.name
                ))
                .with_hint("name them in a recipe: `[languages]` with `source` and `target`")
            })
    }
}

/// Loads ONNX Runtime, or downloads it first. Called for graphs that run there only.
pub type LoadRuntime<'a> = &'a dyn Fn() -> Result<Runtime>;

/// A plan and its build resources.
#[derive(Clone, Copy)]
pub struct Build<'a> {
    pub plan: &'a Plan,
    pub scratch: &'a Path,
    pub runtime: LoadRuntime<'a>,
    pub progress: &'a dyn Progress,
}

/// Plans a build; downloads the recipe's package.
pub fn plan(request: &Request, progress: &dyn Progress) -> Result<Plan> {
    let source = &request.source;
    let is_recipe = source
        .extension()
        .is_some_and(|extension| extension == "toml")
        && source.is_file();
    if is_recipe {
        return of_recipe(request, progress);
    }
    let is_file = is_model(source);
    if !source.is_dir() && !is_file {
        return Err(no_source(source));
    }
    let folder = source.canonicalize().ok();
    let name = if is_file {
        Path::file_stem
    } else {
        Path::file_name
    };
    let from = folder
        .as_deref()
        .and_then(name)
        .and_then(|name| name.to_str());
    let from = from.unwrap_or("model").to_owned();
    Ok(Plan {
        name: request.name.clone().unwrap_or_else(|| from.clone()),
        from,
        folder: match source.parent() {
            Some(parent) if is_file => ModelFolder::new(parent),
            _ => ModelFolder::new(source),
        },
        file: is_file.then(|| source.clone()),
        task: request.task,
        is_sparse: request.is_sparse,
        precision: request.precision.unwrap_or_default(),
        is_precision_fixed: request.precision.is_some(),
        engine: request.engine,
        floor: (!request.is_for_comparison).then(QualityFloor::default),
        samples: request.samples.clone(),
        allow: request.allow.clone(),
        ..Plan::default()
    })
}

/// The error for a file or a missing path in place of a folder.
fn no_source(path: &Path) -> Error {
    let found = match (path.exists(), known_format(path)) {
        (_, Some(format)) => format,
        (true, None) => Message::new("another file"),
        (false, None) => Message::new("nothing"),
    };
    let found = found.append(&format!(" at `{}`", path.display()));
    let error = Error::config(
        found.map(|found| format!("expected a recipe (`….toml`) or a folder, but found {found}")),
    );
    match path.exists() {
        true => error.with_hint("build the folder that contains it"),
        false => error,
    }
}

fn of_recipe(request: &Request, progress: &dyn Progress) -> Result<Plan> {
    let path = &request.source;
    let recipe = Recipe::open(path)?;
    if let Some(task) = request.task.filter(|task| *task != recipe.task) {
        return Err(Error::config(format!(
            "expected the recipe's task `{}`, but found `--task {task}`",
            recipe.task
        ))
        .with_hint(
            "for another task, name the model's folder or hub repository instead of the recipe",
        ));
    }
    let folder = recipe.folder(path, &request.cache, progress)?;
    let parent = path.parent().unwrap_or(Path::new("."));
    let (source, precision) = (recipe.source, request.precision.or(recipe.precision));
    Ok(Plan {
        name: request.name.clone().unwrap_or(recipe.name),
        from: source
            .package
            .unwrap_or_else(|| source.folder.display().to_string()),
        folder: ModelFolder::new(folder),
        file: None,
        adapter: source
            .adapter
            .map(|adapter| ModelFolder::new(parent.join(adapter))),
        base: None,
        encoder: None,
        task: Some(recipe.task),
        is_sparse: request.is_sparse,
        strategy: recipe.strategy,
        tensors: recipe.tensors,
        prompts: recipe.prompts,
        template: recipe.template,
        aliases: recipe.aliases,
        languages: recipe.languages,
        identifies_languages: recipe.identifies_languages,
        precision: precision.unwrap_or_default(),
        is_precision_fixed: precision.is_some(),
        engine: request.engine,
        floor: (!request.is_for_comparison).then_some(recipe.quality),
        samples: request.samples.clone(),
        allow: [&recipe.allow[..], &request.allow].concat(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn models() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models")
    }

    fn planned(folder: &Path, adapter: Option<&Path>) -> Result<Plan> {
        let adapter = adapter.map(ModelFolder::new);
        Plan {
            folder: ModelFolder::new(folder),
            adapter,
            ..Plan::default()
        }
        .with_adapters_modules()
    }

    #[test]
    fn an_adapter_that_a_build_would_ignore_is_refused() {
        let (base, adapter) = (
            models().join("tiny-bert-sentiment"),
            models().join("tiny-bert-lora"),
        );
        let refusal = planned(&adapter, None).err().unwrap().to_string();
        let names = [
            "but found an adapter",
            "`../tiny-bert-sentiment`",
            "`adapter` of `[source]`",
        ];
        assert!(names.iter().all(|name| refusal.contains(name)), "{refusal}");
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(base.join(file), folder.path().join(file)).unwrap();
        }
        assert!(planned(folder.path(), None).is_ok());
        fs::copy(adapter.join(lora::CONFIG), folder.path().join(lora::CONFIG)).unwrap();
        for adapter in [None, Some(adapter.as_path())] {
            let refusal = planned(folder.path(), adapter).err().unwrap().to_string();
            assert!(refusal.contains("found both"), "{refusal}");
        }
        // The same folder as model and adapter.
        assert!(planned(folder.path(), Some(folder.path())).is_ok());
    }

    #[test]
    fn an_adapter_with_modules_has_those_of_its_folder() {
        let base = models().join("tiny-bert-sentiment");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("modules.json"), "[]").unwrap();
        let plan = planned(&base, Some(folder.path())).unwrap();
        assert_eq!(
            (&*plan.folder, &*plan.transformer().unwrap()),
            (folder.path(), &*base)
        );
    }
}
