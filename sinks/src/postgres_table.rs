//! A table in PostgreSQL with pgvector: its checks and its statements.

use tokio_postgres::{Client, Error as PostgresError, Row};

use super::{errors::other_dimensions, postgres_url::PostgresUrl};
use kivu::{Error, Result};
use kivu_jobs::{rows::normal_number, sink::SinkSettings};

/// Temporary table with the rows of a batch. Vectors become pgvector's when they are inserted.
const STAGING: &str = "kivu_rows";
/// A table's columns: name, type, its modifier (-1 if it has none), the type for casts, and whether a unique index has only
/// this column. Types are those below domains, and those for casts have no length: a cast to a length, or to a domain that
/// has one, would cut texts. A collation by which a unique index takes different texts for equal is part of the type.
const COLUMNS: &str = "
    WITH RECURSIVE types AS (
      SELECT a.attrelid, a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS modifier FROM pg_attribute a
        WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL
      SELECT attrelid, attnum, attname, d.typbasetype, d.typtypmod
        FROM types JOIN pg_type d ON d.oid = type AND d.typtype = 'd')
    SELECT attname::text, CASE t.typtype WHEN 'e' THEN 'enum' ELSE t.typname::text END || CASE WHEN EXISTS (SELECT FROM pg_index i
        JOIN pg_collation c ON c.oid = i.indcollation[0] WHERE i.indrelid = attrelid AND i.indisunique AND i.indkey[0] = attnum
        AND NOT c.collisdeterministic) THEN ' with a nondeterministic collation' ELSE '' END, modifier, format_type(t.oid, -1),
      EXISTS (SELECT FROM pg_index i WHERE i.indrelid = attrelid AND i.indisunique AND i.indisvalid
        AND i.indnkeyatts = 1 AND i.indkey[0] = attnum AND i.indpred IS NULL)
    FROM types JOIN pg_type t ON t.oid = type AND t.typtype <> 'd' ORDER BY attnum";
/// Types of ids. Others take different texts for the same id, such as `t` and `true`, or round or cut them, so that a row
/// would replace another one.
const ID_KINDS: [&str; 10] = [
    "int2", "int4", "int8", "numeric", "uuid", "text", "varchar", "bpchar", "citext", "enum",
];
/// Types that cut texts without an error.
const CUTTING: [&str; 2] = ["name", "char"];
/// What a modifier adds to a length, or to precision and scale.
const MODIFIER: i32 = 4;

struct Column {
    name: String,
    kind: String,
    modifier: i32,
    cast: String,
    is_unique: bool,
}

impl Column {
    fn of(row: &Row) -> Self {
        Self {
            name: row.get(0),
            kind: row.get(1),
            modifier: row.get(2),
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
    pub id: IdType,
}

/// The type of the ids' column.
pub struct IdType {
    kind: String,
    modifier: i32,
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
        check_id(id, &place)?;
        check_vector(column(&url.vector)?, &place, dimensions)?;
        let metadata = settings
            .metadata
            .iter()
            .map(|name| column(name))
            .collect::<Result<Vec<_>>>()?;
        metadata
            .iter()
            .try_for_each(|column| check_metadata(column, &place))?;
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
            id: IdType {
                kind: id.kind.clone(),
                modifier: id.modifier,
            },
        }
    }
}

impl IdType {
    /// The key of an id: one row would replace the other's if their ids are equal in the column.
    pub fn key(&self, id: &str) -> String {
        let key = match self.kind.as_str() {
            "uuid" => {
                let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
                (digits.len() == 32).then(|| digits.to_ascii_lowercase())
            }
            "bpchar" => Some(id.trim_end_matches(' ').to_owned()),
            "varchar" => self.without_excess(id),
            "citext" => Some(id.to_lowercase()),
            _ if self.is_number() => normal_number(id.trim_ascii()),
            _ => None,
        };
        key.unwrap_or_else(|| id.to_owned())
    }

    /// Refuses ids of which the key is unclear, and those that the column would round.
    pub fn check(&self, id: &str) -> Result<(), String> {
        if !self.is_number() {
            return Ok(());
        }
        let Some(number) = normal_number(id.trim_ascii()) else {
            return Err(format!(
                "expected a decimal number as the id, since its column has the type `{}`",
                self.kind
            ));
        };
        let exponent = number
            .split_once('e')
            .map(|(_, exponent)| exponent.parse::<i64>());
        let places = match exponent {
            Some(Ok(exponent)) => exponent.saturating_neg(),
            _ => i64::MIN,
        };
        match self.scale() {
            Some(scale) if places > scale => Err(format!(
                "expected an id with at most {scale} decimal places, since its column rounds others"
            )),
            _ => Ok(()),
        }
    }

    fn is_number(&self) -> bool {
        matches!(self.kind.as_str(), "int2" | "int4" | "int8" | "numeric")
    }

    /// Decimal places in a `numeric` that has a scale, which may be negative: a number of 11 bits.
    fn scale(&self) -> Option<i64> {
        let has_scale = self.kind == "numeric" && self.modifier >= MODIFIER;
        has_scale.then(|| ((i64::from(self.modifier - MODIFIER) & 0x7ff) ^ 0x400) - 0x400)
    }

    /// A text without the spaces beyond the column's length, which are cut; `None` if there are none.
    fn without_excess(&self, id: &str) -> Option<String> {
        let length = usize::try_from(self.modifier - MODIFIER).ok()?;
        let (end, _) = id.char_indices().nth(length)?;
        let (kept, excess) = id.split_at(end);
        excess.trim_matches(' ').is_empty().then(|| kept.to_owned())
    }
}

/// Refuses types that would take several rows for one.
fn check_id(column: &Column, place: &str) -> Result<()> {
    let Column {
        name,
        kind,
        is_unique,
        ..
    } = column;
    if !is_unique {
        return Err(Error::config(format!(
            "expected a primary key or a unique index of only `{name}` in the table for `{place}`, but found none"
        )));
    }
    if !ID_KINDS.contains(&kind.as_str()) {
        return Err(Error::config(format!(
            "expected ids of a type that keeps different ones apart in the column `{name}` in the table for `{place}`, but \
             found `{kind}`"
        ))
        .with_hint("use `bigint`, `numeric`, `uuid`, or `text` with a deterministic collation"));
    }
    Ok(())
}

fn check_metadata(column: &Column, place: &str) -> Result<()> {
    let Column { name, kind, .. } = column;
    if CUTTING.contains(&kind.as_str()) {
        return Err(Error::config(format!(
            "the column `{name}` in the table for `{place}` cuts texts, since it has the type `{kind}`"
        ))
        .with_hint("use `text`"));
    }
    Ok(())
}

fn check_vector(column: &Column, place: &str, dimensions: usize) -> Result<()> {
    let Column {
        name,
        kind,
        modifier: found,
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

    fn id(kind: &str, modifier: i32) -> IdType {
        IdType {
            kind: kind.into(),
            modifier,
        }
    }

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
            let [typed, text] = [kind, "text"].map(|kind| id(kind, -1));
            assert_eq!(typed.key(one), typed.key(other), "{kind}");
            assert_ne!(text.key(one), text.key(other), "{kind}");
        }
        assert_ne!(id("uuid", -1).key("xa"), id("uuid", -1).key("a"));
        let short = id("varchar", 3 + MODIFIER);
        assert_eq!(short.key("äbc"), short.key("äbc  "));
        for (one, other) in [("ab", "ab "), ("abc", "abcd")] {
            assert_ne!(short.key(one), short.key(other));
            assert_ne!(id("varchar", -1).key(one), id("varchar", -1).key(other));
        }
    }

    #[test]
    fn ids_that_a_column_would_round_are_refused() {
        let numeric = |precision: i32, scale: i32| {
            id("numeric", ((precision << 16) | (scale & 0x7ff)) + MODIFIER)
        };
        for (kind, kept, refused) in [
            (numeric(10, 1), "1.20", "1.25"),
            (numeric(20, 0), "18446744073709551615", "1.4"),
            (numeric(5, -2), "1200", "1250"),
            (id("numeric", -1), "0.0000001", "0x10"),
            (id("int8", -1), " -7", "1_000"),
        ] {
            assert_eq!(kind.check(kept), Ok(()));
            assert!(kind.check(refused).is_err(), "{refused}");
            assert_eq!(kind.check("0.000"), Ok(()));
        }
        insta::assert_snapshot!(numeric(10, 1).check("-0.05").unwrap_err(), @"expected an id with at most 1 decimal places, since its column rounds others");
        insta::assert_snapshot!(id("int4", -1).check("NaN").unwrap_err(), @"expected a decimal number as the id, since its column has the type `int4`");
        assert_eq!(id("text", -1).check("NaN"), Ok(()));
    }

    #[test]
    fn names_are_quoted() {
        let column = |name: &str, cast: &str| Column {
            name: name.into(),
            kind: String::new(),
            modifier: -1,
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
