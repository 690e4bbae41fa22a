//! The steps that all tasks on an encoder share: texts to tokens, and tokens to the model's outputs, at whichever
//! location the model runs.

use std::{
    cmp::Reverse,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;

pub(super) use super::adapter::{NamedOutput, Row};
use super::{
    adapter::{Adapter, OutputSpec},
    executor::{Executor, Work, run_batches, tokenize},
    model_inputs::{ModelInputs, Sequence},
    pair_template::PairTemplate,
    roles::RoleSettings,
    scores::ScoreFunction,
    usage::Usage,
};
use crate::{
    backend::{
        Backend, Deadline, Schedule,
        routing::{Location, Route},
    },
    error::{Error, Result, at_text},
    telemetry,
    tokenizer::{self, Encoding, Tokenizer, Truncation, Window, WindowOptions, WordPrompt},
};

/// An input of an encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text.
    Text(String),
    /// A pair of texts that the model reads together. Shared, since a long text may be in many pairs.
    Pair(Arc<str>, Arc<str>),
    /// Token ids, special tokens included.
    Ids(Vec<u32>),
}

impl Input {
    /// Its texts; none for token ids.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Text(text) => (Some(text.as_str()), None),
            Self::Pair(first, second) => (Some(&**first), Some(&**second)),
            Self::Ids(_) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Its bytes, at most `reach` of each text.
    fn size(&self, reach: usize) -> usize {
        match self {
            Self::Text(text) => text.len().min(reach),
            Self::Pair(first, second) => first.len().min(reach) + second.len().min(reach),
            Self::Ids(ids) => size_of_val(ids.as_slice()),
        }
    }
}

/// How inputs become tokens.
pub(super) struct EncodingOptions<'a> {
    /// Put before each text.
    pub(super) prompt: Option<&'a str>,
    /// Put around each pair.
    pub(super) template: Option<&'a PairTemplate>,
    pub(super) truncation: Truncation,
    /// The maximum size of all inputs, each counted as far as it can be read.
    pub(super) max_bytes: usize,
    /// The form of texts in their role.
    pub(super) role: Option<&'a RoleSettings>,
}

/// The granularity of the outputs that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granularity {
    /// The output for each text, whatever its shape.
    Texts,
    /// A vector for each token.
    Tokens,
}

/// The tokens of a request's inputs.
pub(super) struct Encodings {
    list: Vec<Encoding>,
    /// The text of each input that is a single text, for models with a tokenizer of their own.
    texts: Vec<Option<String>>,
    tokenization: Duration,
}

impl Encodings {
    /// The token ids of an input.
    pub(super) fn ids(&self, index: usize) -> &[u32] {
        &self.list[index].ids
    }

    pub(super) fn tokens(&self) -> usize {
        self.list.iter().map(Encoding::len).sum()
    }

    /// The number of inputs.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// The usage of inputs that no model reads.
    pub(super) fn usage_without_run(&self) -> Usage {
        self.usage(Duration::ZERO, Location::default())
    }

    fn usage(&self, inference: Duration, location: Location) -> Usage {
        let tokens = self.tokens();
        telemetry::encoded(tokens, self.tokenization, inference);
        let is_truncated = |index: &usize| self.list[*index].truncated_from.is_some();
        Usage {
            tokens,
            generated: 0,
            truncated: (0..self.list.len()).filter(is_truncated).collect(),
            tokenization: self.tokenization,
            inference,
            location,
        }
    }
}

/// The windows of a request's texts.
pub(super) struct EncodedWindows {
    pub(super) encodings: Encodings,
    /// Of each encoding.
    pub(super) places: Vec<WindowPlace>,
}

/// The place of a window in the texts of a request.
pub(super) struct WindowPlace {
    /// The index of its text.
    pub(super) text: usize,
    /// The start and the end of each token in its text, in characters, or those of each word; `None` for special tokens.
    pub(super) spans: Vec<Option<(usize, usize)>>,
}

impl EncodedWindows {
    /// The id and the span of each token of a window.
    pub(super) fn tokens(&self, window: usize) -> impl Iterator<Item = (u32, Option<(usize, usize)>)> {
        let ids = self.encodings.list[window].ids.iter().copied();
        ids.zip(self.places[window].spans.iter().copied())
    }
}

/// A tokenizer and an encoder, at all locations where the encoder runs.
#[derive(Clone, Debug)]
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
    max_tokens: usize,
    executor: Executor<Adapter, Adapter>,
}

impl Encoder {
    /// An encoder that is read at `outputs`, with a value for each of `labels` if it classifies.
    ///
    /// A model with another signature is refused: a local one now, one on a fleet when its description is known.
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        route: Route,
        outputs: Vec<NamedOutput>,
        labels: Option<(Vec<String>, ScoreFunction)>,
        max_tokens: usize,
    ) -> Result<Self> {
        let spec = Arc::new(OutputSpec {
            outputs,
            labels,
            padding_id: tokenizer.padding_id(),
            distinguishes_pairs: ModelInputs::distinguish_pairs(route.signature()),
        });
        let route = route.try_map(|backend: Arc<dyn Backend>| Adapter::local(backend, &spec))?;
        Ok(Self { tokenizer, max_tokens, executor: Executor::new(route, spec) })
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The maximum number of tokens of an input, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Whether the model may run on a fleet.
    pub fn has_fleet(&self) -> bool {
        self.executor.has_fleet()
    }

    /// Refuses a model of another kind on the fleet; a fleet that does not respond is not an error.
    pub async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        self.executor.check_fleet(deadline).await
    }

    /// Refuses a request for token vectors if the model has none.
    pub(super) async fn require_token_vectors(&self, deadline: Deadline) -> Result<()> {
        match self.executor.local() {
            Some(adapter) => adapter.require_token_vectors(),
            None => self.executor.remote(deadline).await?.require_token_vectors(),
        }
    }

    /// Tokenizes inputs. Errors name the input.
    pub(super) async fn encode(
        &self,
        inputs: Vec<Input>,
        options: &EncodingOptions<'_>,
        deadline: Deadline,
    ) -> Result<Encodings> {
        let role = options.role.cloned();
        let of_role = role.as_ref().and_then(|role| role.max_tokens).unwrap_or(usize::MAX);
        let limit = self.limit(deadline).await?.min(of_role);
        let reach = tokenizer::reach(limit);
        let size: usize = inputs.iter().map(|input| input.size(reach)).sum();
        check_size(size, options.max_bytes)?;
        // Tokens that are inserted are not in the text.
        let (tokenizer, keeps_text) = (Arc::clone(&self.tokenizer), self.has_fleet() && role.is_none());
        let (prompt, truncation) = (options.prompt.map(str::to_owned), options.truncation);
        let template = options.template.cloned();
        let encode = move |input| match input {
            Input::Text(text) => {
                let text = match &prompt {
                    None => text,
                    Some(prompt) => format!("{prompt}{text}"),
                };
                if let Some(role) = &role {
                    return Ok((role.encode(&tokenizer, &text, limit, truncation)?, None));
                }
                let encoding = tokenizer.encode(&text, limit, truncation)?;
                let text = keeps_text.then(|| tokenizer.truncated_text(text, &encoding, limit, truncation));
                Ok((encoding, text.transpose()?))
            }
            Input::Pair(first, second) if let Some(template) = &template => {
                Ok((template.encode(&tokenizer, [&first, &second], limit, truncation)?, None))
            }
            Input::Pair(first, second) => {
                Ok((tokenizer.encode_pair([&first, &second], limit, truncation)?, None))
            }
            Input::Ids(ids) => Ok((tokenizer.accept(ids, limit, truncation)?, None)),
        };
        let (encoded, tokenization) = tokenize_each(inputs, size, deadline, encode).await?;
        let (list, texts) = encoded.into_iter().unzip();
        Ok(Encodings { list, texts, tokenization })
    }

    /// Tokenizes texts in windows, `options.max_windows` for all of them. Errors name the text.
    pub(super) async fn encode_windows(
        &self,
        texts: &Arc<[String]>,
        options: WindowOptions,
        max_bytes: usize,
        deadline: Deadline,
    ) -> Result<EncodedWindows> {
        let windows = move |tokenizer: &Tokenizer, text: &str, limit| tokenizer.windows(text, limit, options);
        self.split_each(texts, (options, max_bytes), deadline, windows).await
    }

    /// Tokenizes the words of texts after a prompt, in windows. Errors name the text.
    pub(super) async fn encode_words(
        &self,
        texts: &Arc<[String]>,
        prompt: WordPrompt,
        options: WindowOptions,
        max_bytes: usize,
        deadline: Deadline,
    ) -> Result<EncodedWindows> {
        let windows = move |tokenizer: &Tokenizer, text: &str, limit| {
            tokenizer.word_windows(text, &prompt, limit, options)
        };
        self.split_each(texts, (options, max_bytes), deadline, windows).await
    }

    async fn split_each(
        &self,
        texts: &Arc<[String]>,
        (options, max_bytes): (WindowOptions, usize),
        deadline: Deadline,
        split: impl Fn(&Tokenizer, &str, usize) -> Result<Vec<Window>> + Send + 'static,
    ) -> Result<EncodedWindows> {
        let limit = self.limit(deadline).await?;
        let reach = if options.stride.is_some() { usize::MAX } else { tokenizer::reach(limit) };
        let size: usize = texts.iter().map(|text| text.len().min(reach)).sum();
        check_size(size, max_bytes)?;
        let (tokenizer, shared) = (Arc::clone(&self.tokenizer), Arc::clone(texts));
        // Counted while texts are read: windows that share most of their tokens take far more memory than the texts.
        let found = AtomicUsize::new(0);
        let encode = move |text: usize| {
            let windows = split(&tokenizer, &shared[text], limit)?;
            match found.fetch_add(windows.len(), Ordering::Relaxed) + windows.len() {
                found if found <= options.max_windows => Ok(windows),
                _ => Err(Error::too_large(format!(
                    "expected at most {} windows in all texts, but found more; send fewer texts, or a smaller `stride`",
                    options.max_windows
                ))),
            }
        };
        let (windows, tokenization) =
            tokenize_each((0..texts.len()).collect(), size, deadline, encode).await?;
        let windows = windows.into_iter().enumerate().flat_map(|(text, windows)| {
            windows.into_iter().map(move |Window { encoding, spans }| (encoding, WindowPlace { text, spans }))
        });
        let (list, places): (Vec<_>, Vec<_>) = windows.unzip();
        let texts = vec![None; list.len()];
        Ok(EncodedWindows { encodings: Encodings { list, texts, tokenization }, places })
    }

    /// Tokenizes a text that consists of parts, which end at `ends`, in bytes. Also returns the tokens of each part.
    pub(super) async fn encode_parts(
        &self,
        text: String,
        ends: Vec<usize>,
        deadline: Deadline,
    ) -> Result<(Encodings, Vec<Range<usize>>)> {
        let limit = self.limit(deadline).await?;
        let (tokenizer, size, started) = (Arc::clone(&self.tokenizer), text.len(), Instant::now());
        let keeps_text = self.has_fleet();
        let work = move || {
            let (encoding, parts) = tokenizer.encode_parts(&text, &ends, limit)?;
            Ok((encoding, keeps_text.then_some(text), parts))
        };
        let (encoding, text, parts) = tokenize(size, deadline, work).await?;
        let encodings =
            Encodings { list: vec![encoding], texts: vec![text], tokenization: started.elapsed() };
        Ok((encodings, parts))
    }

    /// The maximum number of tokens of an input, at all locations where the model runs.
    async fn limit(&self, deadline: Deadline) -> Result<usize> {
        let fixed = match self.executor.local() {
            Some(_) => None,
            None => self.executor.remote(deadline).await?.fixed_length(),
        };
        Ok(fixed.unwrap_or(usize::MAX).min(self.max_tokens))
    }

    /// Runs the model, and returns the result of `finish` for the first output of each input.
    pub(super) async fn run<T: Send>(
        &self,
        encodings: &Encodings,
        granularity: Granularity,
        deadline: Deadline,
        finish: impl Fn(Row<'_>) -> T + Send + Sync,
    ) -> Result<(Vec<T>, Usage)> {
        self.run_all(encodings, granularity, deadline, |_, rows| finish(rows[0])).await
    }

    /// Runs the model, and returns the result of `finish` for the index and all outputs of each input.
    pub(super) async fn run_all<T: Send>(
        &self,
        encodings: &Encodings,
        granularity: Granularity,
        deadline: Deadline,
        finish: impl Fn(usize, &[Row<'_>]) -> T + Send + Sync,
    ) -> Result<(Vec<T>, Usage)> {
        let started = Instant::now();
        let texts = encodings.texts.iter().map(Option::as_deref);
        let inputs = encodings.list.iter().zip(texts).map(|(encoding, text)| Sequence { encoding, text });
        let work = EncoderWork { inputs: inputs.collect(), granularity, finish: &finish };
        let (rows, location) = self.executor.run(&work, deadline).await?;
        Ok((rows, encodings.usage(started.elapsed(), location)))
    }
}

fn check_size(found: usize, max: usize) -> Result<()> {
    if found > max {
        return Err(Error::too_large(format!(
            "expected at most {max} bytes of text in all inputs, but found {found}; send fewer or shorter texts"
        )));
    }
    Ok(())
}

/// Applies `encode` to each input of a request, of `size` bytes in all, and measures the time. Errors name the input.
async fn tokenize_each<I: Send + 'static, T: Send + 'static>(
    inputs: Vec<I>,
    size: usize,
    deadline: Deadline,
    encode: impl Fn(I) -> Result<T> + Send + 'static,
) -> Result<(Vec<T>, Duration)> {
    let work = move || {
        let count = inputs.len();
        let encode = |(index, input)| {
            if deadline.has_passed() {
                return Err(deadline.exceeded());
            }
            encode(input).map_err(|error| at_text(error, index, count))
        };
        inputs.into_iter().enumerate().map(encode).collect::<Result<Vec<_>>>()
    };
    let started = Instant::now();
    Ok((tokenize(size, deadline, work).await?, started.elapsed()))
}

/// The work of a request on an encoder.
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
        self.inputs.iter().try_for_each(|input| remote.check(*input))
    }

    async fn run_locally(&self, local: &Adapter, deadline: Deadline) -> Result<Vec<T>> {
        self.run(local, deadline).await
    }

    async fn run_remotely(&self, remote: &Adapter, deadline: Deadline) -> Result<Vec<T>> {
        self.run(remote, deadline).await
    }
}

impl<T: Send> EncoderWork<'_, T> {
    /// Finishes each row as soon as it arrives, since the outputs of a large request are hundreds of times larger
    /// than its response. Batches contain texts of similar length, which keeps padding short, the longest first, so
    /// that no long text is left for the end.
    async fn run(&self, adapter: &Adapter, deadline: Deadline) -> Result<Vec<T>> {
        let length = |index: usize| self.inputs[index].encoding.len();
        let mut order: Vec<usize> = (0..self.inputs.len()).collect();
        order.sort_by_key(|index| Reverse(length(*index)));
        let schedule = adapter.schedule();
        let call = |batches: Vec<&[usize]>| {
            let batches: Vec<Vec<usize>> = batches.into_iter().map(<[usize]>::to_vec).collect();
            self.run_call(adapter, batches, deadline)
        };
        let calls: Vec<_> = calls(&order, schedule, length).into_iter().map(call).collect();
        run_batches(calls, schedule.concurrency).await
    }

    async fn run_call(
        &self,
        adapter: &Adapter,
        batches: Vec<Vec<usize>>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, T)>> {
        let inputs = |batch: &Vec<usize>| batch.iter().map(|index| self.inputs[*index]).collect();
        let inputs: Vec<Vec<Sequence<'_>>> = batches.iter().map(inputs).collect();
        let outputs = adapter.infer(&inputs, deadline).await?;
        let mut done = Vec::new();
        for ((batch, inputs), output) in batches.iter().zip(&inputs).zip(&outputs) {
            let rows = adapter.rows(output, &inputs.iter().map(|input| input.encoding.len()))?;
            let finished = batch.iter().zip(rows).map(|(index, rows)| (*index, (self.finish)(*index, &rows)));
            done.extend(finished);
        }
        Ok(done)
    }
}

/// Groups texts into batches, and small batches into calls of at least `min_call_tokens`, as long as there are enough
/// calls to keep the backend busy.
fn calls(order: &[usize], schedule: Schedule, tokens: impl Fn(usize) -> usize) -> Vec<Vec<&[usize]>> {
    let all: usize = order.iter().map(|text| tokens(*text)).sum();
    let enough = schedule.min_call_tokens.min(all / (2 * schedule.concurrency.get()));
    let (mut calls, mut found) = (Vec::new(), usize::MAX);
    for batch in order.chunks(schedule.max_batch_size.get()) {
        if found >= enough {
            calls.push(Vec::new());
            found = 0;
        }
        found += batch.iter().map(|text| tokens(*text)).sum::<usize>();
        calls.last_mut().into_iter().for_each(|call| call.push(batch));
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
            let schedule = Schedule { max_batch_size: one, concurrency: two, min_call_tokens: tokens };
            let order: Vec<usize> = (0..lengths.len()).collect();
            let calls = calls(&order, schedule, |text| lengths[text]);
            calls.iter().map(|call| call.concat()).collect::<Vec<_>>()
        };
        // A text and ten labels, two at a time.
        assert_eq!(grouped(&[8; 11], 32), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9, 10]]);
        assert_eq!(grouped(&[8; 3], 32), [[0], [1], [2]]);
        assert_eq!(grouped(&[200, 90, 20, 20], 32), [vec![0], vec![1], vec![2, 3]]);
        assert_eq!(grouped(&[8; 5], 0), [[0], [1], [2], [3], [4]]);
        assert!(grouped(&[], 32).is_empty());
    }
}
