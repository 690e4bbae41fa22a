//! Job observers.

/// Observes job progress.
pub trait Watcher: Send + Sync {
    /// The job begins, or continues after `rows` rows.
    fn begin(&self, input: &str, rows: u64);
    /// `rows` rows are written, including rows from earlier processes; `share` is the share of the input, from 0
    /// to 1, if it is known.
    fn advance(&self, rows: u64, share: Option<f64>);
}

/// Observes nothing.
impl Watcher for () {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64, _: Option<f64>) {}
}
