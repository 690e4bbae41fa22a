//! Streams an object's contents.

use std::{
    collections::VecDeque,
    io::{self, Read},
};

use bytes::{Buf, Bytes};

use kivu_base::Result;

/// An object's ranges, in order, each in chunks.
pub type Pieces = Box<dyn Iterator<Item = Result<Vec<Bytes>>> + Send>;

/// Reads an object's bytes.
pub struct Reader {
    pieces: Pieces,
    chunks: VecDeque<Bytes>,
}

impl Reader {
    /// Reads the bytes of all pieces.
    pub fn new(pieces: Pieces) -> Self {
        Self {
            pieces,
            chunks: VecDeque::new(),
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(chunk) = self.chunks.front_mut() {
                let taken = chunk.len().min(buffer.len());
                chunk.copy_to_slice(&mut buffer[..taken]);
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
                if taken > 0 || buffer.is_empty() {
                    return Ok(taken);
                }
                continue;
            }
            match self.pieces.next() {
                Some(Ok(chunks)) => self.chunks.extend(chunks),
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
    }
}
