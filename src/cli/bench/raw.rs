//! The baseline: the same graph and texts in ONNX Runtime's session alone.

use std::{
    cmp::Reverse,
    num::NonZeroUsize,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{LABELS, QUERY, ms};
use crate::{
    backend::onnx::{Runtime, Session},
    build::quality,
    error::{Error, Result},
    pipeline::Task,
    repository::{Bundle, Manifest},
    tokenizer::{Encoding, PairTruncation, Side, Tokenizer, Truncation},
};

pub(super) struct Raw {
    runtime: Runtime,
    graph: PathBuf,
    tokenizer: Tokenizer,
    cpus: NonZeroUsize,
}

impl Raw {
    pub(super) fn new(bundle: &Bundle, runtime: Runtime, cpus: NonZeroUsize) -> Result<Self> {
        let graph = bundle.path(&bundle.manifest().graph);
        Ok(Self { runtime, graph, tokenizer: bundle.tokenizer()?, cpus })
    }

    /// The rows that the model runs for `texts`: one per text, and for models that read pairs, one per text and
    /// query or label.
    pub(super) fn rows(&self, manifest: &Manifest, texts: &[&str]) -> Result<Vec<Encoding>> {
        let limit = match (&manifest.embedding, &manifest.classification) {
            (Some(settings), _) => settings.max_tokens,
            (_, Some(settings)) => settings.max_tokens,
            _ => usize::MAX,
        };
        let seconds: &[&str] = match manifest.task {
            _ if manifest.embedding.is_some() => &[],
            Task::TextRanking => &[QUERY],
            Task::ZeroShotClassification => &LABELS,
            _ => &[],
        };
        let encode = |text: &str| -> Result<Vec<Encoding>> {
            if seconds.is_empty() {
                return Ok(vec![self.tokenizer.encode(text, limit, Truncation::At(Side::Right))?]);
            }
            let pair =
                |second: &&str| self.tokenizer.encode_pair([text, second], limit, PairTruncation::OnlyFirst);
            seconds.iter().map(pair).collect()
        };
        texts.iter().map(|text| encode(text)).collect::<Result<Vec<_>>>().map(|rows| rows.concat())
    }

    /// Rows per second of the fastest schedule: one row per run, one session shared by a thread per CPU, longest
    /// row first.
    pub(super) fn throughput(&self, rows: &[Encoding], time: Duration) -> Result<f64> {
        let mut rows: Vec<_> = rows.iter().collect();
        rows.sort_by_key(|row| Reverse(row.len()));
        let session = self.session()?;
        let (next, started) = (AtomicUsize::new(0), Instant::now());
        let work = || -> Result<usize> {
            let mut done = 0;
            while started.elapsed() < time {
                let row = rows[next.fetch_add(1, Ordering::Relaxed) % rows.len()];
                session.run(&quality::inputs(&session, row)?)?;
                done += 1;
            }
            Ok(done)
        };
        let panicked = |_| Err(Error::inference("ONNX Runtime panicked"));
        let done = thread::scope(|scope| {
            let workers: Vec<_> = (0..self.cpus.get()).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).sum::<Result<usize>>()
        })?;
        Ok(done as f64 / started.elapsed().as_secs_f64())
    }

    /// A function that runs all `rows` on one thread and returns the milliseconds that it took.
    pub(super) fn runner(&self, rows: &[Encoding]) -> Result<impl FnMut() -> Result<f64> + use<>> {
        let session = self.session()?;
        let inputs = rows.iter().map(|row| quality::inputs(&session, row)).collect::<Result<Vec<_>>>()?;
        Ok(move || {
            let started = Instant::now();
            inputs.iter().try_for_each(|inputs| session.run(inputs).map(drop))?;
            Ok(ms(started.elapsed()))
        })
    }

    fn session(&self) -> Result<Session> {
        Session::open(self.runtime, &self.graph, NonZeroUsize::MIN)
    }
}
