//! Pairs that a model reads as one text, as in a chat.

use serde::{Deserialize, Serialize};

use kivu_base::Result;
use kivu_text::{AroundPair, Encoding, Tokenizer, Truncation};

use crate::pipeline::embedding::instructions;

/// The text around a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairTemplate {
    /// Input prefix, never truncated.
    pub prefix: String,
    /// What precedes the first text.
    pub first: String,
    /// What precedes the second text.
    pub second: String,
    /// Input suffix, never truncated.
    pub suffix: String,
    /// Between the texts and before the suffix, if all parts are tokenized one by one; otherwise, the texts are one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// Whether a pair may have more tokens than a single text may: see [`AroundPair`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lenient: bool,
    /// What precedes an instruction, in templates that have one only if a request does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
}

impl PairTemplate {
    /// Encodes a pair into at most `limit` tokens. Truncation shortens both texts as one.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        [first, second]: [&str; 2],
        limit: usize,
        truncation: Truncation,
    ) -> Result<Encoding> {
        if let Some(separator) = &self.separator {
            let around = AroundPair {
                before: &self.prefix,
                separator,
                after: &self.suffix,
                is_lenient: self.is_lenient,
            };
            let pair = [
                [&*self.first, first].concat(),
                [&*self.second, second].concat(),
            ];
            let pair = pair.each_ref().map(String::as_str);
            return tokenizer.encode_pair_between(&around, pair, limit, truncation);
        }
        let text = [&self.first, first, &self.second, second].concat();
        tokenizer.encode_between([&self.prefix, &text, &self.suffix], limit, truncation)
    }

    /// What is before the first text with this instruction; `None` if there is no place for one.
    pub fn instructed(&self, instruction: &str) -> Option<String> {
        match &self.instruction {
            Some(before) => Some([before, instruction, "\n", &self.first].concat()),
            None => instructions::replaced(&self.first, instruction),
        }
    }
}
