//! The other seam: what turns a sequence into a sequence, by an encoder that runs once and a decoder that runs
//! token by token.

use std::{fmt::Debug, num::NonZeroUsize};

use async_trait::async_trait;

use super::Deadline;
use crate::error::Result;

/// Runs an encoder and lends out its decoder.
///
/// # Contract
/// - DecodeFn whose deadline has passed, or whose caller has gone, is not begun.
/// - One work's failure leaves the next unharmed.
#[async_trait]
pub trait Seq2SeqBackend: Debug + Send + Sync {
    /// How many works run side by side.
    fn concurrency(&self) -> NonZeroUsize;

    /// The number of scores that a decoder gives a row, where it is always the same.
    fn vocabulary(&self) -> Option<usize>;

    /// Encodes `sources` and lets `work` run the decoder, on a thread that may take its time.
    async fn decode(&self, sources: SourceBatch, deadline: Deadline, work: DecodeFn) -> Result<()>;
}

/// What is done with a decoder once its sources are encoded.
pub type DecodeFn = Box<dyn FnOnce(&mut dyn Decoder) -> Result<()> + Send>;

/// Token ids that are encoded together, a row each, one at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceBatch {
    /// The token ids of each row, special tokens included.
    pub rows: Vec<Vec<i64>>,
    /// What fills the rows that are shorter than others; no model looks at it.
    pub pad: i64,
    /// The tokens that are scored, in ascending order, where not all are. What a decoder is given and gives are
    /// then places in this list.
    pub shortlist: Option<Vec<i64>>,
}

/// Writes targets, one token a row and step. It begins with a row for each source.
pub trait Decoder {
    /// Feeds each row its next token, and scores what may follow it.
    fn step(&mut self, tokens: &[i64]) -> Result<Logits<'_>>;

    /// Goes on with a row for each of `rows`, from where that row was: rows can be dropped, repeated and moved.
    fn reorder(&mut self, rows: &[usize]) -> Result<()>;
}

/// The scores of a step, row-major; they may be overwritten.
#[derive(Debug)]
pub struct Logits<'a> {
    /// As many as rows times `width`.
    pub values: &'a mut [f32],
    /// The scores of a row.
    pub width: usize,
}
