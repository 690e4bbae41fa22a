//! What a sink does, and what sinks share.

use super::record::Record;
use kivu::error::{Error, Result};

/// A refused record's place, and the reason.
pub type Refusal = (usize, String);

/// Stores records.
pub trait Sink: Send {
    /// Why the sink would refuse a record, as far as that is known before it is sent.
    fn check(&self, record: &Record) -> Result<(), String>;

    /// Stores records with different ids, and replaces ones with the same ids. Returns those that were refused.
    ///
    /// # Errors
    /// It is unknown which records are stored, and all must be sent again.
    fn put(&mut self, records: &[Record]) -> Result<Vec<Refusal>>;
}

/// The error for a sink whose vectors have another number of dimensions.
pub fn other_dimensions(place: &str, expected: usize, found: i64) -> Error {
    Error::config(format!(
        "expected {place} for vectors of {expected} values, as the model's, but found {found}"
    ))
    .with_hint("choose another model or `dimensions`")
}

/// A thread that waits for asynchronous work.
pub struct Waiting(Option<tokio::runtime::Runtime>);

impl Waiting {
    pub fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime
            .map(|runtime| Self(Some(runtime)))
            .map_err(Error::io("cannot start the sink's connection"))
    }

    /// Must be called outside of asynchronous work.
    pub fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let runtime = self
            .0
            .as_ref()
            .ok_or_else(|| Error::inference("the sink's connection has ended"))?;
        runtime.block_on(work)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A runtime must not be dropped, which blocks, inside another runtime.
        self.0
            .take()
            .into_iter()
            .for_each(tokio::runtime::Runtime::shutdown_background);
    }
}
