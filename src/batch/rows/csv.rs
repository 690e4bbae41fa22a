//! CSV with a header. The columns of answers follow those of the input.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Read},
};

use ::csv::{ByteRecord, ReaderBuilder, WriterBuilder};

use super::{
    chunk::{
        CHUNK_BYTES, CHUNK_ROWS, Chunk, CsvHeader, Head, MAX_ROW_BYTES, RowReader, RowWriter, Rows,
        WrittenPiece, mismatched, reading,
    },
    column::{find_column, free_name, is_known},
};
use crate::{
    batch::{
        answer::{Cell, Columns, ErrorKind, RowError, RowResult, names},
        compression::Packer,
    },
    error::{Error, Result},
};

/// The one that occurs most often in the header is used.
const DELIMITERS: [u8; 4] = *b",;\t|";
const QUOTE: u8 = b'"';

/// The names of the columns are stored several times.
const MAX_HEADER_BYTES: usize = 1024 * 1024;
const MAX_COLUMNS: usize = 10_000;

pub(in crate::batch) struct CsvReader {
    records: ::csv::Reader<Bounded<BufReader<Box<dyn Read + Send>>>>,
    header: CsvHeader,
    text: usize,
    notes: Vec<String>,
}

/// Limits the bytes of a record, since an unclosed quote makes one record of the rest of the file.
struct Bounded<R> {
    file: R,
    budget: usize,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.budget == 0 {
            return Err(io::Error::other(format!(
                "expected rows of at most {MAX_ROW_BYTES} bytes, but found a longer one; is a quote never closed?"
            )));
        }
        let length = buffer.len().min(self.budget);
        let read = self.file.read(&mut buffer[..length])?;
        self.budget -= read;
        Ok(read)
    }
}

impl CsvReader {
    /// Reads the header of `file`, which has its texts in `column`, by default in the best column.
    pub(in crate::batch) fn new(file: impl Read + Send + 'static, column: Option<&str>) -> Result<Self> {
        let file: Box<dyn Read + Send> = Box::new(file);
        let mut file = BufReader::with_capacity(256 * 1024, file);
        let head = file.fill_buf().map_err(reading)?;
        let mark = if head.starts_with("\u{feff}".as_bytes()) { 3 } else { 0 };
        let mut counts = count_delimiters(&head[mark..]);
        // Stable: the first of equal ones is used.
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let delimiter = counts.first().map_or(b',', |(delimiter, _)| *delimiter);
        let alternatives = counts.iter().skip(1).filter(|(_, count)| *count > 0);
        let alternatives: Vec<_> = alternatives.map(|(delimiter, _)| quoted_delimiter(*delimiter)).collect();
        let mut notes = Vec::new();
        if !alternatives.is_empty() {
            notes.push(format!(
                "the header is read with {} between its fields, though it has {} outside of quotes as well",
                quoted_delimiter(delimiter),
                alternatives.join(" and ")
            ));
        }
        file.consume(mark);
        let file = Bounded { file, budget: MAX_HEADER_BYTES };
        let mut records = ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(file);
        let names = records.byte_headers().map_err(unreadable)?.clone();
        if names.len() > MAX_COLUMNS {
            return Err(Error::invalid(format!(
                "expected a header of at most {MAX_COLUMNS} columns, but found {}",
                names.len()
            )));
        }
        let names = names.iter().map(|name| {
            std::str::from_utf8(name).map(str::to_owned).map_err(|error| {
                Error::invalid(format!(
                    "expected UTF-8 in the header, but found the byte 0x{:02x}; convert the file, such as with \
                     `iconv`",
                    name[error.valid_up_to()]
                ))
            })
        });
        let names = names.collect::<Result<Vec<_>>>()?;
        let is_guessed = column.is_none() && names.len() == 1;
        let column = find_column(column, &names, &names)?;
        if is_guessed && !is_known(&column) {
            notes.push("the first line is taken for a header, and its only column for the texts".to_owned());
        }
        let text = names.iter().position(|name| *name == column).unwrap_or(0);
        Ok(Self { records, header: CsvHeader { delimiter, names }, text, notes })
    }

    fn record(&mut self, record: &mut ByteRecord) -> Result<bool> {
        self.records.get_mut().budget = MAX_ROW_BYTES;
        self.records.read_byte_record(record).map_err(unreadable)
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

    fn column(&self) -> Option<&str> {
        self.header.names.get(self.text).map(String::as_str)
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
            // The ends of the fields use memory too, which is most of it in a row of commas.
            bytes += record.as_slice().len() + record.len() * size_of::<usize>();
            texts.push(self.text(&record));
            rows.push(record);
        }
        Ok((!texts.is_empty()).then_some(Chunk { texts, rows: Rows::Records(rows) }))
    }
}

/// The number of occurrences of each delimiter in the first record, outside of quotes. As in the CSV reader, a field is
/// quoted if a quote is its first character, and a doubled quote does not end it.
fn count_delimiters(head: &[u8]) -> [(u8, usize); DELIMITERS.len()] {
    let mut counts = DELIMITERS.map(|delimiter| (delimiter, 0));
    let (mut is_quoted, mut starts_field) = (false, true);
    // Empty lines before the header are skipped.
    let start = head.iter().position(|byte| !matches!(byte, b'\n' | b'\r')).unwrap_or(0);
    for byte in &head[start..] {
        match byte {
            // The second quote of a doubled one continues the field.
            &QUOTE if is_quoted => (is_quoted, starts_field) = (false, true),
            &QUOTE if starts_field => is_quoted = true,
            _ if is_quoted => {}
            b'\n' | b'\r' => break,
            byte => {
                let found = counts.iter_mut().find(|(delimiter, _)| delimiter == byte);
                starts_field = found.is_some();
                found.into_iter().for_each(|(_, count)| *count += 1);
            }
        }
    }
    counts
}

fn quoted_delimiter(delimiter: u8) -> String {
    if delimiter == b'\t' { "tabs".to_owned() } else { format!("`{}`", char::from(delimiter)) }
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
    /// Writes the header too if `with_header` is set.
    pub(in crate::batch) fn new(
        target: Packer,
        header: &CsvHeader,
        columns: Columns,
        with_header: bool,
    ) -> Result<Self> {
        let mut records = WriterBuilder::new().delimiter(header.delimiter).flexible(true).from_writer(target);
        if with_header {
            let names = header.names.iter().cloned().chain(header.answers(columns));
            records.write_record(names).map_err(unwritable)?;
        }
        let names = header.answers(columns).collect();
        Ok(Self { records, header: header.clone(), columns, names })
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
        let Rows::Records(records) = rows else { return mismatched() };
        for (record, result) in records.into_iter().zip(results) {
            let mut record = fit(&record, &self.header);
            match result {
                Ok(answer) => {
                    answer.iter().for_each(|cell| record.push_field(field(cell).as_bytes()));
                    record.push_field(b"");
                }
                Err(error) => {
                    self.columns.iter().for_each(|_| record.push_field(b""));
                    record.push_field(error.message.as_bytes());
                }
            }
            self.records.write_byte_record(&record).map_err(unwritable)?;
        }
        // `size` excludes the buffer of the CSV writer.
        self.records.flush().map_err(Error::io("cannot write the output"))
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        let failed = || Error::io("cannot write the output");
        let packer = self.records.into_inner().map_err(|error| failed()(error.into_error()))?;
        Ok((packer.finish().map_err(failed())?, None))
    }
}

impl CsvHeader {
    /// The names of the columns that are added, none of which the file uses.
    fn answers(&self, columns: Columns) -> impl Iterator<Item = String> + '_ {
        let is_taken = |name: &str| self.names.iter().any(|taken| taken == name);
        names(columns).map(move |name| free_name(name, is_taken))
    }
}

/// Pads a record to the fields of the header; additional fields are joined with the last one.
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
    Error::Io { action: "cannot write the output".into(), source: io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::batch::answer::LABEL;

    #[test]
    fn chunks_of_rows_with_many_fields_are_small() {
        let row = ",".repeat(200_000);
        let file = format!("text,b\n{}", vec![row; 64].join("\n"));
        let mut reader = CsvReader::new(Cursor::new(file), None).unwrap();
        let chunk = reader.next().unwrap().unwrap();
        assert!(chunk.texts.len() < 8, "{} rows at once", chunk.texts.len());
    }

    #[test]
    fn long_headers_are_refused() {
        let refused = |header: String| CsvReader::new(Cursor::new(header), None).err().unwrap().to_string();
        insta::assert_snapshot!(refused(",".repeat(20_000)), @"expected a header of at most 10000 columns, but found 20001");
        let taken = allocation_counter::measure(|| drop(refused(",".repeat(8 * 1024 * 1024)))).bytes_max;
        assert!(taken < 64 * 1024 * 1024, "{taken} bytes");
    }

    #[test]
    fn delimiters_in_quoted_names_are_ignored() {
        let read = |file: &'static str| {
            let reader = CsvReader::new(Cursor::new(file), None).unwrap();
            (reader.header.names.clone(), reader.column().unwrap().to_owned(), reader.notes().to_vec())
        };
        let (names, column, note) = read("\"id; the; key\",text\n1;2;3,hello\n");
        assert_eq!((names.len(), column.as_str(), note), (2, "text", Vec::new()));
        let (names, column, _) = read("\"a \"\"b\"\"; c;;\r\n d;\",\"text\"\nx,y\n");
        assert_eq!((names[0].as_str(), column.as_str()), ("a \"b\"; c;;\r\n d;", "text"));
        // A quote inside an unquoted field is a normal character.
        let (names, ..) = read("5\" disk;text;\"x,y,z\"\n");
        assert_eq!(names, ["5\" disk", "text", "x,y,z"]);
        let (_, column, _) = read("\n\ntext;id\n");
        assert_eq!(column, "text");
    }

    #[test]
    fn a_header_with_two_delimiters_is_noted() {
        let reader = CsvReader::new(Cursor::new("id;text;price, net\n1;a;2\n"), None).unwrap();
        assert_eq!(reader.column(), Some("text"));
        insta::assert_snapshot!(reader.notes()[0], @"the header is read with `;` between its fields, though it has `,` outside of quotes as well");
    }

    #[test]
    fn duplicate_text_columns_are_refused() {
        let refused = CsvReader::new(Cursor::new("text,id,text\na,1,b\n"), None).err().unwrap().to_string();
        insta::assert_snapshot!(refused, @"expected one column of texts, but found `text` 2 times");
    }

    #[test]
    fn names_of_answers_are_unique_in_annotated_outputs() {
        let names = |header: &str| {
            let names = header.split(',').map(str::to_owned).collect();
            CsvHeader { delimiter: b',', names }.answers(LABEL).collect::<Vec<_>>()
        };
        assert_eq!(names("text"), ["label", "score", "error"]);
        assert_eq!(names("text,label,score,error"), ["kivu_label", "kivu_score", "kivu_error"]);
        let third = names("text,label,kivu_label,kivu_label_2,score,error,kivu_error");
        assert_eq!(third, ["kivu_label_3", "kivu_score", "kivu_error_2"]);
    }
}
