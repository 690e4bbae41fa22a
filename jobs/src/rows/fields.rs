//! Values in a row's columns besides its text, for outputs that store some columns.

use std::mem;

use serde_json::Value;

use super::{
    chunk::{CsvRow, Head, JsonTypes, Rows},
    column::places,
    csv::{dialect::Dialect, records::Splitter},
    json_fields::TextField,
    numbers::is_exact,
};
use crate::output::answer::{ErrorKind, RowError, RowResult};
use kivu::{
    Result,
    json::{Tree, wrong_scalar},
};

/// Columns of a file, by name.
pub struct Fields {
    names: Vec<String>,
    /// Their places, in formats with a header.
    places: Option<Vec<usize>>,
    /// How a CSV file's rows are written.
    dialect: Option<Dialect>,
    /// Whether a JSON value with a number that would be rounded is an error.
    keeps_digits: bool,
}

impl Fields {
    /// The columns `names` in a file with this head. Their numbers keep all digits.
    ///
    /// # Errors
    /// The file does not have a column, has it twice, or with a type that has no JSON form.
    pub fn new(head: &Head, names: Vec<String>) -> Result<Self> {
        Self::checked(head, names, JsonTypes::Scalars)
    }

    /// Like [`new`](Self::new), but columns may also have lists of numbers, as vectors are stored.
    pub fn with_vectors(head: &Head, names: Vec<String>) -> Result<Self> {
        Self::checked(head, names, JsonTypes::Vectors)
    }

    fn checked(head: &Head, names: Vec<String>, types: JsonTypes) -> Result<Self> {
        let mut dialect = None;
        let places = match head {
            Head::JsonLines | Head::Requests => None,
            Head::Csv(header) => {
                let known: Vec<&str> = header.names.iter().map(String::as_str).collect();
                dialect = Some(header.dialect.clone());
                Some(places(&known, &names)?)
            }
            Head::Parquet(columns) => {
                let places = places(&columns.names(), &names)?;
                places
                    .iter()
                    .try_for_each(|place| columns.check(*place, types))?;
                Some(places)
            }
        };
        Ok(Self {
            names,
            places,
            dialect,
            keeps_digits: types == JsonTypes::Scalars,
        })
    }

    /// The values in row `row`, in the order of the names; null for missing ones.
    pub fn values(&self, rows: &Rows, row: usize) -> Result<Vec<Value>, RowError> {
        match rows {
            Rows::Lines(lines) => {
                let line = lines
                    .get(row)
                    .and_then(|line| std::str::from_utf8(line).ok());
                self.names
                    .iter()
                    .map(|name| self.json_field(line.unwrap_or_default(), name))
                    .collect()
            }
            Rows::Records(records) => match (records.get(row), &self.dialect) {
                (Some(record), Some(dialect)) => self.csv_fields(record, dialect),
                _ => Ok(vec![Value::Null; self.names.len()]),
            },
            Rows::Columns(rows) => {
                let named = self.places.iter().flatten().zip(&self.names);
                let value = |(place, name): (&usize, &String)| {
                    let found = rows.value(*place, row);
                    found.ok_or_else(|| no_json(name, "an infinite number"))
                };
                named.map(value).collect()
            }
        }
    }

    fn json_field(&self, line: &str, name: &str) -> Result<Value, RowError> {
        let wrong = |found: &str| Err(no_json(name, found));
        match TextField::of(line, name) {
            Ok(TextField::Found(value)) => match serde_json::from_str::<Tree>(value.get()) {
                Ok(_) if self.keeps_digits && !is_exact(value) => wrong(
                    "a number with more digits than 64 bits hold, which is stored only as a text",
                ),
                Ok(Tree(found)) => Ok(found),
                Err(error) if error.is_data() => wrong("an object with a field several times"),
                Err(error) => wrong(wrong_scalar(&error).unwrap_or("another")),
            },
            Ok(TextField::Missing) => Ok(Value::Null),
            Ok(TextField::Repeated) => wrong("the field several times"),
            Err(_) => wrong("a row that is not an object"),
        }
    }

    /// The values in a CSV row. NULL, empty and missing fields have none.
    fn csv_fields(&self, row: &CsvRow, dialect: &Dialect) -> Result<Vec<Value>, RowError> {
        let places = self.places.iter().flatten().copied();
        let mut splitter = Splitter::new(dialect, row.fields, 1);
        // Rows are split when they are read.
        let _ = splitter.split(row.content());
        let values = places.zip(&self.names).map(|(place, name)| {
            let raw = match place < row.fields {
                true => &row.content()[splitter.field(place)],
                false => &[],
            };
            match dialect.is_null(raw) {
                true => Ok(Value::Null),
                false => csv_field(&dialect.value(raw), name),
            }
        });
        values.collect()
    }
}

/// The error of a row whose value has no form in JSON.
fn no_json(name: &str, found: &str) -> RowError {
    RowError::new(
        ErrorKind::Row,
        format!("expected a JSON value in `{name}`, but found {found}"),
    )
}

/// An empty field has no value.
fn csv_field(field: &[u8], name: &str) -> Result<Value, RowError> {
    match field {
        [] => Ok(Value::Null),
        bytes => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.into()),
            Err(_) => Err(RowError::new(
                ErrorKind::Row,
                format!("expected UTF-8 in `{name}`, but found other bytes"),
            )
            .with_hint("convert the file, such as with `iconv`")),
        },
    }
}

/// The rows at these places.
fn taken<T: Default>(mut rows: Vec<T>, places: &[usize]) -> Vec<T> {
    let taken = places.iter().map(|place| mem::take(&mut rows[*place]));
    taken.collect()
}

/// Rows, and their results, that are errors, in as few parts as their format permits.
pub fn failed(rows: Rows, results: &[RowResult]) -> Vec<(Rows, Vec<RowResult>)> {
    let is_failed = |place: &usize| results.get(*place).is_some_and(Result::is_err);
    let places: Vec<usize> = (0..results.len()).filter(is_failed).collect();
    let errors = || places.iter().map(|place| results[*place].clone()).collect();
    if places.is_empty() {
        return Vec::new();
    }
    match rows {
        Rows::Lines(lines) => vec![(Rows::Lines(taken(lines, &places)), errors())],
        Rows::Records(records) => vec![(Rows::Records(taken(records, &places)), errors())],
        Rows::Columns(rows) => places
            .iter()
            .map(|place| {
                let row = Rows::Columns(rows.row(*place));
                (row, vec![results[*place].clone()])
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rows::{CsvReader, Layout, RowReader};

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn fields_of_json_lines_keep_their_types() {
        let fields = Fields::new(&Head::JsonLines, names(&["id", "tags", "missing"])).unwrap();
        let rows = Rows::Lines(vec![
            br#"{"id": 7, "x": 1e400, "tags": ["a", null]}"#.to_vec(),
        ]);
        assert_eq!(
            fields.values(&rows, 0).unwrap(),
            [json!(7), json!(["a", null]), Value::Null]
        );
        let refused = |line: &str| {
            fields
                .values(&Rows::Lines(vec![line.as_bytes().to_vec()]), 0)
                .unwrap_err()
                .message
        };
        insta::assert_snapshot!(refused(r#"{"id": 1, "id": 2}"#), @"expected a JSON value in `id`, but found the field several times");
        insta::assert_snapshot!(refused(r#"{"id": [{"a": 1, "a": 2}]}"#), @"expected a JSON value in `id`, but found an object with a field several times");
        insta::assert_snapshot!(refused(r#"{"id": 1e400}"#), @"expected a JSON value in `id`, but found a number that is out of range");
        insta::assert_snapshot!(refused(r#"{"id": [{"total": 12345678901234.5678}]}"#), @"expected a JSON value in `id`, but found a number with more digits than 64 bits hold, which is stored only as a text");
        insta::assert_snapshot!(refused(r#"{"id": ["\ud83d"]}"#), @"expected a JSON value in `id`, but found a lone surrogate, half of a character such as an emoji");
    }

    #[test]
    fn columns_of_csv_are_found_once() {
        let reader = |file: String| {
            let layout = Layout::of_column(Some("text"));
            CsvReader::new(std::io::Cursor::new(file), &layout).unwrap()
        };
        let head = |header: &str| reader(format!("{header}\n")).head();
        let fields = Fields::new(&head("text,id"), names(&["id"])).unwrap();
        let record = |fields: &[&str]| {
            let mut reader = reader(format!("text,id\n{}\n", fields.join(",")));
            reader.next().unwrap().unwrap().rows
        };
        assert_eq!(
            fields.values(&record(&["a", "7"]), 0).unwrap(),
            [json!("7")]
        );
        assert_eq!(
            fields.values(&record(&["a", ""]), 0).unwrap(),
            [Value::Null]
        );
        assert_eq!(fields.values(&record(&["a"]), 0).unwrap(), [Value::Null]);
        // An empty line in a file with one column.
        let fields = Fields::new(&head("text"), names(&["text"])).unwrap();
        let rows = reader("text\n\na\n".to_owned()).next().unwrap().unwrap();
        assert_eq!(fields.values(&rows.rows, 0).unwrap(), [Value::Null]);
        let refused = |header| {
            Fields::new(&head(header), names(&["id"]))
                .err()
                .unwrap()
                .to_string()
        };
        insta::assert_snapshot!(refused("text,key"), @"no column `id`; the file has `text`, `key`");
        insta::assert_snapshot!(refused("id,text,id"), @"several columns are called `id`; rename the others");
    }

    #[test]
    fn failed_rows_are_taken_with_their_errors() {
        let error = || Err(RowError::new(ErrorKind::Text, "none"));
        let results = [Ok(Vec::new()), error(), Ok(Vec::new()), error()];
        let lines = Rows::Lines(
            ["a", "b", "c", "d"]
                .map(|line| line.as_bytes().to_vec())
                .to_vec(),
        );
        let [(Rows::Lines(lines), errors)] = &failed(lines, &results)[..] else {
            panic!("other parts")
        };
        assert_eq!((lines.concat(), errors.len()), (b"bd".to_vec(), 2));
    }
}
