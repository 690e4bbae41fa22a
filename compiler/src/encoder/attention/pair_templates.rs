//! Rerankers whose own files lack the text around a pair: the templates of their authors' code and model cards.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::{
    files::config::ConfigFile,
    plan::{Plan, model_card::base_models},
};
use kivu::{Error, Result, error::quoted, pipeline::classification::pair_template::PairTemplate};

/// A template, and how the model's answer is read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownTemplate {
    /// The name in recipes.
    pub name: String,
    model_type: String,
    /// Repositories, with or without organization and with any end, as of conversions to a label head.
    repositories: Vec<String>,
    /// The token whose logit is the score, and one whose logit is subtracted.
    pub tokens: (String, Option<String>),
    /// The token before all others, which the authors' code leaves out unless it is the tokenizer's first and not its padding.
    pub begin: Option<String>,
    pub template: PairTemplate,
}

/// As in the code of Qwen3-Reranker's card, and in the packages `mxbai-rerank` and FlagEmbedding.
static TEMPLATES: LazyLock<Vec<KnownTemplate>> =
    LazyLock::new(|| serde_json::from_str(include_str!("pair-templates.json")).unwrap_or_default());

impl KnownTemplate {
    /// The template that the recipe names, or that belongs to the model's repository or to one that its card calls its
    /// base; `None` if there is none for its `model_type`.
    pub fn of(plan: &Plan, config: &ConfigFile) -> Result<Option<&'static Self>> {
        let model_type = config.model_type();
        if let Some(name) = &plan.template {
            return match Self::named(name) {
                Some(known) if known.model_type == model_type => Ok(Some(known)),
                Some(known) => Err(Error::model(format!(
                    "the template `{name}` is for `{}`, but the model is `{model_type}`",
                    known.model_type
                ))),
                None => Err(Error::model(format!(
                    "expected a `template` among {}, but found `{name}`",
                    Self::names()
                ))),
            };
        }
        let mut repositories = base_models(&plan.folder);
        repositories.push(plan.from.clone());
        let has_name = |known: &&Self| {
            repositories
                .iter()
                .any(|repository| known.belongs_to(repository))
        };
        Ok(TEMPLATES
            .iter()
            .find(|known| known.model_type == model_type && has_name(known)))
    }

    /// Their names in recipes.
    pub fn names() -> String {
        let names: Vec<_> = TEMPLATES.iter().map(|known| &known.name).collect();
        quoted(&names)
    }

    /// The template of Qwen3-Reranker.
    pub fn qwen3_reranker() -> Result<&'static Self> {
        let known = Self::named("qwen3-reranker");
        known.ok_or_else(|| Error::model("no template of Qwen3-Reranker"))
    }

    fn named(name: &str) -> Option<&'static Self> {
        TEMPLATES.iter().find(|known| known.name == name)
    }

    fn belongs_to(&self, repository: &str) -> bool {
        let name = repository
            .rsplit_once('/')
            .map_or(repository, |(_, name)| name)
            .to_lowercase();
        self.repositories
            .iter()
            .any(|start| name.starts_with(&start.to_lowercase()))
    }
}
