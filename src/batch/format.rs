//! Detection of the format of an input.

use std::{
    fmt,
    io::{Cursor, Read},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    compression::Compression,
    rows::{PARQUET_MAGIC, reading},
};
use crate::error::{Error, Result};

/// The bytes at the beginning of an input that determine its format.
pub(super) const HEAD_BYTES: u64 = 4096;

/// The format of an input, which is also that of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// One JSON object per line.
    JsonLines,
    /// CSV with a header.
    Csv,
    /// Apache Parquet.
    Parquet,
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

impl Format {
    /// The usual format of files with such a name.
    fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let compressed = [".gz", ".gzip", ".zst", ".zstd"];
        let name = compressed.iter().find_map(|extension| name.strip_suffix(extension)).unwrap_or(&name);
        match name.rsplit_once('.')?.1 {
            "jsonl" | "ndjson" | "json" => Some(Self::JsonLines),
            "csv" | "tsv" => Some(Self::Csv),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// A note about an output whose name suggests another format.
    pub(super) fn note(self, output: &str) -> Option<String> {
        let named = Self::of_name(output).filter(|named| *named != self)?;
        Some(format!("the output is {self}, as the input is, though its name is one of {named}"))
    }

    /// Detects format and compression by the beginning of the contents, or by the name if that is not conclusive.
    /// `requested` overrides the format.
    pub(super) fn detect(head: &[u8], name: &str, requested: Option<Self>) -> Result<(Self, Compression)> {
        if head.is_empty() {
            return Err(Error::invalid("expected rows, but found an empty file"));
        }
        if requested.map_or(head.starts_with(PARQUET_MAGIC), |format| format == Self::Parquet) {
            return Ok((Self::Parquet, Compression::None));
        }
        let compression = Compression::of(head);
        if let Some(requested) = requested {
            return Ok((requested, compression));
        }
        let by_name = Self::of_name(name);
        if by_name == Some(Self::Parquet) {
            return Err(Error::invalid(
                "expected a Parquet file, as its name says, but found something else",
            ));
        }
        let contents = compression.unpack(Cursor::new(head.to_vec()), &Arc::default()).map_err(reading)?;
        let mut start = Vec::new();
        // A compressed head is incomplete, and ends with an error.
        let _ = contents.take(HEAD_BYTES).read_to_end(&mut start);
        if let Some((_, name)) = UNSUPPORTED.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(Error::invalid(format!(
                "expected JSON Lines, CSV or Parquet, the first two plain or packed once with gzip or zstd, but found \
                 {name}"
            )));
        }
        let start = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&start).trim_ascii_start();
        let format = if is_json(start)? { Self::JsonLines } else { by_name.unwrap_or(Self::Csv) };
        Ok((format, compression))
    }
}

/// The first bytes of unpacked contents that are not supported.
const UNSUPPORTED: [(&[u8], &str); 8] = [
    (PARQUET_MAGIC, "packed Parquet; unpack it"),
    (b"\x1f\x8b", "a file that is packed twice"),
    (b"\x28\xb5\x2f\xfd", "a file that is packed twice"),
    (b"PK\x03\x04", "a ZIP archive or a spreadsheet; export the table as CSV"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x04\x22\x4d\x18", "LZ4"),
    (b"\0", "a binary file"),
];

/// Whether the beginning of a file is an object, or that of one on a long line, rather than the header of a CSV file, which
/// may begin with the same characters.
fn is_json(start: &[u8]) -> Result<bool> {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has_end = line.len() < start.len();
    let next = line.get(1..).unwrap_or_default().trim_ascii();
    match (line.first(), next.first()) {
        (Some(b'{'), None) if has_end => Err(Error::invalid(
            "expected an object per line, but found one over several lines; write each on a line of its own, such as \
             with `jq -c .`",
        )),
        (Some(b'['), first) => {
            let first = first.or_else(|| start[line.len()..].trim_ascii_start().first());
            match first {
                Some(b'{' | b'"' | b'[') => Err(Error::invalid(
                    "expected an object per line, but found a list; write each of its items on a line of its own, such \
                     as with `jq -c '.[]'`",
                )),
                _ => Ok(false),
            }
        }
        (first, next) => Ok(first == Some(&b'{') && matches!(next, Some(b'"' | b'}'))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format_of(name: &str, contents: &[u8], requested: Option<Format>) -> Result<Format> {
        let head = &contents[..contents.len().min(HEAD_BYTES as usize)];
        Ok(Format::detect(head, name, requested)?.0)
    }

    #[test]
    fn the_contents_determine_the_format() {
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
    fn json_other_than_one_object_per_line_is_refused() {
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
    fn unsupported_contents_are_named() {
        let refused = |contents: &[u8]| format_of("a.csv", contents, None).unwrap_err().to_string();
        let twice = {
            let pack = |contents: &[u8]| {
                let mut packer = Compression::Gzip.pack().unwrap();
                std::io::Write::write_all(&mut packer, contents).unwrap();
                packer.finish().unwrap()
            };
            pack(&pack(b"text\na\n"))
        };
        assert!(refused(&twice).ends_with("a file that is packed twice"));
        assert!(refused(b"PK\x03\x04 and more").contains("spreadsheet"));
        assert!(refused(b"BZh91AY&SY").ends_with("but found bzip2"));
    }
}
