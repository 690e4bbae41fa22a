//! Files of users are opened as regular files.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The code of the crates.
pub(crate) const CRATES: [&str; 11] = [
    "base/src",
    "bindings/src",
    "cli/src",
    "compiler/src",
    "core/src",
    "http/src",
    "jobs/src",
    "node/src",
    "python/src",
    "src",
    "text/src",
];

/// All files with this extension in a folder and its subfolders.
pub(crate) fn sources(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let sources = entries.flat_map(|path| {
        if path.is_dir() {
            sources(&path, extension)
        } else {
            vec![path]
        }
    });
    sources
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

/// A file's text without its tests, which may use any crate.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default()
}

/// Whether a line has a path that begins with the crate.
fn uses(line: &str, name: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices(name).any(|(at, _)| {
        !code[..at]
            .ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
    })
}

/// Files that may open files without `regular_file`: for writing, in `/proc`, or as streams.
const OPENERS: &[&str] = &[
    // Only tests.
    "jobs/src/input/corruption.rs",
    "jobs/src/input/opened.rs",
    "jobs/src/output/local_storage.rs",
    "jobs/src/input/location.rs",
    "jobs/src/output/output_file.rs",
    "compiler/src/library/hub/cache.rs",
    "compiler/src/library/hub/download.rs",
    "compiler/src/library/named.rs",
    "compiler/src/plan/scratch.rs",
    // Creates a new file.
    "cli/src/init.rs",
    "cli/src/interrupt.rs",
    "base/src/config/memory.rs",
    "base/src/regular_file.rs",
    "src/repository/remote/pull.rs",
];

/// A FIFO in place of a file would block the program.
#[test]
fn files_of_users_are_opened_as_regular_files() {
    let root = Path::new(crate::ROOT);
    let openers = [
        "File::open(",
        "File::options(",
        "OpenOptions::new(",
        "fs::read(",
        "fs::read_to_string(",
        "fs::copy(",
    ];
    let mut found = Vec::new();
    for file in CRATES
        .iter()
        .flat_map(|folder| sources(&root.join(folder), "rs"))
    {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        if without_tests(&text).lines().any(|line| {
            openers
                .iter()
                .any(|opener| uses(&line.replace("std::fs::", "fs::"), opener))
        }) {
            found.push(name);
        }
    }
    found.sort();
    let outside: Vec<_> = found
        .iter()
        .filter(|file| !OPENERS.contains(&file.as_str()))
        .collect();
    assert!(
        outside.is_empty(),
        "expected `regular_file::open` or `read`, but found other functions in {outside:?}"
    );
    let unused: Vec<_> = OPENERS
        .iter()
        .filter(|file| !found.iter().any(|name| name == *file))
        .collect();
    assert!(unused.is_empty(), "remove {unused:?} from the list");
}
