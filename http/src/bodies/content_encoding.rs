//! Compressed request bodies.

use std::io::{self, Read};

use axum::http::{HeaderMap, StatusCode, header::CONTENT_ENCODING};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};

use super::rejection::Rejection;
use kivu::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentEncoding {
    Identity,
    Gzip,
    Deflate,
}

impl ContentEncoding {
    /// Parses `content-encoding`, which may name a single encoding; others are rejected with 415.
    pub fn of(headers: &HeaderMap) -> Result<Self, Rejection> {
        let mut found = headers.get_all(CONTENT_ENCODING).iter();
        let Some(first) = found.next() else {
            return Ok(Self::Identity);
        };
        let known = match first
            .as_bytes()
            .trim_ascii()
            .to_ascii_lowercase()
            .as_slice()
        {
            b"identity" => Some(Self::Identity),
            b"gzip" | b"x-gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            _ => None,
        };
        known.filter(|_| found.next().is_none()).ok_or_else(|| {
            let all: Vec<_> = headers
                .get_all(CONTENT_ENCODING)
                .iter()
                .map(|value| value.as_bytes().escape_ascii().to_string())
                .collect();
            Rejection::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                unsupported(&all.join(", ")),
            )
        })
    }

    /// Decompresses a body to at most `limit` bytes. Reads all gzip members; data after the last one is an error.
    pub fn decode(self, body: Vec<u8>, limit: usize) -> Result<Vec<u8>, Error> {
        let mut rest = body.as_slice();
        let decoded = match self {
            Self::Identity => return Ok(body),
            Self::Gzip => read(MultiGzDecoder::new(&mut rest), limit),
            Self::Deflate => read(ZlibDecoder::new(&mut rest), limit),
        };
        let decoded = decoded.map_err(|_| {
            Error::malformed("the body is incomplete or not compressed with its `content-encoding`")
        })?;
        if decoded.len() > limit {
            return Err(too_long(limit));
        }
        if !rest.is_empty() {
            return Err(Error::malformed(format!(
                "expected the body to end where its compressed data ends, but found {} bytes more",
                rest.len()
            )));
        }
        Ok(decoded)
    }
}

pub fn unsupported(encoding: &str) -> String {
    format!(
        "the content encoding `{encoding}` is not supported; send `gzip`, `deflate` or no encoding"
    )
}

/// Reads to the end, but at most one byte more than `limit`.
fn read(decoder: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut decoded = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut decoded)?;
    Ok(decoded)
}

pub fn too_long(limit: usize) -> Error {
    Error::too_large(format!(
        "expected a body of at most {limit} bytes, but found more"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::http::HeaderValue;
    use flate2::{Compression, write::GzEncoder, write::ZlibEncoder};

    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn deflate(text: &str) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn encodings_have_several_names() {
        let of = |names: &[&'static str]| {
            let mut headers = HeaderMap::new();
            names.iter().for_each(|name| {
                headers.append(
                    CONTENT_ENCODING,
                    HeaderValue::from_bytes(name.as_bytes()).unwrap(),
                );
            });
            ContentEncoding::of(&headers).map_err(|rejection| {
                format!("{}: {}", rejection.status.as_u16(), rejection.message)
            })
        };
        assert_eq!(of(&[]), Ok(ContentEncoding::Identity));
        for (name, encoding) in [
            ("gzip", ContentEncoding::Gzip),
            ("GZip", ContentEncoding::Gzip),
            ("x-gzip", ContentEncoding::Gzip),
            ("X-GZIP", ContentEncoding::Gzip),
            ("Deflate", ContentEncoding::Deflate),
            ("IDENTITY", ContentEncoding::Identity),
        ] {
            assert_eq!(of(&[name]), Ok(encoding), "{name}");
        }
        insta::assert_snapshot!(of(&["br"]).unwrap_err(), @"415: the content encoding `br` is not supported; send `gzip`, `deflate` or no encoding");
        insta::assert_snapshot!(of(&["gzip", "gzip"]).unwrap_err(), @"415: the content encoding `gzip, gzip` is not supported; send `gzip`, `deflate` or no encoding");
        insta::assert_snapshot!(of(&["z\u{fc}std"]).unwrap_err(), @r"415: the content encoding `z\xc3\xbcstd` is not supported; send `gzip`, `deflate` or no encoding");
        assert!(of(&["gzip, gzip"]).is_err());
    }

    #[test]
    fn a_body_is_decompressed_completely_or_rejected() {
        let decode =
            |encoding: ContentEncoding, body: &[u8]| match encoding.decode(body.to_vec(), 16) {
                Ok(text) => format!("\"{}\"", String::from_utf8(text).unwrap()),
                Err(error) => error.to_string(),
            };
        let garbage = |body: Vec<u8>| [body, b"garbage".to_vec()].concat();
        let two = [gzip("one, "), gzip("two")].concat();
        let cut = |body: Vec<u8>| body[..body.len() - 3].to_vec();
        let decoded = [
            decode(ContentEncoding::Gzip, &gzip("a text")),
            decode(ContentEncoding::Gzip, &two),
            decode(ContentEncoding::Gzip, &garbage(two.clone())),
            decode(ContentEncoding::Gzip, &cut(two)),
            decode(ContentEncoding::Gzip, b""),
            decode(ContentEncoding::Gzip, &gzip("exactly 16 bytes")),
            decode(ContentEncoding::Gzip, &gzip("exactly 17 bytes.")),
            decode(ContentEncoding::Gzip, &deflate("a text")),
            decode(ContentEncoding::Deflate, &deflate("a text")),
            decode(ContentEncoding::Deflate, &garbage(deflate("a text"))),
            decode(ContentEncoding::Deflate, &cut(deflate("a text"))),
        ];
        insta::assert_snapshot!(decoded.join("\n"), @r#"
        "a text"
        "one, two"
        the body is incomplete or not compressed with its `content-encoding`
        the body is incomplete or not compressed with its `content-encoding`
        the body is incomplete or not compressed with its `content-encoding`
        "exactly 16 bytes"
        expected a body of at most 16 bytes, but found more
        the body is incomplete or not compressed with its `content-encoding`
        "a text"
        expected the body to end where its compressed data ends, but found 7 bytes more
        the body is incomplete or not compressed with its `content-encoding`
        "#);
    }
}
