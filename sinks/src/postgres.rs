//! PostgreSQL with pgvector: a batch is copied to a temporary table and inserted from it, in one transaction.

use std::{
    env, error::Error as _, io, net::IpAddr, path::Path, pin::pin, sync::Arc, time::Duration,
};

use serde_json::Value;
use tokio::time::timeout;
use tokio_postgres::{
    Client, Config, Error as PostgresError, Transaction,
    binary_copy::BinaryCopyInWriter,
    config::{Host, SslMode},
    types::{ToSql, Type},
};

use super::{
    postgres_table::{self as table, Statements},
    postgres_tls::Tls,
    postgres_url::PostgresUrl,
    retry::{Failure, retried},
    waiting::Waiting,
};
use kivu::{Error, Result, error::chain};
use kivu_jobs::sink::{Record, Refusal, Sink, SinkKind, SinkSettings, SinkUrl};

/// Name that the server shows for the connection.
const APPLICATION: &str = "kivu batch";
/// Time for a connection, up to the server's first answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// PostgreSQL with pgvector.
pub const POSTGRES: SinkKind = SinkKind {
    schemes: &["postgres://", "postgresql://"],
    parse: |text| Ok(Arc::new(PostgresUrl::of(text)?)),
};

impl SinkUrl for PostgresUrl {
    fn taken<'a>(&'a self, id: &'a str) -> Vec<&'a str> {
        vec![&self.vector, self.id.as_deref().unwrap_or(id)]
    }

    fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>> {
        Ok(Box::new(Postgres::connect(self, settings, dimensions)?))
    }
}

struct Postgres {
    connector: Connector,
    client: Option<Client>,
    statements: Statements,
    metadata: usize,
    waiting: Waiting,
}

/// Makes connections.
struct Connector {
    config: Config,
    tls: Tls,
    /// The URL, for messages.
    place: String,
    timeout: Duration,
}

impl Postgres {
    fn connect(url: &PostgresUrl, settings: &SinkSettings, dimensions: usize) -> Result<Self> {
        let connector = Connector::new(url, settings)?;
        let waiting = Waiting::new()?;
        let (client, statements) = waiting.wait(async {
            let action = format!("cannot connect to `{}`", connector.place);
            let client = retried(&action, async || connector.connect().await).await?;
            let action = format!("cannot read the table for `{}`", connector.place);
            let failed =
                |error: PostgresError| Error::config(format!("{action}: {}", reason(&error)));
            if !table::has_extension(&client).await.map_err(failed)? {
                return Err(Error::config(format!(
                    "expected the extension `vector` in the database of `{}`, but found none",
                    connector.place
                ))
                .with_hint("install pgvector, and run `CREATE EXTENSION vector`"));
            }
            let columns = table::read(&client, &table::name(url))
                .await
                .map_err(failed)?;
            let statements = Statements::new(&columns, url, settings, dimensions)?;
            client
                .batch_execute(&statements.create)
                .await
                .map_err(failed)?;
            Ok((client, statements))
        })?;
        let metadata = settings.metadata.len();
        Ok(Self {
            connector,
            client: Some(client),
            statements,
            metadata,
            waiting,
        })
    }
}

impl Connector {
    fn new(url: &PostgresUrl, settings: &SinkSettings) -> Result<Self> {
        let place = settings.url.to_string();
        // The parser's message has no part of the URL.
        let mut config: Config = url.url.parse().map_err(|error: PostgresError| {
            Error::config(format!("expected a URL for `{place}`: {}", chain(&error)))
        })?;
        config.application_name(APPLICATION);
        if let (None, Ok(password)) = (config.get_password(), env::var("PGPASSWORD")) {
            config.password(password);
        }
        // By default, libpq sends passwords and rows in the clear if a server wants that. An address, if there is one, is
        // what it connects to.
        let is_local = config.get_hosts().iter().all(is_local)
            && config.get_hostaddrs().iter().all(IpAddr::is_loopback);
        if !url.has_mode && !is_local {
            config.ssl_mode(SslMode::Require);
        }
        Ok(Self {
            config,
            tls: Tls::new(url.roots.as_deref().map(Path::new))?,
            place,
            timeout: ANSWER_TIMEOUT,
        })
    }

    async fn connect(&self) -> Result<Client, Failure> {
        let connected = timeout(self.timeout, self.config.connect(self.tls.clone()));
        let Ok(connected) = connected.await else {
            let seconds = self.timeout.as_secs();
            return Err(Failure::Passing(format!("no answer within {seconds} s")));
        };
        let (client, connection) = connected.map_err(|error| self.failure(&error))?;
        // It ends with the client; errors are returned by the client too.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(client)
    }

    fn failure(&self, error: &PostgresError) -> Failure {
        let reason = reason(error);
        if is_passing(error) {
            return Failure::Passing(reason);
        }
        Failure::Permanent(Error::config(format!(
            "cannot write to `{}`: {reason}",
            self.place
        )))
    }
}

/// Whether a server runs on this machine.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let address = name.parse::<IpAddr>();
            name == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
    }
}

/// Whether a new connection may succeed later: network errors, conflicts, and servers that are full or restart.
fn is_passing(error: &PostgresError) -> bool {
    match error.code() {
        Some(state) => {
            let state = state.code();
            ["08", "40", "53", "57P"]
                .iter()
                .any(|class| state.starts_with(class))
                || state == "55P03"
        }
        None => {
            error.is_closed()
                || error
                    .source()
                    .and_then(|source| source.downcast_ref())
                    .is_some_and(is_network)
        }
    }
}

/// Whether the network failed, and not a certificate's check.
fn is_network(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::InvalidData
}

/// Whether the error depends on a row: a value that its column or an index does not accept, a constraint, or a trigger.
fn is_of_row(error: &PostgresError) -> bool {
    error.code().is_some_and(|state| {
        ["21", "22", "23", "44", "54", "P0"]
            .iter()
            .any(|class| state.code().starts_with(class))
    })
}

/// The server's message, without values; other errors with their causes.
fn reason(error: &PostgresError) -> String {
    let Some(found) = error.as_db_error() else {
        return chain(error);
    };
    let message = match found.code().code().get(..2) {
        // These quote values; others quote names.
        Some("22") => without_quotes(found.message()),
        // A function's own message may have any.
        Some("P0") => "a function or a trigger refused the row".to_owned(),
        _ => found.message().to_owned(),
    };
    format!("{} {message}", found.code().code())
}

/// Without what is between the first and the last quote: values may have quotes, which PostgreSQL does not escape. Quotes
/// are those of the server's language.
fn without_quotes(message: &str) -> String {
    let is_quote = |found: char| matches!(found, '"' | '«' | '»' | '„' | '“' | '”');
    let Some((before, quoted)) = message.split_once(is_quote) else {
        return message.to_owned();
    };
    let after = quoted.rsplit_once(is_quote).map_or("", |(_, after)| after);
    format!("{before}\"…\"{after}")
}

/// A value as a column's cast reads it.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

async fn copy(
    transaction: &Transaction<'_>,
    statements: &Statements,
    records: &[Record],
    metadata: usize,
) -> Result<(), PostgresError> {
    let texts = std::iter::repeat_n(Type::TEXT, metadata);
    let types: Vec<Type> = [Type::INT4, Type::TEXT, Type::FLOAT4_ARRAY]
        .into_iter()
        .chain(texts)
        .collect();
    let sink = transaction.copy_in(&statements.copy).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
    for (place, record) in (0_i32..).zip(records) {
        let texts: Vec<Option<String>> = record.metadata.iter().map(text).collect();
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&place, &record.id, &record.vector];
        values.extend(texts.iter().map(|text| text as &(dyn ToSql + Sync)));
        writer.as_mut().write(&values).await?;
    }
    writer.as_mut().finish().await.map(drop)
}

/// Why a row that was accepted is not in the table.
const DROPPED: &str = "the table did not store the row; a trigger may have dropped it";

/// Stores records in one transaction. If a row is refused or dropped, the rows are inserted one by one.
async fn store(
    client: &mut Client,
    statements: &Statements,
    records: &[Record],
    metadata: usize,
) -> Result<Vec<Refusal>, PostgresError> {
    let mut transaction = client.transaction().await?;
    // A constraint that is checked at the end would refuse all rows for one.
    transaction
        .batch_execute("SET CONSTRAINTS ALL IMMEDIATE")
        .await?;
    copy(&transaction, statements, records, metadata).await?;
    let mut refusals = Vec::new();
    let all = transaction.transaction().await?;
    match all.execute(&statements.insert, &[]).await {
        Ok(count) if count == records.len() as u64 => all.commit().await?,
        Err(error) if !is_of_row(&error) => return Err(error),
        _ => {
            all.rollback().await?;
            for place in 0..records.len() {
                let one = transaction.transaction().await?;
                match one
                    .execute(&statements.insert_one, &[&(place as i32)])
                    .await
                {
                    Ok(0) => {
                        one.rollback().await?;
                        refusals.push((place, DROPPED.to_owned()));
                    }
                    Ok(_) => one.commit().await?,
                    Err(error) if is_of_row(&error) => {
                        one.rollback().await?;
                        refusals.push((place, reason(&error)));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    transaction.commit().await?;
    Ok(refusals)
}

impl Sink for Postgres {
    fn key(&self, id: &str) -> String {
        self.statements.id.key(id)
    }

    fn check(&self, record: &Record) -> Result<(), String> {
        // It would end the batch's copy.
        let has_nul = |text: &String| text.contains('\0');
        if has_nul(&record.id)
            || record
                .metadata
                .iter()
                .filter_map(text)
                .any(|text| has_nul(&text))
        {
            return Err(
                "PostgreSQL does not store the character U+0000, which a text has".to_owned(),
            );
        }
        self.statements.id.check(&record.id)
    }

    fn put(&mut self, records: &[Record]) -> Result<Vec<Refusal>> {
        let Self {
            connector,
            client,
            statements,
            metadata,
            waiting,
        } = self;
        waiting.wait(retried(
            &format!("cannot write to `{}`", connector.place),
            async || {
                let mut connected = match client.take().filter(|client| !client.is_closed()) {
                    Some(client) => client,
                    None => {
                        let new = connector.connect().await?;
                        let created = new.batch_execute(&statements.create).await;
                        created.map_err(|error| connector.failure(&error))?;
                        new
                    }
                };
                let stored = store(&mut connected, statements, records, *metadata).await;
                let refusals = stored.map_err(|error| connector.failure(&error))?;
                *client = Some(connected);
                Ok(refusals)
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn other_machines_need_tls() {
        let mode = |place: &str| {
            let url = PostgresUrl::of(&format!("postgres://me@{place}")).unwrap();
            let settings = SinkSettings::new(Arc::new(url.clone()), None, &[]).unwrap();
            let connector = Connector::new(&url, &settings).unwrap();
            connector.config.get_ssl_mode()
        };
        for place in [
            "db.internal/a?table=t",
            "/a?table=t&host=localhost,db&port=1,2",
            "/a?table=t&hostaddr=10.0.0.7",
            "localhost/a?table=t&hostaddr=10.0.0.7",
        ] {
            assert_eq!(mode(place), SslMode::Require, "{place}");
        }
        for place in [
            "localhost/a?table=t",
            "[::1]:5432/a?table=t",
            "/a?table=t&host=%2Ftmp",
            "/a?table=t&hostaddr=127.0.0.1",
            "db.internal/a?table=t&sslmode=prefer",
        ] {
            assert_eq!(mode(place), SslMode::Prefer, "{place}");
        }
    }

    #[test]
    fn a_silent_server_is_not_waited_for() {
        let connector = |url: &str| {
            let url = PostgresUrl::of(url).unwrap();
            let settings = SinkSettings::new(Arc::new(url.clone()), None, &[]).unwrap();
            Connector::new(&url, &settings).unwrap()
        };
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut waiting = connector(&format!(
            "postgres://me@{}/a?table=keepalives_idle",
            silent.local_addr().unwrap()
        ));
        let config = &waiting.config;
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(10)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
        waiting.timeout = Duration::from_millis(50);
        let runtime = Waiting::new().unwrap();
        let connected = runtime.wait(async { Ok(waiting.connect().await) });
        assert!(matches!(connected.unwrap(), Err(Failure::Passing(_))));
        let config = connector(
            "postgres://me@host/a?table=t&connect_timeout=3&keepalives_idle=7&sslmode=disable",
        )
        .config;
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(7));
    }

    #[test]
    fn messages_do_not_quote_values() {
        insta::assert_snapshot!(without_quotes("invalid input syntax for type integer: \"secret\""), @r#"invalid input syntax for type integer: "…""#);
        insta::assert_snapshot!(without_quotes("value \"99999999999\" is out of range for type integer"), @r#"value "…" is out of range for type integer"#);
        insta::assert_snapshot!(without_quotes("invalid input syntax for type date: \"a \"secret\" b\""), @r#"invalid input syntax for type date: "…""#);
        insta::assert_snapshot!(without_quotes("a quote \"secret"), @r#"a quote "…""#);
        insta::assert_snapshot!(without_quotes("syntaxe en entrée invalide pour le type integer : « a »b »"), @r#"syntaxe en entrée invalide pour le type integer : "…""#);
        insta::assert_snapshot!(without_quotes("ungültige Eingabesyntax für Typ integer: „secret“"), @r#"ungültige Eingabesyntax für Typ integer: "…""#);
        assert_eq!(
            without_quotes("numeric field overflow"),
            "numeric field overflow"
        );
    }

    #[test]
    fn values_are_texts_for_casts() {
        assert_eq!(text(&serde_json::json!(1.5)).as_deref(), Some("1.5"));
        assert_eq!(
            text(&serde_json::json!({ "a": [1] })).as_deref(),
            Some("{\"a\":[1]}")
        );
        assert_eq!(
            (text(&"x".into()).as_deref(), text(&Value::Null)),
            (Some("x"), None)
        );
    }
}
