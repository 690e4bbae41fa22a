//! The bare runtime: the same graph and texts, without anything of ours around the session.

use std::{
    cmp::Reverse,
    num::NonZeroUsize,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::ms;
use crate::{
    backend::onnx::{Runtime, Session},
    build::quality,
    error::{Error, Result},
    repository::Bundle,
    tensor::Tensor,
    tokenizer::{Encoding, Side, Tokenizer, Truncation},
};

/// A graph, to be run in every way that a program might run it.
pub(super) struct Raw {
    runtime: Runtime,
    graph: PathBuf,
    tokenizer: Tokenizer,
    max_tokens: usize,
    cpus: NonZeroUsize,
}

impl Raw {
    pub(super) fn new(bundle: &Bundle, runtime: Runtime, cpus: NonZeroUsize) -> Result<Self> {
        let manifest = bundle.manifest();
        let max_tokens = manifest.embedding.as_ref().map(|embedding| embedding.max_tokens);
        Ok(Self {
            runtime,
            graph: bundle.path(&manifest.graph),
            tokenizer: bundle.tokenizer()?,
            max_tokens: max_tokens.unwrap_or(usize::MAX),
            cpus,
        })
    }

    /// Texts a second of the best schedule known: one session run by a thread a CPU, longest text first, one text
    /// a run. Tokenised beforehand.
    pub(super) fn best(&self, texts: &[&str], time: Duration) -> Result<f64> {
        let mut encodings = self.encode(texts)?;
        encodings.sort_by_key(|encoding| Reverse(encoding.len()));
        let session = Session::open(self.runtime, &self.graph, NonZeroUsize::MIN)?;
        let (next, started) = (AtomicUsize::new(0), Instant::now());
        let work = || -> Result<usize> {
            let mut done = 0;
            while started.elapsed() < time {
                let place = next.fetch_add(1, Ordering::Relaxed) % encodings.len();
                session.run(&quality::inputs(&session, &encodings[place])?)?;
                done += 1;
            }
            Ok(done)
        };
        let done = thread::scope(|scope| {
            let workers: Vec<_> = (0..self.cpus.get()).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| Err(panicked())))
                .sum::<Result<usize>>()
        })?;
        Ok(done as f64 / started.elapsed().as_secs_f64())
    }

    /// Texts a second of what programs usually do: one session with a thread a CPU, `rows` texts a run in the
    /// order they come, padded to the longest.
    pub(super) fn unsorted(&self, texts: &[&str], rows: usize, time: Duration) -> Result<f64> {
        let encodings = self.encode(texts)?;
        let session = Session::open(self.runtime, &self.graph, self.cpus)?;
        let batches = encodings.chunks(rows).map(|batch| Ok((batch.len(), padded(&session, batch)?)));
        let batches = batches.collect::<Result<Vec<_>>>()?;
        let (mut done, started) = (0, Instant::now());
        for (rows, inputs) in batches.iter().cycle() {
            session.run(inputs)?;
            done += rows;
            if started.elapsed() >= time {
                break;
            }
        }
        Ok(done as f64 / started.elapsed().as_secs_f64())
    }

    /// A function that runs one text once and tells the milliseconds that it took.
    pub(super) fn single(&self, text: &str) -> Result<impl FnMut() -> Result<f64> + use<>> {
        let session = Session::open(self.runtime, &self.graph, NonZeroUsize::MIN)?;
        let inputs = quality::inputs(&session, &self.encode(&[text])?[0])?;
        Ok(move || {
            let started = Instant::now();
            session.run(&inputs)?;
            Ok(ms(started.elapsed()))
        })
    }

    /// The token ids of a text.
    pub(super) fn ids(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode(&[text])?.remove(0).ids)
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Encoding>> {
        let truncation = Truncation::At(Side::Right);
        texts.iter().map(|text| self.tokenizer.encode(text, self.max_tokens, truncation)).collect()
    }
}

fn padded(session: &Session, batch: &[Encoding]) -> Result<Vec<Tensor>> {
    let longest = batch.iter().map(Encoding::len).max().unwrap_or(0);
    let inputs = session.signature().inputs.iter();
    inputs
        .map(|input| {
            let mut values = Vec::with_capacity(batch.len() * longest);
            for encoding in batch {
                let row: Vec<i64> = match input.name.as_str() {
                    "input_ids" => encoding.ids.iter().map(|id| i64::from(*id)).collect(),
                    "attention_mask" => vec![1; encoding.len()],
                    _ => vec![0; encoding.len()],
                };
                values.extend(row);
                values.resize(values.len() + longest - encoding.len(), 0);
            }
            Tensor::integers(input.element_type, [batch.len(), longest], values)
        })
        .collect()
}

fn panicked() -> Error {
    Error::Inference { message: "the raw runtime panicked".into(), source: None }
}
