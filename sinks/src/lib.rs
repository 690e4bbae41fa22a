//! Sinks for Kivu's jobs: PostgreSQL with pgvector, Amazon S3 Vectors and OpenSearch.

mod open_search;
mod postgres;
mod postgres_table;
mod postgres_tls;
mod retry;
mod s3_vectors;
mod waiting;

use kivu::error::{Error, Result};
use kivu_jobs::sink::{Connect, Sink, SinkSettings, SinkUrl, Sinks};

use self::{open_search::OpenSearch, postgres::Postgres, s3_vectors::S3Vectors};

/// All sinks.
pub fn sinks() -> Sinks {
    Sinks::new(All)
}

#[derive(Debug)]
struct All;

impl Connect for All {
    fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>> {
        Ok(match &settings.url {
            SinkUrl::S3Vectors(index) => Box::new(S3Vectors::connect(index, settings, dimensions)?),
            SinkUrl::OpenSearch(url) => Box::new(OpenSearch::connect(url, settings, dimensions)?),
            SinkUrl::Postgres(url) => Box::new(Postgres::connect(url, settings, dimensions)?),
        })
    }
}

/// The error for a sink whose vectors have another number of dimensions.
fn other_dimensions(place: &str, expected: usize, found: i64) -> Error {
    Error::config(format!(
        "expected {place} for vectors of {expected} values, as the model's, but found {found}"
    ))
    .with_hint("choose another model or `dimensions`")
}
