//! The manifest section `[settings.seq2seq]`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    backend::Signature,
    pipeline::generation::{GenerationOptions, GenerationSettings},
};
use kivu_base::{Error, Result};

/// Encoder-decoder settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seq2SeqSettings {
    /// Maximum tokens per source, special tokens included.
    pub max_tokens: usize,
    /// Decoder positions: the maximum tokens it is fed, the start token included.
    pub max_positions: usize,
    /// Put before each text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The token at the end of sources to translate; by default the first of
    /// [`eos_token_ids`](GenerationSettings::eos_token_ids).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_end_token_id: Option<i64>,
    /// Tokenizer tokens that the model does not have.
    pub unknown_tokens: Option<UnknownTokens>,
    /// Target tokenizer file, if it differs from the source's.
    pub target_tokenizer: Option<String>,
    /// Lexical shortlist file.
    pub shortlist: Option<String>,
    /// The graph that runs once per token.
    pub decoder: Decoder,
    /// The languages, and how they are selected.
    pub languages: Languages,
    /// The generation settings.
    pub generation: GenerationSettings,
}

/// Tokenizer tokens that a model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnknownTokens {
    /// First unknown id; all following ids are unknown, too.
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
    /// Graph file name in the bundle.
    pub graph: String,
    /// Graph inputs and outputs.
    pub signature: Signature,
}

impl Decoder {
    /// Scores per row, if fixed.
    pub fn vocabulary(&self) -> Option<usize> {
        let logits = &self.signature.outputs[self.signature.output("logits")?];
        logits
            .shape
            .last()
            .and_then(|side| usize::try_from(*side).ok())
    }
}

/// Language selection. Sources for translation models end with the first of
/// [`eos_token_ids`](GenerationSettings::eos_token_ids).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Languages {
    /// The model does not translate: texts are never split, and the tokenizer adds the special tokens.
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
        /// Target language tokens.
        targets: BTreeMap<String, i64>,
    },
    /// By a source token next to the text, and a target token at the start of the generated text (M2M100, NLLB, mBART).
    Tokens {
        /// Language tokens by code.
        codes: BTreeMap<String, i64>,
        /// Source token position.
        side: TokenSide,
        /// Target token position.
        #[serde(default, skip_serializing_if = "TargetToken::is_default")]
        target: TargetToken,
    },
    /// By an instruction before the text, as in `translate English to German: text` (T5).
    Instructions {
        /// The instructions by source and target.
        pairs: BTreeMap<String, BTreeMap<String, String>>,
    },
    /// By a tag for the target before the text, as in `<2pt> text` (MADLAD-400). The model is not told the source, which
    /// may be in any of the languages.
    Tags {
        /// The languages, each with its [tag](tag).
        codes: BTreeSet<String>,
    },
}

/// Beginning and end of a [tag](tag).
const TAG: [&str; 2] = ["<2", ">"];

/// The tag that selects a target language in a model with [tags](Languages::Tags).
pub fn tag(code: &str) -> String {
    let [begin, end] = TAG;
    format!("{begin}{code}{end}")
}

/// The language code in a token that is a [tag](tag).
pub fn tagged(token: &str) -> Option<&str> {
    let [begin, end] = TAG;
    let code = token.strip_prefix(begin)?.strip_suffix(end)?;
    let is_part =
        |character: char| character.is_ascii_alphanumeric() || ['_', '-'].contains(&character);
    (code.starts_with(|first: char| first.is_ascii_alphabetic()) && code.chars().all(is_part))
        .then_some(code)
}

/// Divides a text that begins with a tag into the tag's code and the rest.
pub fn split_tag(text: &str) -> Option<(&str, &str)> {
    let [begin, end] = TAG;
    let place = begin.len() + text.strip_prefix(begin)?.find(end)? + end.len();
    Some((tagged(&text[..place])?, text[place..].trim_start()))
}

/// A language token's position relative to its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSide {
    /// `[language] text </s>`
    Before,
    /// `text </s> [language]`
    After,
}

/// A language token's position relative to the generated text.
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

/// Token that selects the target language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LanguageToken {
    pub id: i64,
    pub position: TargetToken,
}

impl LanguageToken {
    /// Token id, if it is generated.
    pub fn first(self) -> Option<i64> {
        (self.position == TargetToken::First).then_some(self.id)
    }

    /// Sets the token that selects the target language.
    ///
    /// # Errors
    /// If a request has another token in its place.
    pub fn request(self, options: &mut GenerationOptions) -> Result<()> {
        let (name, option) = match self.position {
            TargetToken::First => ("forced_bos_token_id", &mut options.forced_bos_token_id),
            TargetToken::Start => (
                "decoder_start_token_id",
                &mut options.decoder_start_token_id,
            ),
        };
        match option.replace(self.id).filter(|found| *found != self.id) {
            Some(found) => Err(Error::invalid(format!(
                "expected no `{name}` or {}, the token of the target language, but found {found}",
                self.id
            ))),
            None => Ok(()),
        }
    }
}
