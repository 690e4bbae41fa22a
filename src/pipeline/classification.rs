//! Texts, or pairs of texts, to scores for labels, with the results of the `text-classification` pipeline of
//! `transformers`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    encoder::{Encoder, Granularity, Logits, NamedOutput},
    encoding::{EncodingOptions, Input},
    pair_template::PairTemplate,
    scores::ScoreFunction,
};
use crate::{
    backend::{Deadline, routing::Route},
    error::{Error, Result},
    tokenizer::{Tokenizer, Truncation},
};

/// The settings of a classifier, from its `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassificationSettings {
    /// The name of the output, with one value per label.
    pub output: String,
    /// The labels, by id.
    pub labels: Vec<String>,
    /// Maps the output to scores.
    pub function: ScoreFunction,
    /// The maximum number of tokens of a text or a pair, special tokens included.
    pub max_tokens: usize,
    /// The text around pairs; `None` if the tokenizer joins them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PairTemplate>,
    /// The text before queries, in models that rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// The padding of a decoder that reads the last token: at the end of texts, it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<u32>,
}

/// A model that scores labels.
#[derive(Clone, Debug)]
pub struct ClassificationPipeline {
    encoder: Encoder,
    settings: ClassificationSettings,
}

impl ClassificationPipeline {
    /// A pipeline of a tokenizer and a model. A model with another signature than in the settings is refused.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: ClassificationSettings,
    ) -> Result<Self> {
        if settings.labels.is_empty() {
            return Err(Error::model("expected labels in the manifest, but found none"));
        }
        let (name, width) = (settings.output.clone(), settings.labels.len());
        let output = vec![NamedOutput { name, width, is_of_tokens: false }];
        let labels = Some((settings.labels.clone(), settings.function));
        let encoder = Encoder::new(tokenizer, route.into(), output, labels, settings.max_tokens)?
            .without_trailing(settings.padding);
        Ok(Self { encoder, settings })
    }

    /// The settings in the manifest of the bundle.
    pub fn settings(&self) -> &ClassificationSettings {
        &self.settings
    }

    /// The encoder, which has the tokenizer and the limit of tokens.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The logits of each input, in the order of the labels.
    pub async fn logits(
        &self,
        inputs: Vec<Input>,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Logits> {
        let template = self.settings.template.as_ref();
        let options = EncodingOptions { template, ..EncodingOptions::new(truncation) };
        self.encoder.logits(inputs, options, Granularity::Texts, deadline).await
    }
}
