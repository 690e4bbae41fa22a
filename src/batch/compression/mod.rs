//! Compressed input and output. What a file is compressed with is told by its first bytes: its name may lie.

#[cfg_attr(not(feature = "zstd"), path = "no_zstd.rs")]
mod zstd;

use std::{
    io::{self, BufRead, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use flate2::{bufread::MultiGzDecoder, write::GzEncoder};

/// A file that unpacks to more than so many times its size, and to more than [`HARMLESS_BYTES`], is no text.
const LARGEST_RATIO: u64 = 400;
const HARMLESS_BYTES: u64 = 1024 * 1024 * 1024;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Compression {
    #[default]
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// What the first bytes of a file say.
    pub(super) fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }

    /// The contents of a file.
    pub(super) fn unpack(self, file: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        let packed = Arc::new(AtomicU64::new(0));
        let file = Counted { file, count: Arc::clone(&packed) };
        let unpacked: Box<dyn Read + Send> = match self {
            Self::None => return Ok(Box::new(file)),
            Self::Gzip => Box::new(MultiGzDecoder::new(file)),
            Self::Zstd => zstd::decoder(file)?,
        };
        Ok(Box::new(Guarded { unpacked, packed, count: 0 }))
    }

    /// What packs output like this.
    pub(super) fn pack(self) -> io::Result<Packer> {
        Ok(match self {
            Self::None => Packer::None(Vec::new()),
            Self::Gzip => Packer::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::default())),
            Self::Zstd => Packer::Zstd(zstd::encoder()?),
        })
    }
}

/// Counts the bytes that are taken.
struct Counted<R> {
    file: R,
    count: Arc<AtomicU64>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.file.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.count.fetch_add(amount as u64, Ordering::Relaxed);
        self.file.consume(amount);
    }
}

/// Stops at what only pretends to be text: a few kilobytes can unpack to terabytes.
struct Guarded {
    unpacked: Box<dyn Read + Send>,
    packed: Arc<AtomicU64>,
    count: u64,
}

impl Read for Guarded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer)?;
        self.count += read as u64;
        let packed = self.packed.load(Ordering::Relaxed).max(1);
        if self.count > HARMLESS_BYTES && self.count / packed > LARGEST_RATIO {
            return Err(io::Error::other(format!(
                "expected a file that unpacks to at most {LARGEST_RATIO} times its size, but found {} bytes in {packed}",
                self.count
            )));
        }
        Ok(read)
    }
}

/// Packs output in memory.
pub(super) enum Packer {
    None(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::Encoder),
}

impl Packer {
    /// The bytes that have come out so far.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None(bytes) => bytes.len(),
            Self::Gzip(encoder) => encoder.get_ref().len(),
            Self::Zstd(encoder) => encoder.get_ref().len(),
        }
    }

    /// Everything packed: a whole on its own, which can stand behind another.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::None(bytes) => Ok(bytes),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl Write for Packer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::None(target) => target.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_in_pieces_unpacks_as_one() {
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut file = Vec::new();
            for piece in ["first\n", "second\n"] {
                let mut packer = compression.pack().unwrap();
                packer.write_all(piece.as_bytes()).unwrap();
                file.extend(packer.finish().unwrap());
            }
            assert_eq!(Compression::of(&file), compression);
            let mut text = String::new();
            compression.unpack(io::Cursor::new(file)).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "first\nsecond\n");
        }
    }

    #[test]
    fn a_bomb_is_stopped() {
        let mut packer = Compression::Zstd.pack().unwrap();
        io::copy(&mut io::repeat(b'\n').take(3 * HARMLESS_BYTES / 2), &mut packer).unwrap();
        let file = packer.finish().unwrap();
        let mut contents = Compression::Zstd.unpack(io::Cursor::new(file)).unwrap();
        let error = io::copy(&mut contents, &mut io::sink()).unwrap_err().to_string();
        assert!(error.starts_with("expected a file that unpacks to at most 400 times its size"), "{error}");
    }
}
