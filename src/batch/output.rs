//! Where answers go: in pieces, each of which stands on its own, so that a job can stop after any of them.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_schema::SchemaRef;
use tempfile::NamedTempFile;

use super::{
    answer::Kind,
    checkpoint::Checkpoint,
    compression::Compression,
    input::Form,
    rows::{
        CsvHeader, CsvWriter, Footers, JsonLinesWriter, Outcome, ParquetWriter, Reader, Rows, Writer,
        join_footers, magic,
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
    Parquet(SchemaRef),
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

    pub(super) fn form(&self) -> Form {
        match self.head {
            Head::JsonLines => Form::JsonLines,
            Head::Csv(_) => Form::Csv,
            Head::Parquet(_) => Form::Parquet,
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
}

impl Pieces {
    /// The first pieces of an output.
    pub(super) fn new(shape: Shape) -> Self {
        let waiting = if let Head::Parquet(_) = shape.head { magic().to_vec() } else { Vec::new() };
        Self { shape, writer: None, waiting, footers: Vec::new(), is_begun: false }
    }

    /// The pieces of an output that was begun: `waiting` had been left over.
    pub(super) fn resumed(shape: Shape, waiting: Vec<u8>, footers: Footers) -> Self {
        Self { shape, writer: None, waiting, footers, is_begun: true }
    }

    pub(super) fn write(&mut self, rows: Rows, outcomes: &[Outcome]) -> Result<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(self.shape.writer(!self.is_begun)?),
        };
        self.is_begun = true;
        writer.write(rows, outcomes)
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
        if self.shape.form() == Form::Parquet {
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
    /// A file of this machine, which is there once it is whole.
    File(NamedTempFile, PathBuf),
    /// An upload, and what is remembered of it.
    Upload(Box<Checkpoint>),
}

impl Target {
    /// A file to be written at `path`.
    pub(super) fn file(path: &Path) -> Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let failed = || Error::io(format!("cannot write `{}`", path.display()));
        fs::create_dir_all(folder).map_err(failed())?;
        Ok(Self::File(NamedTempFile::new_in(folder).map_err(failed())?, path.to_owned()))
    }

    /// Writes bytes of the output that come next.
    pub(super) fn append(file: &mut File, bytes: &[u8]) -> Result<()> {
        file.write_all(bytes).map_err(Error::io("cannot write the output"))
    }
}
