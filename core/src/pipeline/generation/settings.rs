//! Model generation settings and request options.

use std::{borrow::Cow, collections::BTreeSet};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use kivu_base::{Error, Result, json};

/// A model's generation settings, from its `generation_config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationSettings {
    /// The decoder's start token; -1 if it has none.
    pub decoder_start_token_id: i64,
    /// End-of-sequence tokens; at least one.
    pub eos_token_ids: Vec<i64>,
    /// Token that pads finished sequences.
    pub pad_token_id: i64,
    /// Maximum steps, as a multiple of the source's token count.
    pub length_factor: Option<f32>,
    /// Defaults for everything that a request may set.
    #[serde(default)]
    pub defaults: GenerationOptions,
}

/// Options for `generate`, named as in `transformers`. An unset option takes the model's default, then the
/// default in `transformers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationOptions {
    /// Maximum tokens, the decoder's start token included.
    pub max_length: Option<usize>,
    /// Maximum generated tokens; takes precedence over `max_length`.
    pub max_new_tokens: Option<usize>,
    /// Minimum tokens, the decoder's start token included.
    pub min_length: Option<usize>,
    /// Minimum generated tokens.
    pub min_new_tokens: Option<usize>,
    /// Beam count; 1 is greedy decoding.
    pub num_beams: Option<usize>,
    /// Sequences to return, the best first.
    pub num_return_sequences: Option<usize>,
    /// Exponent: a beam's score is divided by its length to this power.
    pub length_penalty: Option<f32>,
    /// When beam search stops.
    pub early_stopping: Option<EarlyStopping>,
    /// Length of n-grams that may occur only once; 0 for no limit.
    pub no_repeat_ngram_size: Option<usize>,
    /// The penalty on tokens that have occurred; 1 for none.
    pub repetition_penalty: Option<f32>,
    /// Token sequences that are never generated.
    pub bad_words_ids: Option<Vec<Vec<i64>>>,
    /// Tokens that are never generated.
    pub suppress_tokens: Option<Vec<i64>>,
    /// Tokens that are never generated first.
    pub begin_suppress_tokens: Option<Vec<i64>>,
    /// Decoder start token, instead of the model's. A list has exactly one token.
    #[serde(deserialize_with = "single_token")]
    #[schemars(with = "Option<SingleToken>")]
    pub decoder_start_token_id: Option<i64>,
    /// The first generated token.
    pub forced_bos_token_id: Option<i64>,
    /// Last token for a sequence that reaches its maximum length; of several, the likeliest.
    pub forced_eos_token_id: Option<TokenIds>,
    /// Whether scores are normalized again after all processors.
    pub renormalize_logits: Option<bool>,
    /// Whether tokens are sampled.
    pub do_sample: Option<bool>,
    /// Score divisor before sampling.
    pub temperature: Option<f32>,
    /// Sample among this many likeliest tokens; 0 for all.
    pub top_k: Option<usize>,
    /// Sample among the likeliest tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Sample among tokens whose probability is at least this share of the highest.
    pub min_p: Option<f32>,
    /// Locally typical sampling: sample among the tokens whose information is nearest to the entropy and that together
    /// have this probability.
    pub typical_p: Option<f32>,
    /// Sample among tokens with at least this probability.
    pub epsilon_cutoff: Option<f32>,
    /// Sample among tokens with at least this probability, or one that depends on the entropy, if it is lower.
    pub eta_cutoff: Option<f32>,
    /// Sampling seed: the same seed gives the same sequences.
    pub seed: Option<u64>,
}

/// One token or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TokenIds {
    /// A number.
    One(i64),
    /// A list.
    Many(#[schemars(length(min = 1))] Vec<i64>),
}

impl TokenIds {
    /// Wraps ids; a single id becomes [`Self::One`].
    pub fn new(ids: &[i64]) -> Option<Self> {
        match ids {
            [] => None,
            [id] => Some(Self::One(*id)),
            ids => Some(Self::Many(ids.to_vec())),
        }
    }

    /// All ids.
    pub fn as_slice(&self) -> &[i64] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum SingleToken {
    Id(i64),
    List([i64; 1]),
}

/// A token, alone or as a one-element list.
fn single_token<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<i64>, D::Error> {
    let Some(ids) = Option::<TokenIds>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match ids.as_slice() {
        [id] => Ok(Some(*id)),
        ids => Err(D::Error::custom(format!(
            "expected one token, but found {}",
            ids.len()
        ))),
    }
}

/// When beam search stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum EarlyStopping {
    /// `false`: stop when no running beam is likely to beat the worst in a full set.
    #[default]
    Likely,
    /// Stops as soon as the set is full: `true`.
    Full,
    /// When no running beam can become better: `"never"`.
    Never,
}

impl TryFrom<Value> for EarlyStopping {
    type Error = &'static str;

    fn try_from(value: Value) -> std::result::Result<Self, Self::Error> {
        match value {
            Value::Bool(false) => Ok(Self::Likely),
            Value::Bool(true) => Ok(Self::Full),
            Value::String(never) if never == "never" => Ok(Self::Never),
            _ => Err("expected true, false or \"never\""),
        }
    }
}

impl JsonSchema for EarlyStopping {
    fn schema_name() -> Cow<'static, str> {
        "EarlyStopping".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "When beam search stops.",
            "oneOf": [
                {
                    "description": "`true`: as soon as `num_beams` sequences are finished; `false`: when no running beam is likely to become better.",
                    "type": "boolean",
                },
                { "description": "When no running beam can become better.", "const": "never" },
            ],
        })
    }
}

impl From<EarlyStopping> for Value {
    fn from(stopping: EarlyStopping) -> Self {
        match stopping {
            EarlyStopping::Likely => false.into(),
            EarlyStopping::Full => true.into(),
            EarlyStopping::Never => "never".into(),
        }
    }
}

impl GenerationOptions {
    /// The options that affect sampling only.
    pub const SAMPLING: [&str; 9] = [
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "seed",
    ];

    /// Refuses, like version 5 of `transformers`, to suppress all tokens that are forced: none would be left.
    pub fn check_forced(&self) -> Result<()> {
        let suppressed = self.suppress_tokens.as_deref().unwrap_or_default();
        let ends = self.forced_eos_token_id.as_ref();
        let forced = [
            ("forced_bos_token_id", self.forced_bos_token_id.as_slice()),
            ("forced_eos_token_id", ends.map_or(&[], TokenIds::as_slice)),
        ];
        let is_left = |ids: &[i64]| ids.is_empty() || ids.iter().any(|id| !suppressed.contains(id));
        match forced.into_iter().find(|(_, ids)| !is_left(ids)) {
            None => Ok(()),
            Some((name, ids)) => Err(Error::invalid(format!(
                "`suppress_tokens` has all of `{name}` ({ids:?}), so that no token would be left"
            ))
            .in_field("suppress_tokens")),
        }
    }

    /// All option names.
    pub fn names() -> BTreeSet<String> {
        json::field_names::<Self>()
    }

    /// Takes unset options from `defaults`.
    ///
    /// A length in either unit replaces the default in both, so that a request's `max_length` takes precedence over the
    /// model's `max_new_tokens`.
    pub fn or(&self, defaults: &Self) -> Self {
        let sets_max = self.max_length.is_some() || self.max_new_tokens.is_some();
        let sets_min = self.min_length.is_some() || self.min_new_tokens.is_some();
        let max = if sets_max { self } else { defaults };
        let min = if sets_min { self } else { defaults };
        let (own, defaults) = (self.clone(), defaults.clone());
        // The other options are independent of each other.
        macro_rules! merged {
            ($($option:ident)*) => {
                Self {
                    max_length: max.max_length,
                    max_new_tokens: max.max_new_tokens,
                    min_length: min.min_length,
                    min_new_tokens: min.min_new_tokens,
                    $($option: own.$option.or(defaults.$option),)*
                }
            };
        }
        merged! {
            num_beams num_return_sequences length_penalty early_stopping no_repeat_ngram_size
            repetition_penalty bad_words_ids suppress_tokens begin_suppress_tokens
            decoder_start_token_id forced_bos_token_id forced_eos_token_id renormalize_logits
            do_sample temperature top_k top_p min_p typical_p epsilon_cutoff eta_cutoff seed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_manifest() {
        let defaults = GenerationOptions {
            num_beams: Some(5),
            early_stopping: Some(EarlyStopping::Never),
            bad_words_ids: Some(vec![vec![7], vec![1, 2]]),
            ..GenerationOptions::default()
        };
        let settings = GenerationSettings {
            decoder_start_token_id: -1,
            eos_token_ids: vec![0],
            pad_token_id: 0,
            length_factor: Some(2.5),
            defaults,
        };
        let text = toml::to_string(&settings).unwrap();
        insta::assert_snapshot!(text, @r#"
        decoder_start_token_id = -1
        eos_token_ids = [0]
        pad_token_id = 0
        length_factor = 2.5

        [defaults]
        num_beams = 5
        early_stopping = "never"
        bad_words_ids = [[7], [1, 2]]
        "#);
        assert_eq!(
            toml::from_str::<GenerationSettings>(&text).unwrap(),
            settings
        );
    }

    #[test]
    fn a_request_takes_precedence_over_the_model_in_either_unit() {
        let model = GenerationOptions {
            max_new_tokens: Some(200),
            num_beams: Some(5),
            early_stopping: Some(EarlyStopping::Full),
            ..GenerationOptions::default()
        };
        let asked: GenerationOptions =
            serde_json::from_str(r#"{"max_length": 9, "early_stopping": false}"#).unwrap();
        let both = asked.or(&model);
        assert_eq!(
            (both.max_length, both.max_new_tokens, both.num_beams),
            (Some(9), None, Some(5))
        );
        assert_eq!(both.early_stopping, Some(EarlyStopping::Likely));
    }
}
