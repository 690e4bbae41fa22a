//! JSON Lines: one object per line. Answer fields follow the input's, which are not changed.

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{self, Read},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{
    chunk::{
        CHUNK_BYTES, CHUNK_ROWS, Chunk, Head, MAX_ROW_BYTES, RowReader, RowWriter, Rows,
        WrittenPiece, mismatched,
    },
    column::{Content, find_column, free_name, is_known},
    json_fields::{TextField, contents, other_type},
    lines::{Lines, line_text},
};
use crate::{
    input::compression::Packer,
    output::answer::{Cell, Column, Columns, ERROR_COLUMN, ErrorKind, RowError, RowResult, names},
};
use kivu::{
    Error, Result,
    json::{syntax, wrong_scalar},
};

/// Text column for a file whose first rows have neither a text nor a known name.
const DEFAULT_COLUMN: &str = "text";
/// Rows that determine the text column, unless a chunk's rows have texts in a column with a known name.
const MAX_ROWS_AHEAD: usize = 1000;
/// Maximum number of names that are considered in these rows; further names are ignored, except known ones.
const MAX_NAMES: usize = 10_000;

/// Reads rows from lines.
pub struct JsonLinesReader {
    lines: Lines,
    column: String,
    /// Lines that were read ahead to find the column.
    ahead: VecDeque<AheadLine>,
    position: u64,
}

/// A line that was read ahead to find the column.
#[derive(Debug)]
struct AheadLine {
    bytes: Vec<u8>,
    /// The position after the line.
    end: u64,
}

impl JsonLinesReader {
    /// Field names in the first line of `file`.
    pub fn names(file: impl Read + Send + 'static) -> Result<Vec<String>> {
        let mut line = Vec::new();
        if !Lines::new(file).next(&mut line)? {
            return Err(Error::invalid("expected rows, but found only empty lines"));
        }
        let json = std::str::from_utf8(&line).unwrap_or_default();
        let contents = contents(json).map_err(|error| {
            Error::invalid(format!(
                "expected a JSON object in the first line, but found {}",
                message(&error)
            ))
        })?;
        Ok(contents
            .into_iter()
            .map(|(name, _)| name.into_owned())
            .collect())
    }

    /// Reads `file`, which has its texts in `column`, by default in the best field in its first rows.
    pub fn new(file: impl Read + Send + 'static, column: Option<&str>) -> Result<Self> {
        let mut lines = Lines::new(file);
        let (column, ahead) = match column {
            Some(column) => (column.to_owned(), VecDeque::new()),
            None => look_ahead(&mut lines)?,
        };
        Ok(Self {
            lines,
            column,
            ahead,
            position: 0,
        })
    }

    fn line(&mut self, line: &mut Vec<u8>) -> Result<bool> {
        let Some(next) = self.ahead.pop_front() else {
            let is_found = self.lines.next(line)?;
            self.position = self.lines.position();
            return Ok(is_found);
        };
        (*line, self.position) = (next.bytes, next.end);
        Ok(true)
    }

    fn text(&self, line: &[u8]) -> Result<String, RowError> {
        let (json, column) = (line_text(line)?, &self.column);
        let field = TextField::of(json, column).map_err(|error| {
            let message = format!("expected a JSON object, but found {}", message(&error));
            RowError::new(ErrorKind::Row, message)
        })?;
        let found = match field {
            TextField::Missing => "nothing".to_owned(),
            TextField::Repeated => "the field several times".to_owned(),
            TextField::Found(value) => match other_type(value) {
                Some(found) => found.to_owned(),
                None => match serde_json::from_str(value.get()) {
                    Ok(text) => return Ok(text),
                    Err(error) => message(&error),
                },
            },
        };
        Err(RowError::new(
            ErrorKind::Text,
            format!("expected text in `{column}`, but found {found}"),
        ))
    }
}

/// Finds the text column by the first rows, whose number and bytes are limited, and returns these rows.
fn look_ahead(lines: &mut Lines) -> Result<(String, VecDeque<AheadLine>)> {
    let (mut ahead, mut bytes) = (VecDeque::new(), 0);
    let mut columns: BTreeMap<String, Content> = BTreeMap::new();
    let is_text =
        |(name, content): (&String, &Content)| *content == Content::Texts && is_known(name);
    while ahead.len() < MAX_ROWS_AHEAD && bytes < CHUNK_BYTES {
        if ahead.len() >= CHUNK_ROWS && columns.iter().any(is_text) {
            break;
        }
        let mut line = Vec::new();
        if !lines.next(&mut line)? {
            break;
        }
        let json = std::str::from_utf8(&line).unwrap_or_default();
        for (name, content) in contents(json).unwrap_or_default() {
            if let Some(known) = columns.get_mut(&*name) {
                *known = content.max(*known);
            } else if columns.len() < MAX_NAMES || is_known(&name) {
                columns.insert(name.into_owned(), content);
            }
        }
        bytes += line.len();
        ahead.push_back(AheadLine {
            bytes: line,
            end: lines.position(),
        });
    }
    let columns: Vec<(String, Content)> = columns.into_iter().collect();
    let has_candidates = columns
        .iter()
        .any(|(name, content)| *content == Content::Texts || is_known(name));
    let column = if has_candidates {
        find_column(None, &columns)?
    } else {
        DEFAULT_COLUMN.to_owned()
    };
    Ok((column, ahead))
}

impl RowReader for JsonLinesReader {
    fn head(&self) -> Head {
        Head::JsonLines
    }

    fn column(&self) -> &str {
        &self.column
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn skip(&mut self, rows: u64) -> Result<()> {
        let mut line = Vec::new();
        for _ in 0..rows {
            if !self.line(&mut line)? {
                break;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        let (mut texts, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0);
        while texts.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let mut line = Vec::new();
            if !self.line(&mut line)? {
                break;
            }
            bytes += line.len();
            texts.push(self.text(&line));
            rows.push(line);
        }
        Ok((!texts.is_empty()).then_some(Chunk {
            texts,
            rows: Rows::Lines(rows),
        }))
    }
}

/// The parser's message without the line number, which is always 1, and without a value from the line.
fn message(error: &serde_json::Error) -> String {
    if error.is_data() {
        return "another value".to_owned();
    }
    match wrong_scalar(error) {
        Some(found) => found.to_owned(),
        None => format!("an error at column {}: {}", error.column(), syntax(error)),
    }
}

pub struct JsonLinesWriter {
    target: Packer,
    columns: Columns,
    names: BTreeSet<String>,
}

/// Maximum reported answer columns; each line may need other names.
const MAX_COLUMNS: usize = 20;

impl JsonLinesWriter {
    pub fn new(target: Packer, columns: Columns) -> Self {
        Self {
            target,
            columns,
            names: BTreeSet::new(),
        }
    }
}

impl RowWriter for JsonLinesWriter {
    fn write(&mut self, rows: Rows, results: &mut [RowResult]) -> Result<()> {
        let Rows::Lines(lines) = rows else {
            return mismatched();
        };
        let Self {
            target,
            columns,
            names,
        } = self;
        for (line, result) in lines.iter().zip(results) {
            target.append(|output| write_line(output, line, columns, result, names))?;
        }
        Ok(())
    }

    fn columns(&self) -> &BTreeSet<String> {
        &self.names
    }

    fn size(&self) -> usize {
        self.target.size()
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        Ok((self.target.finish()?, None))
    }
}

/// Appends a line with its answers, and adds their column names to `known`.
pub fn write_line(
    output: &mut Vec<u8>,
    line: &[u8],
    columns: &[Column],
    result: &RowResult,
    known: &mut BTreeSet<String>,
) -> io::Result<()> {
    // Fields that answer names must not repeat.
    let fields = match result {
        Err(error) if error.kind == ErrorKind::Row => {
            open_malformed(output, line);
            &b""[..]
        }
        _ => {
            let open = line.strip_suffix(b"}").unwrap_or(line).trim_ascii_end();
            output.extend_from_slice(open);
            if !open.ends_with(b"{") {
                output.push(b',');
            }
            line
        }
    };
    let taken = OnceCell::new();
    // Parses the line only if its bytes may contain the name, literally or escaped.
    let is_taken = |name: &str| {
        (contains(fields, format!("\"{name}\"").as_bytes()) || contains(fields, b"\\u"))
            && taken.get_or_init(|| field_names(fields)).contains(name)
    };
    let mut write = |comma: &str, name: &str, cell: &Cell| {
        let name = free_name(name, is_taken);
        output.extend_from_slice(format!("{comma}\"{name}\":").as_bytes());
        serde_json::to_writer(&mut *output, cell)?;
        if known.len() < MAX_COLUMNS {
            known.insert(name);
        }
        io::Result::Ok(())
    };
    match result {
        Ok(answer) => {
            let commas = std::iter::once("").chain(std::iter::repeat(","));
            for ((name, cell), comma) in names(columns).zip(answer).zip(commas) {
                write(comma, name, cell)?;
            }
        }
        Err(error) => {
            let message = Cell::Text(error.message.to_string().into());
            write("", ERROR_COLUMN, &message)?;
        }
    }
    output.extend_from_slice(b"}\n");
    Ok(())
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|found| found == part)
}

/// An object's own field names.
fn field_names(line: &[u8]) -> BTreeSet<String> {
    serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(line)
        .map(|fields| fields.into_keys().collect())
        .unwrap_or_default()
}

/// Begins an object that contains a malformed line.
fn open_malformed(target: &mut Vec<u8>, line: &[u8]) {
    let kept = &line[..line.len().min(MAX_ROW_BYTES)];
    let (name, text) = match std::str::from_utf8(kept) {
        Ok(text) => ("input", Cow::Borrowed(text)),
        Err(_) => ("input_base64", Cow::Owned(STANDARD.encode(kept))),
    };
    target.extend_from_slice(format!("{{\"{name}\":{},", Value::from(text)).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{input::compression::Compression, output::answer::score_column};

    fn written(text: &str) -> String {
        let contents = io::Cursor::new(text.as_bytes().to_vec());
        let mut reader = JsonLinesReader::new(contents, None).unwrap();
        let mut writer = JsonLinesWriter::new(Compression::None.pack().unwrap(), score_column());
        while let Some(Chunk { texts, rows }) = reader.next().unwrap() {
            let mut results: Vec<RowResult> = texts
                .into_iter()
                .map(|text| text.map(|_| vec![Cell::Number(0.5)]))
                .collect();
            writer.write(rows, &mut results).unwrap();
        }
        String::from_utf8(Box::new(writer).finish().unwrap().0).unwrap()
    }

    #[test]
    fn a_line_comes_out_as_it_went_in_and_with_its_answer() {
        insta::assert_snapshot!(written("{\"n\": 1.0, \"text\": \"\\u00e9\"}\r\n\n{ \"text\":\"b\" , \"score\":7 }"), @r#"
        {"n": 1.0, "text": "\u00e9","score":0.5}
        { "text":"b" , "score":7,"kivu_score":0.5}
        "#);
    }

    #[test]
    fn lines_that_are_not_objects_are_kept_with_their_error() {
        insta::assert_snapshot!(written("{\"text\": \"a\"}\n{\"text\": \n[\"a\"]\n{}\n{\"text\": [1]}"), @r#"
        {"text": "a","score":0.5}
        {"input":"{\"text\":","error":"expected a JSON object, but found an error at column 8: EOF while parsing a value"}
        {"input":"[\"a\"]","error":"expected a JSON object, but found another value"}
        {"error":"expected text in `text`, but found nothing"}
        {"text": [1],"error":"expected text in `text`, but found a list"}
        "#);
    }

    #[test]
    fn names_of_answers_stay_unique_however_often_a_file_is_annotated() {
        let once = written("{\"text\": \"a\"}");
        let third = written(&written(&once));
        assert_eq!(
            third,
            "{\"text\": \"a\",\"score\":0.5,\"kivu_score\":0.5,\"kivu_score_2\":0.5}\n"
        );
        // A name with escapes is the same name; one in a text or in an inner object is not a field.
        assert!(written(r#"{"text": "a", "\u0073core": 1}"#).ends_with("\"kivu_score\":0.5}\n"));
        assert!(
            written(r#"{"text": "\"score\"", "b": {"score": 1}}"#).ends_with(",\"score\":0.5}\n")
        );
    }

    #[test]
    fn a_text_of_another_type_is_named_from_the_first_row_on() {
        insta::assert_snapshot!(written("{\"text\": 5}\n{\"text\": [1]}\n{\"text\": {}}\n{\"text\": \"a\"}\n{\"text\": true}"), @r#"
        {"text": 5,"error":"expected text in `text`, but found a number"}
        {"text": [1],"error":"expected text in `text`, but found a list"}
        {"text": {},"error":"expected text in `text`, but found an object"}
        {"text": "a","score":0.5}
        {"text": true,"error":"expected text in `text`, but found a boolean"}
        "#);
    }

    fn column_of(text: &str) -> Result<String> {
        let contents = io::Cursor::new(text.as_bytes().to_vec());
        Ok(JsonLinesReader::new(contents, None)?.column().to_owned())
    }

    #[test]
    fn a_known_name_is_the_column_even_if_its_first_values_are_null_or_missing() {
        for first in [
            r#"{"id": "a1", "review": null}"#,
            r#"{"id": "a1"}"#,
            r#"{"id": "a1", "review": 5}"#,
        ] {
            let text = format!("{first}\n{{\"id\": \"a2\", \"review\": \"awful\"}}\n");
            assert_eq!(column_of(&text).unwrap(), "review", "{first}");
        }
        // A column with a known name is chosen even if it has no text at all.
        let nulls = "{\"id\": \"a1\", \"review\": null}\n".repeat(2000);
        assert_eq!(column_of(&nulls).unwrap(), "review");
        assert!(
            written(&nulls)
                .lines()
                .all(|line| line.contains("expected text in `review`, but found null"))
        );
    }

    #[test]
    fn a_column_of_another_name_is_found_by_many_rows() {
        let ids = |count| "{\"id\": \"a\"}\n".repeat(count);
        assert_eq!(column_of(&ids(10)).unwrap(), "id");
        assert_eq!(
            column_of(&format!("{}{{\"body\": \"b\"}}\n", ids(999))).unwrap(),
            "body"
        );
        let refused = column_of("{\"a\": \"x\"}\n{\"b\": \"y\"}\n")
            .unwrap_err()
            .to_string();
        insta::assert_snapshot!(refused, @"expected a column called `text` or another that is known, but found `a`, `b`; say which one with `column` (`--column`)");
        assert_eq!(column_of(&"no object\n".repeat(5)).unwrap(), "text");
    }

    #[test]
    fn the_column_does_not_depend_on_the_sizes_of_reads_or_on_skipped_rows() {
        /// One byte per read.
        struct Slow(io::Cursor<Vec<u8>>);
        impl Read for Slow {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = buffer.len().min(1);
                self.0.read(&mut buffer[..length])
            }
        }
        let text = format!("{}{{\"review\": \"b\"}}\n", "{\"id\": \"a\"}\n".repeat(100));
        let mut reader =
            JsonLinesReader::new(Slow(io::Cursor::new(text.clone().into_bytes())), None).unwrap();
        assert_eq!((reader.column(), reader.position()), ("review", 0));
        reader.skip(100).unwrap();
        let chunk = reader.next().unwrap().unwrap();
        assert_eq!(chunk.texts, [Ok("b".to_owned())]);
        assert_eq!(reader.position(), text.len() as u64);
        assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn values_that_are_not_read_do_not_matter() {
        insta::assert_snapshot!(written("{\"text\": \"a\", \"n\": 1e400}\n{\"text\": 1e400}\n{\"text\": \"b\", \"n\": \"\\ud800\"}"), @r#"
        {"text": "a", "n": 1e400,"score":0.5}
        {"text": 1e400,"error":"expected text in `text`, but found a number"}
        {"text": "b", "n": "\ud800","score":0.5}
        "#);
    }

    #[test]
    fn a_repeated_text_and_half_a_character_are_errors_of_their_rows() {
        insta::assert_snapshot!(written("{\"text\": \"a\", \"text\": \"b\"}\n{\"text\": \"\\ud800\"}\n{\"text\": \"a\\udc00b\"}\n{\"text\": \"a\", \"\\ud83d\": 1}"), @r#"
        {"text": "a", "text": "b","error":"expected text in `text`, but found the field several times"}
        {"text": "\ud800","error":"expected text in `text`, but found a lone surrogate, half of a character such as an emoji"}
        {"text": "a\udc00b","error":"expected text in `text`, but found a lone surrogate, half of a character such as an emoji"}
        {"input":"{\"text\": \"a\", \"\\ud83d\": 1}","error":"expected a JSON object, but found a lone surrogate, half of a character such as an emoji"}
        "#);
    }
}
