//! A model that reads texts as a whole: tokens to the model's outputs, at whichever location it runs.

pub mod adapter;
pub mod chunks;
pub mod encoding;
pub mod executor;
/// A request's usage: tokens and time.
pub mod usage;

use std::{cmp::Reverse, sync::Arc};

use async_trait::async_trait;

pub use super::encoder::adapter::{NamedOutput, Vectors};
use super::{
    classification::scores::ScoreFunction,
    encoder::{
        adapter::{Adapter, OutputSpec},
        encoding::{EncodingOptions, Encodings, Input, InputTokenizer, MAX_BYTES},
        executor::{Executor, Work, run_batches},
        usage::Usage,
    },
};
pub use crate::backend::encoder::Row;
use crate::backend::{
    Deadline, Schedule,
    encoder::{EncoderBackend, Sequence},
    model_inputs::ModelInputs,
    routing::Route,
};
use kivu_base::{Error, Result, clock::Instant};
use kivu_text::Tokenizer;

/// The granularity of the outputs that a task reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// The output for each text, whatever its shape.
    Texts,
    /// A vector for each token.
    Tokens,
}

/// Output values from a classification model.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// In input order.
    pub rows: Vec<Vec<f32>>,
    /// Token counts and durations.
    pub usage: Usage,
}

/// A tokenizer and an encoder, at all locations where the encoder runs.
#[derive(Clone, Debug)]
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
    max_tokens: usize,
    /// Token dropped at the end of inputs.
    trailing: Option<u32>,
    executor: Executor<Adapter, Adapter>,
}

impl Encoder {
    /// Creates an encoder that reads `outputs`; a classifier has one value per label in `labels`.
    ///
    /// A model with a different signature is refused: a local model immediately, a fleet's model once its description
    /// is known.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: Route,
        outputs: Vec<NamedOutput>,
        labels: Option<(Vec<String>, ScoreFunction)>,
        max_tokens: usize,
    ) -> Result<Self> {
        let special: usize = tokenizer.special_ids().iter().map(Vec::len).sum();
        if max_tokens <= special {
            return Err(Error::model(format!(
                "expected a token limit above {special}, the number of special tokens around a \
                 text, but found {max_tokens}"
            ))
            .with_hint("raise `limits.tokens`"));
        }
        let spec = Arc::new(OutputSpec {
            outputs,
            labels,
            padding_id: tokenizer.padding_id(),
            distinguishes_pairs: ModelInputs::distinguish_pairs(route.signature()),
        });
        let route =
            route.try_map(|backend: Arc<dyn EncoderBackend>| Adapter::local(backend, &spec))?;
        Ok(Self {
            tokenizer,
            max_tokens,
            trailing: None,
            executor: Executor::new(route, spec),
        })
    }

    /// Drops a token at the end of inputs, for decoders that read the last other token.
    pub fn without_trailing(self, trailing: Option<u32>) -> Self {
        Self { trailing, ..self }
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Maximum tokens per input, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Whether the model may run on a fleet.
    pub fn has_fleet(&self) -> bool {
        self.executor.has_fleet()
    }

    /// Forgets measured speeds, and closes the connections to the fleet.
    pub fn forget(&self) {
        self.executor.forget();
    }

    /// Fails if the fleet's model does not fit the task; an unreachable fleet is not an error.
    pub async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        self.executor.check_fleet(deadline).await
    }

    /// Refuses a request for token vectors if the model has none.
    pub async fn require_token_vectors(&self, deadline: Deadline) -> Result<()> {
        match self.executor.local() {
            Some(adapter) => adapter.require_token_vectors(),
            None => self
                .executor
                .remote(deadline)
                .await?
                .require_token_vectors(),
        }
    }

    /// The input tokenizer, with the limits of all locations where the model runs.
    pub async fn input_tokenizer(&self, deadline: Deadline) -> Result<InputTokenizer<'_>> {
        let fixed = match self.executor.local() {
            Some(_) => None,
            None => self.executor.remote(deadline).await?.fixed_length(),
        };
        let limit = fixed.unwrap_or(usize::MAX).min(self.max_tokens);
        Ok(InputTokenizer {
            tokenizer: &self.tokenizer,
            limit,
            keeps_text: self.has_fleet(),
            trailing: self.trailing,
            deadline,
        })
    }

    /// Tokenizes inputs, runs the model, and returns the first output's values.
    pub async fn logits(
        &self,
        inputs: Vec<Input>,
        options: EncodingOptions<'_>,
        granularity: Granularity,
        deadline: Deadline,
    ) -> Result<Logits> {
        let options = EncodingOptions {
            max_bytes: MAX_BYTES,
            ..options
        };
        let encodings = self
            .input_tokenizer(deadline)
            .await?
            .encode(inputs, &options)
            .await?;
        let values = |row: Row<'_>| row.values.to_vec();
        let (rows, usage) = self.run(&encodings, granularity, deadline, values).await?;
        Ok(Logits { rows, usage })
    }

    /// Runs the model, and returns `finish` applied to each input's first output.
    pub async fn run<T: Send>(
        &self,
        encodings: &Encodings,
        granularity: Granularity,
        deadline: Deadline,
        finish: impl Fn(Row<'_>) -> T + Send + Sync,
    ) -> Result<(Vec<T>, Usage)> {
        self.run_all(encodings, granularity, deadline, |_, rows| finish(rows[0]))
            .await
    }

    /// Runs the model, and returns `finish` applied to each input's index and outputs.
    pub async fn run_all<T: Send>(
        &self,
        encodings: &Encodings,
        granularity: Granularity,
        deadline: Deadline,
        finish: impl Fn(usize, &[Row<'_>]) -> T + Send + Sync,
    ) -> Result<(Vec<T>, Usage)> {
        let started = Instant::now();
        let texts = encodings.texts.iter().map(Option::as_deref);
        let labels = encodings.labels.as_ref();
        let inputs = encodings.list.iter().zip(texts);
        let inputs = inputs.map(|(encoding, text)| Sequence {
            encoding,
            text,
            labels,
        });
        let work = EncoderWork {
            inputs: inputs.collect(),
            granularity,
            finish: &finish,
        };
        let (rows, location) = self.executor.run(&work, deadline).await?;
        Ok((rows, encodings.usage(started.elapsed(), location)))
    }
}

/// A request's work on an encoder.
struct EncoderWork<'a, T> {
    inputs: Vec<Sequence<'a>>,
    granularity: Granularity,
    finish: &'a (dyn Fn(usize, &[Row<'_>]) -> T + Send + Sync),
}

#[async_trait]
impl<T: Send> Work<Adapter, Adapter> for EncoderWork<'_, T> {
    type Output = Vec<T>;

    fn tokens(&self) -> usize {
        self.inputs.iter().map(|input| input.encoding.len()).sum()
    }

    fn check_remote(&self, remote: &Adapter) -> Result<()> {
        if self.granularity == Granularity::Tokens {
            remote.require_token_vectors()?;
        }
        self.inputs
            .iter()
            .try_for_each(|input| remote.check(*input))
    }

    async fn run_locally(&self, local: &Adapter, deadline: Deadline) -> Result<Vec<T>> {
        self.run(local, deadline).await
    }

    async fn run_remotely(&self, remote: &Adapter, deadline: Deadline) -> Result<Vec<T>> {
        self.run(remote, deadline).await
    }
}

impl<T: Send> EncoderWork<'_, T> {
    /// Finishes each row as soon as it arrives, since a large request's outputs are hundreds of times larger than its
    /// response. Batches contain texts with similar length, which keeps padding short. The longest run first, so that
    /// no long text is left for the end.
    async fn run(&self, adapter: &Adapter, deadline: Deadline) -> Result<Vec<T>> {
        let length = |index: usize| self.inputs[index].encoding.len();
        let mut order: Vec<usize> = (0..self.inputs.len()).collect();
        order.sort_by_key(|index| Reverse(length(*index)));
        let schedule = adapter.schedule();
        let call = |batches: Vec<&[usize]>| {
            let batches: Vec<Vec<usize>> = batches.into_iter().map(<[usize]>::to_vec).collect();
            self.run_call(adapter, batches, deadline)
        };
        let calls: Vec<_> = calls(&order, schedule, length)
            .into_iter()
            .map(call)
            .collect();
        run_batches(calls, schedule.concurrency, deadline).await
    }

    async fn run_call(
        &self,
        adapter: &Adapter,
        batches: Vec<Vec<usize>>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, T)>> {
        let is_empty = batches
            .iter()
            .flatten()
            .any(|index| self.inputs[*index].encoding.is_empty());
        match self.compute(adapter, batches, deadline).await {
            // Only static embeddings compute texts without tokens.
            Err(Error::Inference { .. }) if is_empty => Err(without_tokens()),
            result => result,
        }
    }

    async fn compute(
        &self,
        adapter: &Adapter,
        batches: Vec<Vec<usize>>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, T)>> {
        let inputs = |batch: &Vec<usize>| batch.iter().map(|index| self.inputs[*index]).collect();
        let inputs = batches.iter().map(inputs).collect();
        let order = batches.concat();
        let mut done = Vec::with_capacity(order.len());
        let mut finish = |text: usize, rows: &[Row<'_>]| {
            done.push((order[text], (self.finish)(order[text], rows)));
        };
        adapter.run(inputs, deadline, &mut finish).await?;
        Ok(done)
    }
}

/// Error for an empty text whose tokenizer adds no special tokens.
fn without_tokens() -> Error {
    Error::invalid("the text has no tokens").with_hint("leave it out")
}

/// Groups texts into batches, and small batches into calls with at least `min_call_tokens`, or at least a quarter of
/// them if there would not be enough calls to keep the backend busy.
fn calls(
    order: &[usize],
    schedule: Schedule,
    tokens: impl Fn(usize) -> usize,
) -> Vec<Vec<&[usize]>> {
    let all: usize = order.iter().map(|text| tokens(*text)).sum();
    let least = schedule.min_call_tokens / 4;
    let enough = (all / (2 * schedule.concurrency.get())).clamp(least, schedule.min_call_tokens);
    let (mut calls, mut found) = (Vec::new(), usize::MAX);
    for batch in order.chunks(schedule.max_batch_size.get()) {
        if found >= enough {
            calls.push(Vec::new());
            found = 0;
        }
        found += batch.iter().map(|text| tokens(*text)).sum::<usize>();
        calls
            .last_mut()
            .into_iter()
            .for_each(|call| call.push(batch));
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_share_a_call() {
        let grouped = |lengths: &[usize], tokens| {
            let [one, two] = [1, 2].map(|number| number.try_into().unwrap());
            let schedule = Schedule {
                max_batch_size: one,
                concurrency: two,
                min_call_tokens: tokens,
            };
            let order: Vec<usize> = (0..lengths.len()).collect();
            let calls = calls(&order, schedule, |text| lengths[text]);
            calls.iter().map(|call| call.concat()).collect::<Vec<_>>()
        };
        // A text and ten labels, two at a time.
        assert_eq!(
            grouped(&[8; 11], 32),
            [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9, 10]]
        );
        assert_eq!(grouped(&[8; 3], 32), [[0], [1], [2]]);
        assert_eq!(
            grouped(&[200, 90, 20, 20], 32),
            [vec![0], vec![1], vec![2, 3]]
        );
        assert_eq!(grouped(&[4; 5], 32), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(grouped(&[8; 5], 0), [[0], [1], [2], [3], [4]]);
        assert!(grouped(&[], 32).is_empty());
    }
}
