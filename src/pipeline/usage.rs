use std::time::Duration;

use crate::backend::routing::Location;

/// A request's token counts and durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The input tokens, special tokens included.
    pub tokens: usize,
    /// The generated tokens; 0 for encoders.
    pub generated: usize,
    /// Indexes of truncated texts.
    pub truncated: Vec<usize>,
    /// Tokenization time.
    pub tokenization: Duration,
    /// Model time, queueing included.
    pub inference: Duration,
    /// Where the model ran.
    pub location: Location,
}

impl Usage {
    /// Adds up the runs on a query and on the `count` texts that were compared with it. A truncated query counts as all
    /// texts, as it does in pairs.
    pub(crate) fn after_query(self, query: &Self, count: usize) -> Self {
        let truncated = match query.truncated.is_empty() {
            true => self.truncated.clone(),
            false => (0..count).collect(),
        };
        Self {
            truncated,
            ..self.after(query)
        }
    }

    /// Adds up two runs, one after the other. Truncated texts come from this one.
    pub(crate) fn after(self, first: &Self) -> Self {
        Self {
            tokens: self.tokens + first.tokens,
            generated: self.generated + first.generated,
            tokenization: self.tokenization + first.tokenization,
            inference: self.inference + first.inference,
            ..self
        }
    }
}
