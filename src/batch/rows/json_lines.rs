//! JSON Lines: one object per line. The fields of the answer follow those of the input, which are not changed.

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, BufRead, BufReader, Read},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    chunk::{
        CHUNK_BYTES, CHUNK_ROWS, Chunk, Head, MAX_ROW_BYTES, RowReader, RowWriter, Rows, WrittenPiece,
        mismatched, reading,
    },
    column::{find_column, free_name},
};
use crate::{
    batch::{
        answer::{Cell, Columns, ERROR_COLUMN, ErrorKind, RowError, RowResult, names},
        compression::Packer,
    },
    error::{Error, Result},
    json::syntax,
};

/// Some programs write it at the beginning of UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads the lines of a file, except empty ones.
pub(in crate::batch) struct JsonLinesReader {
    lines: BufReader<Box<dyn Read + Send>>,
    column: Option<String>,
    /// Whether `column` is final.
    is_found: bool,
    is_begun: bool,
    position: u64,
}

impl JsonLinesReader {
    /// Reads `file`, which has its texts in `column`, by default in the best field of the first row with a text.
    pub(in crate::batch) fn new(file: impl Read + Send + 'static, column: Option<&str>) -> Self {
        let file: Box<dyn Read + Send> = Box::new(file);
        Self {
            lines: BufReader::with_capacity(256 * 1024, file),
            column: column.map(str::to_owned),
            is_found: column.is_some(),
            is_begun: false,
            position: 0,
        }
    }

    /// Reads a line that is not empty, without its end; `false` at the end of the file.
    ///
    /// A line longer than [`MAX_ROW_BYTES`] is cut to one byte more, and becomes an error.
    fn line(&mut self, line: &mut Vec<u8>) -> Result<bool> {
        loop {
            self.skip_empty()?;
            line.clear();
            let limit = MAX_ROW_BYTES as u64 + 1;
            let read = (&mut self.lines).take(limit).read_until(b'\n', line).map_err(reading)?;
            if read == 0 {
                return Ok(false);
            }
            self.position += read as u64;
            if line.len() > MAX_ROW_BYTES && line.last() != Some(&b'\n') {
                line.truncate(MAX_ROW_BYTES + 1);
                self.lines.skip_until(b'\n').map_err(reading)?;
            }
            if !self.is_begun {
                self.is_begun = true;
                if line.starts_with(BYTE_ORDER_MARK) {
                    line.drain(..BYTE_ORDER_MARK.len());
                }
            }
            let end = line.trim_ascii_end().len();
            line.truncate(end);
            if !line.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Skips empty lines without copying them, since a compressed file may have billions.
    fn skip_empty(&mut self) -> Result<()> {
        loop {
            let buffer = self.lines.fill_buf().map_err(reading)?;
            let mut empty = 0;
            while let [b'\n', ..] | [b'\r', b'\n', ..] = buffer[empty..] {
                empty += 1;
            }
            if empty == 0 {
                return Ok(());
            }
            self.is_begun = true;
            self.position += empty as u64;
            self.lines.consume(empty);
        }
    }

    fn text(&mut self, line: &[u8]) -> Result<String, RowError> {
        let malformed = |message: String| Err(RowError::new(ErrorKind::Row, message));
        if line.len() > MAX_ROW_BYTES {
            return malformed(format!("expected a row of at most {MAX_ROW_BYTES} bytes, but found more"));
        }
        let json = match std::str::from_utf8(line) {
            Ok(json) => json,
            Err(error) => {
                let place = error.valid_up_to();
                return malformed(format!(
                    "expected UTF-8, but found the byte 0x{:02x} at column {}; convert the file, such as with `iconv`",
                    line.get(place).copied().unwrap_or_default(),
                    place + 1
                ));
            }
        };
        if !self.is_found {
            self.find(line);
        }
        let column = self.column.as_deref();
        let mut parser = serde_json::Deserializer::from_str(json);
        let found = Row { column }.deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
        match found {
            Err(error) => malformed(format!("expected a JSON object, but found {}", message(&error))),
            Ok(Found::Text(text)) => Ok(text),
            Ok(Found::Other(found)) => {
                let column = column.unwrap_or("text");
                let message = format!("expected text in `{column}`, but found {found}");
                Err(RowError::new(ErrorKind::Text, message))
            }
        }
    }

    /// Determines the column of texts by a row. If no field of the row is a text, a field with a known name is used
    /// for messages until a later row has a text.
    fn find(&mut self, line: &[u8]) {
        let Ok(Value::Object(fields)) = serde_json::from_slice(line) else { return };
        let names: Vec<String> = fields.keys().cloned().collect();
        let strings = fields.iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name.clone());
        let strings: Vec<String> = strings.collect();
        if let Ok(column) = find_column(None, &names, &strings) {
            self.column = Some(column);
            self.is_found = true;
        } else if strings.is_empty() {
            self.column = find_column(None, &names, &names).ok();
        }
    }
}

impl RowReader for JsonLinesReader {
    fn head(&self) -> Head {
        Head::JsonLines
    }

    fn column(&self) -> Option<&str> {
        self.column.as_deref()
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
            // Skipped rows determine the column too, as they did in an earlier process.
            if !self.is_found {
                self.find(&line);
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
        Ok((!texts.is_empty()).then_some(Chunk { texts, rows: Rows::Lines(rows) }))
    }
}

/// The message of the parser without the number of the line, which is always 1, and without a value of the line.
fn message(error: &serde_json::Error) -> String {
    if error.is_data() {
        return "another value".to_owned();
    }
    let text = syntax(error);
    format!("an error at column {}: {}", error.column(), text.split(" at line ").next().unwrap_or_default())
}

/// Extracts the text of a row.
struct Row<'a> {
    column: Option<&'a str>,
}

enum Found {
    Text(String),
    Other(&'static str),
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Found, A::Error> {
        let mut found = Found::Other("nothing");
        while let Some(name) = fields.next_key::<Name<'_>>()? {
            if self.column == Some(&*name.0) {
                found = fields.next_value_seed(Text)?;
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A key, copied only if it has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(Found::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::Other("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::Other("a boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Found, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Found, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Found::Other("an object"))
    }
}

pub(in crate::batch) struct JsonLinesWriter {
    target: Packer,
    columns: Columns,
    /// A line that is to be compressed.
    buffer: Vec<u8>,
    names: BTreeSet<String>,
}

/// The columns of answers that are reported; each line may need other names.
const MAX_COLUMNS: usize = 20;

impl JsonLinesWriter {
    pub(in crate::batch) fn new(target: Packer, columns: Columns) -> Self {
        Self { target, columns, buffer: Vec::new(), names: BTreeSet::new() }
    }
}

impl RowWriter for JsonLinesWriter {
    fn write(&mut self, rows: Rows, results: &[RowResult]) -> Result<()> {
        let Rows::Lines(lines) = rows else { return mismatched() };
        let Self { target, columns, buffer, names } = self;
        for (line, result) in lines.iter().zip(results) {
            let written = target.append(buffer, |output| write_line(output, line, (columns, result), names));
            written.map_err(Error::io("cannot write the output"))?;
        }
        Ok(())
    }

    fn columns(&self) -> &BTreeSet<String> {
        &self.names
    }

    fn size(&self) -> usize {
        self.target.len()
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        Ok((self.target.finish().map_err(Error::io("cannot write the output"))?, None))
    }
}

/// Appends a line with the answers to it, and adds the names of their columns to `known`.
fn write_line(
    output: &mut Vec<u8>,
    line: &[u8],
    (columns, result): (Columns, &RowResult),
    known: &mut BTreeSet<String>,
) -> io::Result<()> {
    // The fields that the names of answers must not repeat.
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
    // Parses the line only if its bytes may contain the name: literally, or with escapes.
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
        Err(error) => write("", ERROR_COLUMN, &Cell::Text(error.message.as_str().into()))?,
    }
    output.extend_from_slice(b"}\n");
    Ok(())
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|found| found == part)
}

/// The names of an object's own fields.
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
    use crate::batch::answer::SCORE;

    fn written(text: &str) -> String {
        let contents = io::Cursor::new(text.as_bytes().to_vec());
        let mut reader = JsonLinesReader::new(contents, None);
        let mut writer = JsonLinesWriter::new(Packer::None(Vec::new()), SCORE);
        while let Some(Chunk { texts, rows }) = reader.next().unwrap() {
            let results: Vec<RowResult> =
                texts.into_iter().map(|text| text.map(|_| vec![Cell::Number(0.5)])).collect();
            writer.write(rows, &results).unwrap();
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
        assert_eq!(third, "{\"text\": \"a\",\"score\":0.5,\"kivu_score\":0.5,\"kivu_score_2\":0.5}\n");
        // A name with escapes is the same name; one in a text or in an inner object is not a field.
        assert!(written(r#"{"text": "a", "\u0073core": 1}"#).ends_with("\"kivu_score\":0.5}\n"));
        assert!(written(r#"{"text": "\"score\"", "b": {"score": 1}}"#).ends_with(",\"score\":0.5}\n"));
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
}
