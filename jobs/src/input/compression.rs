//! Compressed input and output.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use flate2::{bufread::GzDecoder, write::GzEncoder};

use kivu::{Error, Result};

/// Maximum ratio between a text's unpacked and packed size; outputs below [`MIN_CHECKED_BYTES`] are not checked.
const MAX_RATIO: u64 = 400;
const MIN_CHECKED_BYTES: u64 = 1024 * 1024 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Compression {
    #[default]
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Detects compression by a file's first bytes, since its name may be wrong.
    pub fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame, which some compressors write first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }

    /// A file's unpacked contents; `packed` counts the bytes read from it.
    pub fn unpack(
        self,
        file: impl Read + Send + 'static,
        packed: &Arc<AtomicU64>,
    ) -> io::Result<Box<dyn Read + Send>> {
        let file = Counted {
            file,
            count: Arc::clone(packed),
        };
        let file = BufReader::with_capacity(128 * 1024, file);
        let unpacked: Box<dyn Read + Send> = match self {
            Self::None => return Ok(Box::new(file)),
            Self::Gzip => Box::new(GzipMembers {
                member: Some(GzDecoder::new(file)),
            }),
            Self::Zstd => Box::new(zstd::Decoder::with_buffer(file)?),
        };
        Ok(Box::new(Limited {
            unpacked,
            packed: Arc::clone(packed),
            count: 0,
        }))
    }

    /// An output encoder.
    pub fn pack(self) -> Result<Packer> {
        let zstd = || {
            let mut encoder = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
            encoder.include_checksum(true)?;
            Ok(Encoder::Zstd(encoder))
        };
        let encoder = match self {
            Self::None => Encoder::None(Vec::new()),
            Self::Gzip => Encoder::Gzip(Box::new(GzEncoder::new(
                Vec::new(),
                flate2::Compression::default(),
            ))),
            Self::Zstd => zstd().map_err(unwritable)?,
        };
        Ok(Packer {
            encoder,
            buffer: Vec::new(),
        })
    }
}

/// Reads gzip members. Zeros after a member are skipped, as by gzip(1): tapes and some programs pad blocks with them.
struct GzipMembers<R> {
    /// `None` after the last one.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(member) = self.member.take() else {
                break;
            };
            let mut file = member.into_inner();
            skip_zeros(&mut file)?;
            self.member = if file.fill_buf()?.is_empty() {
                None
            } else {
                Some(GzDecoder::new(file))
            };
        }
        Ok(0)
    }
}

fn skip_zeros(file: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = file.fill_buf()?;
        let zeros = buffer.iter().take_while(|byte| **byte == 0).count();
        let is_end = zeros < buffer.len() || zeros == 0;
        file.consume(zeros);
        if is_end {
            return Ok(());
        }
    }
}

/// Counts the bytes that are read.
pub struct Counted<R> {
    pub file: R,
    pub count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Refuses decompression bombs: a few kilobytes can unpack to terabytes.
struct Limited {
    unpacked: Box<dyn Read + Send>,
    packed: Arc<AtomicU64>,
    count: u64,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer)?;
        self.count += read as u64;
        let packed = self.packed.load(Ordering::Relaxed).max(1);
        if self.count > MIN_CHECKED_BYTES && self.count / packed > MAX_RATIO {
            return Err(io::Error::other(Error::invalid(format!(
                "expected a file that unpacks to at most {MAX_RATIO} times its size, but found {} bytes in {packed}",
                self.count
            ))));
        }
        Ok(read)
    }
}

/// An encoder with its output in memory.
pub struct Packer {
    encoder: Encoder,
    /// What is written before compression.
    buffer: Vec<u8>,
}

enum Encoder {
    None(Vec<u8>),
    Gzip(Box<GzEncoder<Vec<u8>>>),
    Zstd(zstd::Encoder<'static, Vec<u8>>),
}

impl Packer {
    /// Output size so far, in bytes.
    pub fn size(&self) -> usize {
        match &self.encoder {
            Encoder::None(bytes) => bytes.len(),
            Encoder::Gzip(encoder) => encoder.get_ref().len(),
            Encoder::Zstd(encoder) => encoder.get_ref().len(),
        }
    }

    /// Appends what `write` writes.
    pub fn append(&mut self, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Result<()> {
        let Self { encoder, buffer } = self;
        buffer.clear();
        let written = match encoder {
            Encoder::None(target) => write(target),
            Encoder::Gzip(encoder) => write(buffer).and_then(|()| encoder.write_all(buffer)),
            Encoder::Zstd(encoder) => write(buffer).and_then(|()| encoder.write_all(buffer)),
        };
        written.map_err(unwritable)
    }

    /// The output, which is complete and can be appended to another output.
    pub fn finish(self) -> Result<Vec<u8>> {
        let finished = match self.encoder {
            Encoder::None(bytes) => Ok(bytes),
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Zstd(encoder) => encoder.finish(),
        };
        finished.map_err(unwritable)
    }
}

/// The error for an output that cannot be written.
pub fn unwritable(error: io::Error) -> Error {
    Error::io("cannot write the output")(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_are_packed_separately_unpack_as_one() {
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut file = Vec::new();
            for piece in ["first\n", "second\n"] {
                let mut packer = compression.pack().unwrap();
                packer
                    .append(|output| output.write_all(piece.as_bytes()))
                    .unwrap();
                file.extend(packer.finish().unwrap());
            }
            assert_eq!(Compression::of(&file), compression);
            let mut text = String::new();
            compression
                .unpack(io::Cursor::new(file), &Arc::default())
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert_eq!(text, "first\nsecond\n");
        }
    }

    #[test]
    fn decompression_bombs_are_refused() {
        let piece = packed(Compression::Zstd, &"\n".repeat(16 << 20));
        let file = piece.repeat((3 * MIN_CHECKED_BYTES / 2) as usize >> 24);
        let mut contents = Compression::Zstd
            .unpack(io::Cursor::new(file), &Arc::default())
            .unwrap();
        let error = io::copy(&mut contents, &mut io::sink())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("expected a file that unpacks to at most 400 times its size"),
            "{error}"
        );
    }

    fn unpacked(compression: Compression, file: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        compression
            .unpack(io::Cursor::new(file), &Arc::default())?
            .read_to_string(&mut text)?;
        Ok(text)
    }

    fn packed(compression: Compression, text: &str) -> Vec<u8> {
        let mut packer = compression.pack().unwrap();
        packer
            .append(|output| output.write_all(text.as_bytes()))
            .unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn zeros_after_a_gzip_member_are_skipped_and_other_bytes_refused() {
        let (first, second) = (
            packed(Compression::Gzip, "first\n"),
            packed(Compression::Gzip, "second\n"),
        );
        for zeros in [0, 1, 511, 300_000] {
            let padding = vec![0; zeros];
            let file = [&first[..], &padding, &second, &padding].concat();
            assert_eq!(
                unpacked(Compression::Gzip, file).unwrap(),
                "first\nsecond\n",
                "{zeros} zeros"
            );
            let file = [&first[..], &padding, b"garbage"].concat();
            assert!(unpacked(Compression::Gzip, file).is_err(), "{zeros} zeros");
        }
        for length in 0..first.len() {
            assert!(
                unpacked(Compression::Gzip, first[..length].to_vec()).is_err(),
                "{length} bytes of a member"
            );
        }
    }

    #[test]
    fn zstd_may_begin_with_a_frame_to_skip_and_has_a_checksum() {
        let frame = packed(Compression::Zstd, "text\n");
        let skipped = b"\x50\x2a\x4d\x18\x04\0\0\0size";
        let file = [&skipped[..], &frame, skipped, &frame].concat();
        assert_eq!(Compression::of(&file), Compression::Zstd);
        assert_eq!(unpacked(Compression::Zstd, file).unwrap(), "text\ntext\n");
        for place in 0..frame.len() {
            let mut damaged = frame.clone();
            damaged[place] ^= 1;
            let found = unpacked(Compression::Zstd, damaged);
            assert!(
                found.as_ref().is_err() || found.as_deref().unwrap() == "text\n",
                "byte {place}: {found:?}"
            );
        }
    }
}
