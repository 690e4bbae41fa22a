//! The model's settings merged with a request's options, and checked for contradictions.

use std::ops::RangeInclusive;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::settings::{EarlyStopping, GenerationOptions, GenerationSettings, TokenIds};
use kivu_base::{Error, Result};

/// Default `max_new_tokens` in `transformers`.
const DEFAULT_NEW_TOKENS: usize = 20;
/// The default `top_k` in `transformers`.
const DEFAULT_TOP_K: usize = 50;
/// Maximum for `num_beams` and `num_return_sequences`: each is a row in the decoder's cache.
pub const MAX_BEAMS: usize = 64;

/// A model's limits for generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Vocabulary size in tokens.
    pub vocabulary: usize,
    /// Maximum target length in tokens, the decoder's start token included.
    pub max_length: usize,
}

/// A complete generation configuration. It serializes to the `generate` options that request it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GenerationConfig {
    /// Below 0 if the decoder has no start token.
    #[serde(rename = "decoder_start_token_id", skip_serializing_if = "is_negative")]
    pub start_id: i64,
    /// End-of-sequence tokens; at least one.
    #[serde(skip)]
    pub eos_ids: Vec<i64>,
    /// Maximum steps, as a multiple of the source's token count; `None` for no such limit.
    #[serde(skip)]
    pub length_factor: Option<f32>,
    /// Beam count, from 1 to [`MAX_BEAMS`]; 1 for no beam search.
    pub num_beams: usize,
    /// Targets per source, from 1 to [`MAX_BEAMS`].
    pub num_return_sequences: usize,
    /// Exponent: a beam's score is divided by its length to this power.
    pub length_penalty: f32,
    /// When beam search stops.
    pub early_stopping: EarlyStopping,
    /// Maximum target length in tokens, the start token included.
    pub max_length: usize,
    /// Minimum target length in tokens, the start token included; 0 for none.
    pub min_length: usize,
    /// Length of n-grams that may occur only once; 0 for no limit.
    pub no_repeat_ngram_size: usize,
    /// Penalty on tokens that have occurred, above 0; 1 for none.
    pub repetition_penalty: f32,
    /// Token sequences that are never generated.
    pub bad_words_ids: Vec<Vec<i64>>,
    /// Tokens that are never generated.
    pub suppress_tokens: Vec<i64>,
    /// Tokens that are never generated first, or first after a forced token.
    pub begin_suppress_tokens: Vec<i64>,
    /// The first generated token, if it is forced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_bos_token_id: Option<i64>,
    /// Last token for a target that reaches its maximum length; of several, the likeliest; empty for none.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "one_or_many")]
    pub forced_eos_token_id: Vec<i64>,
    /// Whether scores are normalized again after all processors, in beam search and sampling.
    pub renormalize_logits: bool,
    /// Sampling settings; `None` to choose tokens by rank.
    #[serde(flatten)]
    pub sampling: Option<Sampling>,
}

/// Sampling settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sampling {
    pub temperature: f32,
    pub top_k: usize,
    pub top_p: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typical_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon_cutoff: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_cutoff: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl GenerationConfig {
    /// Merges `options` over the model's `settings`. Errors name the option, and both sides of a contradiction.
    pub fn new(
        settings: &GenerationSettings,
        options: &GenerationOptions,
        bounds: Bounds,
    ) -> Result<Self> {
        let requested = options;
        check_lists(requested, bounds.vocabulary)?;
        let options = requested.or(&settings.defaults);
        options.check_forced()?;
        let num_beams = within("num_beams", options.num_beams, 1..=MAX_BEAMS)?;
        let sampling = sampling(&options)?;
        let (max_length, min_length) = lengths(&options, requested, settings, bounds)?;
        let config = Self {
            start_id: options
                .decoder_start_token_id
                .unwrap_or(settings.decoder_start_token_id),
            eos_ids: settings.eos_token_ids.clone(),
            length_factor: settings.length_factor,
            num_beams,
            num_return_sequences: num_return_sequences(&options, num_beams, sampling.as_ref())?,
            length_penalty: finite("length_penalty", options.length_penalty.unwrap_or(1.0))?,
            early_stopping: options.early_stopping.unwrap_or_default(),
            max_length,
            min_length,
            no_repeat_ngram_size: options.no_repeat_ngram_size.unwrap_or(0),
            repetition_penalty: above_zero("repetition_penalty", options.repetition_penalty)?,
            bad_words_ids: bad_words(
                options.bad_words_ids.unwrap_or_default(),
                &settings.eos_token_ids,
            )?,
            suppress_tokens: options.suppress_tokens.unwrap_or_default(),
            begin_suppress_tokens: options.begin_suppress_tokens.unwrap_or_default(),
            forced_bos_token_id: options.forced_bos_token_id,
            forced_eos_token_id: forced_end(options.forced_eos_token_id)?,
            renormalize_logits: options.renormalize_logits.unwrap_or(false),
            sampling,
        };
        config.check_token_ids(bounds.vocabulary)?;
        Ok(config)
    }

    /// The options that request this configuration from any model, whatever its defaults, by their names.
    pub fn options(&self) -> Map<String, Value> {
        let mut options = match serde_json::to_value(self) {
            Ok(Value::Object(options)) => options,
            // A struct with string keys is always an object.
            _ => Map::new(),
        };
        if self.samples() {
            options.insert("do_sample".into(), true.into());
        }
        options
    }

    /// Whether tokens are sampled instead of chosen by rank.
    pub fn samples(&self) -> bool {
        self.sampling.is_some()
    }

    /// The decoder's start token; below 0 if it has none.
    pub fn start(&self) -> i64 {
        self.start_id
    }

    /// Ids that every target begins with: the decoder's start, and the first token if it is forced.
    pub fn first_ids(&self) -> impl Iterator<Item = i64> {
        std::iter::once(self.start_id).chain(self.forced_bos_token_id)
    }

    /// The first end-of-sequence token.
    pub fn end_id(&self) -> Option<i64> {
        self.eos_ids.first().copied()
    }

    /// Maximum decoder rows per source.
    pub fn rows(&self) -> usize {
        if self.num_beams > 1 {
            self.num_beams
        } else {
            self.num_return_sequences
        }
    }

    /// Whether targets are found by beam search.
    pub fn has_beams(&self) -> bool {
        self.num_beams > 1
    }

    /// Targets per source.
    pub fn num_return_sequences(&self) -> usize {
        self.num_return_sequences
    }

    /// Maximum target length for a source with `source_tokens`, in tokens, the start token included.
    pub fn max_length(&self, source_tokens: usize) -> usize {
        let by_source = self
            .length_factor
            .map(|factor| 1 + (factor * source_tokens as f32).ceil() as usize);
        self.max_length.min(by_source.unwrap_or(usize::MAX))
    }

    /// Adapts the configuration to a decoder that scores only the tokens in `shortlist`: token ids become shortlist
    /// indexes, and other ids are dropped. The list must contain the [required](Self::required_ids) ids.
    #[must_use]
    pub fn within(&self, shortlist: &[i64]) -> Self {
        let index = |id: &i64| shortlist.binary_search(id).ok().map(|index| index as i64);
        let indexes = |ids: &[i64]| ids.iter().filter_map(index).collect::<Vec<_>>();
        Self {
            start_id: index(&self.start_id).unwrap_or(self.start_id),
            eos_ids: indexes(&self.eos_ids),
            bad_words_ids: self
                .bad_words_ids
                .iter()
                .filter_map(|word| word.iter().map(index).collect())
                .collect(),
            suppress_tokens: indexes(&self.suppress_tokens),
            begin_suppress_tokens: indexes(&self.begin_suppress_tokens),
            forced_bos_token_id: self.forced_bos_token_id.as_ref().and_then(index),
            forced_eos_token_id: indexes(&self.forced_eos_token_id),
            ..self.clone()
        }
    }

    /// Ids that every shortlist contains: start, end-of-sequence and forced tokens.
    pub fn required_ids(&self) -> impl Iterator<Item = i64> {
        let start = Some(self.start_id).filter(|id| !is_negative(id));
        self.eos_ids
            .iter()
            .copied()
            .chain(start)
            .chain(self.forced_bos_token_id)
            .chain(self.forced_eos_token_id.iter().copied())
    }

    fn check_token_ids(&self, vocabulary: usize) -> Result<()> {
        let start = Some(self.start_id).filter(|id| !is_negative(id));
        let lists: [(&str, Vec<i64>); 6] = [
            ("decoder_start_token_id", start.into_iter().collect()),
            (
                "forced_bos_token_id",
                self.forced_bos_token_id.into_iter().collect(),
            ),
            ("forced_eos_token_id", self.forced_eos_token_id.clone()),
            ("suppress_tokens", self.suppress_tokens.clone()),
            ("begin_suppress_tokens", self.begin_suppress_tokens.clone()),
            ("bad_words_ids", self.bad_words_ids.concat()),
        ];
        for (name, ids) in lists {
            if let Some(id) = ids.iter().find(|id| !(0..vocabulary as i64).contains(id)) {
                return Err(Error::invalid(format!(
                    "expected `{name}` below {vocabulary}, but found {id}"
                ))
                .in_field(name));
            }
        }
        Ok(())
    }
}

/// Refuses a request's token lists that are longer than the vocabulary: each step of each sequence goes through them.
fn check_lists(options: &GenerationOptions, vocabulary: usize) -> Result<()> {
    let words = options.bad_words_ids.as_deref().unwrap_or_default();
    let words = words.iter().map(|word| word.len().max(1)).sum();
    let ids = |list: &Option<Vec<i64>>| list.as_ref().map_or(0, Vec::len);
    let ends = options.forced_eos_token_id.as_ref();
    let lists = [
        ("bad_words_ids", words),
        ("suppress_tokens", ids(&options.suppress_tokens)),
        ("begin_suppress_tokens", ids(&options.begin_suppress_tokens)),
        (
            "forced_eos_token_id",
            ends.map_or(0, |ids| ids.as_slice().len()),
        ),
    ];
    match lists.into_iter().find(|(_, found)| *found > vocabulary) {
        None => Ok(()),
        Some((name, found)) => Err(Error::too_large(format!(
            "`{name}` has {found} token ids, but may have at most {vocabulary}, the model's vocabulary size"
        ))),
    }
}

fn one_or_many<S: Serializer>(ids: &[i64], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    TokenIds::new(ids).serialize(serializer)
}

fn forced_end(ids: Option<TokenIds>) -> Result<Vec<i64>> {
    match ids {
        Some(TokenIds::Many(ids)) if ids.is_empty() => Err(Error::invalid(
            "expected tokens in `forced_eos_token_id`, but found an empty list",
        )),
        ids => Ok(ids.map_or_else(Vec::new, |ids| ids.as_slice().to_vec())),
    }
}

fn is_negative(id: &i64) -> bool {
    *id < 0
}

fn num_return_sequences(
    options: &GenerationOptions,
    num_beams: usize,
    sampling: Option<&Sampling>,
) -> Result<usize> {
    let found = within(
        "num_return_sequences",
        options.num_return_sequences,
        1..=MAX_BEAMS,
    )?;
    if found > num_beams && (num_beams > 1 || sampling.is_none()) {
        return Err(Error::invalid(format!(
            "expected `num_return_sequences` of at most `num_beams`, which is {num_beams}, but found {found}"
        )));
    }
    Ok(found)
}

/// Maximum and minimum target length in tokens, the start token included. A minimum that the request does not set
/// yields to its maximum.
fn lengths(
    options: &GenerationOptions,
    requested: &GenerationOptions,
    settings: &GenerationSettings,
    bounds: Bounds,
) -> Result<(usize, usize)> {
    let default = match settings.length_factor {
        Some(_) => bounds.max_length,
        None => (DEFAULT_NEW_TOKENS + 1).min(bounds.max_length),
    };
    // `max_new_tokens` does not count the start token.
    let (name, start, max) = match options.max_new_tokens {
        Some(tokens) => ("max_new_tokens", 1, tokens.saturating_add(1)),
        None => ("max_length", 0, options.max_length.unwrap_or(default)),
    };
    if !(2..=bounds.max_length).contains(&max) {
        return Err(Error::invalid(format!(
            "expected `{name}` of {} to {}, but found {}",
            2 - start,
            bounds.max_length - start,
            max - start
        ))
        .in_field(name));
    }
    let new_tokens = options
        .min_new_tokens
        .map(|tokens| tokens.saturating_add(1));
    let min = new_tokens.or(options.min_length).unwrap_or(0);
    let sets_min = requested.min_length.is_some() || requested.min_new_tokens.is_some();
    if min > max && !sets_min {
        return Ok((max, max));
    }
    if min > max {
        return Err(Error::invalid(format!(
            "expected a minimum length of at most `{name}`, which is {}, but found {}",
            max - start,
            min - start
        )));
    }
    Ok((max, min))
}

fn sampling(options: &GenerationOptions) -> Result<Option<Sampling>> {
    if !options.do_sample.unwrap_or(false) {
        return Ok(None);
    }
    // The values that turn a limit off.
    let unless =
        |name, value, off: f32| Ok::<_, Error>(share(name, value)?.filter(|share| *share != off));
    let typical_p = unless("typical_p", options.typical_p, 1.0)?;
    if typical_p == Some(0.0) {
        return Err(Error::invalid("expected `typical_p` above 0, but found 0"));
    }
    let cutoff =
        |name, value| Ok::<_, Error>(unless(name, value, 0.0)?.filter(|share| *share < 1.0));
    Ok(Some(Sampling {
        temperature: above_zero("temperature", options.temperature)?,
        top_k: options.top_k.unwrap_or(DEFAULT_TOP_K),
        top_p: share("top_p", options.top_p)?.unwrap_or(1.0),
        min_p: unless("min_p", options.min_p, 0.0)?,
        typical_p,
        epsilon_cutoff: cutoff("epsilon_cutoff", options.epsilon_cutoff)?,
        eta_cutoff: cutoff("eta_cutoff", options.eta_cutoff)?,
        seed: options.seed,
    }))
}

/// Forbidden token sequences, without single end-of-sequence tokens.
fn bad_words(words: Vec<Vec<i64>>, eos_ids: &[i64]) -> Result<Vec<Vec<i64>>> {
    if words.iter().any(Vec::is_empty) {
        return Err(Error::invalid(
            "expected tokens in each of `bad_words_ids`, but found none",
        ));
    }
    Ok(words
        .into_iter()
        .filter(|word| !matches!(word[..], [id] if eos_ids.contains(&id)))
        .collect())
}

fn within(name: &str, found: Option<usize>, range: RangeInclusive<usize>) -> Result<usize> {
    let found = found.unwrap_or(1);
    if range.contains(&found) {
        return Ok(found);
    }
    let (min, max) = (range.start(), range.end());
    Err(Error::invalid(format!(
        "expected `{name}` of {min} to {max}, but found {found}"
    ))
    .in_field(name))
}

fn share(name: &str, value: Option<f32>) -> Result<Option<f32>> {
    match value.filter(|value| !(0.0..=1.0).contains(value)) {
        None => Ok(value),
        Some(found) => Err(Error::invalid(format!(
            "expected `{name}` of 0 to 1, but found {found}"
        ))
        .in_field(name)),
    }
}

fn finite(name: &str, value: f32) -> Result<f32> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(Error::invalid(format!(
        "expected `{name}` to be a number, but found {value}"
    ))
    .in_field(name))
}

fn above_zero(name: &str, value: Option<f32>) -> Result<f32> {
    let value = value.unwrap_or(1.0);
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(Error::invalid(format!("expected `{name}` above 0, but found {value}")).in_field(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings() -> GenerationSettings {
        GenerationSettings {
            decoder_start_token_id: 2,
            eos_token_ids: vec![2],
            pad_token_id: 1,
            length_factor: None,
            defaults: GenerationOptions {
                num_beams: Some(4),
                ..GenerationOptions::default()
            },
        }
    }

    fn config(options: Value) -> Result<GenerationConfig> {
        let options = serde_json::from_value(options).unwrap();
        GenerationConfig::new(
            &settings(),
            &options,
            Bounds {
                vocabulary: 100,
                max_length: 64,
            },
        )
    }

    #[test]
    fn token_lists_are_at_most_as_long_as_the_vocabulary() {
        let refusal = |options: Value| config(options).unwrap_err().to_string();
        let many = vec![7; 101];
        for name in [
            "suppress_tokens",
            "begin_suppress_tokens",
            "forced_eos_token_id",
        ] {
            assert_eq!(
                refusal(json!({ name: many })),
                format!(
                    "`{name}` has 101 token ids, but may have at most 100, the model's vocabulary size"
                )
            );
            assert!(config(json!({ name: &many[1..] })).is_ok());
        }
        insta::assert_snapshot!(refusal(json!({ "bad_words_ids": [[7], many] })), @"`bad_words_ids` has 102 token ids, but may have at most 100, the model's vocabulary size");
        assert!(config(json!({ "bad_words_ids": [many[2..], [7]] })).is_ok());
    }

    #[test]
    fn contradictions_are_named_with_both_sides() {
        struct Case {
            options: Value,
            expected: &'static str,
        }
        let cases = [
            Case {
                options: json!({"num_return_sequences": 5}),
                expected: "expected `num_return_sequences` of at most `num_beams`, which is 4, but found 5",
            },
            Case {
                options: json!({"num_beams": 1, "num_return_sequences": 2}),
                expected: "expected `num_return_sequences` of at most `num_beams`, which is 1, but found 2",
            },
            Case {
                options: json!({"min_new_tokens": 9, "max_new_tokens": 8}),
                expected: "expected a minimum length of at most `max_new_tokens`, which is 8, but found 9",
            },
            Case {
                options: json!({"min_length": 30}),
                expected: "expected a minimum length of at most `max_length`, which is 21, but found 30",
            },
            Case {
                options: json!({"max_new_tokens": 0}),
                expected: "expected `max_new_tokens` of 1 to 63, but found 0",
            },
            Case {
                options: json!({"max_new_tokens": 64}),
                expected: "expected `max_new_tokens` of 1 to 63, but found 64",
            },
            Case {
                options: json!({"max_length": 1}),
                expected: "expected `max_length` of 2 to 64, but found 1",
            },
            Case {
                options: json!({"num_beams": 0}),
                expected: "expected `num_beams` of 1 to 64, but found 0",
            },
            Case {
                options: json!({"num_beams": 65}),
                expected: "expected `num_beams` of 1 to 64, but found 65",
            },
            Case {
                options: json!({"repetition_penalty": 0.0}),
                expected: "expected `repetition_penalty` above 0, but found 0",
            },
            Case {
                options: json!({"do_sample": true, "temperature": -1.0}),
                expected: "expected `temperature` above 0, but found -1",
            },
            Case {
                options: json!({"do_sample": true, "top_p": 1.5}),
                expected: "expected `top_p` of 0 to 1, but found 1.5",
            },
            Case {
                options: json!({"do_sample": true, "min_p": -0.5}),
                expected: "expected `min_p` of 0 to 1, but found -0.5",
            },
            Case {
                options: json!({"do_sample": true, "typical_p": 0.0}),
                expected: "expected `typical_p` above 0, but found 0",
            },
            Case {
                options: json!({"forced_eos_token_id": []}),
                expected: "expected tokens in `forced_eos_token_id`, but found an empty list",
            },
            Case {
                options: json!({"forced_eos_token_id": [2, 100]}),
                expected: "expected `forced_eos_token_id` below 100, but found 100",
            },
            Case {
                options: json!({"suppress_tokens": [5, 100]}),
                expected: "expected `suppress_tokens` below 100, but found 100",
            },
            Case {
                options: json!({"suppress_tokens": [5, 2], "forced_eos_token_id": 2}),
                expected: "`suppress_tokens` has all of `forced_eos_token_id` ([2]), so that no token would be left",
            },
            Case {
                options: json!({"suppress_tokens": [7], "forced_bos_token_id": 7}),
                expected: "`suppress_tokens` has all of `forced_bos_token_id` ([7]), so that no token would be left",
            },
            Case {
                options: json!({"bad_words_ids": [[]]}),
                expected: "expected tokens in each of `bad_words_ids`, but found none",
            },
        ];
        for Case { options, expected } in cases {
            assert_eq!(
                config(options.clone()).unwrap_err().to_string(),
                expected,
                "{options}"
            );
        }
    }

    #[test]
    fn the_length_factor_limits_the_target_by_its_source() {
        let settings = GenerationSettings {
            length_factor: Some(2.5),
            ..settings()
        };
        let bounds = Bounds {
            vocabulary: 100,
            max_length: 64,
        };
        let config =
            GenerationConfig::new(&settings, &GenerationOptions::default(), bounds).unwrap();
        assert_eq!([config.max_length(3), config.max_length(50)], [9, 64]);
    }

    #[test]
    fn a_shortlist_maps_token_ids_to_indexes() {
        let options = json!({"suppress_tokens": [5, 7], "bad_words_ids": [[7, 9], [7, 8]], "forced_bos_token_id": 9});
        let short = config(options).unwrap().within(&[2, 7, 9]);
        assert_eq!((short.start_id, short.eos_ids.clone()), (0, vec![0]));
        assert_eq!(
            (short.suppress_tokens.clone(), short.bad_words_ids.clone()),
            (vec![1], vec![vec![1, 2]])
        );
        assert_eq!(short.forced_bos_token_id, Some(2));
    }

    #[test]
    fn the_options_of_a_configuration_request_the_same_configuration() {
        let settings: GenerationSettings = serde_json::from_value(json!({
            "decoder_start_token_id": 2, "eos_token_ids": [2], "pad_token_id": 1,
            "defaults": { "num_beams": 5, "max_new_tokens": 30, "early_stopping": true },
        }))
        .unwrap();
        let plain = GenerationSettings {
            defaults: GenerationOptions::default(),
            ..settings.clone()
        };
        let bounds = Bounds {
            vocabulary: 100,
            max_length: 64,
        };
        for options in [
            json!({}),
            json!({ "num_beams": 1, "max_length": 9, "bad_words_ids": [[7, 8]], "forced_bos_token_id": 5 }),
            json!({ "num_beams": 1, "do_sample": true, "top_p": 0.5, "seed": 3 }),
            json!({ "do_sample": true, "min_p": 0.5, "typical_p": 0.25, "epsilon_cutoff": 0.125, "eta_cutoff": 0.5 }),
            json!({ "decoder_start_token_id": [7], "forced_eos_token_id": [2, 5] }),
            json!({ "early_stopping": "never", "min_new_tokens": 4, "suppress_tokens": [9] }),
            json!({ "suppress_tokens": [2], "forced_eos_token_id": [2, 5] }),
        ] {
            let options = serde_json::from_value(options).unwrap();
            let config = GenerationConfig::new(&settings, &options, bounds).unwrap();
            let options = serde_json::from_value(config.options().into()).unwrap();
            assert_eq!(
                GenerationConfig::new(&plain, &options, bounds).unwrap(),
                config
            );
        }
    }
}
