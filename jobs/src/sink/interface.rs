//! The interface of sinks.

use super::{
    record::Record,
    url::{OpenSearchUrl, PostgresUrl, SinkSettings, SinkUrl, VectorIndexId},
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

/// Connects to the sink at a URL, and checks that it stores vectors with this many dimensions.
pub type Connect<U> = fn(&U, &SinkSettings, usize) -> Result<Box<dyn Sink>>;

/// The sinks that a program has; by default none. A program contains the clients that it names here, and no others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sinks {
    /// PostgreSQL with pgvector.
    pub postgres: Option<Connect<PostgresUrl>>,
    /// Amazon S3 Vectors.
    pub s3_vectors: Option<Connect<VectorIndexId>>,
    /// OpenSearch.
    pub open_search: Option<Connect<OpenSearchUrl>>,
}

impl Sinks {
    /// Connects to a sink, and checks that it stores vectors with this many dimensions.
    pub fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>> {
        let missing = |name| move || unsupported(name);
        match &settings.url {
            SinkUrl::Postgres(url) => {
                let connect = self.postgres.ok_or_else(missing("PostgreSQL"))?;
                connect(url, settings, dimensions)
            }
            SinkUrl::S3Vectors(index) => {
                let connect = self.s3_vectors.ok_or_else(missing("Amazon S3 Vectors"))?;
                connect(index, settings, dimensions)
            }
            SinkUrl::OpenSearch(url) => {
                let connect = self.open_search.ok_or_else(missing("OpenSearch"))?;
                connect(url, settings, dimensions)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_that_a_program_lacks_are_named() {
        let refused = |url: &str| {
            let settings = SinkSettings::new(url.parse().unwrap(), None, &[]).unwrap();
            let refused = Sinks::default().connect(&settings, 2).err().unwrap();
            refused.problem()
        };
        assert_eq!(
            [
                "postgres://h/d?table=t",
                "s3vectors://bucket/index",
                "opensearch+https://host/index",
            ]
            .map(refused),
            ["PostgreSQL", "Amazon S3 Vectors", "OpenSearch"]
                .map(|service| format!("this program has no support for {service}"))
        );
    }
}
