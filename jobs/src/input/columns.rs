//! Columns of a whole file, read as a job reads its rows: for files with texts and what is expected of them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    compression::Compression,
    format::Format,
    opened::{BytesRead, OpenInput},
};
use crate::{
    output::answer::{ErrorKind, RowError},
    rows::{
        CsvReader, Fields, JsonLinesReader, Layout, Parquet, RowReader, TEXT_COLUMN, TextReader,
    },
};
use kivu::{Error, Result};

/// A file of JSON Lines, CSV or text, plain or compressed, or of Parquet.
pub struct ColumnFile {
    path: PathBuf,
    input: OpenInput,
    format: Format,
    compression: Compression,
    names: Vec<String>,
    parquet: Parquet,
}

impl ColumnFile {
    /// Opens a file and reads its column names: the header's, or the first line's in JSON Lines.
    pub fn open(path: &Path, parquet: Parquet) -> Result<Self> {
        let within = |error| in_file(path, error);
        let input = OpenInput::file(path)?;
        let (format, compression) = input.format(None, &Layout::default()).map_err(within)?;
        if input.size().is_none() {
            return Err(in_file(
                path,
                Error::invalid("expected a regular file, but found a stream")
                    .with_hint("save it first"),
            ));
        }
        let contents = || input.unpacked(compression, &BytesRead::default());
        let names = match format {
            Format::Parquet => parquet
                .format()
                .and_then(|format| format.names(input.clone())),
            Format::Csv => contents().and_then(CsvReader::names),
            Format::Text => Ok(vec![TEXT_COLUMN.to_owned()]),
            Format::JsonLines | Format::OpenAi => contents().and_then(JsonLinesReader::names),
        };
        let names = names.map_err(within)?;
        Ok(Self {
            path: path.to_owned(),
            input,
            format,
            compression,
            names,
            parquet,
        })
    }

    /// Column names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The values in the columns `names`, row by row: texts, numbers, booleans and lists of numbers; null for missing
    /// ones.
    ///
    /// # Errors
    /// A row is malformed, or there are more than `limit` rows.
    pub fn rows(&self, names: &[&str], limit: usize) -> Result<Vec<Vec<Value>>> {
        self.read(names, limit)
            .map_err(|error| in_file(&self.path, error))
    }

    fn read(&self, names: &[&str], limit: usize) -> Result<Vec<Vec<Value>>> {
        let mut reader = self.reader(names)?;
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let fields = Fields::with_vectors(&reader.head(), names)?;
        let mut found = Vec::new();
        while let Some(chunk) = reader.next()? {
            for (row, text) in chunk.texts.iter().enumerate() {
                let number = found.len() + 1;
                let malformed = |error: RowError| {
                    Error::invalid(error.message.at(format_args!("in row {number}")))
                };
                if number > limit {
                    return Err(Error::invalid(format!(
                        "expected at most {limit} rows, but found more"
                    )));
                }
                match text {
                    Err(error) if error.kind == ErrorKind::Row => {
                        return Err(malformed(error.clone()));
                    }
                    _ => {}
                }
                let values = fields.values(&chunk.rows, row);
                found.push(values.map_err(malformed)?);
            }
        }
        Ok(found)
    }

    fn reader(&self, names: &[&str]) -> Result<Box<dyn RowReader>> {
        let contents = || self.input.unpacked(self.compression, &BytesRead::default());
        let column = names.first().copied();
        Ok(match self.format {
            Format::Parquet => self.parquet.format()?.column_reader(self.input.clone())?,
            Format::Csv => Box::new(CsvReader::new(contents()?, &Layout::of_column(column))?),
            Format::Text => Box::new(TextReader::new(contents()?, None)?),
            Format::JsonLines | Format::OpenAi => {
                Box::new(JsonLinesReader::new(contents()?, column)?)
            }
        })
    }
}

fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Io { .. } => error,
        error => Error::config(error.message().at(format_args!("in `{}`", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_read_from_every_text_format() {
        let open = |path: &Path| ColumnFile::open(path, Parquet::default());
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let csv = write("a.csv", "id,first,second\n1,a,b\n2,\"c,d\",\n");
        let tsv = write("a.tsv", "first\tsecond\na\tb\nc,d\t\n");
        let lines = write(
            "a.jsonl",
            "{\"first\": \"a\", \"second\": \"b\", \"x\": [1, 2.5]}\n{\"first\": \"c,d\"}\n",
        );
        for path in [&csv, &tsv, &lines] {
            let file = open(path).unwrap();
            assert!(
                file.names().iter().any(|name| name == "second"),
                "{:?}",
                file.names()
            );
            let rows = file.rows(&["second", "first"], 2).unwrap();
            assert_eq!(json!(rows), json!([["b", "a"], [null, "c,d"]]));
        }
        assert_eq!(
            json!(open(&lines).unwrap().rows(&["x"], 2).unwrap()),
            json!([[[1, 2.5]], [null]])
        );
        let refused = |path: &Path, limit| {
            let found = open(path).and_then(|file| file.rows(&["first"], limit));
            found
                .unwrap_err()
                .to_string()
                .replace(&folder.path().display().to_string(), "[folder]")
        };
        let text = open(&write("a.txt", "\u{feff}a\r\n\nb")).unwrap();
        assert_eq!(text.names(), ["text"]);
        assert_eq!(
            json!(text.rows(&["text"], 3).unwrap()),
            json!([["a"], [""], ["b"]])
        );
        insta::assert_snapshot!(refused(&csv, 1), @"in `[folder]/a.csv`: expected at most 1 rows, but found more");
        let ragged = write("b.csv", "first,second\na,b\nc\n");
        insta::assert_snapshot!(refused(&ragged, 9), @"in `[folder]/b.csv`: in row 2: expected 2 fields, but found 1");
        let damaged = write("b.jsonl", "{\"first\": \"a\"}\n{\"first\": }\n");
        insta::assert_snapshot!(refused(&damaged, 9), @"in `[folder]/b.jsonl`: in row 2: expected a JSON object, but found an error at column 11: expected value");
        insta::assert_snapshot!(refused(&write("c.csv", ""), 9), @"in `[folder]/c.csv`: expected rows, but found an empty file");
        insta::assert_snapshot!(refused(&write("d.csv", "text\na\n"), 9), @"in `[folder]/d.csv`: expected a column `first`, but found `text`");
        insta::assert_snapshot!(refused(&write("a.parquet", "PAR1"), 9), @"in `[folder]/a.parquet`: this program has no support for Parquet; compile it with the feature `services`, as `cargo install --path program` does, unlike `make run`");
    }
}
