//! The section `[seq2seq]` of a manifest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    backend::Signature,
    pipeline::generation::{GenerationOptions, GenerationSettings},
};

/// The settings of a model with an encoder and a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seq2SeqSettings {
    /// The maximum number of tokens of a source, special tokens included.
    pub max_tokens: usize,
    /// The number of the decoder's positions: the maximum number of tokens it is fed, the start token included.
    pub max_positions: usize,
    /// Put before each text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The tokens of the tokenizer that the model does not have.
    pub unknown_tokens: Option<UnknownTokens>,
    /// The file of the target tokenizer, if it is not that of the source.
    pub target_tokenizer: Option<String>,
    /// The file of the lexical shortlist.
    pub shortlist: Option<String>,
    /// The graph that runs once per token.
    pub decoder: Decoder,
    /// The languages, and how they are selected.
    pub languages: Languages,
    /// The generation settings.
    pub generation: GenerationSettings,
}

/// The tokens of a tokenizer that a model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnknownTokens {
    /// The first of them; all following ids are unknown, too.
    pub from: u32,
    /// The id that the model reads instead.
    pub read_as: u32,
}

impl UnknownTokens {
    /// The id that the model reads for `id`.
    pub fn read(&self, id: u32) -> u32 {
        if id < self.from { id } else { self.read_as }
    }
}

/// The graph that runs once per token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// The name of the graph's file in the bundle.
    pub graph: String,
    /// The inputs and outputs of the graph.
    pub signature: Signature,
}

impl Decoder {
    /// The number of scores per row, if it is fixed.
    pub fn vocabulary(&self) -> Option<usize> {
        let logits = &self.signature.outputs[self.signature.output("logits")?];
        logits.shape.last().and_then(|side| usize::try_from(*side).ok())
    }
}

/// How the languages of a model are selected. Sources of models that translate end with the first of
/// [`eos_token_ids`](GenerationSettings::eos_token_ids).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Languages {
    /// The model does not translate: texts are never split, and their special tokens are those of the tokenizer.
    None,
    /// The model has one pair.
    Pair {
        /// The source language.
        source: String,
        /// The target language.
        target: String,
    },
    /// By a token for the target before the text, as in `>>code<< text </s>` (Marian with several targets).
    Prefix {
        /// The source language.
        source: String,
        /// The tokens of the target languages.
        targets: BTreeMap<String, i64>,
    },
    /// By a token for the source next to the text, and a token for the target at the start of the generated text
    /// (M2M100, NLLB, mBART).
    Tokens {
        /// The tokens of all languages.
        codes: BTreeMap<String, i64>,
        /// The position of the source's token.
        side: TokenSide,
        /// The position of the target's token.
        #[serde(default, skip_serializing_if = "TargetToken::is_default")]
        target: TargetToken,
    },
    /// By an instruction before the text, as in `translate English to German: text` (T5).
    Instructions {
        /// The instructions by source and target.
        pairs: BTreeMap<String, BTreeMap<String, String>>,
    },
}

/// The position of a language token relative to its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSide {
    /// `[language] text </s>`
    Before,
    /// `text </s> [language]`
    After,
}

/// The position of a language token relative to the text that is generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetToken {
    /// It is the first token that is generated (`forced_bos_token_id`).
    #[default]
    First,
    /// The decoder starts with it (`decoder_start_token_id`).
    Start,
}

impl TargetToken {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The token that selects the language of a text that is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LanguageToken {
    pub(super) id: i64,
    pub(super) position: TargetToken,
}

impl LanguageToken {
    /// The id of a token that is generated.
    pub(super) fn first(self) -> Option<i64> {
        (self.position == TargetToken::First).then_some(self.id)
    }

    /// Requests the language.
    pub(super) fn request(self, options: &mut GenerationOptions) {
        match self.position {
            TargetToken::First => options.forced_bos_token_id = Some(self.id),
            TargetToken::Start => options.decoder_start_token_id = Some(self.id),
        }
    }
}
