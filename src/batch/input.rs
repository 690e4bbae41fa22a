//! Where rows come from: a file of this machine or an object in S3, of any form that is known.

use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    compression::Compression,
    rows::{CsvReader, JsonLinesReader, ParquetReader, Reader, reading},
};
use crate::{
    error::{Error, Result},
    repository::{
        Meter,
        s3::{Object, Store, Url},
    },
};

/// A file that can be read from any place, as it was when it was found.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Local(Arc<File>, PathBuf, u64),
    S3(Store, Url, Object),
}

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Form {
    JsonLines,
    Csv,
    Parquet,
}

impl Place {
    pub(super) fn local(path: &Path) -> Result<Self> {
        let failed = || Error::io(format!("cannot read `{}`", path.display()));
        let file = File::open(path).map_err(failed())?;
        let size = file.metadata().map_err(failed())?.len();
        Ok(Self::Local(Arc::new(file), path.to_owned(), size))
    }

    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Local(_, _, size) => *size,
            Self::S3(_, _, object) => object.size,
        }
    }

    /// The name, for telling the form by.
    fn name(&self) -> String {
        match self {
            Self::Local(_, path, _) => path.display().to_string(),
            Self::S3(_, url, _) => url.key.clone(),
        }
    }

    /// Everything from `start` on.
    pub(super) fn read_from(&self, start: u64) -> Result<Box<dyn Read + Send>> {
        match self {
            Self::Local(_, path, _) => {
                let failed = || Error::io(format!("cannot read `{}`", path.display()));
                // A file of its own: others may read elsewhere meanwhile.
                let mut file = File::open(path).map_err(failed())?;
                file.seek(SeekFrom::Start(start)).map_err(failed())?;
                Ok(Box::new(BufReader::new(file)))
            }
            Self::S3(store, url, object) => {
                Ok(Box::new(store.pieces(url, object, start..object.size).into_reader()))
            }
        }
    }

    /// So many bytes from `start` on.
    pub(super) fn bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        match self {
            Self::Local(file, path, _) => {
                let mut bytes = vec![0; length];
                let read = file.read_exact_at(&mut bytes, start);
                read.map_err(Error::io(format!("cannot read `{}`", path.display())))?;
                Ok(bytes.into())
            }
            Self::S3(store, url, object) => {
                let mut bytes = Vec::with_capacity(length);
                for piece in store.pieces(url, object, start..start + length as u64) {
                    piece?.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
                }
                Ok(bytes.into())
            }
        }
    }

    /// What the file is, by its first bytes, and where these do not tell, by its name.
    pub(super) fn form(&self) -> Result<(Form, Compression)> {
        if self.size() == 0 {
            return Err(Error::invalid("expected rows, but found an empty file"));
        }
        let head = self.bytes(0, self.size().min(HEAD_BYTES) as usize)?;
        if head.starts_with(b"PAR1") {
            return Ok((Form::Parquet, Compression::None));
        }
        let compression = Compression::of(&head);
        let name = self.name().to_ascii_lowercase();
        let name = [".gz", ".gzip", ".zst", ".zstd"]
            .iter()
            .find_map(|ending| name.strip_suffix(ending))
            .unwrap_or(&name);
        if name.ends_with(".parquet") {
            return Err(Error::invalid(
                "expected a Parquet file, as its name says, but found something else",
            ));
        }
        let csv = [".csv", ".tsv", ".txt"].iter().any(|ending| name.ends_with(ending));
        let lines = [".jsonl", ".ndjson", ".json"].iter().any(|ending| name.ends_with(ending));
        let contents = compression.unpack(Cursor::new(head));
        let mut start = Vec::new();
        // The head of a packed file ends somewhere inside: what was unpacked until then is enough.
        let _ = contents.and_then(|contents| contents.take(HEAD_BYTES).read_to_end(&mut start));
        let start = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&start).trim_ascii_start();
        match start.first() {
            Some(b'[') if lines => Err(Error::invalid(
                "expected an object a line, but found a list; write each of its items on a line of its own, \
                 such as with `jq -c '.[]'`",
            )),
            Some(b'{') if !csv => Ok((Form::JsonLines, compression)),
            _ if lines => Ok((Form::JsonLines, compression)),
            _ => Ok((Form::Csv, compression)),
        }
    }

    /// The rows of the file.
    pub(super) fn open(
        &self,
        form: (Form, Compression),
        column: Option<&str>,
        meter: Arc<dyn Meter + Send + Sync>,
    ) -> Result<Reader> {
        let (form, compression) = form;
        if form == Form::Parquet {
            return Ok(Reader::Parquet(ParquetReader::new(self.clone(), column)?));
        }
        let file = Metered { file: self.read_from(0)?, meter };
        let contents = compression.unpack(BufReader::with_capacity(128 * 1024, file)).map_err(reading)?;
        Ok(match form {
            Form::Csv => Reader::Csv(CsvReader::new(contents, column)?),
            _ => Reader::JsonLines(JsonLinesReader::new(contents, column.map(str::to_owned))),
        })
    }
}

/// The bytes that the form of a file is told by.
const HEAD_BYTES: u64 = 4096;

/// Tells a meter what is read.
struct Metered<R> {
    file: R,
    meter: Arc<dyn Meter + Send + Sync>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.meter.advance(read as u64);
        Ok(read)
    }
}
