//! JSON Lines: an object a line, which comes out as it went in, with the answer at its end.

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{BufRead, BufReader, Read, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    CHUNK_BYTES, CHUNK_ROWS, Chunk, LONGEST_ROW, Outcome, RowError, Rows, find_column, free_name, reading,
};
use crate::{
    batch::answer::Answer,
    error::{Error, Result},
};

/// The mark that some programs put at the beginning of UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Lines of a file; empty ones are passed over.
pub(in crate::batch) struct JsonLinesReader<R> {
    lines: BufReader<R>,
    column: Option<String>,
    is_found: bool,
    is_begun: bool,
    position: u64,
}

impl<R: Read> JsonLinesReader<R> {
    /// The lines of `file`, the texts of which are in `column`, or in the one that is found.
    pub(in crate::batch) fn new(file: R, column: Option<String>) -> Self {
        let is_found = column.is_some();
        let lines = BufReader::with_capacity(256 * 1024, file);
        Self { lines, column, is_found, is_begun: false, position: 0 }
    }

    /// The column of texts, by the first row where it is not known.
    pub(in crate::batch) fn find_first(&mut self) -> Result<Option<String>> {
        self.skip(1)?;
        Ok(self.column.clone())
    }

    /// The bytes of the lines so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn skip(&mut self, rows: u64) -> Result<()> {
        let mut line = Vec::new();
        for _ in 0..rows {
            if !self.line(&mut line)? {
                break;
            }
            // The column is that of the first row, also where that was done before.
            if !self.is_found {
                self.find(&line);
            }
        }
        Ok(())
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk>> {
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

    /// Reads a line that is not empty, without its end; `false` at the end of the file.
    ///
    /// What is longer than a row may be is read and left out: the row is then an error.
    fn line(&mut self, line: &mut Vec<u8>) -> Result<bool> {
        loop {
            line.clear();
            let limit = LONGEST_ROW as u64 + 1;
            let read = (&mut self.lines).take(limit).read_until(b'\n', line).map_err(reading)?;
            if read == 0 {
                return Ok(false);
            }
            self.position += read as u64;
            if line.len() > LONGEST_ROW && line.last() != Some(&b'\n') {
                line.truncate(LONGEST_ROW + 1);
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

    fn text(&mut self, line: &[u8]) -> std::result::Result<String, RowError> {
        if line.len() > LONGEST_ROW {
            return Err(RowError::row(format!(
                "expected a row of at most {LONGEST_ROW} bytes, but found more"
            )));
        }
        let json = std::str::from_utf8(line).map_err(|error| not_utf8(line, error.valid_up_to()))?;
        if !self.is_found {
            self.find(line);
        }
        let column = self.column.as_deref();
        let mut parser = serde_json::Deserializer::from_str(json);
        let found = Row { column }.deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
        match found {
            Err(error) => Err(RowError::row(format!("expected a JSON object, but found {}", words(&error)))),
            Ok(Found::Text(text)) => Ok(text),
            Ok(Found::Other(found)) => Err(RowError::text(format!(
                "expected text in `{}`, but found {found}",
                column.unwrap_or("text")
            ))),
        }
    }

    /// Looks for the column of texts in a line; one that is no object says nothing. A field of a known name without a
    /// text is read until a line has a text, so that its errors are about it.
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

fn not_utf8(bytes: &[u8], place: usize) -> RowError {
    RowError::row(format!(
        "expected UTF-8, but found the byte 0x{:02x} at column {}; convert the file, such as with `iconv`",
        bytes.get(place).copied().unwrap_or_default(),
        place + 1
    ))
}

/// What the parser says, without the line, which is always the first.
fn words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    format!("`{text}` at column {}", error.column())
}

/// A line, of which only the text is of interest.
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

/// A key, copied only where it has escapes.
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

/// Writes each line with its answer.
pub(in crate::batch) struct JsonLinesWriter<W> {
    target: W,
    line: Vec<u8>,
    columns: BTreeSet<String>,
}

/// Names of columns that are kept for the report: lines can make up any number of them.
const MAX_COLUMNS: usize = 20;

impl<W: Write> JsonLinesWriter<W> {
    pub(in crate::batch) fn new(target: W) -> Self {
        Self { target, line: Vec::new(), columns: BTreeSet::new() }
    }

    pub(super) fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    pub(super) fn get_ref(&self) -> &W {
        &self.target
    }

    pub(super) fn into_inner(self) -> W {
        self.target
    }

    pub(super) fn write(&mut self, lines: &[Vec<u8>], outcomes: &[Outcome]) -> Result<()> {
        for (line, outcome) in lines.iter().zip(outcomes) {
            self.line.clear();
            match outcome {
                // Only what was read as an object has a text, or lacks one.
                Err(error) if error.kind == super::ErrorKind::Row => unreadable(&mut self.line, line),
                _ => {
                    let open = line.strip_suffix(b"}").unwrap_or(line).trim_ascii_end();
                    self.line.extend_from_slice(open);
                    if !open.ends_with(b"{") {
                        self.line.push(b',');
                    }
                }
            }
            // A line that is put into a field of its own has no others.
            let own = match outcome {
                Err(error) if error.kind == super::ErrorKind::Row => &b""[..],
                _ => line,
            };
            let names = OnceCell::new();
            // Only an escape can hide a name from a look at the bytes, and most lines need no closer look.
            let is_taken = |name: &str| {
                (holds(own, format!("\"{name}\"").as_bytes()) || holds(own, b"\\u"))
                    && names.get_or_init(|| field_names(own)).contains(name)
            };
            let mut field = |name: &str| {
                let name = free_name(name, is_taken);
                if self.columns.len() < MAX_COLUMNS && !self.columns.contains(&name) {
                    self.columns.insert(name.clone());
                }
                name
            };
            add(&mut self.line, outcome, &mut field)
                .map_err(|error| Error::inference_because("the answer cannot be written", error))?;
            self.line.extend_from_slice(b"}\n");
            self.target.write_all(&self.line).map_err(Error::io("cannot write the output"))?;
        }
        Ok(())
    }
}

fn holds(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|found| found == part)
}

/// The names of an object's own fields.
fn field_names(line: &[u8]) -> BTreeSet<String> {
    serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(line)
        .map(|fields| fields.into_keys().collect())
        .unwrap_or_default()
}

/// The beginning of an object that holds a line which is none.
fn unreadable(target: &mut Vec<u8>, line: &[u8]) {
    let kept = &line[..line.len().min(LONGEST_ROW)];
    let (name, text) = match std::str::from_utf8(kept) {
        Ok(text) => ("input", Cow::Borrowed(text)),
        Err(_) => ("input_base64", Cow::Owned(STANDARD.encode(kept))),
    };
    target.extend_from_slice(format!("{{\"{name}\":{},", Value::from(text)).as_bytes());
}

/// Adds the fields of an answer, or the error in its place.
fn add(
    target: &mut Vec<u8>,
    outcome: &Outcome,
    free: &mut impl FnMut(&str) -> String,
) -> std::result::Result<(), serde_json::Error> {
    let mut field = |name: &str, is_first: bool, value: &dyn erased::Json| {
        if !is_first {
            target.push(b',');
        }
        target.extend_from_slice(format!("\"{}\":", free(name)).as_bytes());
        value.write(target)
    };
    match outcome {
        Err(error) => field("error", true, &error.message),
        Ok(Answer::Embedding(vector)) => field("embedding", true, vector),
        Ok(Answer::Label { label, score }) => {
            field("label", true, label)?;
            field("score", false, score)
        }
        Ok(Answer::Labels { labels, scores }) => {
            field("labels", true, labels)?;
            field("scores", false, scores)
        }
        Ok(Answer::Score(score)) => field("score", true, score),
        Ok(Answer::Translation(text)) => field("translation", true, text),
    }
}

mod erased {
    /// Whatever can be written as JSON, behind a pointer.
    pub(super) trait Json {
        fn write(&self, target: &mut Vec<u8>) -> Result<(), serde_json::Error>;
    }

    impl<T: serde::Serialize> Json for T {
        fn write(&self, target: &mut Vec<u8>) -> Result<(), serde_json::Error> {
            serde_json::to_writer(target, self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let contents: Box<dyn Read + Send> = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
        let mut reader = JsonLinesReader::new(contents, None);
        let mut writer = JsonLinesWriter::new(Vec::new());
        while let Some(Chunk { texts, rows: Rows::Lines(lines) }) = reader.next().unwrap() {
            let outcomes: Vec<Outcome> =
                texts.into_iter().map(|text| text.map(|_| Answer::Score(0.5))).collect();
            writer.write(&lines, &outcomes).unwrap();
        }
        String::from_utf8(writer.into_inner()).unwrap()
    }

    #[test]
    fn a_line_comes_out_as_it_went_in_and_with_its_answer() {
        insta::assert_snapshot!(written("{\"n\": 1.0, \"text\": \"\\u00e9\"}\r\n\n{ \"text\":\"b\" , \"score\":7 }"), @r#"
        {"n": 1.0, "text": "\u00e9","score":0.5}
        { "text":"b" , "score":7,"kivu_score":0.5}
        "#);
    }

    #[test]
    fn a_line_that_is_no_object_is_kept_beside_its_error() {
        insta::assert_snapshot!(written("{\"text\": \"a\"}\n{\"text\": \n[\"a\"]\n{}\n{\"text\": [1]}"), @r#"
        {"text": "a","score":0.5}
        {"input":"{\"text\":","error":"expected a JSON object, but found `EOF while parsing a value` at column 8"}
        {"input":"[\"a\"]","error":"expected a JSON object, but found `invalid type: sequence, expected an object` at column 0"}
        {"error":"expected text in `text`, but found nothing"}
        {"text": [1],"error":"expected text in `text`, but found a list"}
        "#);
    }

    #[test]
    fn names_of_answers_stay_unique_however_often_a_file_is_annotated() {
        let once = written("{\"text\": \"a\"}");
        let third = written(&written(&once));
        assert_eq!(third, "{\"text\": \"a\",\"score\":0.5,\"kivu_score\":0.5,\"kivu_score_2\":0.5}\n");
        // A name with escapes is the same name; one in a text or in an inner object is no field.
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
