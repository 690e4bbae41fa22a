//! Opens regular files without waiting.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a file for reading.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a FIFO, a socket or a device. Folders can be opened, but not read.
pub fn open(path: &Path) -> io::Result<File> {
    // A FIFO without a writer would block otherwise; regular files ignore the flag.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(refused)?;
    require_regular(&file).map(|()| file)
}

/// Refuses anything but a regular file or a folder.
pub fn require_regular(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    let found = match () {
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => return Ok(()),
    };
    Err(irregular(found))
}

fn irregular(found: &str) -> io::Error {
    let message = format!("expected a regular file, but found {found}");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// The system's error for a socket names a missing device.
fn refused(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => {
            irregular("a socket or a device")
        }
        _ => error,
    }
}
