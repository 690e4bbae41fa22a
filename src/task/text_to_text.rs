//! Texts from texts: translations, summaries and others.

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Scope;
use kivu_base::Result;
use kivu_core::{
    backend::Deadline,
    pipeline::{
        generation::GenerationOptions,
        seq2seq::{
            GeneratedIds, GeneratedTexts, RequestedLanguages, Seq2SeqOptions, Seq2SeqPipeline,
            Split,
        },
    },
};

/// Parameters for models that generate texts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct TextToTextParameters {
    /// The language of the texts, if the model has several
    pub src_lang: Option<String>,
    /// The language to translate to, if the model has several
    pub tgt_lang: Option<String>,
    /// When texts are split. `/translate` splits at sentences by default; elsewhere it depends on the model.
    pub split: Option<Split>,
    /// Whether sentences above the token limit are truncated; otherwise they are refused.
    pub truncate: Option<bool>,
    /// Whether spaces before punctuation are removed.
    pub clean_up_tokenization_spaces: Option<bool>,
    /// Overrides of the model's generation settings.
    pub generate_parameters: Option<GenerationOptions>,
}

impl TextToTextParameters {
    /// The languages to translate between.
    pub fn languages(&self) -> RequestedLanguages<'_> {
        RequestedLanguages {
            source: self.src_lang.as_deref(),
            target: self.tgt_lang.as_deref(),
        }
    }

    /// Applies the defaults; the pipeline checks the options.
    pub fn prepare(self, pipeline: &Seq2SeqPipeline, scope: &Scope) -> TextGenerator {
        let options = Seq2SeqOptions {
            source: self.src_lang,
            target: self.tgt_lang,
            split: self.split,
            truncate: self.truncate.unwrap_or(scope.truncate),
            clean_up_spaces: self.clean_up_tokenization_spaces.unwrap_or(false),
            generation: self.generate_parameters.unwrap_or_default(),
            max_sentences: scope.max_parts,
        };
        TextGenerator {
            pipeline: pipeline.clone(),
            options: Box::new(options),
        }
    }
}

/// A model that generates texts, with its parameters.
#[derive(Clone, Debug)]
pub struct TextGenerator {
    pipeline: Seq2SeqPipeline,
    // Boxed, since generation has many settings.
    options: Box<Seq2SeqOptions>,
}

impl TextGenerator {
    /// Generates from texts.
    pub fn run(
        &self,
        texts: Vec<String>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<GeneratedTexts>> {
        Box::pin(self.pipeline.generate(texts, &self.options, deadline))
    }

    /// Generates token ids from token ids.
    pub fn run_ids(
        &self,
        rows: Vec<Vec<u32>>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<GeneratedIds>> {
        Box::pin(self.pipeline.generate_ids(rows, &self.options, deadline))
    }
}
