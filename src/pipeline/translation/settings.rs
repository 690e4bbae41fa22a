//! What a translation bundle's manifest says of its decoder, its languages and how it generates.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{backend::Signature, pipeline::generation::GenerationSettings};

/// How a model translates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranslationSettings {
    /// The most tokens of a source, special tokens included.
    pub max_tokens: usize,
    /// The most tokens that the decoder can be fed, its first included: those that there are positions for.
    pub max_positions: usize,
    /// Tokens that the tokenizer gives and the model does not know, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_tokens: Option<UnknownTokens>,
    /// The file of the tokenizer that puts targets together, where it is not the source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_tokenizer: Option<String>,
    /// The file that says which tokens may stand in the translation of which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortlist: Option<String>,
    /// The graph that is run token by token.
    pub decoder: Decoder,
    /// The languages, and how the model is told them.
    pub languages: Languages,
    /// How the target is generated.
    pub generation: GenerationSettings,
}

/// Tokens that a tokenizer gives and a model does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnknownTokens {
    /// The first of them; all that come after it are unknown as well.
    pub from: u32,
    /// What the model reads in their place.
    pub read_as: u32,
}

impl UnknownTokens {
    /// What the model reads for `id`.
    pub fn read(&self, id: u32) -> u32 {
        if id < self.from { id } else { self.read_as }
    }
}

/// The graph that is run token by token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// Its file.
    pub graph: String,
    /// Its inputs and outputs.
    pub signature: Signature,
}

impl Decoder {
    /// The number of scores that it gives a row, where it is always the same.
    pub fn vocabulary(&self) -> Option<usize> {
        let logits = &self.signature.outputs[self.signature.output("logits")?];
        logits.shape.last().and_then(|side| usize::try_from(*side).ok())
    }
}

/// How a model is told its languages. A source ends with the first of
/// [`eos_token_ids`](GenerationSettings::eos_token_ids).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Languages {
    /// Not at all: it knows one pair.
    Pair {
        /// The language that it translates from.
        source: String,
        /// The language that it translates to.
        target: String,
    },
    /// The target's token stands before the text, as in `>>code<< text </s>` (Marian of several targets).
    Prefix {
        /// The language that it translates from.
        source: String,
        /// The tokens of the languages that it translates to.
        targets: BTreeMap<String, i64>,
    },
    /// The source's token stands beside the text, and the target's is the first that is generated (M2M100, NLLB).
    Tokens {
        /// The tokens of all languages.
        codes: BTreeMap<String, i64>,
        /// The side on which the source's token stands.
        side: TokenSide,
    },
}

/// The side of a text on which its language's token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSide {
    /// `[language] text </s>`
    Before,
    /// `text </s> [language]`
    After,
}
