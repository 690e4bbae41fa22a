//! The baseline: ONNX Runtime's session alone.

use std::{
    cmp::Reverse,
    num::NonZeroUsize,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use super::timing::{ms, throughput};
use crate::{
    backend::onnx::{Runtime, Session},
    build::quality,
    error::Result,
    tokenizer::Encoding,
};

pub(super) struct Raw {
    pub(super) runtime: Runtime,
    pub(super) graph: PathBuf,
    pub(super) cpus: NonZeroUsize,
}

impl Raw {
    /// Rows per second of the fastest schedule: one row per run, one session shared by a thread per CPU, longest
    /// row first.
    pub(super) fn throughput(&self, rows: &[Encoding], time: Duration) -> Result<f64> {
        let mut rows: Vec<_> = rows.iter().collect();
        rows.sort_by_key(|row| Reverse(row.len()));
        let session = self.session()?;
        let (next, started) = (AtomicUsize::new(0), Instant::now());
        throughput(self.cpus.get(), |_| {
            let mut done = 0;
            while started.elapsed() < time {
                let row = rows[next.fetch_add(1, Ordering::Relaxed) % rows.len()];
                session.run(&quality::inputs(&session, row)?)?;
                done += 1;
            }
            Ok(done)
        })
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
        Session::open(self.runtime, self.graph.as_path(), NonZeroUsize::MIN)
    }
}
