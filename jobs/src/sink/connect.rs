//! Selects a sink by its URL.

use super::{
    interface::Sink,
    url::{SinkSettings, SinkUrl},
};
use kivu::error::Result;

/// Connects to a sink, and checks that it stores vectors with this many dimensions.
#[cfg_attr(
    not(any(feature = "postgres", feature = "s3")),
    expect(unused_variables, reason = "no sink is built")
)]
pub fn connect(settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>> {
    match &settings.url {
        #[cfg(feature = "s3")]
        SinkUrl::S3Vectors(index) => Ok(Box::new(super::s3_vectors::S3Vectors::connect(
            index, settings, dimensions,
        )?)),
        #[cfg(feature = "s3")]
        SinkUrl::OpenSearch(url) => Ok(Box::new(super::open_search::OpenSearch::connect(
            url, settings, dimensions,
        )?)),
        #[cfg(feature = "postgres")]
        SinkUrl::Postgres(url) => Ok(Box::new(super::postgres::Postgres::connect(
            url, settings, dimensions,
        )?)),
        #[cfg(not(feature = "s3"))]
        SinkUrl::S3Vectors(_) | SinkUrl::OpenSearch(_) => {
            Err(missing("Amazon S3 Vectors and OpenSearch", "s3"))
        }
        #[cfg(not(feature = "postgres"))]
        SinkUrl::Postgres(_) => Err(missing("PostgreSQL", "postgres")),
    }
}

#[cfg(not(all(feature = "postgres", feature = "s3")))]
fn missing(sink: &str, feature: &str) -> kivu::error::Error {
    kivu::error::Error::config(format!("this build has no support for {sink}"))
        .with_hint(format!("compile with `--features {feature}`"))
}
