//! What a sink does.

use std::{fmt, sync::Arc};

use super::{
    record::Record,
    url::{SinkSettings, SinkUrl},
};
use kivu::{cloud::unsupported, error::Result};

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

/// Connects to sinks.
pub trait Connect: fmt::Debug + Send + Sync {
    /// Connects to a sink, and checks that it stores vectors with this many dimensions.
    fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>>;
}

/// The sinks that a program has; by default none.
#[derive(Clone, Debug, Default)]
pub struct Sinks(Option<Arc<dyn Connect>>);

impl Sinks {
    /// The sinks that `connect` knows.
    pub fn new(connect: impl Connect + 'static) -> Self {
        Self(Some(Arc::new(connect)))
    }

    /// Connects to a sink, and checks that it stores vectors with this many dimensions.
    pub fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>> {
        match &self.0 {
            Some(sinks) => sinks.connect(settings, dimensions),
            None => Err(unsupported(match settings.url {
                SinkUrl::S3Vectors(_) => "Amazon S3 Vectors",
                SinkUrl::OpenSearch(_) => "OpenSearch",
                SinkUrl::Postgres(_) => "PostgreSQL",
            })),
        }
    }
}
