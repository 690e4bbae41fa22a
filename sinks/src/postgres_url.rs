//! URLs of tables in PostgreSQL.

use std::fmt;

use super::parameters::{Parameters, VECTOR, pair};
use kivu::{Error, Result, address};

/// Parameters on which it depends where rows are; a job is not resumed at another place.
const SELECTING: [&str; 5] = ["dbname", "host", "hostaddr", "options", "port"];

/// Defaults in seconds: for a connection to a host, and after which time without data the network is asked whether the
/// connection still exists. libpq has no limit, and systems ask after two hours.
const TIMES: [(&str, &str); 2] = [("connect_timeout", "10"), ("keepalives_idle", "60")];

/// A table. The URL is libpq's, with a few more parameters.
#[derive(Clone)]
pub struct PostgresUrl {
    /// The URL without the parameters below, and with defaults for times.
    pub url: String,
    /// Whether it says when TLS is used.
    pub has_mode: bool,
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

impl PostgresUrl {
    pub fn of(text: &str) -> Result<Self> {
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let mut parameters = Parameters::of(query)?;
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
        let has_mode = parameters.get("sslmode").is_some();
        for (name, seconds) in TIMES {
            if parameters.get(name).is_none() {
                parameters.set(name, seconds);
            }
        }
        let selecting = SELECTING
            .iter()
            .filter_map(|name| Some(pair(name, parameters.get(name)?)));
        let selecting = selecting.map(|pair| format!("&{pair}")).collect();
        Ok(Self {
            url: format!("{place}{}", parameters.query()),
            has_mode,
            shown: address::shown(text),
            selecting,
            table,
            id,
            vector: vector.unwrap_or_else(|| VECTOR.to_owned()),
            roots,
        })
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shown,
            selecting,
            table,
            vector,
            id,
            ..
        } = self;
        write!(f, "{shown}?table={}&vector={vector}", table.join("."))?;
        id.as_ref().map_or(Ok(()), |id| write!(f, "&id={id}"))?;
        f.write_str(selecting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_credentials() {
        let shown = |text| PostgresUrl::of(text).unwrap().to_string();
        insta::assert_snapshot!(shown("postgres://me:secret@host:5432/db?table=s.docs&sslmode=verify-full&password=other"), @"postgres://host:5432/db?table=s.docs&vector=embedding");
        insta::assert_snapshot!(shown("postgres://me@/db?host=%2Ftmp%2Fa&table=t&password=secret&options=-csearch_path%3Ds"), @"postgres:///db?table=t&vector=embedding&host=%2Ftmp%2Fa&options=%2Dcsearch%5Fpath%3Ds");
    }

    #[test]
    fn the_rest_of_a_url_is_libpq_s() {
        let found = PostgresUrl::of("postgresql://me@/db?host=%2Ftmp%2Fa&table=docs&sslmode=verify-full&id=key&sslrootcert=/a.pem").unwrap();
        assert_eq!(
            found.url,
            "postgresql://me@/db?connect_timeout=10&host=%2Ftmp%2Fa&keepalives_idle=60&sslmode=require"
        );
        assert_eq!(
            (found.id.as_deref(), found.roots.as_deref()),
            (Some("key"), Some("/a.pem"))
        );
    }

    #[test]
    fn wrong_urls_are_refused() {
        let refused = |text| PostgresUrl::of(text).err().unwrap().to_string();
        insta::assert_snapshot!(refused("postgres://host/db"), @"expected `?table=TABLE` in the URL of PostgreSQL, but found none");
        insta::assert_snapshot!(refused("postgres://host/db?table=a.b.c"), @"expected `table=TABLE` or `table=SCHEMA.TABLE`, but found `a.b.c`");
        insta::assert_snapshot!(refused("postgres://host/db?table=a&t%61ble=b"), @"expected each parameter in the sink's URL once, but found `table` twice");
    }
}
