//! Opens users' regular files only. Opening a FIFO would wait for a writer, and a device may have no end.

#[cfg(not(target_family = "wasm"))]
mod posix;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

#[cfg(not(target_family = "wasm"))]
pub use self::posix::{open, require_regular};

/// Opens a file: an error, since WebAssembly has no files.
#[cfg(target_family = "wasm")]
pub fn open(path: &Path) -> io::Result<File> {
    File::open(path)
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

/// What a file operation returned; `None` if the file does not exist.
pub fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
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
