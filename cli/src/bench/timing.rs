//! Duration statistics and multi-threaded throughput.

use std::{
    thread,
    time::{Duration, Instant},
};

use kivu::{Error, Result};

/// Work units per second on `threads` threads; `work` gets its thread's number and returns the units done.
pub fn throughput(threads: usize, work: impl Fn(usize) -> Result<usize> + Sync) -> Result<f64> {
    let (started, work) = (Instant::now(), &work);
    let panicked = |_| Err(Error::model("a measurement thread panicked"));
    let done = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(panicked))
            .sum::<Result<usize>>()
    })?;
    Ok(done as f64 / started.elapsed().as_secs_f64())
}

pub fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 50)
}

pub fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len() * percent / 100)
        .copied()
        .unwrap_or(f64::NAN)
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
