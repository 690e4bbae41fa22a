//! Opens users' regular files only. Opening a FIFO would wait for a writer, and a device may have no end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
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

/// The maximum size of a settings file, vocabulary or other text, in bytes: far above real ones, and far below a
/// machine's memory.
pub const MAX_TEXT_BYTES: u64 = 512 * 1024 * 1024;

/// Reads a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let size = file.metadata().map(|found| found.len()).unwrap_or_default();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(size).unwrap_or_default())?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a settings file or a vocabulary.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] above [`MAX_TEXT_BYTES`].
pub fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    match open(path)?.metadata()?.len() {
        0..=MAX_TEXT_BYTES => read(path),
        size => {
            let message =
                format!("expected a file of at most {MAX_TEXT_BYTES} bytes, but found {size}");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
        }
    }
}

/// Reads a text file, which must be UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    String::from_utf8(read_text(path)?).map_err(invalid)
}

/// Copies a file's contents and mode to a new or emptied one.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let (mut source, mut target) = (open(from)?, File::create(to)?);
    io::copy(&mut source, &mut target)?;
    target.set_permissions(source.metadata()?.permissions())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, process::Command};

    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(at("fifo"))
                .status()
                .unwrap()
                .success()
        );
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("fifo", at("link")).unwrap();
        assert_eq!(read_to_string(&at("file")).unwrap(), "text");
        copy(&at("file"), &at("copy")).unwrap();
        assert_eq!(read(&at("copy")).unwrap(), b"text");
        let refusal = |path: &Path| read(path).unwrap_err().to_string();
        insta::assert_snapshot!(
            ["fifo", "link", "socket"].map(|name| refusal(&at(name))).join("\n") + "\n" + &refusal(Path::new("/dev/zero")),
            @"
        expected a regular file, but found a FIFO
        expected a regular file, but found a FIFO
        expected a regular file, but found a socket or a device
        expected a regular file, but found a device
        "
        );
        File::create(at("large"))
            .unwrap()
            .set_len(MAX_TEXT_BYTES + 1)
            .unwrap();
        assert_eq!(
            read_text(&at("large")).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        assert_eq!(
            read(&at("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert_eq!(
            read(folder.path()).unwrap_err().kind(),
            io::ErrorKind::IsADirectory
        );
    }
}
