//! How a model generates: its own settings, what a request says differently, and both together.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How a model generates when nothing else is asked for: what its `generation_config.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationSettings {
    /// The decoder's first token; -1 where it begins with none.
    pub decoder_start_token_id: i64,
    /// The tokens that end a text, one at least.
    pub eos_token_ids: Vec<i64>,
    /// The token that stands after the end of a text.
    pub pad_token_id: i64,
    /// The most steps, as a multiple of the source's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_factor: Option<f32>,
    /// Everything that a request can say otherwise.
    #[serde(default)]
    pub defaults: GenerationOptions,
}

/// What `generate` of `transformers` can be told, by its names. What is not said is left to the model, and then to
/// the defaults of `transformers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationOptions {
    /// The most tokens, the decoder's first included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// The most tokens that are generated; wins over `max_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new_tokens: Option<usize>,
    /// The fewest tokens, the decoder's first included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_length: Option<usize>,
    /// The fewest tokens that are generated before the text may end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_new_tokens: Option<usize>,
    /// The texts that are followed side by side; 1 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_beams: Option<usize>,
    /// The texts that are given back, the best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_return_sequences: Option<usize>,
    /// The power of the length that a beam's score is divided by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_penalty: Option<f32>,
    /// When a beam search is content with what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<EarlyStoppingForm>)]
    pub early_stopping: Option<EarlyStopping>,
    /// The length of runs of tokens that may occur once only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_repeat_ngram_size: Option<usize>,
    /// By how much tokens that occurred are worse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Runs of tokens that must not be generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad_words_ids: Option<Vec<Vec<i64>>>,
    /// Tokens that must not be generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppress_tokens: Option<Vec<i64>>,
    /// Tokens that a text must not begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin_suppress_tokens: Option<Vec<i64>>,
    /// The token that every text begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_bos_token_id: Option<i64>,
    /// The token that ends a text which reaches its greatest length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_eos_token_id: Option<i64>,
    /// Whether scores are made probabilities again after all of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renormalize_logits: Option<bool>,
    /// Whether tokens are drawn by their probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub do_sample: Option<bool>,
    /// How even the probabilities are made before drawing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Tokens are drawn from so many, the likeliest; 0 is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Tokens are drawn from the likeliest that together have this probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// What the drawing begins with: the same seed gives the same texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = "uint64")]
    pub seed: Option<u64>,
}

/// When a beam search is content with what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// When no running text is likely to become better than the worst of a full set: `false`.
    #[default]
    Likely,
    /// As soon as the set is full: `true`.
    Full,
    /// When no running text can become better: `"never"`.
    Never,
}

/// [`EarlyStopping`] as it is written.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[schema(as = EarlyStopping)]
#[expect(dead_code, reason = "read by hand; this says what is read")]
enum EarlyStoppingForm {
    /// Whether a search ends as soon as its set of texts is full.
    Full(bool),
    /// Only when no running text can become better.
    Never(Never),
}

/// `"never"`.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "as above")]
enum Never {
    Never,
}

impl Serialize for EarlyStopping {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Likely => serializer.serialize_bool(false),
            Self::Full => serializer.serialize_bool(true),
            Self::Never => serializer.serialize_str("never"),
        }
    }
}

impl<'de> Deserialize<'de> for EarlyStopping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = EarlyStopping;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("true, false or \"never\"")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<EarlyStopping, E> {
                Ok(if value { EarlyStopping::Full } else { EarlyStopping::Likely })
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<EarlyStopping, E> {
                match value {
                    "never" => Ok(EarlyStopping::Never),
                    _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl GenerationOptions {
    /// The names of all options, by which they are picked out of a `generation_config.json`.
    pub const NAMES: [&str; 20] = [
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "num_beams",
        "num_return_sequences",
        "length_penalty",
        "early_stopping",
        "no_repeat_ngram_size",
        "repetition_penalty",
        "bad_words_ids",
        "suppress_tokens",
        "begin_suppress_tokens",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "renormalize_logits",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
    ];
    /// Those of them that are for drawing.
    pub const DRAWING: [&str; 4] = ["do_sample", "temperature", "top_k", "top_p"];

    /// These, and where they say nothing, `defaults`.
    ///
    /// A length in one unit silences the default in the other: a request's `max_length` is not beaten by a
    /// model's `max_new_tokens`.
    pub fn or(&self, defaults: &Self) -> Self {
        let says_most = self.max_length.is_some() || self.max_new_tokens.is_some();
        let says_fewest = self.min_length.is_some() || self.min_new_tokens.is_some();
        macro_rules! either {
            ($($field:ident),*) => { Self {
                max_length: if says_most { self.max_length } else { defaults.max_length },
                max_new_tokens: if says_most { self.max_new_tokens } else { defaults.max_new_tokens },
                min_length: if says_fewest { self.min_length } else { defaults.min_length },
                min_new_tokens: if says_fewest { self.min_new_tokens } else { defaults.min_new_tokens },
                $($field: self.$field.clone().or_else(|| defaults.$field.clone())),*
            } };
        }
        either!(
            num_beams,
            num_return_sequences,
            length_penalty,
            early_stopping,
            no_repeat_ngram_size,
            repetition_penalty,
            bad_words_ids,
            suppress_tokens,
            begin_suppress_tokens,
            forced_bos_token_id,
            forced_eos_token_id,
            renormalize_logits,
            do_sample,
            temperature,
            top_k,
            top_p,
            seed
        )
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
        assert_eq!(toml::from_str::<GenerationSettings>(&text).unwrap(), settings);
    }

    #[test]
    fn a_request_wins_over_the_model_also_in_another_unit() {
        let model = GenerationOptions {
            max_new_tokens: Some(200),
            num_beams: Some(5),
            early_stopping: Some(EarlyStopping::Full),
            ..GenerationOptions::default()
        };
        let asked: GenerationOptions =
            serde_json::from_str(r#"{"max_length": 9, "early_stopping": false}"#).unwrap();
        let both = asked.or(&model);
        assert_eq!((both.max_length, both.max_new_tokens, both.num_beams), (Some(9), None, Some(5)));
        assert_eq!(both.early_stopping, Some(EarlyStopping::Likely));
    }
}
