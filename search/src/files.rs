//! Text files below paths, without those that `.gitignore` names, and hidden ones.

use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use ignore::WalkBuilder;

use kivu::{
    error::{Error, Result, quoted},
    regular_file,
};

/// Larger files are data rather than texts.
const MAX_BYTES: u64 = 10_000_000;
/// Skipped files that are named, for each reason.
const MAX_NAMED: usize = 3;

/// A file as the index knows it: another time or size is another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Nanoseconds since 1970.
    pub modified: i64,
    pub bytes: u64,
}

/// Files that are not searched.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    binary: Vec<PathBuf>,
    large: Vec<PathBuf>,
    /// Not every error of the walk has a path.
    unreadable: usize,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let large = format!("above {} MB", MAX_BYTES / 1_000_000);
        let mut parts: Vec<_> = [
            (&self.binary, "without text in UTF-8"),
            (&self.large, large.as_str()),
        ]
        .into_iter()
        .filter(|(files, _)| !files.is_empty())
        .map(|(files, what)| format!("{} {what} ({})", files.len(), named(files)))
        .collect();
        if self.unreadable > 0 {
            parts.push(format!("{} that cannot be read", self.unreadable));
        }
        write!(f, "skipped files: {}", parts.join(", "))
    }
}

/// The first files, of which a folder with pictures may have thousands.
fn named(files: &[PathBuf]) -> String {
    let first = files.iter().take(MAX_NAMED);
    let names: Vec<_> = first.map(|path| path.to_string_lossy()).collect();
    let more = if files.len() > MAX_NAMED { ", …" } else { "" };
    format!("{}{more}", quoted(&names))
}

impl Skipped {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// A file's text, unless it is none.
    pub fn read(&mut self, path: &Path) -> Option<String> {
        let mut bytes = Vec::new();
        let read = regular_file::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
        if read.is_err() {
            self.unreadable += 1;
            return None;
        }
        match String::from_utf8(bytes) {
            Ok(text) if text.len() as u64 > MAX_BYTES => self.large.push(path.to_owned()),
            Ok(text) if !text.contains('\0') => return Some(text),
            _ => self.binary.push(path.to_owned()),
        }
        None
    }
}

/// All files below `roots`, sorted by path.
///
/// # Errors
/// A root cannot be read.
pub fn walk(roots: &[PathBuf], skipped: &mut Skipped) -> Result<Vec<(PathBuf, Version)>> {
    let mut files = Vec::new();
    for root in roots {
        fs::metadata(root).map_err(Error::cannot("read", root.display()))?;
        for entry in WalkBuilder::new(root).build() {
            let found = entry.and_then(|entry| {
                let metadata = entry.metadata()?;
                Ok((entry.into_path(), metadata))
            });
            let Ok((path, metadata)) = found else {
                skipped.unreadable += 1;
                continue;
            };
            if !metadata.is_file() {
                continue;
            }
            if metadata.len() > MAX_BYTES {
                skipped.large.push(path);
                continue;
            }
            let modified = metadata.modified().ok();
            let age = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let version = Version {
                modified: age.map_or(0, |age| age.as_nanos() as i64),
                bytes: metadata.len(),
            };
            files.push((path, version));
        }
    }
    files.sort_by(|(left, _), (right, _)| left.cmp(right));
    files.dedup_by(|(left, _), (right, _)| left == right);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_and_other_files_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        fs::create_dir(folder.path().join(".git")).unwrap();
        write(".gitignore", b"built.txt");
        write("built.txt", b"no");
        write("a.txt", b"yes");
        write("b.bin", b"\xff\0");
        fs::File::create(folder.path().join("c.log"))
            .unwrap()
            .set_len(2 << 30)
            .unwrap();
        let mut skipped = Skipped::default();
        let roots = [folder.path().to_owned(), folder.path().join("a.txt")];
        let files = walk(&roots, &mut skipped).unwrap();
        let texts: Vec<_> = files
            .iter()
            .filter_map(|(path, _)| skipped.read(path))
            .collect();
        assert_eq!(texts, ["yes"]);
        let shown = |skipped: &Skipped| {
            let folder = format!("{}/", folder.path().display());
            skipped.to_string().replace(&folder, "")
        };
        assert_eq!(
            shown(&skipped),
            "skipped files: 1 without text in UTF-8 (`b.bin`), 1 above 10 MB (`c.log`)"
        );
        for name in ["d.bin", "e.bin", "f.bin"] {
            write(name, b"\xff");
            assert!(skipped.read(&folder.path().join(name)).is_none());
        }
        assert_eq!(
            shown(&skipped),
            "skipped files: 4 without text in UTF-8 (`b.bin`, `d.bin`, `e.bin`, …), 1 above 10 MB (`c.log`)"
        );
        assert!(walk(&[folder.path().join("missing")], &mut skipped).is_err());
    }
}
