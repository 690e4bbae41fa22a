//! Texts from texts: translations, summaries and others.

use clap::Args;
use serde::Deserialize;

use super::Scope;
use crate::pipeline::{
    generation::GenerationOptions,
    seq2seq::{RequestedLanguages, Seq2SeqOptions, Split},
};

/// Parameters for models that generate texts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Args)]
#[serde(expecting = "an object")]
pub struct TextToTextParameters {
    /// The language of the texts, if the model has several
    #[arg(long = "source-language", value_name = "LANGUAGE")]
    pub src_lang: Option<String>,
    /// The language to translate to, if the model has several
    #[arg(long = "target-language", value_name = "LANGUAGE")]
    pub tgt_lang: Option<String>,
    /// When texts are split; depends on the model by default.
    #[arg(skip)]
    pub split: Option<Split>,
    /// Whether sentences above the token limit are truncated; otherwise they are refused.
    #[arg(skip)]
    pub truncate: Option<bool>,
    /// Whether spaces before punctuation are removed.
    #[arg(skip)]
    pub clean_up_tokenization_spaces: Option<bool>,
    /// Overrides of the model's generation settings.
    #[arg(skip)]
    pub generate_parameters: Option<GenerationOptions>,
}

impl TextToTextParameters {
    /// The languages to translate between.
    pub fn languages(&self) -> RequestedLanguages<'_> {
        RequestedLanguages { source: self.src_lang.as_deref(), target: self.tgt_lang.as_deref() }
    }

    /// Applies the defaults; the pipeline checks the options.
    pub fn options(self, scope: &Scope) -> Seq2SeqOptions {
        Seq2SeqOptions {
            source: self.src_lang,
            target: self.tgt_lang,
            split: self.split,
            truncate: self.truncate.unwrap_or(scope.truncate),
            clean_up_spaces: self.clean_up_tokenization_spaces.unwrap_or(false),
            generation: self.generate_parameters.unwrap_or_default(),
            max_sentences: scope.max_parts,
        }
    }
}
