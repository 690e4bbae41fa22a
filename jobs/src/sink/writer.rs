//! Collects rows for a sink, and sends them in batches.

use serde_json::Value;

use super::{
    interface::{Sink, SinkSettings},
    record::{self, Record, refusal},
};
use crate::{
    output::answer::{Answers, RowError, RowResult},
    rows::{CHUNK_ROWS, Fields, Head, Ids, RowReader, Rows, failed},
};
use kivu::{Error, Result};

/// Rows that are sent together at most: as many as S3 Vectors accepts.
const BATCH_ROWS: usize = 500;
/// A batch with this many bytes ends before [`BATCH_ROWS`] rows.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Rows that the sink does not have, with their errors, and the answers for all rows in their chunk.
pub struct Sent {
    pub failed: Vec<(Rows, Vec<RowResult>)>,
    pub answers: Answers,
}

/// A chunk's rows, and the places of the records among them.
struct Waiting {
    rows: Rows,
    answers: Answers,
    records: Vec<usize>,
}

/// Writes rows to a sink.
pub struct SinkWriter {
    sink: Box<dyn Sink>,
    id: Fields,
    id_column: String,
    metadata: Fields,
    dimensions: usize,
    /// The keys of all ids so far.
    ids: Ids,
    chunks: Vec<Waiting>,
    records: Vec<Record>,
    bytes: usize,
    rows: usize,
}

impl SinkWriter {
    /// Connects to the sink, and checks that the file's columns and the model's vectors fit.
    pub fn connect(settings: &SinkSettings, dimensions: usize, head: &Head) -> Result<Self> {
        let id = Fields::new(head, vec![settings.id.clone()])?;
        let metadata = Fields::new(head, settings.metadata.clone())?;
        Ok(Self {
            sink: settings.url.connect(settings, dimensions)?,
            id,
            id_column: settings.id.clone(),
            metadata,
            dimensions,
            ids: Ids::default(),
            chunks: Vec::new(),
            records: Vec::new(),
            bytes: 0,
            rows: 0,
        })
    }

    /// Reads the ids in rows that are done, which no other row may have.
    pub fn skip(&mut self, reader: &mut dyn RowReader, rows: u64) -> Result<()> {
        let mut done = 0;
        while done < rows {
            let Some(chunk) = reader.next()? else { break };
            for row in 0..chunk.texts.len() {
                // An error was reported when the row was processed.
                let _ = self.values(&chunk.rows, row);
            }
            done += chunk.texts.len() as u64;
        }
        if done > rows {
            return Err(Error::invalid(format!(
                "expected a job that was saved between two chunks of rows, but found it saved \
                 after {rows}"
            ))
            .with_hint("start again with `--restart`"));
        }
        Ok(())
    }

    /// Takes rows, which are sent with the next [`Self::flush`].
    pub fn add(&mut self, rows: Rows, mut answers: Answers) {
        let mut places = Vec::new();
        for (row, result) in answers.results.iter_mut().enumerate() {
            match self.record(&rows, row, result) {
                Ok(record) => {
                    let bytes = |value| value_bytes(value, 8);
                    let metadata: usize = record.metadata.iter().map(bytes).sum();
                    self.bytes +=
                        record.vector.len() * size_of::<f32>() + record.id.len() + metadata;
                    self.records.push(record);
                    places.push(row);
                    *result = Ok(Vec::new());
                }
                Err(error) => *result = Err(error),
            }
        }
        self.rows += answers.results.len();
        self.chunks.push(Waiting {
            rows,
            answers,
            records: places,
        });
    }

    /// Whether the next chunk's rows may be too many for a batch.
    pub fn is_full(&self) -> bool {
        self.rows + CHUNK_ROWS > BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    /// Sends all rows that were added, and returns the ones without a place in the sink.
    pub fn flush(&mut self) -> Result<Vec<Sent>> {
        let refused = match self.records.as_slice() {
            [] => Vec::new(),
            records => self.sink.put(records)?,
        };
        self.records.clear();
        (self.bytes, self.rows) = (0, 0);
        let mut refused = refused.into_iter().peekable();
        let mut first = 0;
        let mut sent = Vec::new();
        for Waiting {
            rows,
            mut answers,
            records,
        } in self.chunks.drain(..)
        {
            while let Some((place, message)) =
                refused.next_if(|(place, _)| *place < first + records.len())
            {
                answers.results[records[place - first]] = Err(refusal(message));
            }
            first += records.len();
            sent.push(Sent {
                failed: failed(rows, &answers.results),
                answers,
            });
        }
        Ok(sent)
    }

    fn record(
        &mut self,
        rows: &Rows,
        row: usize,
        result: &mut RowResult,
    ) -> Result<Record, RowError> {
        let values = self.values(rows, row);
        let vector = record::vector(result, self.dimensions)?;
        let (id, metadata) = values?;
        let record = Record {
            id,
            vector,
            metadata,
        };
        self.sink.check(&record).map_err(refusal)?;
        Ok(record)
    }

    /// A row's id, which no earlier row has, and its metadata.
    fn values(&mut self, rows: &Rows, row: usize) -> Result<(String, Vec<Value>), RowError> {
        let id = self.id.values(rows, row)?.pop().unwrap_or_default();
        let id = record::id(&id, &self.id_column)?;
        if !self.ids.add(&self.sink.key(&id)) {
            let column = &self.id_column;
            return Err(refusal(format!(
                "the id in `{column}` is also that of an earlier row"
            )));
        }
        Ok((id, self.metadata.values(rows, row)?))
    }
}

/// A value's size without punctuation; each value other than texts counts as `scalar` bytes.
pub fn value_bytes(value: &Value, scalar: usize) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(|it| value_bytes(it, scalar)).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| name.len() + value_bytes(value, scalar))
            .sum(),
        _ => scalar,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fmt,
        io::Cursor,
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::sink::SinkUrl;
    use crate::{
        output::answer::{Cell, ErrorKind},
        rows::JsonLinesReader,
    };
    use kivu::pipeline::embedding::vectors::StoredVector;

    /// Keeps ids per batch, and refuses some.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<Vec<String>>>>);

    impl fmt::Display for Kept {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("kept")
        }
    }

    impl SinkUrl for Kept {
        fn taken<'a>(&'a self, _: &'a str) -> Vec<&'a str> {
            Vec::new()
        }

        fn connect(&self, _: &SinkSettings, _: usize) -> Result<Box<dyn Sink>> {
            Ok(Box::new(self.clone()))
        }
    }

    impl Sink for Kept {
        fn key(&self, id: &str) -> String {
            id.to_lowercase()
        }

        fn check(&self, record: &Record) -> Result<(), String> {
            if record.id.contains("checked") {
                Err("checked".into())
            } else {
                Ok(())
            }
        }

        fn put(&mut self, records: &[Record]) -> Result<Vec<(usize, String)>> {
            let is_refused = |record: &Record| record.id.contains("refused");
            self.0
                .lock()
                .unwrap()
                .push(records.iter().map(|record| record.id.clone()).collect());
            let refused = records
                .iter()
                .enumerate()
                .filter(|(_, record)| is_refused(record));
            Ok(refused
                .map(|(place, _)| (place, "refused".to_owned()))
                .collect())
        }
    }

    fn writer(kept: &Kept) -> SinkWriter {
        let settings = SinkSettings {
            url: Arc::new(kept.clone()),
            id: "id".to_owned(),
            metadata: vec!["note".to_owned()],
        };
        SinkWriter::connect(&settings, 1, &Head::JsonLines).unwrap()
    }

    fn lines(ids: &[&str]) -> Vec<Vec<u8>> {
        ids.iter()
            .map(|id| format!("{{\"text\": \"a\", \"id\": {id}}}").into_bytes())
            .collect()
    }

    fn answers(results: Vec<RowResult>) -> Answers {
        Answers {
            results,
            ..Answers::default()
        }
    }

    fn vector() -> RowResult {
        Ok(vec![Cell::Vector(StoredVector::Float(vec![1.0]))])
    }

    #[test]
    fn rows_that_a_sink_does_not_have_come_back() {
        let kept = Kept::default();
        let mut writer = writer(&kept);
        let model = || Err(RowError::new(ErrorKind::Model, "model"));
        writer.add(
            Rows::Lines(lines(&[
                "1",
                "2",
                "\"refused\"",
                "1",
                "\"checked\"",
                "null",
            ])),
            answers(vec![
                vector(),
                model(),
                vector(),
                vector(),
                vector(),
                vector(),
            ]),
        );
        // The model failed for the row with the id 2, whose id counts.
        writer.add(
            Rows::Lines(lines(&["2", "3", "\"refused 2\"", "\"REFUSED\""])),
            answers(vec![vector(), vector(), vector(), vector()]),
        );
        let sent = writer.flush().unwrap();
        assert_eq!(
            *kept.0.lock().unwrap(),
            [["1", "refused", "3", "refused 2"]]
        );
        let errors: Vec<Vec<String>> = sent
            .iter()
            .map(|sent| {
                let errors = sent
                    .answers
                    .results
                    .iter()
                    .map(|result| result.as_ref().err());
                errors
                    .map(|error| {
                        error.map_or("stored".to_owned(), |error| error.message.to_string())
                    })
                    .collect()
            })
            .collect();
        let repeated = "the id in `id` is also that of an earlier row";
        let missing = "expected a text or an integer as the id in `id`, but found nothing";
        assert_eq!(
            errors[0],
            ["stored", "model", "refused", repeated, "checked", missing]
        );
        assert_eq!(errors[1], [repeated, "stored", "refused", repeated]);
        let failed = |sent: &Sent| {
            sent.failed
                .iter()
                .map(|(_, results)| results.len())
                .sum::<usize>()
        };
        assert_eq!(sent.iter().map(failed).collect::<Vec<_>>(), [5, 3]);
        assert!(writer.flush().unwrap().is_empty());
        assert_eq!(kept.0.lock().unwrap().len(), 1, "an empty batch was sent");
    }

    #[test]
    fn an_id_counts_whatever_is_wrong_with_its_row() {
        let (kept, mut rows) = (Kept::default(), lines(&["1", "1"]));
        rows[0].splice(1..1, *b"\"note\": 1e400, ");
        let mut writer = writer(&kept);
        writer.add(Rows::Lines(rows), answers(vec![vector(), vector()]));
        let sent = writer.flush().unwrap();
        assert!(sent[0].answers.results.iter().all(Result::is_err));
        assert!(kept.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_resumed_job_knows_the_ids_of_its_earlier_rows() {
        let (kept, file) = (Kept::default(), lines(&["1", "2", "3"]).join(&b'\n'));
        let mut reader = JsonLinesReader::new(Cursor::new(file), Some("text")).unwrap();
        let mut writer = writer(&kept);
        writer.skip(&mut reader, 3).unwrap();
        writer.add(
            Rows::Lines(lines(&["2", "4"])),
            answers(vec![vector(), vector()]),
        );
        let sent = writer.flush().unwrap();
        assert_eq!(
            sent[0]
                .answers
                .results
                .iter()
                .filter(|result| result.is_err())
                .count(),
            1
        );
        assert_eq!(*kept.0.lock().unwrap(), [["4"]]);
    }

    #[test]
    fn batches_have_at_most_as_many_rows_as_s3_vectors_accepts() {
        let mut writer = writer(&Kept::default());
        for chunk in 0..7 {
            assert!(!writer.is_full(), "{chunk} chunks");
            let ids: Vec<String> = (0..64).map(|row| (chunk * 64 + row).to_string()).collect();
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            writer.add(
                Rows::Lines(lines(&ids)),
                answers((0..64).map(|_| vector()).collect()),
            );
        }
        assert!(writer.is_full());
        writer.flush().unwrap();
        assert!(!writer.is_full());
    }
}
