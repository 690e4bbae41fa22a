//! How requests say what happens to texts above the token limit, in the forms of several APIs.

use schemars::JsonSchema;
use serde::Deserialize;

use super::inputs;
use kivu::{Error, Result, task::TruncationParameters, tokenizer::Side};

/// What Cohere's and NVIDIA's clients send: `NONE` refuses long texts, the others truncate them at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum Truncate {
    #[serde(alias = "none", alias = "None")]
    None,
    #[serde(alias = "start", alias = "Start")]
    Start,
    #[serde(alias = "end", alias = "End")]
    End,
}

/// A boolean, or NVIDIA's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a boolean, or `NONE`, `START` or `END`"
)]
#[schemars(inline)]
pub enum BooleanOrTruncate {
    Boolean(bool),
    Truncate(Truncate),
}

impl Truncate {
    pub fn parameters(self) -> TruncationParameters {
        let (truncate, side) = match self {
            Self::None => (false, None),
            Self::Start => (true, Some(Side::Left)),
            Self::End => (true, Some(Side::Right)),
        };
        TruncationParameters {
            truncate: Some(truncate),
            truncation_direction: side,
        }
    }
}

/// A request's fields for truncation.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestedTruncation {
    pub truncate: Option<BooleanOrTruncate>,
    /// Voyage's.
    pub truncation: Option<bool>,
    /// vLLM's: -1 for the model's token limit.
    pub truncate_prompt_tokens: Option<i64>,
    /// vLLM's.
    pub truncation_side: Option<Side>,
}

impl RequestedTruncation {
    /// Fields that contradict each other are refused, and a token limit below the model's.
    pub fn parameters(self, max_tokens: usize) -> Result<TruncationParameters> {
        let own = match self.truncate {
            None => TruncationParameters::default(),
            Some(BooleanOrTruncate::Boolean(truncate)) => TruncationParameters {
                truncate: Some(truncate),
                truncation_direction: None,
            },
            Some(BooleanOrTruncate::Truncate(word)) => word.parameters(),
        };
        const TOKENS: &str = "truncate_prompt_tokens";
        let to_tokens = match self.truncate_prompt_tokens {
            None => None,
            Some(-1) => Some(true),
            Some(tokens) => {
                let tokens = usize::try_from(tokens).map_err(|_| {
                    Error::invalid(format!(
                        "expected `{TOKENS}` from -1 on, but found {tokens}"
                    ))
                    .in_field(TOKENS)
                })?;
                inputs::refuse_lower_token_limit(TOKENS, Some(tokens), max_tokens)?;
                Some(true)
            }
        };
        Ok(TruncationParameters {
            truncate: inputs::one_value([
                ("truncate", own.truncate),
                ("truncation", self.truncation),
                (TOKENS, to_tokens),
            ])?,
            truncation_direction: inputs::one_value([
                ("truncate", own.truncation_direction),
                ("truncation_side", self.truncation_side),
            ])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_are_read_in_any_case_that_clients_send() {
        let read = |word: &str| {
            let truncate = serde_json::from_value(json!(word)).ok()?;
            let requested = RequestedTruncation {
                truncate: Some(truncate),
                ..RequestedTruncation::default()
            };
            requested.parameters(8).ok()
        };
        for (words, truncate, side) in [
            (["NONE", "none", "None"], false, None),
            (["START", "start", "Start"], true, Some(Side::Left)),
            (["END", "end", "End"], true, Some(Side::Right)),
        ] {
            for word in words {
                let expected = TruncationParameters {
                    truncate: Some(truncate),
                    truncation_direction: side,
                };
                assert_eq!(read(word), Some(expected), "{word}");
            }
        }
        assert_eq!(read("MIDDLE"), None);
    }

    #[test]
    fn contradictions_and_smaller_limits_are_refused() {
        let none = RequestedTruncation::default();
        let word = |word| Some(BooleanOrTruncate::Truncate(word));
        let refusals = [
            RequestedTruncation {
                truncate: word(Truncate::None),
                truncation: Some(true),
                ..none
            },
            RequestedTruncation {
                truncate: word(Truncate::End),
                truncation_side: Some(Side::Left),
                ..none
            },
            RequestedTruncation {
                truncate: Some(BooleanOrTruncate::Boolean(false)),
                truncate_prompt_tokens: Some(-1),
                ..none
            },
            RequestedTruncation {
                truncate_prompt_tokens: Some(7),
                ..none
            },
            RequestedTruncation {
                truncate_prompt_tokens: Some(-2),
                ..none
            },
        ];
        let refusals = refusals.map(|one| one.parameters(8).unwrap_err().to_string());
        insta::assert_snapshot!(refusals.join("\n"), @r"
        `truncate` and `truncation` have different values; leave one of them out
        `truncate` and `truncation_side` have different values; leave one of them out
        `truncate` and `truncate_prompt_tokens` have different values; leave one of them out
        expected `truncate_prompt_tokens` of at least 8, the model's limit, but found 7; leave it out
        expected `truncate_prompt_tokens` from -1 on, but found -2
        ");
        let at_limit = RequestedTruncation {
            truncate_prompt_tokens: Some(8),
            truncation_side: Some(Side::Left),
            ..none
        };
        let expected = TruncationParameters {
            truncate: Some(true),
            truncation_direction: Some(Side::Left),
        };
        assert_eq!(at_limit.parameters(8).unwrap(), expected);
    }
}
