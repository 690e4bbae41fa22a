//! Rerankers whose own files lack the text around a pair: the templates of their authors' code and model cards.

use crate::{
    files::config::ConfigFile,
    plan::{Plan, model_card::base_models},
};
use kivu::{
    error::{Error, Result, quoted},
    pipeline::classification::pair_template::PairTemplate,
};

/// A sentence specific to Qwen3-Reranker's template.
pub const JUDGE: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided";
/// Default instruction by Qwen3-Reranker's authors.
pub const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// A template, and how the model's answer is read.
#[derive(Debug)]
pub struct KnownTemplate {
    /// The name in recipes.
    pub name: &'static str,
    model_type: &'static str,
    /// Repositories, with or without organization and with any end, as of conversions to a label head.
    repositories: &'static [&'static str],
    /// The token whose logit is the score, and one whose logit is subtracted.
    pub tokens: (&'static str, Option<&'static str>),
    /// The token before all others, which the authors' code leaves out unless it is the tokenizer's first and not its padding.
    pub begin: Option<&'static str>,
    template: fn() -> PairTemplate,
}

pub static QWEN3_RERANKER: KnownTemplate = KnownTemplate {
    name: "qwen3-reranker",
    model_type: "qwen3",
    repositories: &["Qwen3-Reranker-"],
    tokens: ("yes", Some("no")),
    begin: None,
    template: || PairTemplate {
        prefix: format!(
            "<|im_start|>system\n{JUDGE}. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
             <|im_start|>user\n"
        ),
        first: format!("<Instruct>: {INSTRUCTION}\n<Query>: "),
        second: "\n<Document>: ".to_owned(),
        suffix: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n".to_owned(),
        separator: None,
        is_lenient: false,
        instruction: None,
    },
};

/// As in the package `mxbai-rerank`.
static MXBAI_RERANK_V2: KnownTemplate = KnownTemplate {
    name: "mxbai-rerank-v2",
    model_type: "qwen2",
    repositories: &["mxbai-rerank-base-v2", "mxbai-rerank-large-v2"],
    tokens: ("1", Some("0")),
    begin: None,
    template: || {
        PairTemplate {
        prefix: "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n\
                 <|im_start|>user\n"
            .to_owned(),
        first: "query: ".to_owned(),
        second: "document: ".to_owned(),
        suffix: "You are a search relevance expert who evaluates how well documents match search queries. For each \
                 query-document pair, carefully analyze the semantic relationship between them, then provide your \
                 binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n\
                 <|im_start|>assistant\n"
            .to_owned(),
        separator: Some("\n".to_owned()),
        is_lenient: false,
        instruction: Some("instruction: ".to_owned()),
    }
    },
};

/// Gemma's first token.
const BEGIN: &str = "<bos>";

/// As in the package FlagEmbedding.
static BGE_RERANKER_V2_GEMMA: KnownTemplate = KnownTemplate {
    name: "bge-reranker-v2-gemma",
    model_type: "gemma",
    repositories: &["bge-reranker-v2-gemma"],
    tokens: ("Yes", None),
    begin: Some(BEGIN),
    template: || {
        PairTemplate {
        prefix: BEGIN.to_owned(),
        first: "A: ".to_owned(),
        second: "B: ".to_owned(),
        suffix: "Given a query A and a passage B, determine whether the passage contains an answer to the query by \
                 providing a prediction of either 'Yes' or 'No'."
            .to_owned(),
        separator: Some("\n".to_owned()),
        is_lenient: true,
        instruction: None,
    }
    },
};

static TEMPLATES: [&KnownTemplate; 3] = [&QWEN3_RERANKER, &MXBAI_RERANK_V2, &BGE_RERANKER_V2_GEMMA];

impl KnownTemplate {
    /// The template that the recipe names, or that belongs to the model's repository or to one that its card calls its
    /// base; `None` if there is none for its `model_type`.
    pub fn of(plan: &Plan, config: &ConfigFile) -> Result<Option<&'static Self>> {
        let model_type = config.model_type();
        if let Some(name) = &plan.template {
            let named = TEMPLATES.into_iter().find(|known| known.name == name);
            return match named {
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
            .into_iter()
            .find(|known| known.model_type == model_type && has_name(known)))
    }

    /// Their names in recipes.
    pub fn names() -> String {
        quoted(&TEMPLATES.map(|known| known.name))
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

    pub fn pair_template(&self) -> PairTemplate {
        (self.template)()
    }
}
