//! What is to be built, from the command line and the recipe together.

use std::path::{Path, PathBuf};

use super::{LanguagePair, Progress, QualityFloor, Recipe, Request, Strategy};
use crate::{
    error::{Error, Result},
    pipeline::{Task, translation::Languages},
    repository::manifest::{Precision, TensorNames},
};

/// Where the model is and what is wanted of it.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) from: String,
    pub(super) folder: PathBuf,
    /// The folder of an adapter to be merged.
    pub(super) adapter: Option<PathBuf>,
    /// What is wanted of the model, if anything was said.
    pub(super) task: Option<Task>,
    pub(super) strategy: Strategy,
    pub(super) tensors: TensorNames,
    pub(super) languages: Option<Languages>,
    pub(super) precision: Precision,
    pub(super) floor: QualityFloor,
}

/// Reads a request; fetches what its recipe names.
pub(super) fn plan(request: &Request, progress: &dyn Progress) -> Result<Plan> {
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
