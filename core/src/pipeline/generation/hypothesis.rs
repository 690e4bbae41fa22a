//! The values that the decode loop and its two search strategies exchange.

/// A generated sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The token ids after the decoder's start token, up to and including an end-of-sequence token.
    pub ids: Vec<i64>,
    /// The log-probability divided by length ^ `length_penalty`; `None` without beam search.
    pub score: Option<f32>,
}

/// A row's next token.
#[derive(Clone, Copy, Debug)]
pub struct Continuation {
    /// The decoder row that it continues.
    pub row: usize,
    pub token: i64,
}
