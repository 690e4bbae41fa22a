//! Pairs that a model reads as one text, as in a chat.

use serde::{Deserialize, Serialize};

use kivu_base::error::Result;
use kivu_text::{Encoding, Tokenizer, Truncation};

/// The text around a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairTemplate {
    /// Input prefix, never truncated.
    pub prefix: String,
    /// Before the first text.
    pub first: String,
    /// Before the second text.
    pub second: String,
    /// Input suffix, never truncated.
    pub suffix: String,
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
        let text = [&self.first, first, &self.second, second].concat();
        tokenizer.encode_between([&self.prefix, &text, &self.suffix], limit, truncation)
    }
}
