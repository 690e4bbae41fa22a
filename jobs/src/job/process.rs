//! Reads, predicts and writes rows in parallel. A thread reads and a thread writes; a few chunks at a time are
//! predicted in between, and stay in order.

use std::{
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use futures::{StreamExt, future::LocalBoxFuture};
use serde::{Deserialize, Serialize};

use super::watcher::Watcher;
use crate::{
    input::{
        compression::Compression,
        format::Format,
        opened::{BytesRead, OpenInput},
    },
    output::{
        answer::{Answers, RowError},
        target::{Target, Writer},
    },
    rows::{
        Chunk, CsvReader, JsonLinesReader, Layout, Parquet, RequestReader, RowReader, Rows,
        TextReader,
    },
};
use kivu::{Error, Result};

/// Chunks that are predicted concurrently, so that the model's threads stay busy at a chunk's end.
pub const CHUNKS_AT_ONCE: usize = 3;

pub struct RowInput {
    pub reader: Box<dyn RowReader>,
    pub gauge: BytesRead,
    /// Input size in bytes, if known.
    pub size: Option<u64>,
}

impl RowInput {
    /// Share of the input that was read, from 0 to 1.
    pub fn share(&self) -> Option<f64> {
        self.reader
            .share()
            .or_else(|| self.gauge.share(self.reader.position(), self.size))
    }
}

/// A row reader for an input's format.
pub fn open_rows(
    input: &OpenInput,
    (format, compression): (Format, Compression),
    layout: &Layout,
    gauge: &BytesRead,
    parquet: Parquet,
) -> Result<Box<dyn RowReader>> {
    match format {
        Format::Parquet => parquet.format()?.reader(input.clone(), layout, None),
        format => read_text(input.unpacked(compression, gauge)?, format, layout),
    }
}

fn read_text(
    contents: Box<dyn Read + Send>,
    format: Format,
    layout: &Layout,
) -> Result<Box<dyn RowReader>> {
    Ok(match format {
        Format::Csv => Box::new(CsvReader::new(contents, layout)?),
        Format::Text => Box::new(TextReader::new(contents, None)?),
        Format::JsonLines | Format::Parquet => {
            Box::new(JsonLinesReader::new(contents, layout.column.as_deref())?)
        }
        Format::OpenAi => Box::new(RequestReader::new(contents)),
    })
}

/// Rows that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRange {
    /// The number of rows before them.
    pub first: u64,
    pub rows: u64,
    /// The rows' bytes; unused for Parquet.
    pub start: u64,
    pub end: u64,
}

/// A row reader for a range of a file that is not compressed. The layout is the whole file's.
///
/// What precedes the second row, at the byte `second_row`, is read before the range, and its row skipped: a header, and
/// what a format's first row decides.
pub fn open_range(
    input: &OpenInput,
    format: Format,
    layout: &Layout,
    second_row: u64,
    range: RowRange,
    parquet: Parquet,
) -> Result<Box<dyn RowReader>> {
    let RowRange {
        first,
        rows,
        start,
        end,
    } = range;
    if format == Format::Parquet {
        let range = first..first + rows;
        return parquet.format()?.reader(input.clone(), layout, Some(range));
    }
    if first == 0 {
        return read_text(input.read(0..end)?, format, layout);
    }
    let contents = input.read(0..second_row)?.chain(input.read(start..end)?);
    let mut reader = read_text(Box::new(contents), format, layout)?;
    reader.skip(1)?;
    Ok(reader)
}

/// The reason why [`process`] ended.
pub enum End {
    /// All rows are written.
    Input,
    /// The time is up, or the job was stopped.
    Stopped,
    /// Rows could not be read or predicted.
    Rows(Error),
    /// Rows could not be written.
    Output(Error),
}

/// Processes all rows, until the time `until` or the future `stop`. `predict` gets texts and the number of rows before them. Returns the writer, unless a stream, which may
/// block forever, is stopped; then it returns the number of rows sent to the writer.
pub async fn process(
    input: RowInput,
    predict: impl AsyncFn(u64, Vec<Result<String, RowError>>) -> Result<Answers>,
    mut writer: Writer,
    watcher: Arc<dyn Watcher>,
    until: Option<Instant>,
    mut stop: LocalBoxFuture<'_, ()>,
) -> Result<Result<(Writer, End), u64>> {
    let started = Instant::now();
    let before = writer.progress.seconds;
    let is_stream = matches!(writer.target, Target::Stream(_));
    let mut sent_rows = writer.progress.rows;
    let is_over = Arc::new(AtomicBool::new(false));
    let chunks = read(input, until, Arc::clone(&is_over));
    let (predicted, to_write) = flume::bounded::<(Rows, Answers, Option<f64>)>(1);
    let writing = thread::Builder::new()
        .name("batch-writer".into())
        .spawn(move || {
            let written = to_write.iter().try_for_each(|(rows, answers, share)| {
                writer.progress.seconds = before + started.elapsed().as_secs_f64();
                writer.write(rows, answers)?;
                writer.publish(share);
                watcher.advance(writer.progress.rows, share);
                Ok(())
            });
            writer.progress.seconds = before + started.elapsed().as_secs_f64();
            (writer, written)
        });
    let writing = writing.map_err(Error::io("cannot start a thread for the output"))?;
    let (mut next_row, predict) = (sent_rows, &predict);
    let predict = |chunk: Result<(Chunk, Option<f64>)>| {
        let row = next_row;
        next_row += chunk
            .as_ref()
            .map_or(0, |(chunk, _)| chunk.texts.len() as u64);
        async move {
            let (Chunk { texts, rows }, share) = chunk?;
            Ok::<_, Error>((rows, predict(row, texts).await?, share))
        }
    };
    let mut answers = chunks.into_stream().map(predict).buffered(CHUNKS_AT_ONCE);
    let mut end = End::Input;
    loop {
        let next = async {
            let Some(answer) = answers.next().await else {
                return Ok(None);
            };
            let answer = answer?;
            let rows = answer.1.results.len() as u64;
            // If the writer has stopped, its error is returned below.
            Ok::<_, Error>(predicted.send_async(answer).await.ok().map(|()| rows))
        };
        let next = tokio::select! {
            biased;
            () = &mut stop => {
                end = End::Stopped;
                break;
            }
            next = next => next,
        };
        match next {
            Ok(Some(rows)) => sent_rows += rows,
            Ok(None) => break,
            Err(error) => {
                end = End::Rows(error);
                break;
            }
        }
    }
    drop((answers, predicted));
    if is_stream && matches!(end, End::Stopped) {
        return Ok(Err(sent_rows));
    }
    let joined = tokio::task::spawn_blocking(move || writing.join()).await;
    let (writer, written) = joined.map_err(|_| panicked())?.map_err(|_| panicked())?;
    let end = match (written, end) {
        (Err(error), _) => End::Output(error),
        (Ok(()), End::Input) if is_over.load(Ordering::Relaxed) => End::Stopped,
        (Ok(()), end) => end,
    };
    Ok(Ok((writer, end)))
}

/// Reads on a thread until the input ends or the time `until`, which sets `is_over`. Each chunk comes with the
/// input share at its end.
fn read(
    mut input: RowInput,
    until: Option<Instant>,
    is_over: Arc<AtomicBool>,
) -> flume::Receiver<Result<(Chunk, Option<f64>)>> {
    let (chunks, read) = flume::bounded(1);
    thread::spawn(move || {
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                is_over.store(true, Ordering::Relaxed);
                return;
            }
            let Some(chunk) = catch_panic(|| input.reader.next()).transpose() else {
                return;
            };
            let chunk = chunk.map(|chunk| (chunk, input.share()));
            let is_last = chunk.is_err();
            if chunks.send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    read
}

pub fn panicked() -> Error {
    Error::inference_because("the job panicked", "the cause is in the log")
}

/// Converts a reader's panic into an error. Parquet may panic on damaged files, and the rows before a panic must not be
/// mistaken for the whole file.
pub fn catch_panic<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::invalid("cannot read the file: its reader panicked"));
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Result as Reading};

    use super::*;
    use crate::rows::CHUNK_ROWS;

    struct Panics;

    impl Read for Panics {
        fn read(&mut self, _: &mut [u8]) -> Reading<usize> {
            panic!("made by the test")
        }
    }

    #[test]
    fn a_panic_of_a_reader_is_an_error() {
        let lines = "{\"text\": \"a\"}\n".repeat(3 * CHUNK_ROWS);
        let reader =
            Box::new(JsonLinesReader::new(Cursor::new(lines).chain(Panics), None).unwrap());
        let input = RowInput {
            reader,
            gauge: BytesRead::default(),
            size: None,
        };
        let chunks: Vec<_> = read(input, None, Arc::default()).into_iter().collect();
        let (last, before) = chunks.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok));
        assert!(matches!(last, Err(Error::Invalid { .. })));
    }
}
