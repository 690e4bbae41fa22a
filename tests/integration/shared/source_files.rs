//! Kivu's source files.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The code of the crates.
pub(crate) const CRATES: [&str; 19] = [
    "aws/src",
    "base/src",
    "bindings/src",
    "cli/src",
    "compiler/src",
    "core/src",
    "fleet/src",
    "http/src",
    "jobs/src",
    "node/src",
    "onnx/src",
    "parquet/src",
    "search/src",
    "program/src",
    "python/src",
    "sinks/src",
    "src",
    "telemetry/src",
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
