//! The interface to sequence-to-sequence models: an encoder that runs once, and a decoder that runs once per token.

use std::{fmt::Debug, num::NonZeroUsize};

use async_trait::async_trait;

use super::Deadline;
use kivu_base::Result;

/// Runs an encoder, and lends its decoder to a function.
///
/// # Contract
/// - A call that was cancelled, or whose deadline has passed, does not start.
/// - A call that fails does not affect other calls.
#[async_trait]
pub trait Seq2SeqBackend: Debug + Send + Sync {
    /// Maximum calls in parallel.
    fn concurrency(&self) -> NonZeroUsize;

    /// Scores per row, or `None` if it depends on the call.
    fn vocabulary(&self) -> Option<usize>;

    /// Encodes `sources` and calls `decode` with their decoder, on a thread that it may block.
    async fn decode(
        &self,
        sources: SourceBatch,
        deadline: Deadline,
        decode: DecodeFn,
    ) -> Result<()>;
}

/// A function that runs a decoder.
pub type DecodeFn = Box<dyn FnOnce(&mut dyn Decoder) -> Result<()> + Send>;

/// Sources that are encoded together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceBatch {
    /// Source token ids, one row per source, with special tokens; at least one row.
    pub rows: Vec<Vec<i64>>,
    /// The id that pads shorter rows. Models ignore padding.
    pub pad: i64,
    /// Ids of the scored tokens, ascending, if not all are scored. The decoder's tokens and scores are then
    /// indexes into this list.
    pub shortlist: Option<Vec<i64>>,
}

/// Generates targets, one token per row and step. Starts with one row per source.
pub trait Decoder {
    /// Appends one token to each row, and scores the possible next tokens.
    fn step(&mut self, tokens: &[i64]) -> Result<Logits<'_>>;

    /// Replaces the rows: row `i` continues what row `rows[i]` was. Rows can be dropped, repeated and moved.
    fn reorder(&mut self, rows: &[usize]) -> Result<()>;
}

/// Scores for one step, which the caller may overwrite.
#[derive(Debug)]
pub struct Logits<'a> {
    /// Row-major, rows × `width`.
    pub values: &'a mut [f32],
    /// Scores per row.
    pub width: usize,
}
