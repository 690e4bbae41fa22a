//! The input of a job: a file of this machine, a stream or an object in S3, in any of the known formats.

use std::{
    fmt,
    fs::File,
    io::{self, BufReader, Cursor, Read},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{
    Source,
    compression::Compression,
    rows::{CsvReader, JsonLinesReader, ParquetReader, Position, Reader, reading},
};
use crate::{
    error::{Error, Result},
    repository::s3::{Object, Store, Url},
};

/// An input as it was when it was found. Files and objects can be read from any place, streams once.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Local(Arc<File>, PathBuf, u64),
    Stream(Arc<Stream>),
    S3(Store, Url, Object),
}

/// An input without size: a pipe, a device, standard input.
pub(super) struct Stream {
    name: String,
    head: Vec<u8>,
    rest: Mutex<Option<Box<dyn Read + Send>>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The format of an input, which is also that of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// A JSON object a line.
    JsonLines,
    /// Records with a header.
    Csv,
    /// Apache Parquet.
    Parquet,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "json-lines" => Ok(Self::JsonLines),
            "csv" => Ok(Self::Csv),
            "parquet" => Ok(Self::Parquet),
            _ => Err(format!("expected `json-lines`, `csv` or `parquet`, but found `{name}`")),
        }
    }
}

impl Format {
    /// What a file of that name usually is.
    fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let packed = [".gz", ".gzip", ".zst", ".zstd"];
        let name = packed.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
        let endings = [
            (".jsonl", Self::JsonLines),
            (".ndjson", Self::JsonLines),
            (".json", Self::JsonLines),
            (".csv", Self::Csv),
            (".tsv", Self::Csv),
            (".parquet", Self::Parquet),
        ];
        endings.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| *format)
    }

    /// A note on an output whose name says another format than it has.
    pub(super) fn note(self, output: &str) -> Option<String> {
        Self::of_name(output)
            .filter(|named| *named != self)
            .map(|named| format!("the output is {self}, as the input is, though its name is one of {named}"))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonLines => "JSON Lines",
            Self::Csv => "CSV",
            Self::Parquet => "Parquet",
        })
    }
}

impl Place {
    /// Opens the input; a FIFO waits for its writer, and streams for their first bytes.
    pub(super) fn open_source(source: &Source) -> Result<Self> {
        match source {
            Source::File(path) => Self::local(path),
            Source::Stdin => {
                let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
                Self::stream("standard input", file.map_err(Error::io("cannot read standard input"))?)
            }
            Source::Object(url, object) => Ok(Self::S3(Store::open()?, url.clone(), object.clone())),
        }
    }

    pub(super) fn local(path: &Path) -> Result<Self> {
        let failed = || Error::io(format!("cannot read `{}`", path.display()));
        let file = File::open(path).map_err(failed())?;
        let found = file.metadata().map_err(failed())?;
        if found.is_dir() {
            return Err(Error::config(format!(
                "expected a file for the input, but found the folder `{}`",
                path.display()
            )));
        }
        // Files that the system makes up, as those of `/proc`, have no size.
        if !found.is_file() || found.len() == 0 {
            return Self::stream(&path.display().to_string(), file);
        }
        Ok(Self::Local(Arc::new(file), path.to_owned(), found.len()))
    }

    fn stream(name: &str, file: impl Read + Send + 'static) -> Result<Self> {
        let mut file = BufReader::new(file);
        let mut head = Vec::new();
        let read = (&mut file).take(HEAD_BYTES).read_to_end(&mut head);
        read.map_err(Error::io(format!("cannot read `{name}`")))?;
        let rest: Box<dyn Read + Send> = Box::new(Cursor::new(head.clone()).chain(file));
        Ok(Self::Stream(Arc::new(Stream { name: name.to_owned(), head, rest: Mutex::new(Some(rest)) })))
    }

    /// The size in bytes, where it is known.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::Local(_, _, size) => Some(*size),
            Self::Stream(_) => None,
            Self::S3(_, _, object) => Some(object.size),
        }
    }

    /// What tells the input from others, and from what it was or will be; nothing of a stream, which is another each
    /// time.
    ///
    /// Of a file its size, times and inode count: the time of the last change cannot be set by programs, unlike that of
    /// the last write.
    pub(super) fn version(&self) -> Result<Option<String>> {
        match self {
            Self::Stream(_) => Ok(None),
            Self::S3(_, url, object) => Ok(Some(format!("{url}\n{:?}, {}", object.version, object.etag))),
            Self::Local(file, path, _) => {
                let found =
                    file.metadata().map_err(Error::io(format!("cannot read `{}`", path.display())))?;
                let place = path.canonicalize().unwrap_or_else(|_| path.clone());
                let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
                Ok(Some(format!("{}\n{}, {times:?}, {}", place.display(), found.len(), found.ino())))
            }
        }
    }

    /// The name, for telling the format by.
    fn name(&self) -> String {
        match self {
            Self::Local(_, path, _) => path.display().to_string(),
            Self::Stream(stream) => stream.name.clone(),
            Self::S3(_, url, _) => url.key.clone(),
        }
    }

    /// Everything from `start` on; of a stream everything, once.
    pub(super) fn read_from(&self, start: u64) -> Result<Box<dyn Read + Send>> {
        match self {
            Self::Local(file, path, size) => {
                let file = Arc::clone(file);
                let ranged = Ranged { file, name: path.display().to_string(), next: start, end: *size };
                Ok(Box::new(BufReader::new(ranged)))
            }
            Self::Stream(stream) => {
                let rest = stream.rest.lock().unwrap_or_else(PoisonError::into_inner).take();
                rest.ok_or_else(|| self.not_seekable())
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
            Self::Stream(_) => Err(self.not_seekable()),
            Self::S3(store, url, object) => {
                let mut bytes = Vec::with_capacity(length);
                for piece in store.pieces(url, object, start..start + length as u64) {
                    piece?.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
                }
                Ok(bytes.into())
            }
        }
    }

    fn not_seekable(&self) -> Error {
        Error::invalid(format!(
            "expected a file that can be read from any place, as Parquet needs one, but found a stream in `{}`; save \
             it to a file first",
            self.name()
        ))
    }

    fn head(&self) -> Result<Vec<u8>> {
        match (self, self.size()) {
            (Self::Stream(stream), _) => Ok(stream.head.clone()),
            (_, Some(size)) if size > 0 => Ok(self.bytes(0, size.min(HEAD_BYTES) as usize)?.to_vec()),
            _ => Ok(Vec::new()),
        }
    }

    /// The format and the compression, by the first bytes; by the name only where these do not tell. A format that is
    /// asked for is taken as it is.
    pub(super) fn format(&self, asked: Option<Format>) -> Result<(Format, Compression)> {
        let head = self.head()?;
        if head.is_empty() {
            return Err(Error::invalid("expected rows, but found an empty file"));
        }
        let is_parquet = head.starts_with(b"PAR1");
        if let (true, None) | (_, Some(Format::Parquet)) = (is_parquet, asked) {
            return match self {
                Self::Stream(_) => Err(self.not_seekable()),
                _ => Ok((Format::Parquet, Compression::None)),
            };
        }
        let compression = Compression::of(&head);
        if let Some(asked) = asked {
            return Ok((asked, compression));
        }
        let by_name = Format::of_name(&self.name());
        if by_name == Some(Format::Parquet) {
            return Err(Error::invalid(
                "expected a Parquet file, as its name says, but found something else",
            ));
        }
        let contents = compression.unpack(Cursor::new(head)).map_err(reading)?;
        let mut start = Vec::new();
        // The head of a packed file ends somewhere inside: what was unpacked until then is enough.
        let _ = contents.take(HEAD_BYTES).read_to_end(&mut start);
        if let Some((_, name)) = FOREIGN.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(Error::invalid(format!(
                "expected JSON Lines, CSV or Parquet, the first two plain or packed once with gzip or zstd, but found \
                 {name}"
            )));
        }
        let start = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&start).trim_ascii_start();
        let by_content = match json_of(start) {
            Json::Object => Some(Format::JsonLines),
            Json::SplitObject => {
                return Err(Error::invalid(
                    "expected an object a line, but found one over several lines; write each on a line of its own, \
                     such as with `jq -c .`",
                ));
            }
            Json::List => {
                return Err(Error::invalid(
                    "expected an object a line, but found a list; write each of its items on a line of its own, \
                     such as with `jq -c '.[]'`",
                ));
            }
            Json::None => None,
        };
        Ok((by_content.or(by_name).unwrap_or(Format::Csv), compression))
    }

    /// The rows of the input.
    pub(super) fn open(
        &self,
        format: (Format, Compression),
        column: Option<&str>,
        gauge: &Gauge,
    ) -> Result<Reader> {
        let (format, compression) = format;
        if format == Format::Parquet {
            return Ok(Reader::Parquet(ParquetReader::new(self.clone(), column)?));
        }
        let packed = Counted { file: self.read_from(0)?, count: Arc::clone(&gauge.packed) };
        let contents = compression.unpack(BufReader::with_capacity(128 * 1024, packed)).map_err(reading)?;
        let contents: Box<dyn Read + Send> =
            Box::new(Counted { file: contents, count: Arc::clone(&gauge.unpacked) });
        Ok(match format {
            Format::Csv => Reader::Csv(CsvReader::new(contents, column)?),
            _ => Reader::JsonLines(JsonLinesReader::new(contents, column.map(str::to_owned))),
        })
    }
}

/// How many bytes at the start of an input decide on its format.
const HEAD_BYTES: u64 = 4096;

/// First bytes of unpacked contents that no rows begin with.
const FOREIGN: [(&[u8], &str); 8] = [
    (b"PAR1", "packed Parquet; unpack it"),
    (b"\x1f\x8b", "a file that is packed twice"),
    (b"\x28\xb5\x2f\xfd", "a file that is packed twice"),
    (b"PK\x03\x04", "a ZIP archive or a spreadsheet; export the table as CSV"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x04\x22\x4d\x18", "LZ4"),
    (b"\0", "a binary file"),
];

/// What the beginning of a file is as JSON.
enum Json {
    /// An object, or the beginning of one on a long line.
    Object,
    /// An object that goes on behind the end of the line.
    SplitObject,
    List,
    None,
}

/// Tells JSON from the header of a CSV file, which may begin with the same characters.
fn json_of(start: &[u8]) -> Json {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has_end = line.len() < start.len();
    let next = line.get(1..).unwrap_or_default().trim_ascii();
    match (line.first(), next.first()) {
        (Some(b'{'), None) if has_end => Json::SplitObject,
        (Some(b'{'), Some(b'"' | b'}')) => Json::Object,
        (Some(b'['), None) if has_end => {
            let after = start[line.len()..].trim_ascii_start();
            if matches!(after.first(), Some(b'{' | b'"' | b'[')) { Json::List } else { Json::None }
        }
        (Some(b'['), Some(b'{' | b'"' | b'[')) => Json::List,
        _ => Json::None,
    }
}

/// How much of an input was read, for telling how much is left.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauge {
    packed: Arc<AtomicU64>,
    unpacked: Arc<AtomicU64>,
}

impl Gauge {
    /// The share of the input, of `size` bytes, that comes before `position`.
    ///
    /// What is read in advance does not count, so that a small file is not done when it was read.
    pub(super) fn share(&self, position: Position, size: Option<u64>) -> Option<f64> {
        let share = match position {
            Position::Row { done, all } => done as f64 / all.max(1) as f64,
            Position::Byte(byte) => {
                let [packed, unpacked] =
                    [&self.packed, &self.unpacked].map(|count| count.load(Ordering::Relaxed).max(1) as f64);
                byte as f64 / unpacked * packed / size?.max(1) as f64
            }
        };
        Some(share.clamp(0.0, 1.0))
    }
}

/// Counts the bytes that are read.
struct Counted<R> {
    file: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A part of a file that others read as well. It ends where the file ended when it was opened: rows that are added
/// meanwhile are not read, and a file that was cut meanwhile is no shorter file.
struct Ranged {
    file: Arc<File>,
    name: String,
    next: u64,
    end: u64,
}

impl Read for Ranged {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min((self.end - self.next).min(usize::MAX as u64) as usize);
        if length == 0 {
            return Ok(0);
        }
        let read = self.file.read_at(&mut buffer[..length], self.next)?;
        if read == 0 {
            return Err(io::Error::other(Error::Io {
                action: format!("cannot read `{}`", self.name),
                source: io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("it had {} bytes, and was cut to {} while it was read", self.end, self.next),
                ),
            }));
        }
        self.next += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format_of(name: &str, contents: &[u8], asked: Option<Format>) -> Result<Format> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, contents).unwrap();
        Ok(Place::local(&path)?.format(asked)?.0)
    }

    #[test]
    fn the_content_decides_on_the_format_whatever_the_name() {
        let object = b"{\"text\": \"a\", \"n\": 1}\n";
        for name in ["a.txt", "a.csv", "a.tsv", "a", "a.jsonl", "a.csv.gz"] {
            assert_eq!(format_of(name, object, None).unwrap(), Format::JsonLines, "{name}");
        }
        let long = format!("{{\"text\": \"{}\"}}\n", "long ".repeat(2000));
        assert_eq!(format_of("a.csv", long.as_bytes(), None).unwrap(), Format::JsonLines);
        for header in ["text\na\n", "{id},text\n1,a\n", "[id],text\n1,a\n"] {
            assert_eq!(format_of("a.txt", header.as_bytes(), None).unwrap(), Format::Csv, "{header}");
        }
        assert_eq!(format_of("a.csv", object, Some(Format::Csv)).unwrap(), Format::Csv);
        assert_eq!(format_of("a.jsonl", b"text\na\n", Some(Format::Csv)).unwrap(), Format::Csv);
    }

    #[test]
    fn json_that_is_no_object_a_line_is_refused_whatever_the_name() {
        for name in ["a.txt", "a.json", "a.csv"] {
            for list in ["[{\"text\": \"a\"}]", "[\n  {\"text\": \"a\"}\n]", "[\"a\",\n\"b\"]"] {
                let refused = format_of(name, list.as_bytes(), None).unwrap_err().to_string();
                assert!(refused.contains("but found a list"), "{name}: {refused}");
            }
            let refused = format_of(name, b"{\n  \"text\": \"a\"\n}\n", None).unwrap_err().to_string();
            assert!(refused.contains("but found one over several lines"), "{name}: {refused}");
        }
    }

    #[test]
    fn contents_that_hold_no_rows_are_named() {
        let refused = |contents: &[u8]| format_of("a.csv", contents, None).unwrap_err().to_string();
        let twice = {
            let pack = |contents: &[u8]| {
                let mut packer = Compression::Gzip.pack().unwrap();
                io::Write::write_all(&mut packer, contents).unwrap();
                packer.finish().unwrap()
            };
            pack(&pack(b"text\na\n"))
        };
        assert!(refused(&twice).ends_with("a file that is packed twice"));
        assert!(refused(b"PK\x03\x04 and more").contains("spreadsheet"));
        assert!(refused(b"BZh91AY&SY").ends_with("but found bzip2"));
    }

    #[test]
    fn a_file_is_read_as_it_was_when_it_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{\"text\": \"a\"}\n").unwrap();
        let place = Place::local(&path).unwrap();
        let text = |place: &Place| {
            let mut text = String::new();
            place.read_from(0).unwrap().read_to_string(&mut text).map(|_| text)
        };
        // Rows that are added, and a file that takes the name, change nothing.
        let mut longer = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        io::Write::write_all(&mut longer, b"{\"text\": \"b\"}\n").unwrap();
        assert_eq!(text(&place).unwrap(), "{\"text\": \"a\"}\n");
        longer.set_len(5).unwrap();
        let error = reading(text(&place).unwrap_err());
        assert!(matches!(error, Error::Io { .. }));
        assert!(
            error.chain().ends_with("it had 14 bytes, and was cut to 5 while it was read"),
            "{}",
            error.chain()
        );
    }
}
