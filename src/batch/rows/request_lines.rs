//! Files whose rows are requests: each row's response is a line of the output.

use std::{collections::BTreeSet, io::Read};

use super::{
    chunk::{CHUNK_ROWS, Chunk, Head, MAX_ROW_BYTES, RowReader, RowWriter, Rows, WrittenPiece},
    lines::Lines,
};
use crate::{
    batch::{
        answer::{Cell, RowResult},
        compression::Packer,
    },
    error::{Error, Result},
};

/// A chunk that reaches this size ends before [`CHUNK_ROWS`] rows: responses may be a thousand times longer.
const CHUNK_BYTES: usize = 16 * 1024;

/// Reads requests, which are lines.
pub(in crate::batch) struct RequestReader {
    lines: Lines,
    rows: u64,
}

impl RequestReader {
    pub(in crate::batch) fn new(file: impl Read + Send + 'static) -> Self {
        Self {
            lines: Lines::new(file),
            rows: 0,
        }
    }

    /// The next request; `None` at the end.
    pub(in crate::batch) fn request(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        if !self.lines.next(&mut line)? {
            return Ok(None);
        }
        self.rows += 1;
        if line.len() > MAX_ROW_BYTES {
            return Err(Error::invalid(format!(
                "expected lines of at most {MAX_ROW_BYTES} bytes, but found more in line {}",
                self.rows
            )));
        }
        let line = String::from_utf8(line);
        line.map(Some).map_err(|_| {
            Error::invalid(format!(
                "expected UTF-8, but found other bytes in line {}",
                self.rows
            ))
        })
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
        let mut line = Vec::new();
        for _ in 0..rows {
            if !self.lines.next(&mut line)? {
                break;
            }
            self.rows += 1;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        let (mut texts, mut bytes) = (Vec::new(), 0);
        while texts.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let Some(request) = self.request()? else {
                break;
            };
            bytes += request.len();
            texts.push(Ok(request));
        }
        Ok((!texts.is_empty()).then_some(Chunk {
            texts,
            rows: Rows::Lines(Vec::new()),
        }))
    }
}

/// Writes responses, which are lines.
pub(in crate::batch) struct RequestWriter {
    target: Packer,
    buffer: Vec<u8>,
    columns: BTreeSet<String>,
}

impl RequestWriter {
    pub(in crate::batch) fn new(target: Packer) -> Self {
        Self {
            target,
            buffer: Vec::new(),
            columns: BTreeSet::new(),
        }
    }
}

impl RowWriter for RequestWriter {
    fn write(&mut self, _: Rows, results: &[RowResult]) -> Result<()> {
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
            let written = self.target.append(&mut self.buffer, |output| {
                output.extend_from_slice(line.as_bytes());
                output.push(b'\n');
                Ok(())
            });
            written.map_err(Error::io("cannot write the output"))?;
        }
        Ok(())
    }

    fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    fn size(&self) -> usize {
        self.target.len()
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        Ok((
            self.target
                .finish()
                .map_err(Error::io("cannot write the output"))?,
            None,
        ))
    }
}
