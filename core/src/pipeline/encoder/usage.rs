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
    /// Adds a further run for the same texts.
    pub fn add(&mut self, again: &Self) {
        self.tokens += again.tokens;
        self.generated += again.generated;
        self.inference += again.inference;
    }

    /// Adds up the runs on a query and on the `count` texts that were compared with it. A truncated query counts as all
    /// texts, as it does in pairs.
    pub fn after_query(self, query: &Self, count: usize) -> Self {
        let truncated = match query.truncated.is_empty() {
            true => self.truncated.clone(),
            false => (0..count).collect(),
        };
        Self {
            truncated,
            ..self.after(query)
        }
    }

    /// The same for runs at the same time. Their stages overlap, so the durations are those of the longer run.
    pub fn beside_query(self, query: &Self, count: usize) -> Self {
        let longer = if self.tokenization + self.inference < query.tokenization + query.inference {
            query
        } else {
            &self
        };
        let (tokenization, inference) = (longer.tokenization, longer.inference);
        Self {
            tokenization,
            inference,
            ..self.after_query(query, count)
        }
    }

    /// Adds up two runs, one after the other. Truncated texts come from this one.
    pub fn after(self, first: &Self) -> Self {
        Self {
            tokens: self.tokens + first.tokens,
            generated: self.generated + first.generated,
            tokenization: self.tokenization + first.tokenization,
            inference: self.inference + first.inference,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_at_the_same_time_take_no_longer_than_the_longer_one() {
        let usage = |tokenization, inference| Usage {
            tokens: 1,
            tokenization: Duration::from_millis(tokenization),
            inference: Duration::from_millis(inference),
            ..Usage::default()
        };
        let durations = |usage: Usage| {
            [usage.tokenization, usage.inference].map(|duration| duration.as_millis())
        };
        let (query, texts) = (usage(1, 100), usage(50, 60));
        let beside = texts.clone().beside_query(&query, 2);
        assert_eq!(beside.tokens, 2);
        assert_eq!(durations(beside), [50, 60]);
        assert_eq!(durations(query.clone().beside_query(&texts, 2)), [50, 60]);
        assert_eq!(durations(usage(1, 2).beside_query(&query, 2)), [1, 100]);
        assert_eq!(durations(texts.after_query(&query, 2)), [51, 160]);
    }
}
