//! The interface of sinks.

use std::{fmt, sync::Arc};

use super::{record::Record, settings::SinkSettings};
use kivu::error::{Error, Result, quoted};

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

/// Where a sink stores records, as its URL says. Displayed without credentials.
pub trait SinkUrl: fmt::Display + Send + Sync {
    /// Names that metadata cannot have: the vector's, and the id's, which may be the input's column `id`.
    fn taken<'a>(&'a self, id: &'a str) -> Vec<&'a str>;

    /// Connects, and checks that the sink stores vectors with this many dimensions.
    fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>>;
}

impl fmt::Debug for dyn SinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A kind of sink.
#[derive(Clone, Copy, Debug)]
pub struct SinkKind {
    /// Beginnings of its URLs.
    pub schemes: &'static [&'static str],
    /// Parses a URL with one of them.
    pub parse: fn(&str) -> Result<Arc<dyn SinkUrl>>,
}

/// The sinks that a program has; by default none. A program contains the clients that it names here, and no others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sinks(pub &'static [SinkKind]);

impl Sinks {
    /// Parses a sink's URL; `None` for other outputs.
    pub fn find(self, text: &str) -> Option<Result<Arc<dyn SinkUrl>>> {
        let mut kinds = self.0.iter();
        let kind = kinds.find(|kind| kind.schemes.iter().any(|scheme| text.starts_with(scheme)))?;
        Some((kind.parse)(text))
    }

    /// Parses a sink's URL.
    pub fn parse(self, text: &str) -> Result<Arc<dyn SinkUrl>> {
        self.find(text).unwrap_or_else(|| {
            let known: Vec<_> = self.0.iter().flat_map(|kind| kind.schemes).collect();
            Err(Error::config(format!(
                "expected the URL of a sink that this program has, which begins with one of {}, but found another value",
                quoted(&known)
            )))
        })
    }
}
