//! Files whose rows are requests: each row's response is a line of the output.

use std::{borrow::Cow, collections::BTreeSet, fmt, io::Read};

use serde::{Deserialize, Deserializer, de};

use super::{
    chunk::{CHUNK_ROWS, Chunk, Head, RowReader, RowWriter, Rows, WrittenPiece},
    ids::Ids,
    lines::{Lines, line_text},
};
use crate::{
    input::compression::Packer,
    output::answer::{Cell, ErrorKind, RowError, RowResult},
};
use kivu::{Error, Result};

/// A chunk that reaches this size ends before [`CHUNK_ROWS`] rows: responses may be a thousand times longer.
const CHUNK_BYTES: usize = 16 * 1024;

/// Reads requests, which are lines.
pub struct RequestReader {
    lines: Lines,
    /// Rows so far.
    rows: u64,
    ids: Ids,
}

/// What tells a request's response from others.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    custom_id: Cow<'a, str>,
}

impl RequestReader {
    pub fn new(file: impl Read + Send + 'static) -> Self {
        Self {
            lines: Lines::new(file),
            rows: 0,
            ids: Ids::default(),
        }
    }

    /// The next line, whose `custom_id` no earlier one has; `None` at the end.
    fn request(&mut self) -> Result<Option<Result<String, RowError>>> {
        let mut line = Vec::new();
        if !self.lines.next(&mut line)? {
            return Ok(None);
        }
        self.rows += 1;
        let line = match line_text(&line) {
            Ok(line) => line,
            Err(error) => return Ok(Some(Err(error))),
        };
        match serde_json::from_str(line) {
            Ok(Named { custom_id }) if !self.ids.add(&custom_id) => {
                let message = format!(
                    "request {} has the `custom_id` of an earlier one",
                    self.rows
                );
                Ok(Some(Err(RowError::new(ErrorKind::Row, message))))
            }
            // A line that is no request is refused with the reason.
            _ => Ok(Some(Ok(line.to_owned()))),
        }
    }
}

impl RowReader for RequestReader {
    fn head(&self) -> Head {
        Head::Requests
    }

    /// There is none.
    fn column(&self) -> &str {
        ""
    }

    fn position(&self) -> u64 {
        self.lines.position()
    }

    fn skip(&mut self, rows: u64) -> Result<()> {
        for _ in 0..rows {
            if self.request()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        let (mut texts, mut bytes) = (Vec::new(), 0);
        while texts.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let Some(request) = self.request()? else {
                break;
            };
            bytes += request.as_ref().map_or(0, String::len);
            texts.push(request);
        }
        Ok((!texts.is_empty()).then_some(Chunk {
            texts,
            rows: Rows::Lines(Vec::new()),
        }))
    }
}

/// Writes responses, which are lines.
pub struct RequestWriter {
    target: Packer,
    columns: BTreeSet<String>,
}

impl RequestWriter {
    pub fn new(target: Packer) -> Self {
        Self {
            target,
            columns: BTreeSet::new(),
        }
    }
}

impl RowWriter for RequestWriter {
    fn write(&mut self, _: Rows, results: &mut [RowResult]) -> Result<()> {
        for result in results {
            let line = match result {
                Ok(answer) => answer.iter().find_map(|cell| match cell {
                    Cell::Text(line) => Some(&**line),
                    _ => None,
                }),
                Err(error) => error.response.as_deref(),
            };
            let line = line.ok_or_else(|| {
                Error::inference("expected a response per request, but found none")
            })?;
            self.target.append(|output| {
                output.extend_from_slice(line.as_bytes());
                output.push(b'\n');
                Ok(())
            })?;
        }
        Ok(())
    }

    fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    fn size(&self) -> usize {
        self.target.size()
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        Ok((self.target.finish()?, None))
    }
}

/// The fields that begin a request, as far as a line's beginning has them.
#[derive(Default)]
struct Beginning {
    has_id: bool,
    has_url: bool,
}

/// Whether a file's first line, which may be cut, is a request: an object with `custom_id` and `url`.
pub fn is_request(line: &[u8]) -> bool {
    struct Visitor<'a>(&'a mut Beginning);

    impl<'de> de::Visitor<'de> for Visitor<'_> {
        type Value = ();

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                self.0.has_id |= key == "custom_id";
                self.0.has_url |= key == "url";
                map.next_value::<de::IgnoredAny>()?;
            }
            Ok(())
        }
    }

    let mut beginning = Beginning::default();
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    // A line that is cut ends with an error.
    let _ = Deserializer::deserialize_map(&mut deserializer, Visitor(&mut beginning));
    beginning.has_id && beginning.has_url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_recognized_by_their_fields() {
        let request = r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}"#;
        assert!(is_request(request.as_bytes()));
        assert!(is_request(&request.as_bytes()[..70]), "cut within the body");
        for other in [
            r#"{"url": "https://a", "text": "x"}"#,
            r#"{"custom_id": "a", "text": "x"}"#,
            r#"{"body": {"custom_id": "a", "url": "b"}}"#,
            r#"["custom_id", "url"]"#,
            "custom_id,url",
        ] {
            assert!(!is_request(other.as_bytes()), "{other}");
        }
    }
}
