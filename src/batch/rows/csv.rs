//! CSV with a header. Answer columns follow the input's.

use std::{
    collections::BTreeSet,
    io::{self, BufReader, Cursor, Read},
};

use ::csv::{ByteRecord, ReaderBuilder, WriterBuilder};

use super::{
    chunk::{
        CHUNK_BYTES, CHUNK_ROWS, Chunk, CsvHeader, Head, Layout, MAX_ROW_BYTES, RowReader,
        RowWriter, Rows, WrittenPiece, mismatched, reading,
    },
    column::{Content, find_column, free_name, is_known},
    csv_header::{FirstRecord, MAX_HEADER_BYTES},
};
use crate::{
    batch::{
        answer::{Cell, Column, Columns, ErrorKind, RowError, RowResult, names},
        compression::Packer,
    },
    error::{Error, Result},
};

const MAX_COLUMNS: usize = 10_000;
/// Bytes that are read after a file's end: the end of its last row, and a row with one empty field. In a file that ends
/// within quotes, they become part of its last field instead.
const END: &[u8] = b"\n\"";

pub(in crate::batch) struct CsvReader {
    records: ::csv::Reader<Bounded<Contents>>,
    header: CsvHeader,
    text: usize,
    notes: Vec<String>,
}

/// The header, and the rest of the file.
type Contents = io::Chain<Cursor<Vec<u8>>, BufReader<Box<dyn Read + Send>>>;

/// Limits a record's bytes, since an unclosed quote makes the rest of the file one record, and adds [`END`].
struct Bounded<R> {
    file: R,
    budget: usize,
    /// File bytes so far.
    bytes: u64,
    end: &'static [u8],
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.budget == 0 {
            return Err(io::Error::other(Error::invalid(format!(
                "expected rows of at most {MAX_ROW_BYTES} bytes, but found a longer one; is a quote never closed?"
            ))));
        }
        let length = buffer.len().min(self.budget);
        let read = self.file.read(&mut buffer[..length])?;
        self.budget -= read;
        self.bytes += read as u64;
        if read == 0 {
            self.end.read(buffer)
        } else {
            Ok(read)
        }
    }
}

impl CsvReader {
    /// The names in the header of `file`.
    pub(in crate::batch) fn names(file: impl Read + Send + 'static) -> Result<Vec<String>> {
        Ok(header(file, None)?.1.names)
    }

    /// Reads the header in `file`. Detects the fields that `layout` leaves open: the delimiter by the header, and
    /// the best text column.
    pub(in crate::batch) fn new(file: impl Read + Send + 'static, layout: &Layout) -> Result<Self> {
        let (records, header, note) = header(file, layout.delimiter)?;
        let names = &header.names;
        let is_guessed = layout.column.is_none() && names.len() == 1;
        let columns: Vec<_> = names
            .iter()
            .map(|name| (name.clone(), Content::Texts))
            .collect();
        let column = find_column(layout.column.as_deref(), &columns)?;
        let mut notes: Vec<String> = note.into_iter().collect();
        if is_guessed && !is_known(&column) {
            notes.push(
                "the first line is taken for a header, and its only column for the texts"
                    .to_owned(),
            );
        }
        let text = names.iter().position(|name| *name == column).unwrap_or(0);
        Ok(Self {
            records,
            header,
            text,
            notes,
        })
    }

    fn record(&mut self, record: &mut ByteRecord) -> Result<bool> {
        self.records.get_mut().budget = MAX_ROW_BYTES;
        let is_found = self.records.read_byte_record(record).map_err(unreadable)?;
        Ok(is_found && !ends_file(&self.records, record)?)
    }

    fn text(&self, record: &ByteRecord) -> Result<String, RowError> {
        let expected = self.header.names.len();
        if record.len() != expected {
            return Err(RowError::new(
                ErrorKind::Row,
                format!("expected {expected} fields, but found {}", record.len()),
            ));
        }
        let text = record.get(self.text).unwrap_or_default();
        std::str::from_utf8(text).map(str::to_owned).map_err(|error| {
            let message = format!(
                "expected UTF-8, but found the byte 0x{:02x} in `{}`; convert the file, such as with `iconv`",
                text[error.valid_up_to()],
                self.header.names[self.text]
            );
            RowError::new(ErrorKind::Text, message)
        })
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
        self.records.position().byte()
    }

    fn skip(&mut self, rows: u64) -> Result<()> {
        let mut record = ByteRecord::new();
        for _ in 0..rows {
            if !self.record(&mut record)? {
                break;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        let (mut texts, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0);
        while texts.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let mut record = ByteRecord::new();
            if !self.record(&mut record)? {
                break;
            }
            // Field ends use memory too, which is most of it in a row with only commas.
            bytes += record.as_slice().len() + record.len() * size_of::<usize>();
            texts.push(self.text(&record));
            rows.push(record);
        }
        Ok((!texts.is_empty()).then_some(Chunk {
            texts,
            rows: Rows::Records(rows),
        }))
    }
}

/// Records after the header in `file`, the header, and a note if its delimiter, unless it is known, may be another.
fn header(
    file: impl Read + Send + 'static,
    delimiter: Option<char>,
) -> Result<(::csv::Reader<Bounded<Contents>>, CsvHeader, Option<String>)> {
    let file: Box<dyn Read + Send> = Box::new(file);
    let mut file = BufReader::with_capacity(256 * 1024, file);
    let first = FirstRecord::read(&mut file).map_err(reading)?;
    let known = delimiter.and_then(|delimiter| u8::try_from(delimiter).ok());
    let (delimiter, note) = known.map_or_else(|| first.delimiter(), |known| (known, None));
    let contents = Cursor::new(first.bytes).chain(file);
    let file = Bounded {
        file: contents,
        budget: MAX_HEADER_BYTES,
        bytes: 0,
        end: END,
    };
    let mut records = ReaderBuilder::new()
        .delimiter(delimiter)
        .flexible(true)
        .from_reader(file);
    let record = records.byte_headers().map_err(unreadable)?.clone();
    if ends_file(&records, &record)? {
        return Err(Error::invalid(
            "expected a header, but found only empty lines",
        ));
    }
    Ok((
        records,
        CsvHeader {
            delimiter,
            names: names_of(&record)?,
        },
        note,
    ))
}

/// Whether a record is the row that [`END`] adds to the file.
///
/// # Errors
/// The file ends within quotes in the record.
fn ends_file<R: Read>(records: &::csv::Reader<Bounded<R>>, record: &ByteRecord) -> Result<bool> {
    let line_end = 1;
    if records.position().byte() <= records.get_ref().bytes + line_end {
        return Ok(false);
    }
    if record.len() == 1 && record.as_slice().is_empty() {
        return Ok(true);
    }
    let line = record.position().map_or(1, ::csv::Position::line);
    Err(Error::invalid(format!(
        "expected a quote that closes the field in the row that begins in line {line}, but found the end of the file; \
         is the file complete?"
    )))
}

fn names_of(header: &ByteRecord) -> Result<Vec<String>> {
    if header.len() > MAX_COLUMNS {
        return Err(Error::invalid(format!(
            "expected a header of at most {MAX_COLUMNS} columns, but found {}",
            header.len()
        )));
    }
    let unreadable = |byte| {
        Error::invalid(format!(
            "expected UTF-8 in the header, but found the byte 0x{byte:02x}; convert the file, such as with `iconv`"
        ))
    };
    let names = header.iter().map(|name| {
        // Text in UTF-16 has it in every other place.
        if name.contains(&0) {
            return Err(unreadable(0));
        }
        std::str::from_utf8(name)
            .map(str::to_owned)
            .map_err(|error| unreadable(name[error.valid_up_to()]))
    });
    names.collect()
}

fn unreadable(error: ::csv::Error) -> Error {
    match error.into_kind() {
        ::csv::ErrorKind::Io(source) => reading(source),
        other => Error::invalid(format!("expected CSV, but found {other:?}")),
    }
}

pub(in crate::batch) struct CsvWriter {
    records: ::csv::Writer<Packer>,
    header: CsvHeader,
    columns: Columns,
    names: BTreeSet<String>,
}

impl CsvWriter {
    /// Writes rows with the delimiter in `header`, and the header too if `with_header` is set.
    pub(in crate::batch) fn new(
        target: Packer,
        header: &CsvHeader,
        columns: Columns,
        with_header: bool,
    ) -> Result<Self> {
        let mut records = WriterBuilder::new()
            .delimiter(header.delimiter)
            .flexible(true)
            .from_writer(target);
        if with_header {
            let names = header.names.iter().cloned().chain(header.answers(&columns));
            records.write_record(names).map_err(unwritable)?;
        }
        let names = header.answers(&columns).collect();
        Ok(Self {
            records,
            header: header.clone(),
            columns,
            names,
        })
    }
}

impl RowWriter for CsvWriter {
    fn columns(&self) -> &BTreeSet<String> {
        &self.names
    }

    fn size(&self) -> usize {
        self.records.get_ref().len()
    }

    fn write(&mut self, rows: Rows, results: &[RowResult]) -> Result<()> {
        let Rows::Records(records) = rows else {
            return mismatched();
        };
        for (record, result) in records.into_iter().zip(results) {
            let mut record = fit(&record, &self.header);
            match result {
                Ok(answer) => {
                    answer
                        .iter()
                        .for_each(|cell| record.push_field(field(cell).as_bytes()));
                    record.push_field(b"");
                }
                Err(error) => {
                    self.columns.iter().for_each(|_| record.push_field(b""));
                    record.push_field(error.message.as_bytes());
                }
            }
            self.records
                .write_byte_record(&record)
                .map_err(unwritable)?;
        }
        // `size` excludes the CSV writer's buffer.
        self.records
            .flush()
            .map_err(Error::io("cannot write the output"))
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        let failed = || Error::io("cannot write the output");
        let packer = self
            .records
            .into_inner()
            .map_err(|error| failed()(error.into_error()))?;
        Ok((packer.finish().map_err(failed())?, None))
    }
}

impl CsvHeader {
    /// Names for the added columns, none of which the file uses.
    fn answers(&self, columns: &[Column]) -> impl Iterator<Item = String> {
        let is_taken = |name: &str| self.names.iter().any(|taken| taken == name);
        names(columns).map(move |name| free_name(name, is_taken))
    }
}

/// Pads a record to the header's fields; additional fields are joined with the last one.
fn fit(record: &ByteRecord, header: &CsvHeader) -> ByteRecord {
    let width = header.names.len();
    if record.len() <= width {
        let missing = std::iter::repeat_n(&b""[..], width - record.len());
        return record.iter().chain(missing).collect();
    }
    let fields: Vec<&[u8]> = record.iter().collect();
    let (kept, rest) = fields.split_at(width.saturating_sub(1));
    let rest = rest.join(&header.delimiter);
    kept.iter().copied().chain([rest.as_slice()]).collect()
}

/// A cell as a field; lists as JSON.
fn field(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.to_string(),
        Cell::Number(number) => number.to_string(),
        list => serde_json::to_string(list).unwrap_or_default(),
    }
}

fn unwritable(error: ::csv::Error) -> Error {
    Error::Io {
        action: "cannot write the output".into(),
        source: io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::answer::label_columns;

    #[test]
    fn chunks_of_rows_with_many_fields_are_small() {
        let row = ",".repeat(200_000);
        let file = format!("text,b\n{}", vec![row; 64].join("\n"));
        let mut reader = CsvReader::new(Cursor::new(file), &Layout::default()).unwrap();
        let chunk = reader.next().unwrap().unwrap();
        assert!(chunk.texts.len() < 8, "{} rows at once", chunk.texts.len());
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
            let names = header.split(',').map(str::to_owned).collect();
            CsvHeader {
                delimiter: b',',
                names,
            }
            .answers(&label_columns())
            .collect::<Vec<_>>()
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
            assert_eq!(reader.layout().delimiter, Some(';'));
            assert_eq!(
                reader.next().unwrap().unwrap().texts,
                [Ok("hello".to_owned())]
            );
            assert!(reader.next().unwrap().is_none());
        }
        // A known delimiter is not detected again.
        let layout = Layout {
            delimiter: Some(','),
            ..Layout::default()
        };
        let refused = CsvReader::new(Cursor::new("a;b;text,c\n"), &layout)
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("but found `a;b;text`, `c`"), "{refused}");
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
        insta::assert_snapshot!(refused("id,text\n1,a\n2,\"b\nc\n3,d\n"), @"expected a quote that closes the field in the row that begins in line 3, but found the end of the file; is the file complete?");
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
        for end in ["", "\n", "\r\n", "\n\n\n", "\r"] {
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
        insta::assert_snapshot!(refused.err().unwrap(), @"expected UTF-8 in the header, but found the byte 0x00; convert the file, such as with `iconv`");
    }
}
