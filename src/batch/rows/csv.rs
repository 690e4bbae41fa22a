//! CSV with a header: records come out as they went in, with the answer in columns at their end.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ::csv::{ByteRecord, ReaderBuilder, WriterBuilder};

use super::{
    CHUNK_BYTES, CHUNK_ROWS, Chunk, LONGEST_ROW, Outcome, RowError, Rows, find_column, free_name, is_known,
    reading,
};
use crate::{
    batch::answer::{Answer, Kind},
    error::{Error, Result},
};

/// What may be between fields; the header is taken to have most of the right one.
const DELIMITERS: [u8; 4] = *b",;\t|";
const QUOTE: u8 = b'"';

/// The longest header that is taken, in bytes, and the most columns: each of their names is kept several times.
const LONGEST_HEADER: usize = 1024 * 1024;
const MOST_COLUMNS: usize = 10_000;

/// The head of a file: what is between fields, and what they are called.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::batch) struct Header {
    pub(in crate::batch) delimiter: u8,
    pub(in crate::batch) names: Vec<String>,
}

/// The records of a file.
pub(in crate::batch) struct CsvReader<R: Read> {
    records: ::csv::Reader<Bounded<BufReader<R>>>,
    budget: Arc<AtomicUsize>,
    header: Header,
    text: usize,
    notes: Vec<String>,
}

/// Gives no more than a budget: an unclosed quote would make one record of the rest of the file.
struct Bounded<R> {
    file: R,
    budget: Arc<AtomicUsize>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::other(format!(
                "expected rows of at most {LONGEST_ROW} bytes, but found a longer one; is a quote never closed?"
            )));
        }
        let length = buffer.len().min(left);
        let read = self.file.read(&mut buffer[..length])?;
        self.budget.fetch_sub(read, Ordering::Relaxed);
        Ok(read)
    }
}

impl<R: Read> CsvReader<R> {
    /// The records of `file`, the texts of which are in `column`, or in the one that is found.
    pub(in crate::batch) fn new(file: R, column: Option<&str>) -> Result<Self> {
        let mut file = BufReader::with_capacity(256 * 1024, file);
        let head = file.fill_buf().map_err(reading)?;
        let mark = if head.starts_with("\u{feff}".as_bytes()) { 3 } else { 0 };
        let mut counts = count_delimiters(&head[mark..]);
        // Of equal ones the first counts.
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let delimiter = counts.first().map_or(b',', |(delimiter, _)| *delimiter);
        let alternatives = counts.iter().skip(1).filter(|(_, count)| *count > 0);
        let alternatives: Vec<_> = alternatives.map(|(delimiter, _)| shown(*delimiter)).collect();
        let mut notes = Vec::new();
        if !alternatives.is_empty() {
            notes.push(format!(
                "the header is read with {} between its fields, though it has {} outside of quotes as well",
                shown(delimiter),
                alternatives.join(" and ")
            ));
        }
        file.consume(mark);
        let budget = Arc::new(AtomicUsize::new(LONGEST_HEADER));
        let file = Bounded { file, budget: Arc::clone(&budget) };
        let mut records = ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(file);
        let names = records.byte_headers().map_err(unreadable)?.clone();
        if names.len() > MOST_COLUMNS {
            return Err(Error::invalid(format!(
                "expected a header of at most {MOST_COLUMNS} columns, but found {}",
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
        Ok(Self { records, budget, header: Header { delimiter, names }, text, notes })
    }

    pub(in crate::batch) fn header(&self) -> &Header {
        &self.header
    }

    /// The column of texts.
    pub(in crate::batch) fn column(&self) -> &str {
        &self.header.names[self.text]
    }

    /// What was decided about the file that its owner may see otherwise.
    pub(in crate::batch) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The bytes of the records so far.
    pub(super) fn position(&self) -> u64 {
        self.records.position().byte()
    }

    pub(super) fn skip(&mut self, rows: u64) -> Result<()> {
        let mut record = ByteRecord::new();
        for _ in 0..rows {
            if !self.record(&mut record)? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk>> {
        let (mut texts, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0);
        while texts.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let mut record = ByteRecord::new();
            if !self.record(&mut record)? {
                break;
            }
            // Where its fields end takes room as well: of a row of commas that is all there is.
            bytes += record.as_slice().len() + record.len() * size_of::<usize>();
            texts.push(self.text(&record));
            rows.push(record);
        }
        Ok((!texts.is_empty()).then_some(Chunk { texts, rows: Rows::Records(rows) }))
    }

    fn record(&mut self, record: &mut ByteRecord) -> Result<bool> {
        self.budget.store(LONGEST_ROW, Ordering::Relaxed);
        self.records.read_byte_record(record).map_err(unreadable)
    }

    fn text(&self, record: &ByteRecord) -> std::result::Result<String, RowError> {
        let expected = self.header.names.len();
        if record.len() != expected {
            return Err(RowError::row(format!("expected {expected} fields, but found {}", record.len())));
        }
        let text = record.get(self.text).unwrap_or_default();
        std::str::from_utf8(text).map(str::to_owned).map_err(|error| {
            RowError::text(format!(
                "expected UTF-8, but found the byte 0x{:02x} in `{}`; convert the file, such as with `iconv`",
                text[error.valid_up_to()],
                self.header.names[self.text]
            ))
        })
    }
}

/// How often each delimiter occurs in the first record outside of quotes, as the CSV reader sees them: a field is
/// quoted if a quote is its first character, and a doubled quote does not end it.
fn count_delimiters(head: &[u8]) -> [(u8, usize); DELIMITERS.len()] {
    let mut counts = DELIMITERS.map(|delimiter| (delimiter, 0));
    let (mut is_quoted, mut starts_field) = (false, true);
    // Empty lines before the header are no records.
    let start = head.iter().position(|byte| !matches!(byte, b'\n' | b'\r')).unwrap_or(0);
    for byte in &head[start..] {
        match byte {
            // The second quote of a doubled one opens what the first has closed.
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

fn shown(delimiter: u8) -> String {
    if delimiter == b'\t' { "tabs".to_owned() } else { format!("`{}`", char::from(delimiter)) }
}

fn unreadable(error: ::csv::Error) -> Error {
    match error.into_kind() {
        ::csv::ErrorKind::Io(source) => reading(source),
        other => Error::invalid(format!("expected CSV, but found {other:?}")),
    }
}

/// Writes records with their answers.
pub(in crate::batch) struct CsvWriter<W: Write> {
    records: ::csv::Writer<W>,
    header: Header,
    kind: Kind,
    columns: BTreeSet<String>,
}

impl<W: Write> CsvWriter<W> {
    /// Writes answers of that kind behind fields of that header, which is written first where that is asked for.
    pub(in crate::batch) fn new(target: W, header: &Header, kind: Kind, with_header: bool) -> Result<Self> {
        let mut records = WriterBuilder::new().delimiter(header.delimiter).flexible(true).from_writer(target);
        if with_header {
            let names = header.names.iter().cloned().chain(header.answers(kind));
            records.write_record(names).map_err(unwritable)?;
        }
        let columns = header.answers(kind).collect();
        Ok(Self { records, header: header.clone(), kind, columns })
    }

    pub(super) fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    pub(super) fn get_ref(&self) -> &W {
        self.records.get_ref()
    }

    pub(super) fn into_inner(self) -> Result<W> {
        self.records.into_inner().map_err(|error| Error::Io {
            action: "cannot write the output".into(),
            source: error.into_error(),
        })
    }

    pub(super) fn write(&mut self, records: Vec<ByteRecord>, outcomes: &[Outcome]) -> Result<()> {
        let columns = self.kind.columns().len();
        for (record, outcome) in records.into_iter().zip(outcomes) {
            let mut record = fit(&record, &self.header);
            let mut cells = match outcome {
                Ok(answer) => cells(answer),
                Err(_) => vec![String::new(); columns],
            };
            cells.push(outcome.as_ref().err().map(|error| error.message.clone()).unwrap_or_default());
            cells.iter().for_each(|cell| record.push_field(cell.as_bytes()));
            self.records.write_byte_record(&record).map_err(unwritable)?;
        }
        // What is in the target counts when it is asked for its size.
        self.records.flush().map_err(Error::io("cannot write the output"))
    }
}

impl Header {
    /// The names of the columns that are added.
    fn answers(&self, kind: Kind) -> impl Iterator<Item = String> + '_ {
        let is_taken = |name: &str| self.names.iter().any(|taken| taken == name);
        kind.columns().iter().chain([&"error"]).map(move |name| free_name(name, is_taken))
    }
}

/// A record with as many fields as the header has: what is too much goes into the last one, and nothing is lost.
fn fit(record: &ByteRecord, header: &Header) -> ByteRecord {
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

/// An answer as it stands in columns; lists as JSON.
fn cells(answer: &Answer) -> Vec<String> {
    let list = |values: &[f32]| serde_json::to_string(values).unwrap_or_default();
    match answer {
        Answer::Embedding(vector) => vec![list(vector)],
        Answer::Label { label, score } => vec![label.to_string(), score.to_string()],
        Answer::Labels { labels, scores } => {
            vec![serde_json::to_string(labels).unwrap_or_default(), list(scores)]
        }
        Answer::Score(score) => vec![score.to_string()],
        Answer::Translation(text) => vec![text.clone()],
    }
}

fn unwritable(error: ::csv::Error) -> Error {
    Error::Io { action: "cannot write the output".into(), source: io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn rows_of_commas_count_for_what_they_take() {
        let row = ",".repeat(200_000);
        let file = format!("text,b\n{}", vec![row; 64].join("\n"));
        let mut reader = CsvReader::new(Cursor::new(file), None).unwrap();
        let chunk = reader.next().unwrap().unwrap();
        assert!(chunk.texts.len() < 8, "{} rows at once", chunk.texts.len());
    }

    #[test]
    fn a_header_without_end_is_refused() {
        let refused = |header: String| CsvReader::new(Cursor::new(header), None).err().unwrap().to_string();
        insta::assert_snapshot!(refused(",".repeat(20_000)), @"expected a header of at most 10000 columns, but found 20001");
        let taken = allocation_counter::measure(|| drop(refused(",".repeat(8 * 1024 * 1024)))).bytes_max;
        assert!(taken < 64 * 1024 * 1024, "{taken} bytes");
    }

    #[test]
    fn delimiters_inside_quoted_names_do_not_count() {
        let read = |file: &'static str| {
            let reader = CsvReader::new(Cursor::new(file), None).unwrap();
            (reader.header().names.clone(), reader.column().to_owned(), reader.notes().to_vec())
        };
        let (names, column, note) = read("\"id; the; key\",text\n1;2;3,hello\n");
        assert_eq!((names.len(), column.as_str(), note), (2, "text", Vec::new()));
        let (names, column, _) = read("\"a \"\"b\"\"; c;;\r\n d;\",\"text\"\nx,y\n");
        assert_eq!((names[0].as_str(), column.as_str()), ("a \"b\"; c;;\r\n d;", "text"));
        // A quote inside a field that does not begin with one is a character like any other.
        let (names, ..) = read("5\" disk;text;\"x,y,z\"\n");
        assert_eq!(names, ["5\" disk", "text", "x,y,z"]);
        let (_, column, _) = read("\n\ntext;id\n");
        assert_eq!(column, "text");
    }

    #[test]
    fn a_header_with_two_delimiters_is_told_of() {
        let reader = CsvReader::new(Cursor::new("id;text;price, net\n1;a;2\n"), None).unwrap();
        assert_eq!(reader.column(), "text");
        insta::assert_snapshot!(reader.notes()[0], @"the header is read with `;` between its fields, though it has `,` outside of quotes as well");
    }

    #[test]
    fn a_column_of_texts_that_is_there_twice_is_refused() {
        let refused = CsvReader::new(Cursor::new("text,id,text\na,1,b\n"), None).err().unwrap().to_string();
        insta::assert_snapshot!(refused, @"expected one column of texts, but found `text` 2 times");
    }

    #[test]
    fn names_of_answers_stay_unique_however_often_a_file_is_annotated() {
        let names = |header: &str| {
            let names = header.split(',').map(str::to_owned).collect();
            Header { delimiter: b',', names }.answers(Kind::Label).collect::<Vec<_>>()
        };
        assert_eq!(names("text"), ["label", "score", "error"]);
        assert_eq!(names("text,label,score,error"), ["kivu_label", "kivu_score", "kivu_error"]);
        let third = names("text,label,kivu_label,kivu_label_2,score,error,kivu_error");
        assert_eq!(third, ["kivu_label_3", "kivu_score", "kivu_error_2"]);
    }
}
