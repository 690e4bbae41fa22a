use std::time::Duration;

use crate::backend::routing::Location;

/// The tokens and the time that a request took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The input tokens, special tokens included.
    pub tokens: usize,
    /// The generated tokens.
    pub generated: usize,
    /// The indexes of the truncated texts.
    pub truncated: Vec<usize>,
    /// The time of the tokenization.
    pub tokenization: Duration,
    /// The time of the model, waiting for it included.
    pub inference: Duration,
    /// Where the model ran.
    pub location: Location,
}
