//! The baseline: ONNX Runtime's session alone.

use std::{
    cmp::Reverse,
    num::NonZeroUsize,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use super::timing::{ms, throughput};
use kivu::{
    Result,
    backend::{encoder::Sequence, model_inputs::ModelInputs},
    onnx::{Runtime, Session},
    tokenizer::Encoding,
};

pub struct Raw {
    pub runtime: Runtime,
    pub graph: PathBuf,
    pub cpus: NonZeroUsize,
}

impl Raw {
    /// Rows per second with the fastest schedule: one row per run, one session shared by a thread per CPU, longest row
    /// first.
    pub fn throughput(&self, rows: &[Encoding], time: Duration) -> Result<f64> {
        let mut rows: Vec<_> = rows.iter().collect();
        rows.sort_by_key(|row| Reverse(row.len()));
        let session = self.session()?;
        let inputs = ModelInputs::recognize(session.signature())?;
        let (next, end) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let started = Instant::now();
        throughput(self.cpus.get(), |_| {
            let mut done = 0;
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                // Whole passes only, since a pass begins with its longest rows.
                if index % rows.len() == 0 && started.elapsed() >= time {
                    end.fetch_min(index, Ordering::Relaxed);
                }
                if index >= end.load(Ordering::Relaxed) {
                    return Ok(done);
                }
                let text = Sequence::from(rows[index % rows.len()]);
                session.run(&inputs.tensors(&[text], 0)?)?;
                done += 1;
            }
        })
    }

    /// Returns a function that runs all `rows` on one thread and returns the time in milliseconds.
    pub fn runner(&self, rows: &[Encoding]) -> Result<impl FnMut() -> Result<f64> + use<>> {
        let session = self.session()?;
        let inputs = ModelInputs::recognize(session.signature())?;
        let inputs = rows
            .iter()
            .map(|row| inputs.tensors(&[row.into()], 0))
            .collect::<Result<Vec<_>>>()?;
        Ok(move || {
            let started = Instant::now();
            inputs
                .iter()
                .try_for_each(|inputs| session.run(inputs).map(drop))?;
            Ok(ms(started.elapsed()))
        })
    }

    fn session(&self) -> Result<Session> {
        Session::open(self.runtime, self.graph.as_path(), NonZeroUsize::MIN)
    }
}
