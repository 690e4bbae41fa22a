//! Divides a batch's responses into its output file and its error file.

use std::io::{self, BufRead, BufReader, Read};

use serde::Deserialize;

use super::{
    entry::Entry,
    object::{BatchRecord, RequestCounts},
    responder::EXPIRED,
};
use crate::{
    api::files::{FILE, FileNames, FileObject, Files, Purpose},
    error::{Error, Result},
};

/// A batch's files.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    pub(super) output: Option<String>,
    pub(super) errors: Option<String>,
    pub(super) counts: RequestCounts,
    pub(super) tokens: u64,
    pub(super) has_expired: bool,
}

/// A file's contents in a pass over all responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Output,
    Error,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Error => "error",
        }
    }
}

/// A response line, without its result.
#[derive(Deserialize)]
struct Written {
    response: Option<WrittenResponse>,
    error: Option<WrittenError>,
}

#[derive(Deserialize)]
struct WrittenResponse {
    status_code: u16,
    body: WrittenBody,
}

#[derive(Deserialize)]
struct WrittenBody {
    usage: Option<WrittenUsage>,
}

#[derive(Deserialize)]
struct WrittenUsage {
    prompt_tokens: u64,
}

#[derive(Deserialize)]
struct WrittenError {
    code: String,
}

/// Reads the lines of one kind.
struct Lines<R> {
    responses: BufReader<R>,
    kind: Kind,
    line: Vec<u8>,
    /// The line's bytes that were read.
    read: usize,
    lines: u64,
    tokens: u64,
    has_expired: bool,
}

impl<R: Read> Lines<R> {
    /// Finds the next line of the kind; at the end, the line is empty.
    fn advance(&mut self) -> io::Result<()> {
        loop {
            self.read = 0;
            self.line.clear();
            if self.responses.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(());
            }
            let written: Written = serde_json::from_slice(&self.line).map_err(io::Error::other)?;
            let is_output = written
                .response
                .as_ref()
                .is_some_and(|response| response.status_code == 200);
            if is_output != (self.kind == Kind::Output) {
                continue;
            }
            self.lines += 1;
            self.tokens += written
                .response
                .and_then(|response| response.body.usage)
                .map_or(0, |usage| usage.prompt_tokens);
            self.has_expired |= written.error.is_some_and(|error| error.code == EXPIRED);
            return Ok(());
        }
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read == self.line.len() {
            self.advance()?;
        }
        let taken = (self.line.len() - self.read).min(buffer.len());
        buffer[..taken].copy_from_slice(&self.line[self.read..self.read + taken]);
        self.read += taken;
        Ok(taken)
    }
}

/// Writes a batch's files, whose ids are the same each time.
pub(super) fn write(files: &Files, entry: &Entry, record: &BatchRecord) -> Result<Outputs> {
    let mut outputs = Outputs::default();
    for kind in [Kind::Output, Kind::Error] {
        let Some((_, responses)) = files.storage.open(&entry.responses())? else {
            return Err(Error::inference(format!(
                "the responses of `{}` are missing",
                entry.id
            )));
        };
        let mut lines = Lines {
            responses: BufReader::new(responses),
            kind,
            line: Vec::new(),
            read: 0,
            lines: 0,
            tokens: 0,
            has_expired: false,
        };
        let id = output_id(&entry.id, kind);
        let names = FileNames::new(&entry.owner, &id);
        let bytes = files.storage.store(&names.contents, &mut lines)?;
        outputs.counts.total += lines.lines;
        outputs.tokens += lines.tokens;
        outputs.has_expired |= lines.has_expired;
        let (count, file) = match kind {
            Kind::Output => (&mut outputs.counts.completed, &mut outputs.output),
            Kind::Error => (&mut outputs.counts.failed, &mut outputs.errors),
        };
        *count = lines.lines;
        if lines.lines == 0 {
            files.storage.remove(&names.contents)?;
            continue;
        }
        let name = format!("{}_{}.jsonl", entry.id, kind.name());
        let object = FileObject::new(
            id.clone(),
            bytes,
            name,
            Purpose::BatchOutput,
            record.output_expires_s,
        );
        files.write(&names.object, &object)?;
        *file = Some(id);
    }
    Ok(outputs)
}

/// A file's id: the batch's creation time, and digits that nobody can guess without the batch's id.
fn output_id(batch: &str, kind: Kind) -> String {
    let digits = batch.rsplit('_').next().unwrap_or_default();
    let (time, _) = digits.split_at(digits.len().min(12));
    let hash = blake3::hash(format!("{batch} {}", kind.name()).as_bytes()).to_hex();
    format!("{FILE}{time}{}", &hash[..20])
}
