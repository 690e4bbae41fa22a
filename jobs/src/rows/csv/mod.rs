//! CSV. Answer columns follow the input's, whose bytes do not change.

pub mod dialect;
#[cfg(test)]
mod generated_tests;
pub mod header;
pub mod records;
pub mod source;

use std::{collections::BTreeSet, io::Read};

use super::{
    chunk::{
        CHUNK_BYTES, CHUNK_ROWS, Chunk, CsvHeader, CsvRow, Head, Layout, Piece, RowReader,
        RowWriter, Rows, WrittenPiece, mismatched,
    },
    column::{Content, find_column, free_name, is_known},
    csv::{
        dialect::{CsvOptions, Dialect},
        header::OpenedCsv,
        records::{Record, Splitter},
        source::Source,
    },
    lines::BYTE_ORDER_MARK,
};
use crate::{
    input::compression::Packer,
    output::answer::{Cell, Column, Columns, ErrorKind, RowError, RowResult, names},
};
use kivu::{Error, Result, error::Message};

pub struct CsvReader {
    source: Source,
    splitter: Splitter,
    header: CsvHeader,
    text: usize,
    notes: Vec<String>,
}

impl CsvReader {
    /// The column names of `file`.
    pub fn names(file: impl Read + Send + 'static) -> Result<Vec<String>> {
        Ok(OpenedCsv::read(file, &Layout::default().csv)?.header.names)
    }

    /// Reads the header in `file`. Detects what `layout` leaves open: how the file is written, and the best text column.
    pub fn new(file: impl Read + Send + 'static, layout: &Layout) -> Result<Self> {
        let OpenedCsv {
            source,
            splitter,
            header,
            notes,
        } = OpenedCsv::read(file, &layout.csv)?;
        let names = &header.names;
        let is_guessed = layout.column.is_none()
            && layout.csv.header.is_none()
            && header.has_header
            && names.len() == 1;
        let columns: Vec<_> = names
            .iter()
            .map(|name| (name.clone(), Content::Texts))
            .collect();
        let column = find_column(layout.column.as_deref(), &columns)?;
        // The first line may be a text, which would be lost, and is not repeated here.
        if is_guessed && !is_known(&column) {
            return Err(Error::invalid(
                "expected a column whose name is known, but found only another one",
            )
            .with_hint(
                "if it is the texts' column, name it with `column` (`--column`), or if the first line is a text, \
                 set `header` to `false` (`--no-header`)",
            ));
        }
        let text = names.iter().position(|name| *name == column).unwrap_or(0);
        Ok(Self {
            source,
            splitter,
            header,
            text,
            notes,
        })
    }

    /// Finds the next row, at the start of the source's bytes; `None` at the end. Skips empty lines, except in files with
    /// one column, where they are rows.
    fn record(&mut self) -> Result<Option<Record>> {
        loop {
            let is_end = self.source.is_end();
            match self.splitter.next(self.source.bytes(), is_end)? {
                Some(Record {
                    content: 0, length, ..
                }) if self.header.names.len() > 1 => self.source.consume(length),
                Some(record) => return Ok(Some(record)),
                None if is_end => return Ok(None),
                None => self.source.fill(self.splitter.line())?,
            }
        }
    }

    fn text(&self, content: &[u8], record: Record) -> Result<String, RowError> {
        let malformed = |message: Message| Err(RowError::new(ErrorKind::Row, message));
        let dialect = self.splitter.dialect();
        if let Some(defect) = record.defect {
            return malformed(defect.message(dialect));
        }
        let expected = self.header.names.len();
        if record.fields != expected {
            let message = format!("expected {expected} fields, but found {}", record.fields);
            return malformed(message.into());
        }
        let raw = &content[self.splitter.field(self.text)];
        let name = &self.header.names[self.text];
        let wrong = |message: String| RowError::new(ErrorKind::Text, message);
        if !raw.is_empty() && dialect.is_null(raw) {
            return Err(wrong(format!("expected text in `{name}`, but found NULL")));
        }
        let text = dialect.value(raw);
        let foreign = match std::str::from_utf8(&text) {
            Ok(found) if !text.contains(&0) => return Ok(found.to_owned()),
            Ok(_) => 0,
            Err(error) => text[error.valid_up_to()],
        };
        let error = wrong(format!(
            "expected UTF-8, but found the byte 0x{foreign:02x} in `{name}`"
        ));
        Err(error.with_hint("convert the file, such as with `iconv`"))
    }
}

impl RowReader for CsvReader {
    fn head(&self) -> Head {
        Head::Csv(self.header.clone())
    }

    fn column(&self) -> &str {
        self.header.names.get(self.text).map_or("", String::as_str)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn position(&self) -> u64 {
        self.source.position()
    }

    fn skip(&mut self, rows: u64) -> Result<()> {
        for _ in 0..rows {
            let Some(record) = self.record()? else { break };
            self.source.consume(record.length);
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        let (mut texts, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0);
        while texts.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let Some(record) = self.record()? else { break };
            let row = &self.source.bytes()[..record.length];
            texts.push(self.text(&row[..record.content], record));
            rows.push(CsvRow {
                bytes: row.to_vec(),
                content: record.content,
                fields: record.fields,
            });
            bytes += record.length;
            self.source.consume(record.length);
        }
        Ok((!texts.is_empty()).then_some(Chunk {
            texts,
            rows: Rows::Records(rows),
        }))
    }
}

pub struct CsvWriter {
    target: Packer,
    header: CsvHeader,
    /// The output's dialect.
    dialect: Dialect,
    splitter: Splitter,
    columns: Columns,
    names: BTreeSet<String>,
}

impl CsvWriter {
    /// Writes rows with the delimiter in `header`, and the header too in the first piece.
    ///
    /// # Errors
    /// The output has another delimiter, and the dialect cannot state all fields with it.
    pub fn new(target: Packer, header: &CsvHeader, columns: Columns, piece: Piece) -> Result<Self> {
        let dialect = header.written_dialect()?;
        let names = header.answers(&columns).collect();
        let mut writer = Self {
            target,
            splitter: Splitter::new(&header.dialect, header.names.len(), 1),
            dialect,
            header: header.clone(),
            columns,
            names,
        };
        if piece == Piece::First {
            writer.write_header()?;
        }
        Ok(writer)
    }

    fn write_header(&mut self) -> Result<()> {
        let Self {
            header,
            dialect,
            columns,
            target,
            ..
        } = self;
        target.append(|output| {
            let is_converted = header.dialect.delimiter != dialect.delimiter;
            if !is_converted {
                output.extend_from_slice(&header.start);
            } else if header.start.starts_with(BYTE_ORDER_MARK) {
                output.extend_from_slice(BYTE_ORDER_MARK);
            }
            if is_converted && header.has_header {
                for (number, name) in header.names.iter().enumerate() {
                    if number > 0 {
                        output.push(dialect.delimiter);
                    }
                    dialect.write(name.as_bytes(), output);
                }
            }
            if header.has_header {
                for name in header.answers(columns) {
                    output.push(dialect.delimiter);
                    dialect.write(name.as_bytes(), output);
                }
                output.extend_from_slice(&header.line_end);
            }
            Ok(())
        })
    }
}

impl RowWriter for CsvWriter {
    fn columns(&self) -> &BTreeSet<String> {
        &self.names
    }

    fn size(&self) -> usize {
        self.target.size()
    }

    fn write(&mut self, rows: Rows, results: &mut [RowResult]) -> Result<()> {
        let Rows::Records(rows) = rows else {
            return mismatched();
        };
        let Self {
            target,
            header,
            dialect,
            splitter,
            columns,
            ..
        } = self;
        for (row, result) in rows.iter().zip(results) {
            target.append(|output| {
                write_fields(row, header, dialect, splitter, output);
                write_result(result, columns, dialect, output);
                match &row.bytes[row.content..] {
                    [] => output.extend_from_slice(&header.line_end),
                    line_end => output.extend_from_slice(line_end),
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        Ok((self.target.finish()?, None))
    }
}

/// Appends a row's fields, as many as the header has: missing ones are NULL, and additional ones are joined with the
/// last one.
fn write_fields(
    row: &CsvRow,
    header: &CsvHeader,
    dialect: &Dialect,
    splitter: &mut Splitter,
    output: &mut Vec<u8>,
) {
    let (width, content) = (header.names.len(), row.content());
    let is_converted = header.dialect.delimiter != dialect.delimiter;
    let whole = row
        .fields
        .min(if row.fields > width { width - 1 } else { width });
    // A row that was read can be split.
    if (is_converted || row.fields > width) && splitter.split(content).is_ok() {
        for field in 0..whole {
            let raw = &content[splitter.field(field)];
            if is_converted {
                dialect.convert(raw, &header.dialect, output);
            } else {
                output.extend_from_slice(raw);
            }
            if field + 1 < width {
                output.push(dialect.delimiter);
            }
        }
        if row.fields > width {
            let rest = &content[splitter.field(whole).start..];
            if !dialect.write(rest, output) {
                let delimiters = rest.iter().map(|byte| match *byte {
                    byte if byte == dialect.delimiter => b' ',
                    byte => byte,
                });
                output.extend(delimiters);
            }
        } else if whole < width {
            output.pop();
        }
    } else {
        output.extend_from_slice(content);
    }
    for _ in row.fields..width {
        output.push(dialect.delimiter);
        output.extend_from_slice(&dialect.null);
    }
}

/// Appends the answers and the error. An answer that the dialect cannot state becomes an error.
fn write_result(
    result: &mut RowResult,
    columns: &[Column],
    dialect: &Dialect,
    output: &mut Vec<u8>,
) {
    let start = output.len();
    if let Ok(answer) = &*result {
        let mut write = |cell: &Cell| {
            output.push(dialect.delimiter);
            dialect.write(field(cell).as_bytes(), output)
        };
        if answer.iter().all(&mut write) {
            output.push(dialect.delimiter);
            output.extend_from_slice(&dialect.null);
            return;
        }
        output.truncate(start);
        let error = RowError::new(
            ErrorKind::Model,
            "the answer has the delimiter, a line end or the text that means NULL, which a file \
             without quotes cannot state",
        );
        *result = Err(
            error.with_hint("set `escape` (`--escape`) or another `delimiter` (`--delimiter`)")
        );
    }
    if let Err(error) = &*result {
        for _ in columns {
            output.push(dialect.delimiter);
            output.extend_from_slice(&dialect.null);
        }
        output.push(dialect.delimiter);
        dialect.write(dialect.plain(&error.message.to_string()).as_bytes(), output);
    }
}

impl CsvHeader {
    /// The options that state how the file is read.
    pub fn options(&self) -> CsvOptions {
        CsvOptions {
            delimiter: Some(self.dialect.delimiter),
            quote: Some(self.dialect.quote.into()),
            escape: Some(self.dialect.escape.into()),
            null: Some(String::from_utf8_lossy(&self.dialect.null).into_owned()),
            header: Some(self.has_header),
        }
    }

    /// Names for the added columns, none of which the file uses. Many databases ignore case.
    fn answers(&self, columns: &[Column]) -> impl Iterator<Item = String> {
        let is_taken = |name: &str| {
            let mut names = self.names.iter();
            names.any(|taken| taken.eq_ignore_ascii_case(name))
        };
        names(columns).map(move |name| free_name(name, is_taken))
    }

    /// The output's dialect.
    fn written_dialect(&self) -> Result<Dialect> {
        let dialect = Dialect {
            delimiter: self.written,
            ..self.dialect.clone()
        };
        if self.written != self.dialect.delimiter && dialect.quote.or(dialect.escape).is_none() {
            return Err(Error::config(
                "a file without quotes and escapes cannot get another delimiter, but the output's \
                 name asks for one",
            )
            .with_hint("choose another extension"));
        }
        dialect.checked()
    }
}

/// A cell as a field; lists as JSON.
fn field(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.to_string(),
        Cell::Number(number) => number.to_string(),
        list => serde_json::to_string(list).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor};

    use super::*;
    use crate::{
        output::{
            answer::label_columns,
            output_form::OutputForm,
            pieces::{Pieces, Shape},
        },
        rows::CsvOptions,
    };

    fn layout(options: &[(&str, &str)]) -> Layout {
        let mut csv = CsvOptions::default();
        for (name, value) in options {
            csv.set(name, value).unwrap().unwrap();
        }
        Layout {
            csv,
            ..Layout::default()
        }
    }

    /// The texts in a file, or their errors.
    fn texts(file: &[u8], layout: &Layout) -> Result<Vec<Result<String, String>>> {
        let mut reader = CsvReader::new(Cursor::new(file.to_vec()), layout)?;
        let mut texts = Vec::new();
        while let Some(chunk) = reader.next()? {
            let found = chunk.texts.into_iter();
            texts.extend(found.map(|text| text.map_err(|error| error.message.to_string())));
        }
        Ok(texts)
    }

    fn refused(file: &str, options: &[(&str, &str)]) -> String {
        texts(file.as_bytes(), &layout(options))
            .unwrap_err()
            .to_string()
    }

    /// The output for a file, with the label and score of each text.
    fn answered(file: &[u8], layout: &Layout, form: OutputForm) -> Result<Vec<u8>> {
        let mut reader = CsvReader::new(Cursor::new(file.to_vec()), layout)?;
        let mut pieces = Pieces::new(Shape::of(&reader, form, label_columns()));
        while let Some(Chunk { texts, rows }) = reader.next()? {
            let label = |text: String| vec![Cell::Text(text.as_str().into()), Cell::Number(0.5)];
            let results = texts.into_iter().map(|text| text.map(label));
            pieces.write(rows, &mut results.collect::<Vec<_>>())?;
        }
        pieces.take_last()
    }

    fn answered_text(file: &str, options: &[(&str, &str)]) -> String {
        let output = answered(file.as_bytes(), &layout(options), OutputForm::default());
        String::from_utf8(output.unwrap()).unwrap()
    }

    #[test]
    fn chunks_of_rows_with_many_fields_are_small() {
        let row = ",".repeat(200_000);
        let file = format!("text,b\n{}", vec![row; 64].join("\n"));
        let mut reader = CsvReader::new(Cursor::new(file), &Layout::default()).unwrap();
        let chunk = reader.next().unwrap().unwrap();
        assert!(chunk.texts.len() < 24, "{} rows at once", chunk.texts.len());
    }

    #[test]
    fn long_headers_are_refused() {
        let refused = |header: String| {
            CsvReader::new(Cursor::new(header), &Layout::default())
                .err()
                .unwrap()
                .to_string()
        };
        insta::assert_snapshot!(refused(",".repeat(20_000)), @"expected a header of at most 10000 columns, but found 20001");
        let taken =
            allocation_counter::measure(|| drop(refused(",".repeat(8 * 1024 * 1024)))).bytes_max;
        assert!(taken < 64 * 1024 * 1024, "{taken} bytes");
    }

    #[test]
    fn delimiters_in_quoted_names_are_ignored() {
        let read = |file: &'static str| {
            let reader = CsvReader::new(Cursor::new(file), &Layout::default()).unwrap();
            (
                reader.header.names.clone(),
                reader.column().to_owned(),
                reader.notes().to_vec(),
            )
        };
        let (names, column, note) = read("\"id; the; key\",text\n1;2;3,hello\n");
        assert_eq!(
            (names.len(), column.as_str(), note),
            (2, "text", Vec::new())
        );
        let (names, column, _) = read("\"a \"\"b\"\"; c;;\r\n d;\",\"text\"\nx,y\n");
        assert_eq!(
            (names[0].as_str(), column.as_str()),
            ("a \"b\"; c;;\r\n d;", "text")
        );
        let (names, ..) = read("text\tprice, net\n");
        assert_eq!(names, ["text", "price, net"]);
        // A quote inside an unquoted field is a normal character.
        let (names, ..) = read("5\" disk;text;\"x,y,z\"\n");
        assert_eq!(names, ["5\" disk", "text", "x,y,z"]);
        let (_, column, _) = read("\n\ntext;id\n");
        assert_eq!(column, "text");
    }

    #[test]
    fn a_header_with_two_delimiters_is_noted() {
        let reader = CsvReader::new(
            Cursor::new("id;text;price, net\n1;a;2\n"),
            &Layout::default(),
        )
        .unwrap();
        assert_eq!(reader.column(), "text");
        insta::assert_snapshot!(reader.notes()[0], @"the header is read with `;` between its fields, though it has `,` outside quotes as well");
    }

    #[test]
    fn duplicate_text_columns_are_refused() {
        let refused = CsvReader::new(Cursor::new("text,id,text\na,1,b\n"), &Layout::default())
            .err()
            .unwrap()
            .to_string();
        insta::assert_snapshot!(refused, @"expected one text column, but found `text` 2 times");
    }

    #[test]
    fn names_of_answers_are_unique_in_annotated_outputs() {
        let names = |header: &str| {
            let file = Cursor::new(format!("{header}\n"));
            let reader = CsvReader::new(file, &Layout::default()).unwrap();
            let columns = label_columns();
            reader.header.answers(&columns).collect::<Vec<_>>()
        };
        assert_eq!(names("text"), ["label", "score", "error"]);
        assert_eq!(
            names("text,label,score,error"),
            ["kivu_label", "kivu_score", "kivu_error"]
        );
        let third = names("text,label,kivu_label,kivu_label_2,score,error,kivu_error");
        assert_eq!(third, ["kivu_label_3", "kivu_score", "kivu_error_2"]);
    }

    /// Reads at most `self.1` bytes at a time.
    struct Slow(Cursor<&'static [u8]>, usize);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(self.1);
            self.0.read(&mut buffer[..length])
        }
    }

    #[test]
    fn the_delimiter_does_not_depend_on_the_sizes_of_reads() {
        let file = "\u{feff}\n\"a,b,c,d\";text;e,f\n1;hello;2\n".as_bytes();
        for bytes in [1, 2, 3, 7, 12, 100] {
            let mut reader =
                CsvReader::new(Slow(Cursor::new(file), bytes), &Layout::default()).unwrap();
            assert_eq!(
                reader.header.names,
                ["a,b,c,d", "text", "e,f"],
                "{bytes} bytes at once"
            );
            assert_eq!(reader.layout().csv.delimiter, Some(b';'));
            assert_eq!(
                reader.next().unwrap().unwrap().texts,
                [Ok("hello".to_owned())]
            );
            assert!(reader.next().unwrap().is_none());
        }
        // A known delimiter is not detected again.
        let layout = layout(&[("delimiter", ",")]);
        let refused = CsvReader::new(Cursor::new("a;b;text,c\n"), &layout)
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("but found `a;b;text`, `c`"), "{refused}");
    }

    #[test]
    fn quotes_of_other_dialects_are_row_errors_or_refused() {
        let read = |file: &str| texts(file.as_bytes(), &Layout::default());
        let wrong = "expected `,` or the row's end after the quote that closes field 2, but found more text; see `escape` \
                     (`--escape`) and `quote` (`--quote`)";
        // The row's end is known.
        for (file, expected) in [
            (
                "id,text\n1,\"good\" phone\n2,\"bad\".\n3,\"x\"\"y\"z\n4,fine\n",
                [Err(wrong), Err(wrong), Err(wrong), Ok("fine")],
            ),
            (
                "id,text\n1,\"a\" b \"c\"\n2,\"\"x\"\"\n3,\"d\"\n4,\"a\" \n",
                [Err(wrong), Err(wrong), Ok("d"), Err(wrong)],
            ),
            // A quote that does not begin its field is part of it.
            (
                "id,text\n1,5\" wide\n2, \"b\"\n3,it is \"fine\" here\n4,\"\"\"\"\n",
                [
                    Ok("5\" wide"),
                    Ok(" \"b\""),
                    Ok("it is \"fine\" here"),
                    Ok("\""),
                ],
            ),
        ] {
            let found = read(file).unwrap();
            let found: Vec<_> = found
                .iter()
                .map(|text| text.as_deref().map_err(String::as_str))
                .collect();
            assert_eq!(found, expected, "{file}");
        }
        // It is not.
        for (file, line) in [
            (
                "id,text\n1,\"Hello\n2,world is bad\n3,it is \"fine\" here\n4,good\n",
                2,
            ),
            ("id,text\n0,a\n1,\"Hello\n2,\"world\n3,good\n", 3),
            (
                "id\ttext\n1\t\"Hello\n2\tworld is bad\n3\tit is \"fine\" here\n4\tgood\n",
                2,
            ),
            (
                "text\n\"She said \"stop\nthere\" and left\"\n\"plain\"\n",
                2,
            ),
            ("id,text\n1,\"a\" b\n2,plain\n3,5\" wide\n", 2),
            ("id,text,more\n1,\"a\nb\",5\" wide\n", 2),
            ("id,text,more\n1,5\" wide,\"a\nb\"\n", 2),
            ("text\n\"a \\\"\"\n\"plain\"\n\"\n", 2),
        ] {
            let refused = refused(file, &[]);
            assert!(
                refused.contains(&format!("in line {line} ")),
                "{file}: {refused}"
            );
            assert!(refused.contains("--quote"), "{file}: {refused}");
        }
        insta::assert_snapshot!(refused("id,text\n1,\"a\n2,b\"c\n", &[]), @r#"the row that begins in line 2 has text after a closing quote, so that its end is unclear; if quotes within fields follow another character, such as `\`, set `escape` (`--escape`) to it, and if quotes are part of the fields, set `quote` (`--quote`) to `none`"#);
        insta::assert_snapshot!(refused("id\ttext\n1\t\"a\n2\tb\n3\tthe end\"\n", &[]), @r#"the row that begins in line 2 has a field with tabs and a line end within quotes, which may be part of several rows' texts instead; set `quote` (`--quote`) to `none` if they are, and otherwise to `"`"#);
        assert_eq!(
            texts(b"id\ttext\n1\t\"a\n2\tb\"\n", &layout(&[("quote", "\"")])).unwrap(),
            [Ok("a\n2\tb".to_owned())]
        );
        insta::assert_snapshot!(refused("\"id\" x,text\n1,a\n", &[]), @"in the header: expected `,` or the row's end after the quote that closes field 1, but found more text; see `escape` (`--escape`) and `quote` (`--quote`)");
    }

    #[test]
    fn escapes_are_detected_in_the_first_rows() {
        let file = "text\n\"She said \\\"stop\nthere\\\" and left\"\n\"plain\"\nC:\\new\n\"C:\\new \\\\\"\n";
        let mut reader = CsvReader::new(Cursor::new(file), &Layout::default()).unwrap();
        let expected = [
            "She said \"stop\nthere\" and left",
            "plain",
            "C:\\new",
            "C:\\new \\",
        ];
        let found = reader.next().unwrap().unwrap().texts;
        assert_eq!(found, expected.map(|text| Ok(text.to_owned())));
        insta::assert_snapshot!(reader.notes()[0], @r#"`\` is read as an escape, since quotes within quotes follow it; set `escape` (`--escape`) to `none` otherwise"#);
        // A checkpoint has the detected escape, so that the rows are read again in the same way.
        let layout = reader.layout();
        assert_eq!(
            CsvReader::new(Cursor::new(file), &layout).unwrap().layout(),
            layout
        );
        let backslashes = "text\n\"C:\\\"\n\"plain \"\"x\"\"\"\n";
        let found = texts(backslashes.as_bytes(), &Layout::default()).unwrap();
        assert_eq!(found, [Ok("C:\\".to_owned()), Ok("plain \"x\"".to_owned())]);
        // After the first rows, they are no longer detected.
        let late = format!("id,text\n{}1,\"a \\\"b\\\" c\"\n", "0,a\n".repeat(2000));
        let found = texts(late.as_bytes(), &Layout::default()).unwrap();
        assert!(found.last().unwrap().is_err());
        let found = texts(late.as_bytes(), &self::layout(&[("escape", "\\")])).unwrap();
        assert_eq!(*found.last().unwrap(), Ok("a \"b\" c".to_owned()));
        insta::assert_snapshot!(refused("text,a\nb,C:\\\nc,\"x\"\n", &[("escape", "\\")]), @r#"line 2 ends with the `escape` `\` outside of quotes, so that it is unclear whether the row continues; set `escape` (`--escape`) to `none`, or complete the row"#);
    }

    #[test]
    fn text_formats_of_databases_are_read_and_written() {
        let options = [("delimiter", "^A"), ("quote", "none"), ("null", "\\N")];
        let hive = "id\u{1}text\n1\u{1}it is \"fine\n2\u{1}\\N\n3\u{1}a\rb\n";
        insta::assert_snapshot!(answered_text(hive, &options).replace('\u{1}', "^A").replace('\r', "^M"), @r#"
        id^Atext^Alabel^Ascore^Aerror
        1^Ait is "fine^Ait is "fine^A0.5^A\N
        2^A\N^A\N^A\N^Aexpected text in `text`, but found NULL
        3^Aa^Mb^A\N^A\N^Athe answer has the delimiter, a line end or the text that means NULL, which a file without quotes cannot state; set `escape` (`--escape`) or another `delimiter` (`--delimiter`)
        "#);
        let tilde = [("delimiter", "~"), ("quote", "none"), ("header", "false")];
        let tilde = |file: &str| {
            let layout = Layout {
                column: Some("column2".into()),
                ..layout(&tilde)
            };
            let output = answered(file.as_bytes(), &layout, OutputForm::default());
            String::from_utf8(output.unwrap()).unwrap()
        };
        insta::assert_snapshot!(tilde("1~\"a\n2~b\n3~x~y\n4\n"), @r#"
        1~"a~"a~0.5~
        2~b~b~0.5~
        3~x y~~~expected 2 fields, but found 3
        4~~~~expected 2 fields, but found 1
        "#);
        // PostgreSQL's `COPY`.
        let copy = [("delimiter", "\\t"), ("quote", "none"), ("escape", "\\")];
        let rows = "id\ttext\n1\ta\\tb \\\\ \"c\\nd\n2\t\\N\n3\tx\\\ny\n";
        insta::assert_snapshot!(answered_text(rows, &copy), @r#"
        id	text	label	score	error
        1	a\tb \\ "c\nd	a\tb \\ "c\nd	0.5	\N
        2	\N	\N	\N	expected text in `text`, but found NULL
        3	x\
        y	x\ny	0.5	\N
        "#);
        assert_eq!(
            texts(rows.as_bytes(), &layout(&copy)).unwrap()[2],
            Ok("x\ny".to_owned())
        );
        // `""` is a text, and nothing is NULL.
        insta::assert_snapshot!(answered_text("id,note,text\n1,\"\",good\n2,,good\n", &[]), @r#"
        id,note,text,label,score,error
        1,"",good,good,0.5,
        2,,good,good,0.5,
        "#);
        let character = "an ASCII character, itself or as `\\t`, `^A` or `\\x01`";
        for (name, value, expected) in [
            ("delimiter", "||", character.to_owned()),
            ("delimiter", "none", character.to_owned()),
            ("quote", "\n", format!("{character}, or `none`")),
            ("escape", "\u{e9}", format!("{character}, or `none`")),
            ("header", "no", "`true` or `false`".to_owned()),
        ] {
            let refused = CsvOptions::default().set(name, value).unwrap();
            assert_eq!(refused.unwrap_err(), expected, "{name}: {value:?}");
        }
        insta::assert_snapshot!(refused("text;a\n", &[("delimiter", ";"), ("quote", ";")]), @"the `delimiter` `;` is also `quote` or `escape`; choose another");
        insta::assert_snapshot!(refused("text,a\n", &[("null", "n,\na")]), @r"the `null` `n,\na` is not one field without quotes; choose another");
        for (null, escape) in [("\"n\"", "none"), ("n\n", "none"), ("n\\", "\\")] {
            refused("text,a\n", &[("null", null), ("escape", escape)]);
        }
        let with_tabs = OutputForm {
            delimiter: Some(b'\t'),
            ..OutputForm::default()
        };
        let written = answered(b"text,a\nb,\n", &layout(&[("null", "n\ta")]), with_tabs);
        assert!(written.is_err());
        for code in ["\t", "\\t", "tab", "^I", "\\x09", "\\u0009", "\\011"] {
            assert_eq!(
                layout(&[("delimiter", code)]).csv.delimiter,
                Some(b'\t'),
                "{code}"
            );
        }
    }

    #[test]
    fn every_record_has_an_output_record() {
        let output = answered_text("text\ngood\n\nbad\n\"\"\nfine\n\n", &[]);
        insta::assert_snapshot!(output, @r#"
        text,label,score,error
        good,good,0.5,
        ,"",0.5,
        bad,bad,0.5,
        "","",0.5,
        fine,fine,0.5,
        ,"",0.5,
        "#);
        for line_end in ["\r\n", "\r"] {
            let file = "text\ngood\n\nbad\n\"\"\nfine\n\n".replace('\n', line_end);
            assert_eq!(answered_text(&file, &[]), output.replace('\n', line_end));
        }
        let rows = |file: &str, options| texts(file.as_bytes(), &layout(options)).unwrap().len();
        assert_eq!(rows("\n\ngood\n\n", &[("header", "false")]), 4);
        // Empty lines are no rows of several columns.
        assert_eq!(rows("\nid,text\n\n1,a\n\r\n\n2,b\n\n", &[]), 2);
    }

    #[test]
    fn line_ends_are_never_guessed() {
        let read = |file: &str| texts(file.as_bytes(), &Layout::default());
        let texts = |found: &[&str]| {
            let found = found.iter().map(|text| Ok((*text).to_owned()));
            found.collect::<Vec<_>>()
        };
        for file in [
            "id,text\r1,a\r2,b\r",
            "id,text\r\n1,a\n2,b",
            "id,text\r\r\n1,a\r\r\n2,b\r\r\n",
            "id,text\n1,a\r\n2,b\r",
        ] {
            assert_eq!(read(file).unwrap(), texts(&["a", "b"]), "{file:?}");
        }
        let found = read("id,text\n1,a\rb\n2,\"a\rb\"\n").unwrap();
        insta::assert_snapshot!(found[0].as_ref().unwrap_err(), @"expected a line end or quotes around CR in field 2, but found CR outside of quotes");
        assert_eq!(found[1], Ok("a\rb".to_owned()));
        insta::assert_snapshot!(refused("id,text\r1,a\r2,b\n3,c\n", &[]), @"line 3 has a line end LF, but the first line ends with CR; convert the file to one of them");
    }

    #[test]
    fn the_line_of_excel_names_the_delimiter() {
        for start in ["sep=;\r\n", "\"sep=;\"\r\n", "\u{feff}SEP=;\r\n"] {
            let file = format!("{start}text;id, number, place\r\nhello;1\r\nbye;2");
            let expected = format!(
                "{start}text;id, number, place;label;score;error\r\nhello;1;hello;0.5;\r\nbye;2;bye;0.5;\r\n"
            );
            assert_eq!(answered_text(&file, &[]), expected);
        }
        insta::assert_snapshot!(refused("sep=||\ntext||id\n", &[]), @"expected one ASCII character after `sep=` in the first line, but found another text; remove the line, and set `delimiter` (`--delimiter`)");
        let with_tabs = OutputForm {
            delimiter: Some(b'\t'),
            ..OutputForm::default()
        };
        let file = "\u{feff}sep=;\ntext;\"i;d\"\na\tb;\"1;\"\n";
        let output = answered(file.as_bytes(), &Layout::default(), with_tabs).unwrap();
        insta::assert_snapshot!(String::from_utf8(output).unwrap().trim_start_matches('\u{feff}'), @r#"
        text	i;d	label	score	error
        "a	b"	"1;"	"a	b"	0.5
        "#);
    }

    #[test]
    fn malformed_fields_stay_one_field_with_another_delimiter() {
        let with_tabs = OutputForm {
            delimiter: Some(b'\t'),
            ..OutputForm::default()
        };
        let file = "text,id\na,\"x\"y\tz\nb,\"x\"\"y\tz\"\n";
        let output = answered(file.as_bytes(), &Layout::default(), with_tabs).unwrap();
        insta::assert_snapshot!(String::from_utf8(output).unwrap(), @r#"
        text	id	label	score	error
        a	"x""y	z"			expected `,` or the row's end after the quote that closes field 2, but found more text; see `escape` (`--escape`) and `quote` (`--quote`)
        b	"x""y	z"	b	0.5
        "#);
    }

    #[test]
    fn files_without_a_header_have_numbered_columns() {
        let options = [("header", "false")];
        let read = |file: &str| texts(file.as_bytes(), &layout(&options));
        let lines = read("good\nbad\n").unwrap();
        assert_eq!(lines, [Ok("good".to_owned()), Ok("bad".to_owned())]);
        insta::assert_snapshot!(answered_text("good\nbad", &options), @"
        good,good,0.5,
        bad,bad,0.5,
        ");
        // Without the option, the first text would be taken for a name.
        for file in ["I love it\nbad\n", "\u{feff}Good\n", "\"a, b\"\nc\n"] {
            let refused = refused(file, &[]);
            assert!(
                refused.ends_with("set `header` to `false` (`--no-header`)"),
                "{refused}"
            );
        }
        let named = texts(b"opinion\nbad\n", &layout(&[("header", "true")]));
        assert_eq!(named.unwrap(), [Ok("bad".to_owned())]);
        insta::assert_snapshot!(refused("1,good\n2,bad\n", &options), @"expected a column called `text` or another that is known, but found `column1`, `column2`; say which one with `column` (`--column`)");
        // One row may have another delimiter in its text.
        let column = |file: &str| {
            let layout = Layout {
                column: Some("column2".into()),
                ..layout(&options)
            };
            texts(file.as_bytes(), &layout)
        };
        let found = column("1,great; really; nice\n2,bad\n").unwrap();
        assert_eq!(found[0], Ok("great; really; nice".to_owned()));
        insta::assert_snapshot!(column("1,great; nice\n2,bad; awful\n").unwrap_err(), @"the delimiter is unclear, since the file has no header; set `delimiter` (`--delimiter`)");
        insta::assert_snapshot!(refused("h\0e\0l\0l\0o\0\n\0", &options), @"expected a first row in UTF-8, but found the byte 0x00; convert the file, such as with `iconv`");
        insta::assert_snapshot!(refused("\n\n", &options), @"expected a first row, but found only empty lines");
    }

    #[test]
    fn a_file_that_ends_within_quotes_is_refused() {
        let read = |file: &'static str| -> Result<Vec<String>> {
            let mut reader = CsvReader::new(Cursor::new(file), &Layout::default())?;
            let mut found = Vec::new();
            while let Some(chunk) = reader.next()? {
                found.extend(chunk.texts.into_iter().map(Result::unwrap));
            }
            Ok(found)
        };
        let refused = |file| read(file).unwrap_err().to_string();
        insta::assert_snapshot!(refused("id,text\n1,a\n2,\"b\nc\n3,d\n"), @"expected a quote that closes the field in the row that begins in line 3, but found the end of the file; complete the file, or set `quote` (`--quote`) to `none` if quotes are part of its fields");
        for file in [
            "text\na\n\"",
            "text\n\"a\"\"",
            "text\n\"a,b",
            "\"text\na\n",
            "\"text",
            "text\n\"\n\n\n",
            "\"",
        ] {
            assert!(
                refused(file).starts_with("expected a quote that closes the field"),
                "{file:?}"
            );
        }
        // All other line ends are valid.
        for end in ["", "\n", "\r\n", "\r"] {
            for (row, text) in [
                ("a", "a"),
                ("\"a\"", "a"),
                ("\"a\"\"\"", "a\""),
                ("\"a\nb\"", "a\nb"),
                ("5\"", "5\""),
            ] {
                let file = format!("text\n{row}{end}").leak();
                assert_eq!(read(file).unwrap(), [text], "{file:?}");
            }
            assert!(read(format!("text{end}").leak()).unwrap().is_empty());
        }
        assert_eq!(read("text\na\n\"\"").unwrap(), ["a", ""]);
        assert_eq!(
            refused("\n\r\n\n"),
            "expected a header, but found only empty lines"
        );
    }

    #[test]
    fn utf_16_is_refused() {
        let refused = CsvReader::new(Cursor::new("t\0e\0x\0t\0\n\0a\0\n\0"), &Layout::default());
        insta::assert_snapshot!(refused.err().unwrap(), @"expected a header in UTF-8, but found the byte 0x00; convert the file, such as with `iconv`");
    }
}
