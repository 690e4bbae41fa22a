//! Compression with zstd.

use std::io::{self, BufRead, Read};

/// The default of zstd.
const LEVEL: i32 = 3;

pub(super) type Encoder = zstd::Encoder<'static, Vec<u8>>;

pub(super) fn encoder() -> io::Result<Encoder> {
    Encoder::new(Vec::new(), LEVEL)
}

pub(super) fn decoder(file: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(zstd::Decoder::with_buffer(file)?))
}
