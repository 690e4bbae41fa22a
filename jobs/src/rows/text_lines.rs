//! Text: each line is a row. Rows are written as JSON Lines or CSV with one column.

use std::io::Read;

use serde_json::json;

use super::{
    chunk::{CHUNK_BYTES, CHUNK_ROWS, Chunk, CsvHeader, CsvRow, Head, Layout, RowReader, Rows},
    csv::dialect::{CsvOptions, LineEnd},
    lines::{Lines, foreign_byte, line_text},
};
use crate::output::answer::{ErrorKind, RowError};
use kivu::Result;

/// The column of the texts in the output.
pub const TEXT_COLUMN: &str = "text";

/// Reads texts from lines.
pub struct TextReader {
    lines: Lines,
    /// Written before the rows if the output is CSV; otherwise it is JSON Lines.
    header: Option<CsvHeader>,
}

impl TextReader {
    /// Reads `file`, for an output in CSV with this delimiter, or in JSON Lines.
    pub fn new(file: impl Read + Send + 'static, delimiter: Option<u8>) -> Result<Self> {
        let header = |delimiter| {
            Ok(CsvHeader {
                dialect: CsvOptions::default().dialect(delimiter, LineEnd::LineFeed)?,
                written: delimiter,
                has_header: true,
                names: vec![TEXT_COLUMN.to_owned()],
                start: TEXT_COLUMN.as_bytes().to_vec(),
                line_end: b"\n".to_vec(),
            })
        };
        Ok(Self {
            lines: Lines::new(file),
            header: delimiter.map(header).transpose()?,
        })
    }
}

/// A row of an output in CSV. Fields in quotes have any bytes.
fn record(header: &CsvHeader, line: &[u8]) -> CsvRow {
    let mut bytes = Vec::new();
    header.dialect.write(line, &mut bytes);
    let content = bytes.len();
    bytes.extend_from_slice(&header.line_end);
    CsvRow {
        bytes,
        content,
        fields: 1,
    }
}

/// The text in a line.
fn text(line: &[u8]) -> Result<String, RowError> {
    let text = line_text(line)?;
    if let Some(place) = text.find('\r') {
        let message = format!(
            "expected a line that ends with LF or CRLF, but found CR at column {}",
            place + 1
        );
        return Err(RowError::new(ErrorKind::Row, message));
    }
    match text.find('\0') {
        Some(place) => Err(foreign_byte(line, place)),
        None => Ok(text.to_owned()),
    }
}

impl RowReader for TextReader {
    fn head(&self) -> Head {
        match &self.header {
            Some(header) => Head::Csv(header.clone()),
            None => Head::JsonLines,
        }
    }

    fn column(&self) -> &str {
        TEXT_COLUMN
    }

    /// There is nothing to detect.
    fn layout(&self) -> Layout {
        Layout::default()
    }

    fn position(&self) -> u64 {
        self.lines.position()
    }

    fn skip(&mut self, rows: u64) -> Result<()> {
        let mut line = Vec::new();
        for _ in 0..rows {
            if !self.lines.next_or_empty(&mut line)? {
                break;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        let (mut texts, mut lines, mut records) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        while texts.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let mut line = Vec::new();
            if !self.lines.next_or_empty(&mut line)? {
                break;
            }
            bytes += line.len();
            let text = text(&line);
            match (&self.header, &text) {
                (Some(header), _) => records.push(record(header, &line)),
                (None, Ok(text)) => lines.push(json!({ TEXT_COLUMN: text }).to_string().into()),
                // Malformed lines are written with their error.
                (None, Err(_)) => lines.push(line),
            }
            texts.push(text);
        }
        let rows = match &self.header {
            Some(_) => Rows::Records(records),
            None => Rows::Lines(lines),
        };
        Ok((!texts.is_empty()).then_some(Chunk { texts, rows }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{
        input::compression::Compression,
        output::answer::{Cell, RowResult, score_column},
        rows::{CsvWriter, JsonLinesWriter, Piece, RowWriter},
    };

    const FILE: &[u8] = b"\xef\xbb\xbfa, \"b\"\r\n\n sep=;\t\n\xff\nc\rd\ne\0\nlast";

    fn written(delimiter: Option<u8>) -> String {
        let mut reader = TextReader::new(Cursor::new(FILE), delimiter).unwrap();
        let target = Compression::None.pack().unwrap();
        let mut writer: Box<dyn RowWriter> = match reader.head() {
            Head::Csv(header) => {
                Box::new(CsvWriter::new(target, &header, score_column(), Piece::First).unwrap())
            }
            _ => Box::new(JsonLinesWriter::new(target, score_column())),
        };
        while let Some(Chunk { texts, rows }) = reader.next().unwrap() {
            let answers = texts
                .into_iter()
                .map(|text| text.map(|_| vec![Cell::Number(0.5)]));
            let mut results: Vec<RowResult> = answers.collect();
            writer.write(rows, &mut results).unwrap();
        }
        assert_eq!(reader.position(), FILE.len() as u64);
        String::from_utf8_lossy(&writer.finish().unwrap().0).into_owned()
    }

    #[test]
    fn every_line_is_a_row_of_json_lines_or_csv() {
        insta::assert_snapshot!(written(None), @r#"
        {"text":"a, \"b\"","score":0.5}
        {"text":"","score":0.5}
        {"text":" sep=;\t","score":0.5}
        {"input_base64":"/w==","error":"expected UTF-8, but found the byte 0xff at column 1; convert the file, such as with `iconv`"}
        {"input":"c\rd","error":"expected a line that ends with LF or CRLF, but found CR at column 2"}
        {"input":"e\u0000","error":"expected UTF-8, but found the byte 0x00 at column 2; convert the file, such as with `iconv`"}
        {"text":"last","score":0.5}
        "#);
        let csv = written(Some(b','));
        let (start, rest) = csv.split_once("\n\u{fffd},,").unwrap();
        insta::assert_snapshot!(start, @r#"
        text,score,error
        "a, ""b""",0.5,
        "",0.5,
         sep=;	,0.5,
        "#);
        let rest: Vec<&str> = rest.lines().collect();
        assert_eq!(rest.len(), 4, "{rest:?}");
        assert!(
            rest[1].starts_with("\"c\rd\",,\"expected a line"),
            "{rest:?}"
        );
        assert!(rest[2].starts_with("e\0,,\"expected UTF-8"), "{rest:?}");
        assert_eq!(rest[3], "last,0.5,");
        assert!(written(Some(b'\t')).starts_with("text\tscore\terror\n\"a, \"\"b\"\"\"\t0.5\t\n"));
    }

    #[test]
    fn rows_that_are_done_are_skipped() {
        let mut reader = TextReader::new(Cursor::new("a\n\nb\n"), None).unwrap();
        reader.skip(2).unwrap();
        let rest = reader.next().unwrap().unwrap().texts;
        assert_eq!(rest, [Ok("b".to_owned())]);
        assert!(reader.next().unwrap().is_none());
    }
}
