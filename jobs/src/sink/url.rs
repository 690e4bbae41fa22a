//! URLs of sinks.

use std::{collections::BTreeMap, fmt, str::FromStr};

use http::Uri;
use percent_encoding::percent_decode_str;

use kivu::{
    address,
    error::{Error, Result, quoted},
};

/// Default name for the column or field with the vectors.
const VECTOR: &str = "embedding";
const S3_VECTORS: &str = "s3vectors://";
const ARN: &str = "arn:";
const OPEN_SEARCH: &str = "opensearch+";
const POSTGRES: [&str; 2] = ["postgres://", "postgresql://"];
/// Parameters on which it depends where PostgreSQL's rows are; a job is not resumed at another place.
const SELECTING: [&str; 5] = ["dbname", "host", "hostaddr", "options", "port"];

/// Where a sink stores rows. Displayed without credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum SinkUrl {
    /// An index in Amazon S3 Vectors.
    S3Vectors(VectorIndexId),
    /// An OpenSearch index.
    OpenSearch(OpenSearchUrl),
    /// A table in PostgreSQL with pgvector.
    Postgres(PostgresUrl),
}

/// A vector index, by its bucket's and its own name, or by its ARN.
#[derive(Clone, PartialEq, Eq)]
pub enum VectorIndexId {
    /// In the environment's region.
    Names {
        /// Vector bucket.
        bucket: String,
        /// Index.
        index: String,
    },
    /// In the ARN's region.
    Arn(String),
}

/// An index of an OpenSearch domain or cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct OpenSearchUrl {
    /// Scheme, host and port.
    pub origin: String,
    pub host: String,
    pub user: Option<(String, String)>,
    pub index: String,
    /// Field with the vectors.
    pub vector: String,
    /// Region for AWS signatures; from the host, unless the domain has a custom one.
    pub region: Option<String>,
}

/// A table. The URL is libpq's, with a few more parameters.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// The URL without the parameters below.
    pub url: String,
    /// Without credentials and parameters.
    shown: String,
    /// Parameters that select the server and the table, each after `&`.
    selecting: String,
    /// Schema and table, or only the table.
    pub table: Vec<String>,
    /// Column with the ids; the input's id column by default.
    pub id: Option<String>,
    /// Column with the vectors.
    pub vector: String,
    /// PEM file with trusted certificates.
    pub roots: Option<String>,
}

impl SinkUrl {
    /// Parses a sink's URL; `None` for other outputs.
    pub fn of(text: &str) -> Option<Result<Self>> {
        if let Some(names) = text.strip_prefix(S3_VECTORS) {
            return Some(VectorIndexId::of(names).map(Self::S3Vectors));
        }
        if text.starts_with(ARN) {
            return Some(VectorIndexId::of_arn(text).map(Self::S3Vectors));
        }
        if let Some(url) = text.strip_prefix(OPEN_SEARCH) {
            return Some(OpenSearchUrl::of(url).map(Self::OpenSearch));
        }
        let is_postgres = POSTGRES.iter().any(|scheme| text.starts_with(scheme));
        is_postgres.then(|| PostgresUrl::of(text).map(Self::Postgres))
    }
}

impl FromStr for SinkUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::of(text).unwrap_or_else(|| {
            Err(Error::config(
                "expected the URL of a sink, which begins with `s3vectors://`, `opensearch+https://` or `postgres://`, \
                 but found another value",
            ))
        })
    }
}

impl VectorIndexId {
    fn of(names: &str) -> Result<Self> {
        match names.split('/').collect::<Vec<_>>().as_slice() {
            [bucket, index] if !bucket.is_empty() && !index.is_empty() => Ok(Self::Names {
                bucket: (*bucket).to_owned(),
                index: (*index).to_owned(),
            }),
            _ => Err(Error::config(format!(
                "expected `s3vectors://BUCKET/INDEX`, but found `{S3_VECTORS}{names}`"
            ))),
        }
    }

    /// `arn:aws:s3vectors:REGION:ACCOUNT:bucket/BUCKET/index/INDEX`
    fn of_arn(arn: &str) -> Result<Self> {
        let parts: Vec<&str> = arn.splitn(6, ':').collect();
        let resource: Vec<&str> = parts
            .get(5)
            .map_or(Vec::new(), |resource| resource.split('/').collect());
        match (parts.get(2), resource.as_slice()) {
            (Some(&"s3vectors"), ["bucket", _, "index", _]) => Ok(Self::Arn(arn.to_owned())),
            _ => Err(Error::config(format!(
                "expected `arn:aws:s3vectors:REGION:ACCOUNT:bucket/BUCKET/index/INDEX`, but found `{arn}`"
            ))),
        }
    }

    /// The ARN's region.
    pub fn region(&self) -> Option<&str> {
        match self {
            Self::Names { .. } => None,
            Self::Arn(arn) => arn.split(':').nth(3),
        }
    }
}

impl OpenSearchUrl {
    fn of(url: &str) -> Result<Self> {
        let wrong = || {
            Error::config(
                "expected `opensearch+https://[USER:PASSWORD@]HOST[:PORT]/INDEX`, but found another URL",
            )
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let (Some(scheme @ ("http" | "https")), Some(authority)) =
            (uri.scheme_str(), uri.authority())
        else {
            return Err(wrong());
        };
        let mut parameters = Parameters::of(uri.query().unwrap_or_default());
        let vector = parameters
            .take("vector")
            .unwrap_or_else(|| VECTOR.to_owned());
        let region = parameters.take("region");
        parameters.end("`vector` and `region`")?;
        let index = uri.path().trim_start_matches('/');
        if index.is_empty() || index.contains('/') {
            return Err(wrong());
        }
        let (user, address) = match authority.as_str().rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority.as_str()),
        };
        let user = user
            .map(|user| user.split_once(':').ok_or_else(wrong))
            .transpose()?;
        let user = user.map(|(name, password)| (decoded(name), decoded(password)));
        Ok(Self {
            origin: format!("{scheme}://{address}"),
            host: authority.host().to_owned(),
            user,
            index: decoded(index),
            vector,
            region,
        })
    }
}

impl PostgresUrl {
    fn of(text: &str) -> Result<Self> {
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let mut parameters = Parameters::of(query);
        let table = parameters
            .take("table")
            .filter(|table| !table.is_empty())
            .ok_or_else(|| {
                Error::config("expected `?table=TABLE` in the URL of PostgreSQL, but found none")
            })?;
        let table: Vec<String> = table.split('.').map(str::to_owned).collect();
        if table.len() > 2 || table.iter().any(String::is_empty) {
            return Err(Error::config(format!(
                "expected `table=TABLE` or `table=SCHEMA.TABLE`, but found `{}`",
                table.join(".")
            )));
        }
        let (id, vector) = (parameters.take("id"), parameters.take("vector"));
        let roots = parameters.take("sslrootcert");
        // A certificate is always verified, as with `verify-full` of libpq.
        if parameters
            .get("sslmode")
            .is_some_and(|mode| mode.starts_with("verify-"))
        {
            parameters.set("sslmode", "require");
        }
        let selecting = SELECTING
            .iter()
            .filter_map(|name| Some(pair(name, parameters.get(name)?)));
        let selecting = selecting.map(|pair| format!("&{pair}")).collect();
        Ok(Self {
            url: format!("{place}{}", parameters.query()),
            shown: address::shown(text),
            selecting,
            table,
            id,
            vector: vector.unwrap_or_else(|| VECTOR.to_owned()),
            roots,
        })
    }
}

/// Parameters in a query. Plus signs stay, as in libpq.
struct Parameters(BTreeMap<String, String>);

impl Parameters {
    fn of(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let decode = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        Self(pairs.map(decode).collect())
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// Refuses parameters that are left.
    fn end(&self, known: &str) -> Result<()> {
        match self.0.keys().next() {
            Some(name) => Err(Error::config(format!(
                "expected only the parameters {known} in the sink's URL, but found `{name}`"
            ))),
            None => Ok(()),
        }
    }

    fn query(&self) -> String {
        let pairs: Vec<String> = self
            .0
            .iter()
            .map(|(name, value)| pair(name, value))
            .collect();
        if pairs.is_empty() {
            String::new()
        } else {
            format!("?{}", pairs.join("&"))
        }
    }
}

fn pair(name: &str, value: &str) -> String {
    format!(
        "{name}={}",
        percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC)
    )
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

impl fmt::Display for SinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3Vectors(VectorIndexId::Names { bucket, index }) => {
                write!(f, "{S3_VECTORS}{bucket}/{index}")
            }
            Self::S3Vectors(VectorIndexId::Arn(arn)) => f.write_str(arn),
            Self::OpenSearch(OpenSearchUrl {
                origin,
                index,
                vector,
                ..
            }) => {
                write!(f, "{OPEN_SEARCH}{origin}/{index}?vector={vector}")
            }
            Self::Postgres(PostgresUrl {
                shown,
                selecting,
                table,
                vector,
                id,
                ..
            }) => {
                write!(f, "{shown}?table={}&vector={vector}", table.join("."))?;
                id.as_ref().map_or(Ok(()), |id| write!(f, "&id={id}"))?;
                f.write_str(selecting)
            }
        }
    }
}

impl fmt::Debug for SinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The columns and vectors that a job stores in a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkSettings {
    /// The sink.
    pub url: SinkUrl,
    /// Column with the rows' ids.
    pub id: String,
    /// Columns that are stored with the vectors.
    pub metadata: Vec<String>,
}

/// Default for [`SinkSettings::id`].
const ID: &str = "id";

impl SinkSettings {
    /// Checks settings from the command line or a rule.
    pub fn new(url: SinkUrl, id: Option<&str>, metadata: &[String]) -> Result<Self> {
        let id = id.unwrap_or(ID).to_owned();
        let vector = match &url {
            SinkUrl::S3Vectors(_) => None,
            SinkUrl::OpenSearch(url) => Some(&url.vector),
            SinkUrl::Postgres(url) => Some(&url.vector),
        };
        let stored_id = match &url {
            SinkUrl::Postgres(url) => Some(url.id.as_ref().unwrap_or(&id)),
            _ => None,
        };
        for (place, name) in metadata.iter().enumerate() {
            let is_taken = Some(name) == vector || Some(name) == stored_id;
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

    /// All columns that are read: the id's first.
    pub fn columns(&self) -> Vec<String> {
        [&self.id]
            .into_iter()
            .chain(&self.metadata)
            .cloned()
            .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> SinkUrl {
        text.parse().unwrap()
    }

    #[test]
    fn urls_are_shown_without_credentials() {
        let shown = |text| url(text).to_string();
        assert_eq!(shown("s3vectors://b/i"), "s3vectors://b/i");
        let arn = "arn:aws:s3vectors:eu-west-1:123456789012:bucket/b/index/i";
        assert_eq!(shown(arn), arn);
        insta::assert_snapshot!(shown("opensearch+https://me:p%40ss@host:9200/docs?vector=v"), @"opensearch+https://host:9200/docs?vector=v");
        insta::assert_snapshot!(shown("postgres://me:secret@host:5432/db?table=s.docs&sslmode=verify-full&password=other"), @"postgres://host:5432/db?table=s.docs&vector=embedding");
        assert!(!format!("{:?}", url("postgres://me:secret@host/db?table=t")).contains("secret"));
        insta::assert_snapshot!(shown("postgres://me@/db?host=%2Ftmp%2Fa&table=t&password=secret&options=-csearch_path%3Ds"), @"postgres:///db?table=t&vector=embedding&host=%2Ftmp%2Fa&options=%2Dcsearch%5Fpath%3Ds");
    }

    #[test]
    fn the_rest_of_a_url_is_libpq_s() {
        let SinkUrl::Postgres(found) = url(
            "postgresql://me@/db?host=%2Ftmp%2Fa&table=docs&sslmode=verify-full&id=key&sslrootcert=/a.pem",
        ) else {
            panic!("another sink")
        };
        assert_eq!(
            found.url,
            "postgresql://me@/db?host=%2Ftmp%2Fa&sslmode=require"
        );
        assert_eq!(
            (found.id.as_deref(), found.roots.as_deref()),
            (Some("key"), Some("/a.pem"))
        );
    }

    #[test]
    fn credentials_of_open_search_are_decoded() {
        let SinkUrl::OpenSearch(found) = url("opensearch+http://me:p%40ss%3A@[::1]:9200/docs")
        else {
            panic!("another sink")
        };
        assert_eq!(found.user, Some(("me".into(), "p@ss:".into())));
        assert_eq!(
            (found.origin.as_str(), found.index.as_str()),
            ("http://[::1]:9200", "docs")
        );
    }

    #[test]
    fn wrong_urls_are_refused() {
        let refused = |text: &str| text.parse::<SinkUrl>().unwrap_err().to_string();
        insta::assert_snapshot!(refused("s3vectors://bucket"), @"expected `s3vectors://BUCKET/INDEX`, but found `s3vectors://bucket`");
        insta::assert_snapshot!(refused("arn:aws:s3:::bucket"), @"expected `arn:aws:s3vectors:REGION:ACCOUNT:bucket/BUCKET/index/INDEX`, but found `arn:aws:s3:::bucket`");
        insta::assert_snapshot!(refused("opensearch+https://host"), @"expected `opensearch+https://[USER:PASSWORD@]HOST[:PORT]/INDEX`, but found another URL");
        insta::assert_snapshot!(refused("opensearch+https://host/docs?size=1"), @"expected only the parameters `vector` and `region` in the sink's URL, but found `size`");
        insta::assert_snapshot!(refused("postgres://host/db"), @"expected `?table=TABLE` in the URL of PostgreSQL, but found none");
        insta::assert_snapshot!(refused("postgres://host/db?table=a.b.c"), @"expected `table=TABLE` or `table=SCHEMA.TABLE`, but found `a.b.c`");
        for text in [
            "redis://host",
            "out.csv",
            "opensearch+ftp://host/docs",
            "opensearch+https://me@host/docs",
        ] {
            assert!(text.parse::<SinkUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn metadata_have_different_names() {
        let settings = |metadata: &[&str]| {
            let metadata: Vec<String> = metadata.iter().map(|name| (*name).to_owned()).collect();
            SinkSettings::new(url("postgres://host/db?table=t&id=key"), None, &metadata)
        };
        assert!(settings(&["title", "id"]).is_ok());
        insta::assert_snapshot!(settings(&["title", "embedding"]).unwrap_err(), @"expected different names in `metadata`, none of them the id's or the vector's, but found `title`, `embedding`");
        assert!(settings(&["title", "title"]).is_err() && settings(&["key"]).is_err());
    }
}
