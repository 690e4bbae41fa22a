//! Generated CSV files, whose columns come out byte for byte.

use std::io::Cursor;

use super::records::Splitter;
use crate::rows::{Chunk, CsvOptions, CsvReader, Head, Layout, RowReader};
use crate::{
    events::distributed_map::compare_ranges,
    input::format::Format,
    output::{
        answer::{Cell, RowError, label_columns},
        output_form::OutputForm,
        pieces::{Pieces, Shape},
    },
};

const FILES: u64 = 200;

/// How a generated file is written.
#[derive(Debug)]
struct Form {
    delimiter: u8,
    quote: Option<u8>,
    escape: Option<u8>,
    null: &'static str,
    line_end: &'static str,
    has_mark: bool,
    has_separator: bool,
    has_header: bool,
    columns: usize,
    text: usize,
}

/// A record's bytes, its line end and its text, unless that is NULL.
struct Row {
    content: Vec<u8>,
    line_end: &'static str,
    text: Option<Vec<u8>>,
}

impl Form {
    fn new(random: &mut fastrand::Rng) -> Self {
        let quote = *random
            .choice(&[Some(b'"'), Some(b'"'), Some(b'\''), None])
            .unwrap();
        let columns = random.usize(1..5);
        Self {
            delimiter: *random.choice(b",,;\t|~\x01").unwrap(),
            quote,
            escape: random.choice([None, None, Some(b'\\')]).unwrap(),
            null: random.choice(["", "\\N", "NULL"]).unwrap(),
            line_end: random.choice(["\n", "\r\n", "\r\r\n", "\r"]).unwrap(),
            has_mark: random.bool(),
            has_separator: random.u8(0..4) == 0,
            has_header: random.u8(0..4) > 0,
            columns,
            text: random.usize(0..columns),
        }
    }

    /// The options that state the form, or none if it is detected.
    fn layout(&self, random: &mut fastrand::Rng) -> Layout {
        let is_common = self.quote == Some(b'"') && self.escape.is_none() && self.null.is_empty();
        let is_detected = is_common && self.has_header && b",;".contains(&self.delimiter);
        let column = match self.has_header {
            true => "text".to_owned(),
            false => format!("column{}", self.text + 1),
        };
        let mut csv = CsvOptions::default();
        if !(is_detected && random.bool()) {
            let mark = |character: Option<u8>| {
                character.map_or("none".to_owned(), |character| {
                    char::from(character).to_string()
                })
            };
            for (name, value) in [
                ("delimiter", mark(Some(self.delimiter))),
                ("quote", mark(self.quote)),
                ("escape", mark(self.escape)),
                ("null", self.null.to_owned()),
                ("header", self.has_header.to_string()),
            ] {
                csv.set(name, &value).unwrap().unwrap();
            }
        }
        Layout {
            column: Some(column),
            csv,
        }
    }

    /// A field's bytes and its value.
    fn field(&self, random: &mut fastrand::Rng, is_text: bool) -> (Vec<u8>, Option<Vec<u8>>) {
        let mut raw = Vec::new();
        let mut value = Vec::new();
        match (random.u8(0..8), self.quote, self.escape) {
            (0, ..) => return (self.null.into(), None),
            (1, Some(quote), _) => return (vec![quote, quote], Some(value)),
            (2..=5, Some(quote), escape) => {
                raw.push(quote);
                for _ in 0..random.usize(0..12) {
                    let byte = self.byte(random, is_text, b" \r\n,;\t|~\x01\"'");
                    if byte == quote {
                        raw.push(escape.filter(|_| random.bool()).unwrap_or(quote));
                    } else if Some(byte) == escape {
                        raw.push(byte);
                    }
                    raw.push(byte);
                    value.push(byte);
                }
                raw.push(quote);
            }
            (2..=5, None, Some(escape)) => {
                for _ in 0..random.usize(1..12) {
                    let byte = self.byte(random, is_text, b" \n\t\"'\\~,;|\x01");
                    if byte == self.delimiter || matches!(byte, b'\n' | b'\\') {
                        raw.push(escape);
                    }
                    raw.push(byte);
                    value.push(byte);
                }
            }
            _ => {
                for _ in 0..random.usize(1..12) {
                    let byte = self.byte(random, is_text, b"  .");
                    raw.push(byte);
                    value.push(byte);
                }
            }
        }
        (raw, Some(value))
    }

    /// A letter, a byte in Latin-1, or one in `others`.
    fn byte(&self, random: &mut fastrand::Rng, is_text: bool, others: &[u8]) -> u8 {
        match random.u8(0..10) {
            0..4 => *random.choice(others).unwrap(),
            4 if !is_text => 0xe9,
            _ => random.lowercase() as u8,
        }
    }

    fn row(&self, random: &mut fastrand::Rng) -> Row {
        let (mut content, mut text) = (Vec::new(), None);
        for column in 0..self.columns {
            if column > 0 {
                content.push(self.delimiter);
            }
            let (raw, value) = self.field(random, column == self.text);
            if column == self.text {
                text = value;
            }
            content.extend(raw);
        }
        Row {
            content,
            line_end: match random.u8(0..6) {
                // Files are joined.
                0 if self.line_end.ends_with('\n') => "\n",
                _ => self.line_end,
            },
            text,
        }
    }

    /// What is before the first row, without the header's line end.
    fn start(&self) -> Vec<u8> {
        let mut start = Vec::new();
        if self.has_mark {
            start.extend("\u{feff}".as_bytes());
        }
        if self.has_separator {
            start.extend(b"sep=");
            start.push(self.delimiter);
            start.extend(self.line_end.as_bytes());
        }
        if self.has_header {
            let quote = self.quote.unwrap_or(b'_');
            for column in 0..self.columns {
                if column > 0 {
                    start.push(self.delimiter);
                }
                match column == self.text {
                    true => start.extend(b"text"),
                    false => start.extend([quote, b'a' + column as u8, b' ', quote]),
                }
            }
        }
        start
    }
}

/// The texts that a file has, and the output with labels, which are the texts.
fn answered(file: &[u8], layout: &Layout) -> (Vec<Result<String, RowError>>, Vec<u8>, Splitter) {
    let mut reader = CsvReader::new(Cursor::new(file.to_vec()), layout).unwrap();
    let Head::Csv(header) = reader.head() else {
        panic!("no CSV")
    };
    let splitter = Splitter::new(&header.dialect, 0, 1);
    let mut pieces = Pieces::new(Shape::of(&reader, OutputForm::default(), label_columns()));
    let mut found = Vec::new();
    while let Some(Chunk { texts, rows }) = reader.next().unwrap() {
        found.extend(texts.iter().cloned());
        let label = |text: String| vec![Cell::Text(text.as_str().into()), Cell::Number(0.5)];
        let mut results: Vec<_> = texts.into_iter().map(|text| text.map(label)).collect();
        pieces.write(rows, &mut results).unwrap();
    }
    (found, pieces.take_last().unwrap(), splitter)
}

#[test]
fn columns_come_out_byte_for_byte() {
    let mut rows_in_all = 0;
    for seed in 0..FILES {
        let mut random = fastrand::Rng::with_seed(seed);
        let form = Form::new(&mut random);
        let layout = form.layout(&mut random);
        let mut rows: Vec<Row> = (0..random.usize(1..100))
            .map(|_| form.row(&mut random))
            .collect();
        if rows.iter().all(|row| row.content.is_empty()) {
            rows[0].content = b"x".to_vec();
            rows[0].text = Some(b"x".to_vec());
        }
        let last = rows.last_mut().unwrap();
        if !last.content.is_empty() && random.bool() {
            last.line_end = "";
        }
        let mut file = form.start();
        if form.has_header {
            file.extend(form.line_end.as_bytes());
        }
        for row in &rows {
            file.extend(&row.content);
            file.extend(row.line_end.as_bytes());
        }
        let (texts, output, mut splitter) = answered(&file, &layout);
        compare_ranges(Format::Csv, &file, &layout);
        let context = format!("file {seed}: {form:?}");
        assert_eq!(texts.len(), rows.len(), "{context}");
        let mut rest = output
            .strip_prefix(form.start().as_slice())
            .expect(&context);
        if form.has_header {
            let record = splitter.next(rest, true).unwrap().unwrap();
            let answers = &rest[..record.length];
            assert!(answers.ends_with(form.line_end.as_bytes()), "{context}");
            rest = &rest[record.length..];
        }
        for (row, text) in rows.iter().zip(texts) {
            let shown = String::from_utf8_lossy(&row.content);
            match (&row.text, text) {
                (Some(expected), Ok(text)) => assert_eq!(text.as_bytes(), expected, "{context}"),
                (None, Ok(text)) => {
                    assert!(
                        text.is_empty() && form.null.is_empty(),
                        "{context}: {shown}"
                    );
                }
                (Some(_), Err(error)) => panic!("{context}: {shown}: {}", error.message),
                (None, Err(error)) => {
                    assert!(
                        error.message.problem().ends_with("NULL"),
                        "{context}: {}",
                        error.message
                    );
                }
            }
            let record = splitter.next(rest, true).unwrap().expect(&context);
            assert_eq!(record.fields, form.columns + 3, "{context}: {shown}");
            let (written, next) = rest.split_at(record.length);
            let copied = written.strip_prefix(row.content.as_slice());
            let copied = copied.unwrap_or_else(|| panic!("{context}: {shown}"));
            assert_eq!(copied[0], form.delimiter, "{context}: {shown}");
            let line_end = match row.line_end {
                "" if form.has_header => form.line_end,
                "" => rows[0].line_end,
                line_end => line_end,
            };
            assert!(written.ends_with(line_end.as_bytes()), "{context}: {shown}");
            rest = next;
            rows_in_all += 1;
        }
        assert!(rest.is_empty(), "{context}");
    }
    assert!(rows_in_all > 5_000, "{rows_in_all} rows");
}
