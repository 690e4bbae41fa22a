//! Detects input formats.

use std::{
    fmt,
    io::{Cursor, Read},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::compression::Compression;
use crate::rows::{Layout, PARQUET_MAGIC, has_known_column, is_request, reading};
use kivu::{Error, Result, error::Message, foreign_file};

/// Extensions of formats that Kivu does not write.
const UNSUPPORTED_NAMES: [&str; 14] = [
    "7z", "arrow", "avro", "br", "bz2", "feather", "lz4", "ods", "orc", "tgz", "xls", "xlsx", "xz",
    "zip",
];

/// Leading input bytes that determine the format.
pub const HEAD_BYTES: u64 = 4096;
/// The same for zstd, which unpacks blocks up to 128 kB as a whole.
const ZSTD_HEAD_BYTES: u64 = 160 * 1024;

/// How many leading bytes determine the format, for an input that begins with `head`.
pub fn head_bytes(head: &[u8]) -> u64 {
    if Compression::of(head) == Compression::Zstd {
        ZSTD_HEAD_BYTES
    } else {
        HEAD_BYTES
    }
}

/// Input and output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// One JSON object per line.
    JsonLines,
    /// CSV with a header.
    Csv,
    /// One text per line. The output is CSV or JSON Lines.
    Text,
    /// Apache Parquet.
    Parquet,
    /// Requests of OpenAI's Batch API, one per line.
    #[serde(rename = "openai")]
    OpenAi,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonLines => "JSON Lines",
            Self::Csv => "CSV",
            Self::Text => "text",
            Self::Parquet => "Parquet",
            Self::OpenAi => "OpenAI's batch requests",
        })
    }
}

/// Format and compression, from a file name's extensions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamedForm {
    pub format: Option<Format>,
    pub compression: Option<Compression>,
    /// Whether CSV fields are separated by tabs.
    pub is_tsv: bool,
    /// Whether each line is a text. Outputs with such a name have any format.
    pub is_text: bool,
    /// The extension of a format that Kivu does not write.
    pub unsupported: Option<&'static str>,
}

impl NamedForm {
    pub fn of(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let compressions = [
            (".gz", Compression::Gzip),
            (".gzip", Compression::Gzip),
            (".zst", Compression::Zstd),
            (".zstd", Compression::Zstd),
        ];
        let packed = compressions.iter().find_map(|(extension, compression)| {
            name.strip_suffix(extension)
                .map(|name| (name, *compression))
        });
        let (name, compression) =
            packed.map_or((name.as_str(), None), |(name, found)| (name, Some(found)));
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        let format = match extension {
            "jsonl" | "ndjson" | "json" => Some(Format::JsonLines),
            "csv" | "tsv" => Some(Format::Csv),
            "parquet" => Some(Format::Parquet),
            _ => None,
        };
        let unsupported = UNSUPPORTED_NAMES
            .into_iter()
            .find(|name| *name == extension);
        Self {
            format,
            compression,
            is_tsv: extension == "tsv",
            is_text: matches!(extension, "txt" | "text"),
            unsupported,
        }
    }
}

impl Format {
    /// Detects format and compression by the first bytes, or by the name if they are not conclusive. `requested`
    /// overrides the format, and a known `layout` means that the file has columns.
    ///
    /// # Errors
    /// The format is not supported, or the first line may be a text or a header.
    pub fn detect(
        head: &[u8],
        name: &str,
        requested: Option<Self>,
        layout: &Layout,
    ) -> Result<(Self, Compression)> {
        let has_columns = *layout != Layout::default();
        if requested == Some(Self::Text) && has_columns {
            return Err(Error::config(
                "the format `text` has no columns and no other options of CSV",
            )
            .with_hint("omit these options, or choose the format `csv`"));
        }
        if head.is_empty() {
            return Err(Error::invalid("expected rows, but found an empty file"));
        }
        // A text may be a web page where the format was requested.
        let found = foreign_file::stand_in(head);
        if let Some(found) = found.filter(|_| requested.is_none_or(|it| it == Self::Parquet)) {
            return Err(unsupported(found));
        }
        if requested.map_or(head.starts_with(PARQUET_MAGIC), |format| {
            format == Self::Parquet
        }) {
            return Ok((Self::Parquet, Compression::None));
        }
        let compression = Compression::of(head);
        if let Some(requested) = requested {
            return Ok((requested, compression));
        }
        let named = NamedForm::of(name);
        if named.format == Some(Self::Parquet) && !head.starts_with(ENCRYPTED_PARQUET_MAGIC) {
            return Err(Error::invalid(
                "the file is not Parquet, though its name says so",
            ));
        }
        let contents = compression
            .unpack(Cursor::new(head.to_vec()), &Arc::default())
            .map_err(reading)?;
        let mut start = Vec::new();
        // A compressed head is incomplete, and ends with an error.
        let _ = contents.take(HEAD_BYTES).read_to_end(&mut start);
        if let Some((_, found, hint)) = UNSUPPORTED
            .iter()
            .find(|(magic, ..)| start.starts_with(magic))
        {
            let error = unsupported(*found);
            return Err(match hint {
                Some(hint) => error.with_hint(*hint),
                None => error,
            });
        }
        let is_damaged =
            || std::str::from_utf8(&start).is_err_and(|error| error.error_len().is_some());
        if compression == Compression::None && named.compression.is_some() && is_damaged() {
            return Err(unsupported(
                "neither text nor a packed file, as its name says",
            ));
        }
        let start = start
            .strip_prefix("\u{feff}".as_bytes())
            .unwrap_or(&start)
            .trim_ascii_start();
        let format = match named.format {
            _ if is_json(start)? => match is_request(start) {
                true => Self::OpenAi,
                false => Self::JsonLines,
            },
            Some(named) => named,
            None if start.is_empty() && head.len() as u64 >= HEAD_BYTES => {
                return Err(Error::invalid(format!(
                    "expected rows in the first {HEAD_BYTES} bytes, but found only white space"
                ))
                .with_hint("choose the format with `--format`, or `format`"));
            }
            None if start.contains(&0) => return Err(unsupported("a binary file")),
            None if has_columns => Self::Csv,
            None if named.is_text => Self::Text,
            None if has_known_column(start) => Self::Csv,
            None => {
                return Err(Error::invalid(
                    "the first line may be a text or the header of CSV, since neither the file's name nor a column's says so",
                )
                .with_hint(
                    "choose the format with `--format`, or `format`: `text` if each line is a text, else `csv`",
                ));
            }
        };
        Ok((format, compression))
    }
}

const ENCRYPTED_PARQUET_MAGIC: &[u8] = b"PARE";

fn unsupported(found: impl Into<Message>) -> Error {
    Error::invalid(found.into().map(|found| {
        format!(
            "expected JSON Lines, CSV, text or Parquet, all but the last plain or packed once with gzip or \
             zstd, but found {found}"
        )
    }))
}

/// Leading bytes of unsupported contents, unpacked, what they are, and what to do with them.
const UNSUPPORTED: [(&[u8], &str, Option<&str>); 11] = [
    (
        ENCRYPTED_PARQUET_MAGIC,
        "an encrypted Parquet file",
        Some("decrypt it"),
    ),
    (b"\xff\xfe", UTF_16, Some(CONVERT)),
    (b"\xfe\xff", UTF_16, Some(CONVERT)),
    (PARQUET_MAGIC, "packed Parquet", Some("unpack it")),
    (b"\x1f\x8b", "a file that is packed twice", None),
    (b"\x28\xb5\x2f\xfd", "a file that is packed twice", None),
    (
        b"PK\x03\x04",
        "a ZIP archive or a spreadsheet",
        Some("export the table as CSV"),
    ),
    (b"BZh", "bzip2", None),
    (b"\xfd7zXZ\0", "xz", None),
    (b"\x04\x22\x4d\x18", "LZ4", None),
    (b"\0", "a binary file", None),
];
const UTF_16: &str = "text in UTF-16";
const CONVERT: &str = "convert it, such as with `iconv`";

/// Whether a file begins with a JSON object, complete or on a long line, rather than a CSV header, which may begin
/// with the same characters.
fn is_json(start: &[u8]) -> Result<bool> {
    let line = start
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let has_end = line.len() < start.len();
    let next = line.get(1..).unwrap_or_default().trim_ascii();
    match (line.first(), next.first()) {
        (Some(b'{'), None) if has_end => Err(Error::invalid(
            "expected an object per line, but found one over several lines",
        )
        .with_hint("write each on one line, for example with `jq -c .`")),
        (Some(b'['), first) => {
            let first = first.or_else(|| start[line.len()..].trim_ascii_start().first());
            match first {
                Some(b'{' | b'"' | b'[') => Err(Error::invalid(
                    "expected an object per line, but found a list",
                )
                .with_hint("write each item on its own line, such as with `jq -c '.[]'`")),
                _ => Ok(false),
            }
        }
        (first, next) => Ok(first == Some(&b'{') && matches!(next, Some(b'"' | b'}'))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn format_of(name: &str, contents: &[u8], requested: Option<Format>) -> Result<Format> {
        let head = &contents[..contents.len().min(head_bytes(contents) as usize)];
        Ok(Format::detect(head, name, requested, &Layout::default())?.0)
    }

    #[test]
    fn the_contents_determine_the_format() {
        let object = b"{\"text\": \"a\", \"n\": 1}\n";
        for name in ["a.txt", "a.csv", "a.tsv", "a", "a.jsonl", "a.csv.gz"] {
            assert_eq!(
                format_of(name, object, None).unwrap(),
                Format::JsonLines,
                "{name}"
            );
        }
        let long = format!("{{\"text\": \"{}\"}}\n", "long ".repeat(2000));
        assert_eq!(
            format_of("a.csv", long.as_bytes(), None).unwrap(),
            Format::JsonLines
        );
        for header in ["text\na\n", "{id},text\n1,a\n", "[id],text\n1,a\n"] {
            assert_eq!(
                format_of("a.csv", header.as_bytes(), None).unwrap(),
                Format::Csv,
                "{header}"
            );
            assert_eq!(
                format_of("a.txt", header.as_bytes(), None).unwrap(),
                Format::Text,
                "{header}"
            );
        }
        assert_eq!(
            format_of("a.csv", object, Some(Format::Csv)).unwrap(),
            Format::Csv
        );
        let blank = vec![b'\n'; HEAD_BYTES as usize];
        let refused = format_of("a.txt", &blank, None).unwrap_err().to_string();
        assert!(refused.contains("but found only white space"), "{refused}");
        // A zstd block that is larger than the bytes needed to detect other formats.
        let rows = (0..30_000_u64).map(|row| {
            format!(
                "{{\"text\": \"{:x}\"}}\n",
                row.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            )
        });
        let mut packer = Compression::Zstd.pack().unwrap();
        let rows = rows.collect::<String>();
        packer
            .append(|output| output.write_all(rows.as_bytes()))
            .unwrap();
        let packed = packer.finish().unwrap();
        assert!(packed.len() as u64 > ZSTD_HEAD_BYTES);
        assert_eq!(
            format_of("standard input", &packed, None).unwrap(),
            Format::JsonLines
        );
        assert_eq!(
            format_of("a.jsonl", b"text\na\n", Some(Format::Csv)).unwrap(),
            Format::Csv
        );
    }

    #[test]
    fn the_first_line_is_a_header_or_a_text() {
        for name in ["a.txt", "A.TXT", "a.text.gz"] {
            assert_eq!(
                format_of(name, b"text\na\n", None).unwrap(),
                Format::Text,
                "{name}"
            );
        }
        for header in ["text\n", "\u{feff}id;\"Review\"\r\n", "sep=;\nid;opinion\n"] {
            let found = format_of("standard input", header.as_bytes(), None);
            assert_eq!(found.unwrap(), Format::Csv, "{header}");
        }
        for name in ["standard input", "a.log"] {
            let refused = format_of(name, b"good, fine\nbad\n", None).unwrap_err();
            insta::allow_duplicates! {
                insta::assert_snapshot!(refused, @"the first line may be a text or the header of CSV, since neither the file's name nor a column's says so; choose the format with `--format`, or `format`: `text` if each line is a text, else `csv`");
            }
        }
        // A file with options for columns has columns.
        let layout = Layout::of_column(Some("opinion"));
        for name in ["a.txt", "standard input"] {
            let found = Format::detect(b"opinion\na\n", name, None, &layout).unwrap();
            assert_eq!(found.0, Format::Csv, "{name}");
        }
        let refused = Format::detect(b"a\n", "a.txt", Some(Format::Text), &layout);
        insta::assert_snapshot!(refused.unwrap_err(), @"the format `text` has no columns and no other options of CSV; omit these options, or choose the format `csv`");
    }

    #[test]
    fn json_other_than_one_object_per_line_is_refused() {
        for name in ["a.txt", "a.json", "a.csv"] {
            for list in [
                "[{\"text\": \"a\"}]",
                "[\n  {\"text\": \"a\"}\n]",
                "[\"a\",\n\"b\"]",
            ] {
                let refused = format_of(name, list.as_bytes(), None)
                    .unwrap_err()
                    .to_string();
                assert!(refused.contains("but found a list"), "{name}: {refused}");
            }
            let refused = format_of(name, b"{\n  \"text\": \"a\"\n}\n", None)
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains("but found one over several lines"),
                "{name}: {refused}"
            );
        }
    }

    #[test]
    fn unsupported_contents_are_named() {
        let refused = |contents: &[u8]| format_of("a.csv", contents, None).unwrap_err().to_string();
        let twice = {
            let pack = |contents: &[u8]| {
                let mut packer = Compression::Gzip.pack().unwrap();
                packer.append(|output| output.write_all(contents)).unwrap();
                packer.finish().unwrap()
            };
            pack(&pack(b"text\na\n"))
        };
        assert!(refused(&twice).ends_with("a file that is packed twice"));
        assert!(refused(b"PK\x03\x04 and more").contains("spreadsheet"));
        assert!(refused(b"BZh91AY&SY").ends_with("but found bzip2"));
        assert!(refused(b"\xff\xfet\0e\0x\0t\0").contains("but found text in UTF-16"));
        let refused =
            |name, contents: &[u8]| format_of(name, contents, None).unwrap_err().to_string();
        assert!(
            refused("a.parquet", b"PARE and more").contains("but found an encrypted Parquet file")
        );
        assert!(
            refused("a.csv.gz", b"\x1f\x8a\x08\0\0\0")
                .ends_with("but found neither text nor a packed file, as its name says")
        );
        assert!(refused("a", b"\x01\0\x02\0").ends_with("but found a binary file"));
    }

    #[test]
    fn pointers_and_pages_are_no_rows() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        for name in ["a.csv", "a.jsonl", "a.tsv", "a.parquet", "a"] {
            let refusal = format_of(name, pointer.as_bytes(), None)
                .unwrap_err()
                .to_string();
            assert!(
                refusal.contains("but found a git-lfs pointer; run `git lfs pull`"),
                "{refusal}"
            );
            let refusal = format_of(name, b"<?xml version=\"1.0\"?><Error>", None).unwrap_err();
            assert!(
                refusal.to_string().contains("but found an XML document"),
                "{refusal}"
            );
        }
        let parquet = format_of("a", pointer.as_bytes(), Some(Format::Parquet));
        assert!(parquet.is_err());
        // A table may consist of pages.
        let requested = format_of("a", b"<html>,text\n", Some(Format::Csv));
        assert_eq!(requested.unwrap(), Format::Csv);
    }
}
