//! Text files below paths, without those that `.gitignore` names, and hidden ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use ignore::WalkBuilder;

use kivu::{error::quoted, regular_file};

/// Larger files are data rather than texts.
const MAX_BYTES: u64 = 10_000_000;
const LARGE: &str = "above 10 MB";
const BINARY: &str = "without text in UTF-8";
const LINK: &str = "that are links, which are not followed";
const UNREADABLE: &str = "that cannot be read";
const EMPTY: &str = "without any files but hidden ones and those that `.gitignore` names";
/// Skipped files that are named, for each reason.
const MAX_NAMED: usize = 3;

/// A file as the index knows it: another time or size is another content.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextFile {
    pub path: String,
    /// Nanoseconds since 1970, when it was modified, or its name or permissions were. Programs can set the time of a
    /// modification, as copies with the original's do, but not this one.
    pub modified: i64,
    pub bytes: i64,
}

/// Files that are not searched, by the reason.
#[derive(Default)]
pub struct Skipped(BTreeMap<&'static str, BTreeSet<String>>);

impl Skipped {
    fn add(&mut self, reason: &'static str, path: &Path) {
        let name = path.to_string_lossy().into_owned();
        self.0.entry(reason).or_default().insert(name);
    }

    /// The numbers of files, and the first names: a folder with pictures may have thousands.
    pub fn note(&self) -> Option<String> {
        let parts = self.0.iter().map(|(reason, paths)| {
            let names: Vec<_> = paths.iter().take(MAX_NAMED).collect();
            let more = if paths.len() > MAX_NAMED { ", …" } else { "" };
            format!("{} {reason} ({}{more})", paths.len(), quoted(&names))
        });
        let parts = parts.collect::<Vec<_>>().join(", ");
        (!parts.is_empty()).then(|| format!("skipped files: {parts}"))
    }

    /// A file's text, unless it is none.
    pub fn read(&mut self, path: &Path) -> Option<String> {
        let mut bytes = Vec::new();
        let read = regular_file::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
        let reason = match (read, String::from_utf8(bytes)) {
            (Err(_), _) => UNREADABLE,
            (_, Ok(text)) if text.len() as u64 > MAX_BYTES => LARGE,
            (_, Ok(mut text)) if !text.contains('\0') => {
                // A byte order mark.
                if text.starts_with('\u{feff}') {
                    text.remove(0);
                }
                return Some(text);
            }
            _ => BINARY,
        };
        self.add(reason, path);
        None
    }
}

/// All files below `roots`, in the order of their paths.
pub fn walk(roots: &[PathBuf], skipped: &mut Skipped) -> BTreeMap<TextFile, PathBuf> {
    let mut files = BTreeMap::new();
    for root in roots {
        let mut is_empty = true;
        // `.gitignore` counts outside of Git's repositories, too, but there only below the root: one that is meant for a
        // folder far above may name everything.
        let walk = WalkBuilder::new(root)
            .require_git(false)
            .parents(is_in_repository(root))
            .build();
        for entry in walk {
            let found = entry.and_then(|entry| Ok((entry.metadata()?, entry.into_path())));
            is_empty &= matches!(&found, Ok((metadata, _)) if !metadata.is_file());
            match found {
                Ok((metadata, path)) if metadata.is_symlink() => skipped.add(LINK, &path),
                Ok((metadata, _)) if !metadata.is_file() => {}
                Ok((metadata, path)) if metadata.len() > MAX_BYTES => skipped.add(LARGE, &path),
                Ok((metadata, path)) => {
                    let seconds = metadata.ctime().wrapping_mul(1_000_000_000);
                    let file = TextFile {
                        path: path.to_string_lossy().into(),
                        modified: seconds.wrapping_add(metadata.ctime_nsec()),
                        bytes: metadata.len() as i64,
                    };
                    files.insert(file, path);
                }
                Err(ignore::Error::WithPath { path, .. }) => skipped.add(UNREADABLE, &path),
                Err(error) => skipped.add(UNREADABLE, error.to_string().as_ref()),
            }
        }
        if is_empty {
            skipped.add(EMPTY, root);
        }
    }
    files
}

/// Whether a folder is in a repository of Git.
fn is_in_repository(folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap_or_default();
    folder
        .ancestors()
        .any(|folder| folder.join(".git").exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs, thread,
        time::{Duration, SystemTime},
    };

    #[test]
    fn texts_are_found_and_other_files_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        write(".gitignore", b"built.txt");
        write("built.txt", b"no");
        write("a.txt", b"\xef\xbb\xbfyes");
        write("b.bin", b"\xff\0");
        fs::File::create(folder.path().join("c.log"))
            .unwrap()
            .set_len(2 << 30)
            .unwrap();
        let mut skipped = Skipped::default();
        let roots = [folder.path().to_owned(), folder.path().join("a.txt")];
        let files = walk(&roots, &mut skipped);
        let texts: Vec<_> = files
            .values()
            .filter_map(|path| skipped.read(path))
            .collect();
        assert_eq!(texts, ["yes"]);
        let shown = |skipped: &Skipped| {
            let folder = format!("{}/", folder.path().display());
            skipped.note().unwrap().replace(&folder, "")
        };
        assert_eq!(
            shown(&skipped),
            "skipped files: 1 above 10 MB (`c.log`), 1 without text in UTF-8 (`b.bin`)"
        );
        for name in ["d.bin", "e.bin", "f.bin"] {
            write(name, b"\xff");
            assert!(skipped.read(&folder.path().join(name)).is_none());
        }
        assert_eq!(
            shown(&skipped),
            "skipped files: 1 above 10 MB (`c.log`), 4 without text in UTF-8 (`b.bin`, `d.bin`, `e.bin`, …)"
        );
        std::os::unix::fs::symlink("a.txt", folder.path().join("link")).unwrap();
        let roots = ["missing", ""].map(|name| folder.path().join(name));
        assert_eq!(walk(&roots, &mut skipped).len(), 5);
        let note = shown(&skipped);
        assert!(
            note.contains("1 that are links, which are not followed (`link`)"),
            "{note}"
        );
        assert!(note.contains("1 that cannot be read (`missing`)"), "{note}");
    }

    #[test]
    fn a_change_is_noticed_whatever_a_file_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let walked = |text: &str, time| {
            fs::write(&path, text).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(time).unwrap();
            walk(std::slice::from_ref(&path), &mut Skipped::default())
        };
        let now = SystemTime::now();
        for time in [SystemTime::UNIX_EPOCH, now + Duration::from_hours(1)] {
            let first = walked("cat", time);
            // Times have steps of a few milliseconds.
            thread::sleep(Duration::from_millis(20));
            assert_ne!(walked("dog", time), first);
        }
    }

    #[test]
    fn a_folder_outside_of_repositories_has_its_own_rules() {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        fs::create_dir(&notes).unwrap();
        for (name, text) in [(".gitignore", "b.txt"), ("a.txt", "a"), ("b.txt", "b")] {
            fs::write(notes.join(name), text).unwrap();
        }
        fs::write(folder.path().join(".gitignore"), "*").unwrap();
        let walked = || {
            let mut skipped = Skipped::default();
            let files = walk(std::slice::from_ref(&notes), &mut skipped);
            (files.into_values().collect::<Vec<_>>(), skipped.note())
        };
        assert_eq!(walked(), (vec![notes.join("a.txt")], None));
        fs::create_dir(folder.path().join(".git")).unwrap();
        let (files, note) = walked();
        assert!(files.is_empty());
        let expected = format!("skipped files: 1 {EMPTY} (`{}`)", notes.display());
        assert_eq!(note, Some(expected));
    }
}
