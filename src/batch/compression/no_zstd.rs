//! zstd in a build without the feature `zstd`: every operation fails.

use std::{
    convert::Infallible,
    io::{self, BufRead, Read, Write},
};

use crate::error::Error;

pub(in crate::batch) struct Encoder(Infallible);

impl Encoder {
    pub(super) fn get_ref(&self) -> &Vec<u8> {
        match self.0 {}
    }

    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self.0 {}
    }
}

impl Write for Encoder {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

pub(super) fn encoder() -> io::Result<Encoder> {
    Err(unsupported())
}

pub(super) fn decoder(_: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Err(unsupported())
}

fn unsupported() -> io::Error {
    io::Error::other(Error::config("this build has no support for zstd; compile with `--features zstd`"))
}
