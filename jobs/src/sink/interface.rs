//! The interface of sinks, and what a job stores in them.

use std::{fmt, sync::Arc};

use super::record::Record;
use kivu::{Error, Result, error::quoted};

/// A refused record's place, and the reason.
pub type Refusal = (usize, String);

/// Stores records.
pub trait Sink: Send {
    /// The same key for ids that the sink takes for equal, such as `7` and `007` in a column of integers.
    fn key(&self, id: &str) -> String {
        id.to_owned()
    }

    /// Why the sink would refuse a record, as far as that is known before it is sent.
    fn check(&self, record: &Record) -> Result<(), String>;

    /// Stores records with different keys, and replaces ones with the same ids. Returns those that were refused.
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

/// The columns and vectors that a job stores in a sink.
#[derive(Clone, Debug)]
pub struct SinkSettings {
    /// The sink.
    pub url: Arc<dyn SinkUrl>,
    /// Column with the rows' ids.
    pub id: String,
    /// Columns that are stored with the vectors.
    pub metadata: Vec<String>,
}

/// Default for [`SinkSettings::id`].
const ID: &str = "id";

impl SinkSettings {
    /// Checks settings from the command line or a rule.
    pub fn new(url: Arc<dyn SinkUrl>, id: Option<&str>, metadata: &[String]) -> Result<Self> {
        let id = id.unwrap_or(ID).to_owned();
        let taken = url.taken(&id);
        for (place, name) in metadata.iter().enumerate() {
            let is_taken = taken.contains(&name.as_str());
            if name.is_empty() || is_taken || metadata[..place].contains(name) {
                return Err(Error::config(format!(
                    "expected different names in `metadata`, none of them the id's or the vector's, but found {}",
                    quoted(metadata)
                )));
            }
        }
        Ok(Self {
            url,
            id,
            metadata: metadata.to_vec(),
        })
    }
}

impl fmt::Display for SinkSettings {
    /// Identifies what is stored, and where.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} id={:?} metadata={:?}",
            self.url, self.id, self.metadata
        )
    }
}
