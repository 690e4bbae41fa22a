//! Replaces this module in WebAssembly, which has no files.

#![expect(
    missing_docs,
    reason = "documented in the module that this one replaces"
)]

use std::{
    fs::File,
    io::{Error, ErrorKind, Result},
    path::Path,
};

fn unsupported<T>() -> Result<T> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "WebAssembly has no files",
    ))
}

pub fn open(_: &Path) -> Result<File> {
    unsupported()
}

pub fn read_text(_: &Path) -> Result<Vec<u8>> {
    unsupported()
}

pub fn read_to_string(_: &Path) -> Result<String> {
    unsupported()
}
