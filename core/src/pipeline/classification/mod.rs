//! Texts or text pairs to label scores. Results equal the `text-classification` pipeline in `transformers`.

pub mod label_scores;
pub mod label_vectors;
pub mod listwise;
pub mod pair_template;
pub mod ranking;
pub mod scores;
pub mod zero_shot;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    classification::{pair_template::PairTemplate, scores::ScoreFunction},
    embedding::instructions::replaced,
    encoder::{
        Encoder, Granularity, Logits, NamedOutput, Vectors,
        encoding::{EncodingOptions, Input},
    },
};
use crate::backend::{Deadline, routing::Route};
use kivu_base::{Error, Result};
use kivu_text::{Tokenizer, Truncation};

/// Classifier settings, from `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassificationSettings {
    /// Output name; one value per label.
    pub output: String,
    /// The labels, by id.
    pub labels: Vec<String>,
    /// Maps the output to scores.
    pub function: ScoreFunction,
    /// Maximum tokens per text or pair, special tokens included.
    pub max_tokens: usize,
    /// The text around pairs; `None` if the tokenizer joins them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<PairTemplate>,
    /// The text before queries, and before the first text of other pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// A decoder's padding token, dropped at the end of texts since the last token is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<u32>,
    /// Whether the labels are languages, as their codes: `/detect` and translation use the first such model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub identifies_languages: bool,
}

/// A model that scores labels.
#[derive(Clone, Debug)]
pub struct ClassificationPipeline {
    encoder: Encoder,
    settings: Box<ClassificationSettings>,
}

impl ClassificationPipeline {
    /// Joins a tokenizer and a model. Fails if the model's signature differs from the settings.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: ClassificationSettings,
    ) -> Result<Self> {
        let output = NamedOutput::of_labels(&settings.output, &settings.labels, Vectors::PerText)?;
        let output = vec![output];
        let labels = Some((settings.labels.clone(), settings.function));
        let encoder = Encoder::new(tokenizer, route.into(), output, labels, settings.max_tokens)?
            .without_trailing(settings.padding);
        Ok(Self {
            encoder,
            settings: Box::new(settings),
        })
    }

    /// Settings from the bundle's manifest.
    pub fn settings(&self) -> &ClassificationSettings {
        &self.settings
    }

    /// The encoder, with the tokenizer and the token limit.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// A query with the model's prompt.
    pub fn prompted(&self, query: &str) -> Arc<str> {
        let prompt = self.settings.query_prompt.as_deref().unwrap_or_default();
        format!("{prompt}{query}").into()
    }

    /// The same model with another instruction in its template, or in its prompt for queries. A model without one is
    /// refused.
    pub fn with_instruction(&self, instruction: &str) -> Result<Self> {
        let mut settings = self.settings.clone();
        let replaced = match &settings.template {
            Some(template) => template.instructed(instruction),
            None => settings
                .query_prompt
                .as_deref()
                .and_then(|prompt| replaced(prompt, instruction)),
        };
        let of_template = settings
            .template
            .as_mut()
            .map(|template| &mut template.first);
        let prompt = of_template.or(settings.query_prompt.as_mut());
        match prompt.zip(replaced) {
            Some((prompt, replaced)) => *prompt = replaced,
            None => {
                return Err(Error::invalid(
                    "`instruction` is not supported: the model's template has none",
                )
                .with_hint("leave it out"));
            }
        }
        Ok(Self {
            encoder: self.encoder.clone(),
            settings,
        })
    }

    /// The same model with another prompt before queries. A model with a template is refused.
    pub fn with_query_prompt(&self, prompt: &str) -> Result<Self> {
        if self.settings.template.is_some() {
            return Err(
                Error::invalid("`prompt` is not supported: the model has a template")
                    .with_hint("send an `instruction`"),
            );
        }
        let mut settings = self.settings.clone();
        settings.query_prompt = Some(prompt.to_owned());
        Ok(Self {
            encoder: self.encoder.clone(),
            settings,
        })
    }

    /// Logits per input, in label order.
    pub async fn logits(
        &self,
        inputs: Vec<Input>,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Logits> {
        self.logits_of_texts(inputs, 1, truncation, deadline).await
    }

    /// The same for `inputs_per_text` inputs with each text, which errors and usage name.
    pub async fn logits_of_texts(
        &self,
        inputs: Vec<Input>,
        inputs_per_text: usize,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Logits> {
        let template = self.settings.template.as_ref();
        let options = EncodingOptions {
            template,
            inputs_per_text,
            ..EncodingOptions::new(truncation)
        };
        self.encoder
            .logits(inputs, options, Granularity::Texts, deadline)
            .await
    }
}
