//! Where answers go: in pieces, each of which stands on its own, so that a job can stop after any of them.

use std::{collections::BTreeSet, fs::File, sync::Arc};

use super::{
    answer::Kind,
    checkpoint::Checkpoint,
    compression::Compression,
    input::Format,
    rows::{
        CsvHeader, CsvWriter, FileSchema, Footers, JsonLinesWriter, MAGIC, Outcome, ParquetWriter, Reader,
        Rows, Writer, join_footers,
    },
};
use crate::error::{Error, Result};

/// What an output looks like: like its input, with columns for answers.
#[derive(Clone)]
pub(super) struct Shape {
    pub(super) compression: Compression,
    pub(super) kind: Kind,
    pub(super) head: Head,
}

/// What the head of a file says of all its rows.
#[derive(Clone)]
pub(super) enum Head {
    JsonLines,
    Csv(CsvHeader),
    Parquet(FileSchema),
}

impl Shape {
    pub(super) fn of(reader: &Reader, compression: Compression, kind: Kind) -> Self {
        let head = match reader {
            Reader::JsonLines(_) => Head::JsonLines,
            Reader::Csv(reader) => Head::Csv(reader.header().clone()),
            Reader::Parquet(reader) => Head::Parquet(Arc::clone(reader.schema())),
        };
        Self { compression, kind, head }
    }

    pub(super) fn format(&self) -> Format {
        match self.head {
            Head::JsonLines => Format::JsonLines,
            Head::Csv(_) => Format::Csv,
            Head::Parquet(_) => Format::Parquet,
        }
    }

    pub(super) fn writer(&self, is_first: bool) -> Result<Writer> {
        let packer = || self.compression.pack().map_err(Error::io("cannot write the output"));
        Ok(match &self.head {
            Head::JsonLines => Writer::JsonLines(JsonLinesWriter::new(packer()?)),
            Head::Csv(header) => {
                Writer::Csv(Box::new(CsvWriter::new(packer()?, header, self.kind, is_first)?))
            }
            Head::Parquet(schema) => Writer::Parquet(ParquetWriter::new(schema, self.kind)?),
        })
    }
}

/// Pieces of an output: what was made of rows and is not yet where it should be.
pub(super) struct Pieces {
    shape: Shape,
    writer: Option<Writer>,
    /// Finished pieces that nobody has taken yet.
    waiting: Vec<u8>,
    footers: Footers,
    is_begun: bool,
    columns: BTreeSet<String>,
}

impl Pieces {
    /// The first pieces of an output.
    pub(super) fn new(shape: Shape) -> Self {
        let waiting = if let Head::Parquet(_) = shape.head { MAGIC.to_vec() } else { Vec::new() };
        Self { shape, writer: None, waiting, footers: Vec::new(), is_begun: false, columns: BTreeSet::new() }
    }

    /// The pieces of an output that was begun: `waiting` had been left over.
    pub(super) fn resumed(shape: Shape, waiting: Vec<u8>, footers: Footers) -> Self {
        Self { shape, writer: None, waiting, footers, is_begun: true, columns: BTreeSet::new() }
    }

    pub(super) fn write(&mut self, rows: Rows, outcomes: &[Outcome]) -> Result<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(self.shape.writer(!self.is_begun)?),
        };
        self.is_begun = true;
        writer.write(rows, outcomes)?;
        self.columns.extend(writer.columns().difference(&self.columns).cloned().collect::<Vec<_>>());
        Ok(())
    }

    /// The names of the columns of answers so far.
    pub(super) fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    /// Whether pieces may be of any size, since nothing is packed.
    pub(super) fn is_plain(&self) -> bool {
        self.shape.compression == Compression::None && self.shape.format() != Format::Parquet
    }

    /// The bytes that wait, those in the making included.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.writer.as_ref().map_or(0, Writer::len)
    }

    /// Ends the piece in the making.
    pub(super) fn seal(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let (bytes, footer) = writer.finish()?;
        self.footers.extend(footer.map(|footer| (bytes.len() as u64, footer)));
        if self.waiting.is_empty() {
            self.waiting = bytes;
        } else {
            self.waiting.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// Seals and takes all that waits.
    pub(super) fn take(&mut self) -> Result<Vec<u8>> {
        self.seal()?;
        Ok(std::mem::take(&mut self.waiting))
    }

    /// Seals and takes all that waits, with what stands at the end of a file.
    pub(super) fn take_last(&mut self) -> Result<Vec<u8>> {
        // A file without rows has a head all the same.
        if !self.is_begun {
            self.writer = Some(self.shape.writer(true)?);
        }
        let mut bytes = self.take()?;
        if self.shape.format() == Format::Parquet {
            bytes.extend(join_footers(&self.footers)?);
        }
        Ok(bytes)
    }

    /// What waits, sealed, and the footers so far: what a checkpoint keeps.
    pub(super) fn state(&mut self) -> Result<(&[u8], &Footers)> {
        self.seal()?;
        Ok((&self.waiting, &self.footers))
    }
}

/// Where the pieces of an output go.
pub(super) enum Target {
    /// A pipe, a device or standard output, which keeps what it was given.
    Stream(File),
    /// An upload or a file, and how far it is.
    Saved(Box<Checkpoint>),
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Cursor, Read, Write},
        path::Path,
    };

    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::batch::{
        Answer, Chunk, Place,
        input::Gauge,
        rows::{CHUNK_ROWS, samples},
    };

    /// Answers the file at `path` in one process after the other; each of them but the last ends after so many chunks,
    /// having sent what it made, or having left it to the next one.
    fn answered(path: &Path, cuts: &[(usize, bool)]) -> Vec<u8> {
        let place = Place::local(path).unwrap();
        let format = place.format(None).unwrap();
        let (mut output, mut done) = (Vec::new(), 0);
        // What waits, and the footers, as a checkpoint has them.
        let mut left: Option<(Vec<u8>, Vec<u8>)> = None;
        for (chunks, sends) in cuts.iter().copied().chain([(usize::MAX, true)]) {
            let mut reader = place.open(format, None, &Gauge::default()).unwrap();
            let shape = Shape::of(&reader, format.1, Kind::Label);
            let mut pieces = match left.take() {
                Some((waiting, footers)) => {
                    Pieces::resumed(shape, waiting, serde_json::from_slice(&footers).unwrap())
                }
                None => Pieces::new(shape),
            };
            reader.skip(done).unwrap();
            for _ in 0..chunks {
                let Some(Chunk { texts, rows }) = reader.next().unwrap() else {
                    output.extend(pieces.take_last().unwrap());
                    return output;
                };
                done += texts.len() as u64;
                let label = |text: String| Answer::Label { score: text.len() as f32, label: text.into() };
                let outcomes: Vec<Outcome> = texts.into_iter().map(|text| text.map(label)).collect();
                pieces.write(rows, &outcomes).unwrap();
            }
            if sends && done > 0 {
                output.extend(pieces.take().unwrap());
            }
            let (waiting, footers) = pieces.state().unwrap();
            // A job without rows is begun anew.
            left = (done > 0).then(|| (waiting.to_vec(), serde_json::to_vec(footers).unwrap()));
        }
        unreachable!("the last one goes on to the end")
    }

    /// What an output says, however it is packed.
    fn told(output: Vec<u8>) -> Vec<u8> {
        let mut text = Vec::new();
        let compression = Compression::of(&output);
        compression.unpack(Cursor::new(output)).unwrap().read_to_end(&mut text).unwrap();
        text
    }

    fn csv(texts: &[String]) -> Vec<u8> {
        let mut writer = ::csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
        writer.write_record(["id", "text"]).unwrap();
        for (text, number) in texts.iter().zip(0_u32..) {
            // Some rows have a field too many.
            let more = (text.len() % 5 == 4).then_some("more");
            writer.write_record([number.to_string().as_str(), text].into_iter().chain(more)).unwrap();
        }
        writer.into_inner().unwrap()
    }

    fn json_lines(texts: &[String]) -> Vec<u8> {
        let line = |text: &String| match text.len() % 7 {
            // Some lines are no objects, and some are none.
            5 => format!("{text}\n"),
            6 => "\n".to_owned(),
            _ => format!("{}\n", serde_json::json!({ "text": text })),
        };
        // The first tells what the file is.
        let lines: String = texts.iter().map(line).collect();
        format!("{{\"text\": \"the first\"}}\n{lines}").into_bytes()
    }

    fn packed(compression: Compression, contents: &[u8]) -> Vec<u8> {
        let mut packer = compression.pack().unwrap();
        packer.write_all(contents).unwrap();
        packer.finish().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_job_that_is_cut_anywhere_makes_the_output_of_an_uncut_one(
            texts in vec("\\PC{0,12}|[a-c\",\n]{0,8}", 1..6 * CHUNK_ROWS),
            cuts in vec((0..4_usize, any::<bool>()), 0..6),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let file = |name: &str, contents: Vec<u8>| {
                let path = folder.path().join(name);
                fs::write(&path, contents).unwrap();
                path
            };
            for (name, contents) in [("a.jsonl", json_lines(&texts)), ("a.csv", csv(&texts))] {
                let path = file(name, contents.clone());
                let uncut = answered(&path, &[]);
                prop_assert_eq!(answered(&path, &cuts), uncut.clone(), "{}", name);
                for (ending, compression) in [("gz", Compression::Gzip), ("zst", Compression::Zstd)] {
                    let path = file(&format!("{name}.{ending}"), packed(compression, &contents));
                    prop_assert_eq!(told(answered(&path, &cuts)), uncut.clone(), "{}.{}", name, ending);
                }
            }
            // Some rows have no text.
            let texts = texts.iter().map(|text| (text.len() % 5 != 4).then_some(text.as_str()));
            let path = file("a.parquet", samples::written(texts));
            prop_assert_eq!(samples::rows(answered(&path, &cuts)), samples::rows(answered(&path, &[])));
        }
    }
}
