//! Sinks for Kivu's jobs: PostgreSQL with pgvector, Amazon S3 Vectors and OpenSearch.

mod errors;
mod open_search;
mod postgres;
mod postgres_table;
mod postgres_tls;
mod retry;
mod s3_vectors;
mod waiting;

use kivu::error::Result;
use kivu_jobs::sink::{OpenSearchUrl, PostgresUrl, Sink, SinkSettings, Sinks, VectorIndexId};

use self::{open_search::OpenSearch, postgres::Postgres, s3_vectors::S3Vectors};

/// All sinks.
pub fn sinks() -> Sinks {
    Sinks {
        postgres: Some(postgres),
        s3_vectors: Some(s3_vectors),
        open_search: Some(open_search),
    }
}

/// A table in PostgreSQL with pgvector.
pub fn postgres(
    url: &PostgresUrl,
    settings: &SinkSettings,
    dimensions: usize,
) -> Result<Box<dyn Sink>> {
    Ok(Box::new(Postgres::connect(url, settings, dimensions)?))
}

/// An index of Amazon S3 Vectors.
pub fn s3_vectors(
    index: &VectorIndexId,
    settings: &SinkSettings,
    dimensions: usize,
) -> Result<Box<dyn Sink>> {
    Ok(Box::new(S3Vectors::connect(index, settings, dimensions)?))
}

/// An index of OpenSearch.
pub fn open_search(
    url: &OpenSearchUrl,
    settings: &SinkSettings,
    dimensions: usize,
) -> Result<Box<dyn Sink>> {
    Ok(Box::new(OpenSearch::connect(url, settings, dimensions)?))
}
