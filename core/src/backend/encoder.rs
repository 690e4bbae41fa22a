//! The interface between pipelines and encoders: tokens in, rows out.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use super::{Deadline, Schedule, Signature};
use kivu_base::Result;
use kivu_text::Encoding;

/// An encoder's input.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Its tokens.
    pub encoding: &'a Encoding,
    /// Source text, for models with a built-in tokenizer; pairs and token ids have none.
    pub text: Option<&'a str>,
    /// Concatenated label vectors, in models that take them.
    pub labels: Option<&'a Arc<[f32]>>,
}

impl<'a> From<&'a Encoding> for Sequence<'a> {
    fn from(encoding: &'a Encoding) -> Self {
        Self {
            encoding,
            text: None,
            labels: None,
        }
    }
}

/// The texts and options of one encoder run.
#[derive(Debug)]
pub struct EncoderCall<'a> {
    /// Texts that may be padded to one length, per batch.
    pub batches: Vec<Vec<Sequence<'a>>>,
    /// Outputs to return, as indexes into [`Signature::outputs`].
    pub outputs: &'a [usize],
    /// Token id that pads short texts.
    pub padding_id: u32,
    /// The call fails if it takes longer.
    pub deadline: Deadline,
}

/// One text's output, without padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// The values, row-major.
    pub values: &'a [f32],
    /// Length of the axis in front of the last one, in outputs with a matrix for each word; otherwise 1.
    pub columns: usize,
    /// Last axis length.
    pub width: usize,
}

/// Takes a text's index among all batches of a call, and a row per output.
pub type EachText<'a> = dyn FnMut(usize, &[Row<'_>]) -> Result<()> + Send + 'a;

/// Runs an encoder on tokens.
///
/// # Contract
/// - Each text's rows are passed on once.
/// - A call that misses its deadline fails with
///   [`Error::DeadlineExceeded`](kivu_base::error::Error::DeadlineExceeded). Work does not start once its caller has
///   cancelled it.
/// - A failed call does not affect other calls.
#[async_trait]
pub trait EncoderBackend: Debug + Send + Sync {
    /// The graph's inputs and outputs.
    fn signature(&self) -> &Signature;

    /// The preferred batching.
    fn schedule(&self) -> Schedule;

    /// Peak memory for a text with `tokens` tokens, in bytes, without the weights; `None` if unknown.
    fn text_bytes(&self, _tokens: usize) -> Option<u64> {
        None
    }

    /// Runs a call, and passes each text's rows to `each`.
    async fn run(&self, call: EncoderCall<'_>, each: &mut EachText<'_>) -> Result<()>;
}
