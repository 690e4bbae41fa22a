//! Output in self-contained pieces, so that a job can stop and resume after any piece.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    answer::{Cell, Columns, ErrorKind, Numbered, RowError, RowResult},
    output_form::OutputForm,
};
use crate::{
    input::{compression::Compression, format::Format},
    rows::{
        CsvWriter, Footers, Head, JsonLinesWriter, PARQUET_MAGIC, Piece, RequestWriter, RowReader,
        RowWriter, Rows,
    },
};
use kivu::{
    Result,
    pipeline::redaction::placeholders::{Mapping, Memory},
};

/// The placeholders of a file have at most this many bytes with their originals, which are in memory and in checkpoints.
const MAX_PLACEHOLDER_BYTES: usize = 16 * 1024 * 1024;

/// Output form: the input's, plus answer columns.
#[derive(Clone)]
pub struct Shape {
    pub compression: Compression,
    /// Answer columns.
    pub columns: Columns,
    pub head: Head,
}

impl Shape {
    pub fn of(reader: &dyn RowReader, form: OutputForm, columns: Columns) -> Self {
        let mut head = reader.head();
        if let (Head::Csv(header), Some(delimiter)) = (&mut head, form.delimiter) {
            header.written = delimiter;
        }
        Self {
            compression: form.compression,
            columns,
            head,
        }
    }

    pub fn format(&self) -> Format {
        match self.head {
            Head::JsonLines | Head::Requests => Format::JsonLines,
            Head::Csv(_) => Format::Csv,
            Head::Parquet(_) => Format::Parquet,
        }
    }

    /// A piece writer; a CSV file's first piece has the header.
    pub fn writer(&self, piece: Piece) -> Result<Box<dyn RowWriter>> {
        Ok(match &self.head {
            Head::JsonLines => Box::new(JsonLinesWriter::new(
                self.compression.pack()?,
                Arc::clone(&self.columns),
            )),
            Head::Requests => Box::new(RequestWriter::new(self.compression.pack()?)),
            Head::Csv(header) => Box::new(CsvWriter::new(
                self.compression.pack()?,
                header,
                Arc::clone(&self.columns),
                piece,
            )?),
            Head::Parquet(columns) => columns.writer(Arc::clone(&self.columns))?,
        })
    }
}

/// The pieces that are not yet written to the target.
pub struct Pieces {
    shape: Shape,
    writer: Option<Box<dyn RowWriter>>,
    /// Finished pieces.
    waiting: Vec<u8>,
    footers: Footers,
    /// The one that is begun next.
    next: Piece,
    columns: BTreeSet<String>,
    /// Numbers the originals of all rows.
    memory: Memory,
}

impl Pieces {
    /// An output's first pieces.
    pub fn new(shape: Shape) -> Self {
        let waiting = if shape.format() == Format::Parquet {
            PARQUET_MAGIC.to_vec()
        } else {
            Vec::new()
        };
        Self {
            next: Piece::First,
            ..Self::resumed(shape, waiting, Footers::new())
        }
    }

    /// Next pieces for an output that was begun.
    pub fn resumed(shape: Shape, waiting: Vec<u8>, footers: Footers) -> Self {
        Self {
            shape,
            writer: None,
            waiting,
            footers,
            next: Piece::Later,
            columns: BTreeSet::new(),
            memory: Memory::default(),
        }
    }

    /// Continues with the numbers of the rows so far.
    pub fn with_placeholders(self, known: &Mapping) -> Result<Self> {
        let memory = Memory::continued(known)?;
        Ok(Self { memory, ..self })
    }

    /// The placeholders of all rows so far that are numbered in the file.
    pub fn placeholders(&self) -> &Mapping {
        &self.memory.mapping
    }

    pub fn write(&mut self, rows: Rows, results: &mut [RowResult]) -> Result<()> {
        for result in results.iter_mut() {
            if let Err(error) = number(&mut self.memory, result) {
                *result = Err(RowError::new(ErrorKind::Input, error.message()));
            }
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(self.shape.writer(self.next)?),
        };
        self.next = Piece::Later;
        writer.write(rows, results)?;
        self.columns.extend(writer.columns().iter().cloned());
        Ok(())
    }

    /// Answer column names so far.
    pub fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    /// Whether pieces may have any size, since the output is not compressed.
    pub fn is_plain(&self) -> bool {
        self.shape.compression == Compression::None && self.shape.format() != Format::Parquet
    }

    /// Size of all pieces, in bytes; an estimate for Parquet.
    pub fn size(&self) -> usize {
        self.waiting.len() + self.piece_size()
    }

    /// Size of the current piece, in bytes. For Parquet it includes pages that are not compressed yet.
    fn piece_size(&self) -> usize {
        self.writer.as_ref().map_or(0, |writer| writer.size())
    }

    /// Finishes the current piece.
    fn seal(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        let (bytes, footer) = writer.finish()?;
        self.footers
            .extend(footer.map(|footer| (bytes.len() as u64, footer)));
        if self.waiting.is_empty() {
            self.waiting = bytes;
        } else {
            self.waiting.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// Takes all finished pieces if they have at least `min_bytes`; smaller ones wait for the next. A Parquet piece is
    /// finished when its own estimate is large enough: if it counted only for the rest of a part, row groups would
    /// become smaller and smaller.
    pub fn take_part(&mut self, min_bytes: usize) -> Result<Option<Vec<u8>>> {
        let size = if self.shape.format() == Format::Parquet {
            self.piece_size()
        } else {
            self.size()
        };
        if size >= min_bytes {
            self.seal()?;
        }
        Ok((self.waiting.len() >= min_bytes).then(|| std::mem::take(&mut self.waiting)))
    }

    /// Finishes and takes all pieces.
    pub fn take(&mut self) -> Result<Vec<u8>> {
        self.seal()?;
        Ok(std::mem::take(&mut self.waiting))
    }

    /// Finishes and takes all pieces, and the file's end.
    pub fn take_last(&mut self) -> Result<Vec<u8>> {
        // A file without rows has a header.
        if self.next == Piece::First {
            self.writer = Some(self.shape.writer(self.next)?);
        }
        let mut bytes = self.take()?;
        if let Head::Parquet(columns) = &self.shape.head {
            bytes.extend(columns.join_footers(&self.footers)?);
        }
        Ok(bytes)
    }

    /// The finished pieces and the footers so far, for a checkpoint.
    pub fn state(&mut self) -> Result<(&[u8], &Footers)> {
        self.seal()?;
        Ok((&self.waiting, &self.footers))
    }
}

/// Numbers an answer's placeholders in the file.
fn number(memory: &mut Memory, result: &mut RowResult) -> Result<()> {
    for cell in result.iter_mut().flatten() {
        if let Cell::Numbered(Numbered { text, mapping }) = cell {
            let text = memory.renumber(text, mapping, MAX_PLACEHOLDER_BYTES)?;
            *cell = Cell::Text(text.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Cursor, Read, Write},
        path::Path,
        sync::{Arc, Mutex, MutexGuard},
        thread,
        time::Duration,
    };

    use bytes::Bytes;
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{
        input::{
            location::{Existing, JobInput},
            opened::{BytesRead, OpenInput},
        },
        job::process::open_rows,
        output::{
            answer::{Answers, label_columns},
            checkpoint::{Checkpoint, State, Storage, parse},
            local_storage::claim,
            output_file::OutputFile,
            target::{Target, Writer},
        },
        rows::{CHUNK_ROWS, Chunk, Layout, Parquet},
    };
    use kivu::repository::s3::Part;

    /// The chunks that a process finishes, and whether it appends them.
    type Cut = (usize, bool);

    /// The job for this output. A program that another test starts has a copy of the lock until it runs.
    fn claimed(file: &OutputFile) -> Box<Checkpoint> {
        let mut tries = 0;
        loop {
            match claim(file.clone(), "job", true, Duration::MAX) {
                Err(error) if tries < 500 && error.to_string() == file.busy().to_string() => {
                    tries += 1
                }
                checkpoint => return checkpoint.unwrap(),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn read(
        input: &OpenInput,
        format: (Format, Compression),
        layout: &Layout,
    ) -> Box<dyn RowReader> {
        let (gauge, parquet) = (BytesRead::default(), Parquet::default());
        open_rows(input, format, layout, &gauge, parquet).unwrap()
    }

    /// Processes the file at `path` in several processes, each with the checkpoint of the one before. Each cut in `cuts`
    /// ends a process after some chunks; if it is `true`, it appends a part before its last save.
    fn answered(path: &Path, cuts: &[Cut]) -> Vec<u8> {
        let input = OpenInput::file(path).unwrap();
        let format = input.format(None, &Layout::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let file = OutputFile::new(&out, &JobInput::Stdin, Existing::default()).unwrap();
        for (chunks, sends) in cuts.iter().copied().chain([(usize::MAX, true)]) {
            let mut checkpoint = claimed(&file);
            let mut progress = checkpoint.state.progress.clone();
            let layout = checkpoint.state.layout.clone().unwrap_or_default();
            let mut reader = read(&input, format, &layout);
            checkpoint.state.layout = Some(reader.layout());
            let form = OutputForm {
                compression: format.1,
                delimiter: None,
            };
            let shape = Shape::of(reader.as_ref(), form, label_columns());
            let mut pieces = match progress.rows {
                0 => Pieces::new(shape),
                _ => Pieces::resumed(
                    shape,
                    checkpoint.waiting.clone(),
                    checkpoint.state.footers.clone(),
                ),
            };
            reader.skip(progress.rows).unwrap();
            for _ in 0..chunks {
                let Some(Chunk { texts, rows }) = reader.next().unwrap() else {
                    let last = pieces.take_last().unwrap();
                    checkpoint.finish(last, &mut pieces, &progress).unwrap();
                    return fs::read(&out).unwrap();
                };
                progress.rows += texts.len() as u64;
                let label = |text: String| {
                    vec![
                        Cell::Text(text.as_str().into()),
                        Cell::Number(text.len() as f32),
                    ]
                };
                let mut results: Vec<RowResult> =
                    texts.into_iter().map(|text| text.map(label)).collect();
                pieces.write(rows, &mut results).unwrap();
            }
            if sends {
                let bytes = pieces.take().unwrap();
                checkpoint.send(bytes, &mut pieces, &progress).unwrap();
            }
            checkpoint.save(&mut pieces, &progress).unwrap();
        }
        unreachable!("the last process reads to the end")
    }

    const MIN_PART_BYTES: usize = 2048;

    /// Keeps parts and the checkpoint in memory. Small pieces wait in the checkpoint, as in S3.
    #[derive(Clone, Default)]
    struct PartStorage(Arc<Mutex<(Vec<Vec<u8>>, Bytes)>>);

    impl PartStorage {
        fn stored(&self) -> MutexGuard<'_, (Vec<Vec<u8>>, Bytes)> {
            self.0.lock().unwrap()
        }
    }

    impl Storage for PartStorage {
        fn begin(&self, _: &mut State) -> Result<bool> {
            Ok(false)
        }

        fn part_bytes(&self, _: &State, _: &Pieces) -> usize {
            MIN_PART_BYTES
        }

        fn accepts_small_parts(&self) -> bool {
            false
        }

        fn min_interval(&self) -> Duration {
            Duration::ZERO
        }

        fn append(&mut self, state: &mut State, bytes: Vec<u8>) -> Result<()> {
            let mut stored = self.stored();
            // Parts that no checkpoint lists are lost.
            stored.0.truncate(state.parts.len());
            state.parts.push(Part {
                number: state.next,
                etag: String::new(),
                size: bytes.len() as u64,
            });
            state.next += 1;
            stored.0.push(bytes);
            Ok(())
        }

        fn write(&mut self, _: &State, checkpoint: Bytes) -> Result<()> {
            self.stored().1 = checkpoint;
            Ok(())
        }

        fn digest(&mut self) -> Result<Option<String>> {
            Ok(None)
        }

        fn complete(&self, _: &State) -> Result<()> {
            Ok(())
        }

        fn forget(&self) -> Result<()> {
            Ok(())
        }

        fn abandon(&self, _: &State) -> Result<()> {
            Ok(())
        }
    }

    /// The parts of the output where small pieces wait in the checkpoint. Each cut ends a process after some chunks; if it
    /// is `true`, the process saves the job after each chunk.
    fn parts(path: &Path, cuts: &[Cut]) -> Vec<Vec<u8>> {
        let input = OpenInput::file(path).unwrap();
        let format = input.format(None, &Layout::default()).unwrap();
        let storage = PartStorage::default();
        for (chunks, saves) in cuts.iter().copied().chain([(usize::MAX, false)]) {
            let checkpoint = storage.stored().1.clone();
            let (mut state, waiting) = match checkpoint.is_empty() {
                true => (State::new("job", "holder"), Vec::new()),
                false => parse(&checkpoint, &"here").unwrap(),
            };
            let progress = state.progress.clone();
            let layout = state.layout.clone().unwrap_or_default();
            let mut reader = read(&input, format, &layout);
            state.layout = Some(reader.layout());
            reader.skip(progress.rows).unwrap();
            let form = OutputForm {
                compression: format.1,
                delimiter: None,
            };
            let shape = Shape::of(reader.as_ref(), form, label_columns());
            let pieces = match progress.rows {
                0 => Pieces::new(shape),
                _ => Pieces::resumed(shape, waiting.clone(), state.footers.clone()),
            };
            let interval = if saves { Duration::ZERO } else { Duration::MAX };
            let checkpoint = Checkpoint::new(Box::new(storage.clone()), state, waiting, interval);
            let (target, column) = (Target::Checkpoint(checkpoint), reader.column().to_owned());
            let (notes, is_resumable, sink) = (Vec::new(), true, None);
            let mut writer = Writer {
                target,
                pieces,
                progress,
                notes,
                column,
                is_resumable,
                sink,
                published: None,
            };
            for _ in 0..chunks {
                let Some(Chunk { texts, rows }) = reader.next().unwrap() else {
                    writer.finish().unwrap();
                    return storage.stored().0.clone();
                };
                let label = |text: String| {
                    vec![
                        Cell::Text(text.as_str().into()),
                        Cell::Number(text.len() as f32),
                    ]
                };
                let results = texts.into_iter().map(|text| text.map(label)).collect();
                writer
                    .write(
                        rows,
                        Answers {
                            results,
                            ..Answers::default()
                        },
                    )
                    .unwrap();
            }
            writer.pause().unwrap();
        }
        unreachable!("the last process reads to the end")
    }

    fn answered_in_parts(path: &Path, cuts: &[Cut]) -> Vec<u8> {
        let parts = parts(path, cuts);
        let (_, before) = parts.split_last().unwrap();
        let sizes: Vec<usize> = before.iter().map(Vec::len).collect();
        assert!(
            sizes.iter().all(|size| *size >= MIN_PART_BYTES),
            "{}: {sizes:?}",
            path.display()
        );
        parts.concat()
    }

    fn unpacked(output: Vec<u8>) -> Vec<u8> {
        let mut text = Vec::new();
        let compression = Compression::of(&output);
        compression
            .unpack(Cursor::new(output), &Arc::default())
            .unwrap()
            .read_to_end(&mut text)
            .unwrap();
        text
    }

    fn csv(texts: &[String]) -> Vec<u8> {
        let mut writer = ::csv::WriterBuilder::new()
            .flexible(true)
            .from_writer(Vec::new());
        writer.write_record(["id", "text"]).unwrap();
        for (text, number) in texts.iter().zip(0_u32..) {
            // Some rows have an additional field.
            let more = (text.len() % 5 == 4).then_some("more");
            writer
                .write_record([number.to_string().as_str(), text].into_iter().chain(more))
                .unwrap();
        }
        writer.into_inner().unwrap()
    }

    fn json_lines(texts: &[String]) -> Vec<u8> {
        let line = |text: &String| match text.len() % 7 {
            // Some lines are not objects, and some are empty.
            5 => format!("{text}\n"),
            6 => "\n".to_owned(),
            _ => format!("{}\n", serde_json::json!({ "text": text })),
        };
        // The first line determines the format.
        let lines: String = texts.iter().map(line).collect();
        format!("{{\"text\": \"the first\"}}\n{lines}").into_bytes()
    }

    fn packed(compression: Compression, contents: &[u8]) -> Vec<u8> {
        let mut packer = compression.pack().unwrap();
        packer.append(|output| output.write_all(contents)).unwrap();
        packer.finish().unwrap()
    }

    /// Compares the outputs of interrupted jobs with those of others, for all formats of text.
    fn is_the_same_output(
        answered: impl Fn(&Path, &[Cut]) -> Vec<u8>,
        texts: &[String],
        cuts: &[Cut],
    ) -> Result<(), TestCaseError> {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, contents: Vec<u8>| {
            let path = folder.path().join(name);
            fs::write(&path, contents).unwrap();
            path
        };
        for (name, contents) in [("a.jsonl", json_lines(texts)), ("a.csv", csv(texts))] {
            let path = file(name, contents.clone());
            let uncut = answered(&path, &[]);
            prop_assert_eq!(answered(&path, cuts), uncut.clone(), "{}", name);
            for (ending, compression) in [("gz", Compression::Gzip), ("zst", Compression::Zstd)] {
                let path = file(&format!("{name}.{ending}"), packed(compression, &contents));
                prop_assert_eq!(
                    unpacked(answered(&path, cuts)),
                    uncut.clone(),
                    "{}.{}",
                    name,
                    ending
                );
            }
        }
        Ok(())
    }

    fn texts() -> impl Strategy<Value = Vec<String>> {
        vec("\\PC{0,12}|[a-c\",\n]{0,8}", 1..6 * CHUNK_ROWS)
    }

    fn cuts() -> impl Strategy<Value = Vec<Cut>> {
        vec((0..4_usize, any::<bool>()), 0..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn interrupted_jobs_write_the_same_output_in_parts(texts in texts(), cuts in cuts()) {
            is_the_same_output(answered_in_parts, &texts, &cuts)?;
        }
    }

    proptest! {
        // Fewer, since each process waits for the disk.
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn interrupted_jobs_write_the_same_output(texts in texts(), cuts in cuts()) {
            is_the_same_output(answered, &texts, &cuts)?;
        }
    }
}
