//! Sinks for Kivu's jobs: PostgreSQL with pgvector, Amazon S3 Vectors and OpenSearch.

mod errors;
mod open_search;
mod parameters;
mod postgres;
mod postgres_table;
mod postgres_tls;
mod postgres_url;
mod retry;
mod s3_vectors;
mod waiting;

use kivu_jobs::sink::Sinks;

pub use self::{open_search::OPEN_SEARCH, postgres::POSTGRES, s3_vectors::S3_VECTORS};

/// All sinks.
pub fn sinks() -> Sinks {
    Sinks(&[POSTGRES, S3_VECTORS, OPEN_SEARCH])
}

#[cfg(test)]
mod tests {
    use kivu_jobs::sink::SinkSettings;

    use super::*;

    #[test]
    fn a_url_s_beginning_selects_the_sink() {
        let shown = |text: &str| sinks().parse(text).map(|url| format!("{url:?}"));
        assert!(
            !shown("postgres://me:secret@host/db?table=t")
                .unwrap()
                .contains("secret")
        );
        insta::assert_snapshot!(shown("redis://host").unwrap_err(), @"expected the URL of a sink that this program has, which begins with one of `postgres://`, `postgresql://`, `s3vectors://`, `arn:`, `opensearch+https://`, `opensearch+http://`, but found another value");
        assert!(sinks().find("out.csv").is_none() && Sinks::default().find("arn:").is_none());
    }

    #[test]
    fn metadata_have_different_names() {
        let settings = |metadata: &[&str]| {
            let metadata: Vec<String> = metadata.iter().map(|name| (*name).to_owned()).collect();
            let url = sinks().parse("postgres://host/db?table=t&id=key").unwrap();
            SinkSettings::new(url, None, &metadata)
        };
        assert!(settings(&["title", "id"]).is_ok());
        insta::assert_snapshot!(settings(&["title", "embedding"]).unwrap_err(), @"expected different names in `metadata`, none of them the id's or the vector's, but found `title`, `embedding`");
        assert!(settings(&["title", "title"]).is_err() && settings(&["key"]).is_err());
    }
}
