//! A model's settings and a request's options put together, and checked against each other.

use super::settings::{EarlyStopping, GenerationOptions, GenerationSettings};
use crate::error::{Error, Result};

/// The tokens that are generated where neither model nor request says how many, as in `transformers`.
const DEFAULT_NEW_TOKENS: usize = 20;
/// The tokens that are drawn from where neither says, as in `transformers`.
const DEFAULT_TOP_K: usize = 50;
/// The most beams, or texts, of one source: each is a row of the decoder's state.
pub const MAX_BEAMS: usize = 64;

/// How far generation can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The number of tokens that there are.
    pub vocabulary: usize,
    /// The most tokens of a target that the model takes, the decoder's first included.
    pub longest: usize,
}

/// What is generated, without contradictions.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    pub(super) start: i64,
    pub(super) ends: Vec<i64>,
    pub(super) beams: usize,
    pub(super) sequences: usize,
    pub(super) length_penalty: f32,
    pub(super) early_stopping: EarlyStopping,
    pub(super) max_length: usize,
    pub(super) length_factor: Option<f32>,
    pub(super) min_length: usize,
    pub(super) no_repeat_ngram_size: usize,
    pub(super) repetition_penalty: f32,
    pub(super) bad_words: Vec<Vec<i64>>,
    pub(super) suppressed: Vec<i64>,
    pub(super) suppressed_first: Vec<i64>,
    pub(super) forced_first: Option<i64>,
    pub(super) forced_last: Option<i64>,
    pub(super) renormalise: bool,
    pub(super) sampling: Option<Sampling>,
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sampling {
    pub(super) temperature: f32,
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) seed: Option<u64>,
}

impl GenerationConfig {
    /// The search that `options` ask for of a model with `settings`; contradictions are refused by name.
    pub fn new(settings: &GenerationSettings, options: &GenerationOptions, bounds: Bounds) -> Result<Self> {
        let options = options.or(&settings.defaults);
        let beams = within("num_beams", options.num_beams, 1, 1..=MAX_BEAMS)?;
        let sampling = sampling(&options)?;
        let (max_length, min_length) = lengths(&options, settings, bounds)?;
        let search = Self {
            start: settings.decoder_start_token_id,
            ends: settings.eos_token_ids.clone(),
            beams,
            sequences: sequences(&options, beams, sampling.is_some())?,
            length_penalty: finite("length_penalty", options.length_penalty.unwrap_or(1.0))?,
            early_stopping: options.early_stopping.unwrap_or_default(),
            max_length,
            length_factor: settings.length_factor,
            min_length,
            no_repeat_ngram_size: options.no_repeat_ngram_size.unwrap_or(0),
            repetition_penalty: above_zero("repetition_penalty", options.repetition_penalty.unwrap_or(1.0))?,
            bad_words: bad_words(options.bad_words_ids.unwrap_or_default(), &settings.eos_token_ids)?,
            suppressed: options.suppress_tokens.unwrap_or_default(),
            suppressed_first: options.begin_suppress_tokens.unwrap_or_default(),
            forced_first: options.forced_bos_token_id,
            forced_last: options.forced_eos_token_id,
            renormalise: options.renormalize_logits.unwrap_or(false),
            sampling,
        };
        search.require_tokens(bounds.vocabulary)?;
        Ok(search)
    }

    /// The decoder's first token; below 0 where it begins with none.
    pub fn start(&self) -> i64 {
        self.start
    }

    /// The rows that a source takes at most.
    pub fn rows(&self) -> usize {
        if self.beams > 1 { self.beams } else { self.sequences }
    }

    /// The texts that are given back of each source.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// The most tokens of the target of a source of so many, the decoder's first included.
    pub fn max_length(&self, source: usize) -> usize {
        let by_source = self.length_factor.map(|factor| 1 + (factor * source as f32).ceil() as usize);
        self.max_length.min(by_source.unwrap_or(usize::MAX))
    }

    /// The same search where only the tokens of `shortlist` are scored, each by its place there.
    ///
    /// What is forced, and what ends a text, has to be among them.
    pub fn within(&self, shortlist: &[i64]) -> Self {
        let place = |token: &i64| shortlist.binary_search(token).ok().map(|place| place as i64);
        let places = |tokens: &[i64]| tokens.iter().filter_map(place).collect::<Vec<_>>();
        Self {
            start: place(&self.start).unwrap_or(self.start),
            ends: places(&self.ends),
            bad_words: self.bad_words.iter().filter_map(|word| word.iter().map(place).collect()).collect(),
            suppressed: places(&self.suppressed),
            suppressed_first: places(&self.suppressed_first),
            forced_first: self.forced_first.as_ref().and_then(place),
            forced_last: self.forced_last.as_ref().and_then(place),
            ..self.clone()
        }
    }

    /// The tokens that a shortlist cannot do without.
    pub fn needed(&self) -> impl Iterator<Item = i64> {
        let forced = self.forced_first.into_iter().chain(self.forced_last);
        self.ends.iter().copied().chain(forced)
    }

    fn require_tokens(&self, vocabulary: usize) -> Result<()> {
        let forced = [("forced_bos_token_id", self.forced_first), ("forced_eos_token_id", self.forced_last)];
        let forced = forced.into_iter().flat_map(|(name, token)| token.map(|token| (name, token)));
        let lists =
            [("suppress_tokens", &self.suppressed), ("begin_suppress_tokens", &self.suppressed_first)];
        let lists = lists.into_iter().flat_map(|(name, list)| list.iter().map(move |token| (name, *token)));
        let words = self.bad_words.iter().flatten().map(|token| ("bad_words_ids", *token));
        match forced.chain(lists).chain(words).find(|(_, token)| !(0..vocabulary as i64).contains(token)) {
            None => Ok(()),
            Some((name, token)) => {
                Err(Error::invalid(format!("expected `{name}` below {vocabulary}, but found {token}")))
            }
        }
    }
}

fn sequences(options: &GenerationOptions, beams: usize, is_drawn: bool) -> Result<usize> {
    let sequences = within("num_return_sequences", options.num_return_sequences, 1, 1..=MAX_BEAMS)?;
    if sequences > beams && (beams > 1 || !is_drawn) {
        return Err(Error::invalid(format!(
            "expected `num_return_sequences` of at most `num_beams`, which is {beams}, but found {sequences}"
        )));
    }
    Ok(sequences)
}

/// The most tokens and the fewest, the decoder's first included.
fn lengths(
    options: &GenerationOptions,
    settings: &GenerationSettings,
    bounds: Bounds,
) -> Result<(usize, usize)> {
    let by_default = match settings.length_factor {
        Some(_) => bounds.longest,
        None => (DEFAULT_NEW_TOKENS + 1).min(bounds.longest),
    };
    let (name, most) = match (options.max_new_tokens, options.max_length) {
        (Some(tokens), _) => ("max_new_tokens", tokens.saturating_add(1)),
        (None, Some(length)) => ("max_length", length),
        (None, None) => ("max_length", by_default),
    };
    // One of the tokens is the decoder's first, which is not generated.
    let own = usize::from(name == "max_new_tokens");
    if !(2..=bounds.longest).contains(&most) {
        return Err(Error::invalid(format!(
            "expected `{name}` of {} to {}, but found {}",
            2 - own,
            bounds.longest - own,
            most - own
        )));
    }
    let fewest = match (options.min_new_tokens, options.min_length) {
        (Some(tokens), _) => tokens.saturating_add(1),
        (None, length) => length.unwrap_or(0),
    };
    if fewest > most {
        return Err(Error::invalid(format!(
            "expected a text of at most {} tokens, as `{name}` says, but found at least {} asked for",
            most - own,
            fewest - own
        )));
    }
    Ok((most, fewest))
}

fn sampling(options: &GenerationOptions) -> Result<Option<Sampling>> {
    if !options.do_sample.unwrap_or(false) {
        return Ok(None);
    }
    let top_p = options.top_p.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&top_p) {
        return Err(Error::invalid(format!("expected `top_p` of 0 to 1, but found {top_p}")));
    }
    Ok(Some(Sampling {
        temperature: above_zero("temperature", options.temperature.unwrap_or(1.0))?,
        top_k: options.top_k.unwrap_or(DEFAULT_TOP_K),
        top_p,
        seed: options.seed,
    }))
}

/// The runs of tokens that are forbidden; an end alone is never.
fn bad_words(words: Vec<Vec<i64>>, ends: &[i64]) -> Result<Vec<Vec<i64>>> {
    if words.iter().any(Vec::is_empty) {
        return Err(Error::invalid("expected tokens in each of `bad_words_ids`, but found none"));
    }
    Ok(words.into_iter().filter(|word| !matches!(word[..], [token] if ends.contains(&token))).collect())
}

fn within(
    name: &str,
    found: Option<usize>,
    default: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize> {
    let found = found.unwrap_or(default);
    if range.contains(&found) {
        return Ok(found);
    }
    Err(Error::invalid(format!(
        "expected `{name}` of {} to {}, but found {found}",
        range.start(),
        range.end()
    )))
}

fn finite(name: &str, value: f32) -> Result<f32> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(Error::invalid(format!("expected `{name}` to be a number, but found {value}")))
}

fn above_zero(name: &str, value: f32) -> Result<f32> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(Error::invalid(format!("expected `{name}` above 0, but found {value}")))
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
            defaults: GenerationOptions { num_beams: Some(4), ..GenerationOptions::default() },
        }
    }

    fn search(options: serde_json::Value) -> Result<GenerationConfig> {
        let options = serde_json::from_value(options).unwrap();
        GenerationConfig::new(&settings(), &options, Bounds { vocabulary: 100, longest: 64 })
    }

    #[test]
    fn contradictions_are_named_with_both_sides() {
        struct Case {
            options: serde_json::Value,
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
                expected: "expected a text of at most 8 tokens, as `max_new_tokens` says, but found at least 9 asked for",
            },
            Case {
                options: json!({"min_length": 30}),
                expected: "expected a text of at most 21 tokens, as `max_length` says, but found at least 30 asked for",
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
                options: json!({"suppress_tokens": [5, 100]}),
                expected: "expected `suppress_tokens` below 100, but found 100",
            },
            Case {
                options: json!({"bad_words_ids": [[]]}),
                expected: "expected tokens in each of `bad_words_ids`, but found none",
            },
        ];
        for Case { options, expected } in cases {
            assert_eq!(search(options.clone()).unwrap_err().to_string(), expected, "{options}");
        }
    }

    #[test]
    fn a_length_follows_the_source_where_the_model_says_so() {
        let settings = GenerationSettings { length_factor: Some(2.5), ..settings() };
        let bounds = Bounds { vocabulary: 100, longest: 64 };
        let search = GenerationConfig::new(&settings, &GenerationOptions::default(), bounds).unwrap();
        assert_eq!([search.max_length(3), search.max_length(50)], [9, 64]);
    }

    #[test]
    fn a_shortlist_turns_tokens_into_places() {
        let options =
            json!({"suppress_tokens": [5, 9], "bad_words_ids": [[7, 9], [7, 8]], "forced_bos_token_id": 9});
        let short = search(options).unwrap().within(&[2, 7, 9]);
        assert_eq!((short.start, short.ends.clone()), (0, vec![0]));
        assert_eq!((short.suppressed.clone(), short.bad_words.clone()), (vec![2], vec![vec![1, 2]]));
        assert_eq!(short.forced_first, Some(2));
    }
}
