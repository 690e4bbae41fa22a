//! Files in which the texts of some columns are replaced.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    path::Path,
    sync::Arc,
};

use serde_json::Value;

use crate::{
    input::{
        compression::{Compression, unwritable},
        format::Format,
        opened::{BytesRead, OpenInput},
    },
    job::{parameters::Parameters, predictor::Predictor, process::open_rows},
    output::answer::ErrorKind,
    rows::{
        Chunk, Footers, Head, Layout, PARQUET_MAGIC, Parquet, ParquetColumns, ReplacedColumns,
        RowWriter, Rows, is_known, mismatched, places, reading,
    },
};
use kivu::{Error, Result, model::Model, task::entities::EntityFinder};

/// Replaces texts that are read together.
pub type Replace<'a> = dyn FnMut(Vec<String>) -> Result<Vec<String>> + 'a;

/// Unwritten bytes of a Parquet file.
const PIECE_BYTES: usize = 16 * 1024 * 1024;

/// A model that finds entities, with a job's parameters.
///
/// # Errors
/// The model is for another task, or a parameter does not fit it.
pub fn entity_finder(model: &Model, parameters: &Parameters) -> Result<EntityFinder> {
    match Predictor::new(model, parameters)? {
        Predictor::Entities(finder, _) => Ok(finder),
        _ => Err(Error::invalid(format!(
            "`{}` is for `{}`; names are found by models for `token-classification`",
            model.name, model.manifest.task
        ))),
    }
}

/// Rows that were copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Their number; text is one row.
    pub rows: u64,
    /// How many rows of JSON Lines lack a column, by its name. Null is a value.
    pub missing: BTreeMap<String, u64>,
    /// Whether bytes were appended to the file since it was opened, which were not copied.
    pub is_changed: bool,
}

/// Copies a file of CSV, JSON Lines or Parquet to `output` with other texts in `columns`, without any in its text column;
/// and text with another one. Compressed files are unpacked.
///
/// # Errors
/// The file has another format, no such column, or a malformed row, or was written over while it was read.
pub fn rewrite(
    input: &Path,
    columns: &[String],
    output: &mut dyn Write,
    parquet: Parquet,
    replace: &mut Replace<'_>,
) -> Result<Rewritten> {
    let opened = OpenInput::file(input)?;
    let mut layout = Layout::of_column(columns.first().map(String::as_str));
    let format = opened.format(None, &layout)?;
    // Below, an error says what redaction needs.
    layout.csv.header = Some(true);
    if format.0 == Format::OpenAi {
        return Err(Error::config(
            "expected CSV, JSON Lines, Parquet or text, but found requests",
        ));
    }
    if format.0 == Format::Text {
        return replaced_text(&opened, format.1, output, replace);
    }
    let mut write = |bytes: &[u8]| output.write_all(bytes).map_err(unwritable);
    let gauge = BytesRead::default();
    let mut reader = open_rows(&opened, format, &layout, &gauge, parquet)?;
    let names = match columns {
        // Without a header, the first row would be copied with its originals.
        [] if matches!(reader.head(), Head::Csv(_)) && !is_known(reader.column()) => {
            return Err(Error::invalid(
                "the first line may be a row, because it has no known name of a column",
            )
            .with_hint("put a header before the rows, or name the column with `--columns`"));
        }
        [] => vec![reader.column().to_owned()],
        names => names.to_vec(),
    };
    let mut copy = match reader.head() {
        Head::Parquet(columns) => Copy::Parquet(ParquetCopy::new(columns, &names)?),
        head => Copy::Texts(ReplacedColumns::new(&head, names)?),
    };
    write(&match &copy {
        Copy::Texts(columns) => columns.start(),
        Copy::Parquet(_) => PARQUET_MAGIC.to_vec(),
    })?;
    let mut done = 0;
    while let Some(chunk) = reader.next()? {
        let count = check_rows(&chunk, done)?;
        let mut replaced = |texts: Vec<String>| {
            let rows = format_args!("in rows {} to {}", done + 1, done + count).to_string();
            let expected = texts.len();
            match replace(texts) {
                Ok(found) if found.len() != expected => Err(Error::model(format!(
                    "expected {expected} replaced texts {rows}, but found {}",
                    found.len()
                ))),
                found => found.map_err(|error| error.at(rows)),
            }
        };
        let bytes = match &mut copy {
            Copy::Texts(columns) => replaced_rows(columns, &chunk, done, &mut replaced)?,
            Copy::Parquet(copy) => copy.add(chunk, &mut replaced)?,
        };
        write(&bytes)?;
        done += count;
    }
    let missing = match copy {
        Copy::Texts(columns) => columns.missing(done)?,
        Copy::Parquet(copy) => {
            write(&copy.finish()?)?;
            BTreeMap::new()
        }
    };
    Ok(Rewritten {
        rows: done,
        missing,
        is_changed: opened.is_changed(&gauge)?,
    })
}

/// Copies a file to `output` with another text, whatever its format.
///
/// # Errors
/// The file is not UTF-8, or was written over while it was read.
pub fn rewrite_text(
    input: &Path,
    output: &mut dyn Write,
    replace: &mut Replace<'_>,
) -> Result<Rewritten> {
    replaced_text(&OpenInput::file(input)?, Compression::None, output, replace)
}

fn replaced_text(
    opened: &OpenInput,
    compression: Compression,
    output: &mut dyn Write,
    replace: &mut Replace<'_>,
) -> Result<Rewritten> {
    let (gauge, mut text) = (BytesRead::default(), String::new());
    let read = opened
        .unpacked(compression, &gauge)?
        .read_to_string(&mut text);
    read.map_err(reading)?;
    let replaced = replace(vec![text])?.concat();
    output.write_all(replaced.as_bytes()).map_err(unwritable)?;
    Ok(Rewritten {
        rows: 1,
        missing: BTreeMap::new(),
        is_changed: opened.is_changed(&gauge)?,
    })
}

/// The rows of a file that is copied.
enum Copy {
    Texts(ReplacedColumns),
    Parquet(ParquetCopy),
}

/// The number of rows in a chunk after `done` others, none of which is malformed.
fn check_rows(chunk: &Chunk, done: u64) -> Result<u64> {
    for (text, row) in chunk.texts.iter().zip(done + 1..) {
        match text {
            Err(error) if error.kind == ErrorKind::Row => {
                return Err(Error::invalid(error.message.clone()).at(format_args!("in row {row}")));
            }
            _ => {}
        }
    }
    Ok(chunk.texts.len() as u64)
}

/// The bytes of a chunk's rows, which are read twice: for their texts, and to replace them.
fn replaced_rows(
    columns: &mut ReplacedColumns,
    chunk: &Chunk,
    done: u64,
    replace: &mut Replace<'_>,
) -> Result<Vec<u8>> {
    let each = |columns: &mut ReplacedColumns, replace: &mut dyn FnMut(&str) -> Result<String>| {
        let mut bytes = Vec::new();
        for row in 0..chunk.texts.len() {
            let place = done + row as u64 + 1;
            columns
                .write(&chunk.rows, row, replace, &mut bytes)
                .map_err(|error| error.at(format_args!("in row {place}")))?;
        }
        Ok::<_, Error>(bytes)
    };
    let mut texts = Vec::new();
    // A copy, so that rows count once.
    each(&mut columns.clone(), &mut |text| {
        texts.push(text.to_owned());
        Ok(text.to_owned())
    })?;
    let mut found = replace(texts)?.into_iter();
    each(columns, &mut |_| Ok(found.next().unwrap_or_default()))
}

/// A Parquet file that is copied piece by piece.
struct ParquetCopy {
    columns: Arc<dyn ParquetColumns>,
    places: Vec<usize>,
    writer: Box<dyn RowWriter>,
    footers: Footers,
}

impl ParquetCopy {
    fn new(columns: Arc<dyn ParquetColumns>, names: &[String]) -> Result<Self> {
        let places = places(&columns.names(), names)?;
        Ok(Self {
            writer: columns.copier(&places)?,
            columns,
            places,
            footers: Footers::new(),
        })
    }

    /// Adds rows, and returns a piece if it is complete.
    fn add(&mut self, chunk: Chunk, replace: &mut Replace<'_>) -> Result<Vec<u8>> {
        let (Rows::Columns(mut rows), count) = (chunk.rows, chunk.texts.len()) else {
            return mismatched();
        };
        let mut texts = Vec::new();
        for place in &self.places {
            texts.extend((0..count).map(|row| match rows.value(*place, row) {
                Some(Value::String(text)) => Some(text),
                _ => None,
            }));
        }
        let mut found = replace(texts.iter().flatten().cloned().collect())?.into_iter();
        let mut new = texts
            .into_iter()
            .map(|text| text.and_then(|_| found.next()));
        for place in &self.places {
            rows = rows.with_texts(*place, new.by_ref().take(count).collect())?;
        }
        self.writer.write(Rows::Columns(rows), &mut [])?;
        match self.writer.size() {
            ..PIECE_BYTES => Ok(Vec::new()),
            _ => {
                let next = self.columns.copier(&self.places)?;
                let writer = std::mem::replace(&mut self.writer, next);
                piece(writer, &mut self.footers)
            }
        }
    }

    /// The last piece, and the end of the file.
    fn finish(mut self) -> Result<Vec<u8>> {
        let mut bytes = piece(self.writer, &mut self.footers)?;
        bytes.extend(self.columns.join_footers(&self.footers)?);
        Ok(bytes)
    }
}

/// A finished piece, whose footer is added to `footers`.
fn piece(writer: Box<dyn RowWriter>, footers: &mut Footers) -> Result<Vec<u8>> {
    let (bytes, footer) = writer.finish()?;
    footers.extend(footer.map(|footer| (bytes.len() as u64, footer)));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, time::SystemTime};

    use super::*;

    #[test]
    fn a_column_that_no_row_has_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let rewritten = |text: &str, columns: &[&str]| {
            fs::write(&path, text).unwrap();
            let columns = columns
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>();
            let mut output = Vec::new();
            let mut upper =
                |texts: Vec<String>| Ok(texts.iter().map(|text| text.to_uppercase()).collect());
            rewrite(&path, &columns, &mut output, Parquet::default(), &mut upper)
                .map(|found| (String::from_utf8(output).unwrap(), found.missing))
        };
        let sparse = "{\"a\": \"x\"}\n{\"b\": null}\n";
        let (rows, missing) = rewritten(sparse, &["a", "b"]).unwrap();
        assert_eq!(rows, "{\"a\": \"X\"}\n{\"b\": null}\n");
        assert_eq!(missing, [("a".to_owned(), 1), ("b".to_owned(), 1)].into());
        assert!(rewritten("{\"a\": null}\n", &["a"]).unwrap().1.is_empty());
        let refusal = rewritten(sparse, &["a", "c"]).unwrap_err();
        insta::assert_snapshot!(refusal, @"no row has the column `c`");
    }

    #[test]
    fn a_row_is_no_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(&path, "a@b.org\nc@b.org\n").unwrap();
        let rewritten = |columns: &[String]| {
            let mut output = Vec::new();
            let mut same = |texts: Vec<String>| Ok(texts);
            let parquet = Parquet::default();
            rewrite(&path, columns, &mut output, parquet, &mut same)
        };
        insta::assert_snapshot!(rewritten(&[]).unwrap_err(), @"the first line may be a row, because it has no known name of a column; put a header before the rows, or name the column with `--columns`");
        assert_eq!(rewritten(&["a@b.org".to_owned()]).unwrap().rows, 1);
    }

    #[test]
    fn a_file_that_is_written_over_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let changed = |is_text: bool, later: &str| {
            fs::write(&path, "text\na@b.org\n").unwrap();
            // Times have steps of a few milliseconds.
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            let mut changes = |texts: Vec<String>| {
                fs::write(&path, later).unwrap();
                Ok(texts)
            };
            let mut output = Vec::new();
            let found = match is_text {
                true => rewrite_text(&path, &mut output, &mut changes),
                false => rewrite(&path, &[], &mut output, Parquet::default(), &mut changes),
            };
            found.map(|found| (found.is_changed, String::from_utf8(output).unwrap()))
        };
        for is_text in [true, false] {
            let same = "text\na@b.org\n";
            let longer = changed(is_text, &format!("{same}c@b.org\n")).unwrap();
            assert_eq!(longer, (true, same.to_owned()));
            let refusal = changed(is_text, "text\nd@b.org\n").unwrap_err();
            let refusal = refusal.to_string();
            assert!(refusal.contains("while it is read"), "{refusal}");
        }
    }

    #[test]
    fn a_missing_text_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(&path, "text\na\nb\n").unwrap();
        let mut drops_one = |mut texts: Vec<String>| {
            texts.pop();
            Ok(texts)
        };
        let mut output = Vec::new();
        let refusal = rewrite(&path, &[], &mut output, Parquet::default(), &mut drops_one);
        insta::assert_snapshot!(refusal.unwrap_err(), @"expected 2 replaced texts in rows 1 to 2, but found 1");
    }
}
