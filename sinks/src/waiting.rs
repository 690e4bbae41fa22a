//! Waits for asynchronous work in a sink, whose methods block.

use kivu::{Error, Result};

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
