//! Parsers for external input, by name, for fuzzing. Not part of the API.
//!
//! A reader must return for any input, without panics or failed assertions, and take at most [`MAX_FACTOR`] times its
//! input's size plus [`MAX_EXTRA_BYTES`] in memory. The fuzzer searches for inputs that
//! violate this; tests replay its findings.

#![expect(clippy::panic, reason = "only tests and the fuzzer run readers")]

mod compiler;
#[cfg(test)]
mod corpus;
mod fleet;
mod http;
mod jobs;
mod library;
mod models;

use std::{env, sync::LazyLock};

use allocation_counter::measure;

/// A reader's maximum memory as a multiple of its input size.
const MAX_FACTOR: u64 = 10;
/// The additional memory that a reader may take.
const MAX_EXTRA_BYTES: u64 = 32 * 1024 * 1024;

/// Parses external input.
type Reader = fn(&[u8]);

/// All readers, with their folder names in `fuzz/corpus`.
const READERS: [(&str, Reader); 25] = [
    ("checkpoint", compiler::checkpoint),
    ("config", library::config),
    ("csv", jobs::csv),
    ("event", jobs::event),
    ("extraction", library::extraction),
    ("fast_text", compiler::fast_text_model),
    ("graph", compiler::graph),
    ("grpc", fleet::grpc),
    ("http", fleet::http),
    ("hub", compiler::hub),
    ("json_lines", jobs::json_lines),
    ("key", jobs::key),
    ("keys", http::keys),
    ("manifest", library::manifest),
    ("packed", http::packed_request),
    ("pieces", library::pieces),
    ("recipe", compiler::recipe),
    ("request", http::request),
    ("schema", library::schema),
    ("sentencepiece", compiler::pieces_of_translation),
    ("student", compiler::student),
    ("tensors", http::tensors),
    ("tokenizer", library::tokenizer),
    ("translation_config", compiler::translation_config),
    ("weights", compiler::weights),
];

/// Calls the reader named by the environment variable `READER`.
///
/// # Panics
/// If there is no such reader, and as [`handle`] does.
pub fn feed(bytes: &[u8]) {
    static READER: LazyLock<(&str, Reader)> = LazyLock::new(|| {
        let name = env::var("READER").unwrap_or_default();
        let found = READERS.into_iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("`READER` names a folder of fuzz/corpus"))
    });
    let (name, reader) = *READER;
    handle(name, reader, bytes);
}

/// Calls a reader with an input, which `name` describes.
///
/// # Panics
/// If the reader panics or takes too much memory.
fn handle(name: &str, reader: Reader, bytes: &[u8]) {
    let taken = measure(|| reader(bytes)).bytes_max;
    assert!(
        taken <= MAX_FACTOR * bytes.len() as u64 + MAX_EXTRA_BYTES,
        "`{name}` takes {taken} bytes for {}",
        bytes.len()
    );
}
