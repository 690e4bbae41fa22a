//! A table in PostgreSQL with pgvector: its checks and its statements.

use tokio_postgres::{Client, Error as PostgresError, Row};

use super::{errors::other_dimensions, postgres_url::PostgresUrl};
use kivu::{Error, Result};
use kivu_jobs::{rows::normal_number, sink::SinkSettings};

/// Temporary table with the rows of a batch. Vectors become pgvector's when they are inserted.
const STAGING: &str = "kivu_rows";
/// A table's columns: name, type, the vector's dimensions (-1 if it has none), the type for casts, and whether a unique
/// index has only this column. The type for casts has no length: a cast to a length would cut texts.
const COLUMNS: &str = "
    SELECT a.attname::text, t.typname::text, a.atttypmod, format_type(a.atttypid, -1),
      EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid
        AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum AND i.indpred IS NULL)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped";

struct Column {
    name: String,
    kind: String,
    dimensions: i32,
    cast: String,
    is_unique: bool,
}

impl Column {
    fn of(row: &Row) -> Self {
        Self {
            name: row.get(0),
            kind: row.get(1),
            dimensions: row.get(2),
            cast: row.get(3),
            is_unique: row.get(4),
        }
    }
}

/// Statements for a table whose columns are checked.
pub struct Statements {
    pub create: String,
    pub copy: String,
    /// Inserts or replaces all rows of a batch.
    pub insert: String,
    /// The same for the row with the place `$1`.
    pub insert_one: String,
    /// The name of the id's type.
    pub id_kind: String,
}

/// A name as SQL reads it literally.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Reads the columns of the table.
pub async fn read(client: &Client, table: &str) -> Result<Vec<Row>, PostgresError> {
    client.query(COLUMNS, &[&table]).await
}

pub async fn has_extension(client: &Client) -> Result<bool, PostgresError> {
    let found = client
        .query("SELECT FROM pg_extension WHERE extname = 'vector'", &[])
        .await?;
    Ok(!found.is_empty())
}

pub fn name(url: &PostgresUrl) -> String {
    url.table
        .iter()
        .map(|part| quoted(part))
        .collect::<Vec<_>>()
        .join(".")
}

impl Statements {
    /// Checks the table, whose columns were read.
    pub fn new(
        rows: &[Row],
        url: &PostgresUrl,
        settings: &SinkSettings,
        dimensions: usize,
    ) -> Result<Self> {
        let columns: Vec<Column> = rows.iter().map(Column::of).collect();
        let place = settings.url.to_string();
        if columns.is_empty() {
            return Err(
                Error::config(format!("expected a table for `{place}`, but found none"))
                    .with_hint("create it first"),
            );
        }
        let column = |name: &str| {
            columns
                .iter()
                .find(|column| column.name == name)
                .ok_or_else(|| {
                    let known: Vec<&str> =
                        columns.iter().map(|column| column.name.as_str()).collect();
                    Error::config(format!(
                        "no column `{name}` in the table for `{place}`, which has {}",
                        kivu::error::quoted(&known)
                    ))
                })
        };
        let id = column(url.id.as_ref().unwrap_or(&settings.id))?;
        if !id.is_unique {
            return Err(Error::config(format!(
                "expected a primary key or a unique index of only `{}` in the table for `{place}`, but found none",
                id.name
            )));
        }
        check_vector(column(&url.vector)?, &place, dimensions)?;
        let metadata = settings
            .metadata
            .iter()
            .map(|name| column(name))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self::of(&name(url), id, &url.vector, &metadata))
    }

    fn of(table: &str, id: &Column, vector: &str, metadata: &[&Column]) -> Self {
        let staged: Vec<String> = (0..metadata.len())
            .map(|place| format!("m{place}"))
            .collect();
        let texts = |ending: &str| {
            staged
                .iter()
                .map(|name| format!(", {name}{ending}"))
                .collect::<String>()
        };
        let vector = quoted(vector);
        let names: Vec<String> = metadata.iter().map(|column| quoted(&column.name)).collect();
        let listed: String = names.iter().map(|name| format!(", {name}")).collect();
        let casts: String = staged
            .iter()
            .zip(metadata)
            .map(|(name, column)| format!(", {name}::{}", column.cast))
            .collect();
        let updates: String = names
            .iter()
            .map(|name| format!(", {name} = EXCLUDED.{name}"))
            .collect();
        let insert = |condition: &str| {
            format!(
                "INSERT INTO {table} ({id_name}, {vector}{listed}) SELECT id::{id_cast}, embedding{casts} FROM \
                 pg_temp.{STAGING}{condition} ORDER BY place ON CONFLICT ({id_name}) DO UPDATE SET \
                 {vector} = EXCLUDED.{vector}{updates}",
                id_name = quoted(&id.name),
                id_cast = id.cast,
            )
        };
        Self {
            create: format!(
                "CREATE TEMPORARY TABLE IF NOT EXISTS {STAGING} (place int4 PRIMARY KEY, id text, embedding \
                 real[]{}) ON COMMIT DELETE ROWS",
                texts(" text")
            ),
            copy: format!(
                "COPY pg_temp.{STAGING} (place, id, embedding{}) FROM STDIN (FORMAT binary)",
                texts("")
            ),
            insert: insert(""),
            insert_one: insert(" WHERE place = $1"),
            id_kind: id.kind.clone(),
        }
    }
}

/// The key of an id in a column of this type: one row would replace the other's if their ids are equal there.
pub fn key(kind: &str, id: &str) -> String {
    let key = match kind {
        "int2" | "int4" | "int8" | "numeric" | "float4" | "float8" => {
            normal_number(id.trim_ascii())
        }
        "uuid" => {
            let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
            (digits.len() == 32).then(|| digits.to_ascii_lowercase())
        }
        "bpchar" => Some(id.trim_end_matches(' ').to_owned()),
        "citext" => Some(id.to_lowercase()),
        _ => None,
    };
    key.unwrap_or_else(|| id.to_owned())
}

fn check_vector(column: &Column, place: &str, dimensions: usize) -> Result<()> {
    let Column {
        name,
        kind,
        dimensions: found,
        ..
    } = column;
    if !matches!(kind.as_str(), "vector" | "halfvec") {
        return Err(Error::config(format!(
            "expected the column `{name}` in the table for `{place}` to be a `vector` or a `halfvec`, but found `{kind}`"
        )));
    }
    // -1 for a column that accepts any number.
    if *found > 0 && *found as usize != dimensions {
        return Err(other_dimensions(
            &format!("the column `{name}` in the table for `{place}`"),
            dimensions,
            (*found).into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_a_type_takes_for_equal_have_one_key() {
        let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        for (kind, one, other) in [
            ("int8", "7", " 007"),
            ("numeric", "1", "1.0"),
            ("uuid", uuid, "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}"),
            ("bpchar", "a", "a  "),
            ("citext", "Ä", "ä"),
        ] {
            assert_eq!(key(kind, one), key(kind, other), "{kind}");
            assert_ne!(key("text", one), key("text", other), "{kind}");
        }
        assert_ne!(key("uuid", "xa"), key("uuid", "a"));
    }

    #[test]
    fn names_are_quoted() {
        let column = |name: &str, cast: &str| Column {
            name: name.into(),
            kind: String::new(),
            dimensions: -1,
            cast: cast.into(),
            is_unique: true,
        };
        let (id, title) = (
            column("Id", "bigint"),
            column("a\"; DROP", "character varying"),
        );
        let statements = Statements::of("\"s\".\"t\"", &id, "v", &[&title]);
        insta::assert_snapshot!(statements.insert_one, @r#"INSERT INTO "s"."t" ("Id", "v", "a""; DROP") SELECT id::bigint, embedding, m0::character varying FROM pg_temp.kivu_rows WHERE place = $1 ORDER BY place ON CONFLICT ("Id") DO UPDATE SET "v" = EXCLUDED."v", "a""; DROP" = EXCLUDED."a""; DROP""#);
        insta::assert_snapshot!(statements.copy, @"COPY pg_temp.kivu_rows (place, id, embedding, m0) FROM STDIN (FORMAT binary)");
    }
}
