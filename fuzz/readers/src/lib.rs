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

/// A reader's maximum memory as a multiple of its input size.
pub const MAX_FACTOR: u64 = 10;
/// The additional memory that a reader may take.
pub const MAX_EXTRA_BYTES: u64 = 32 * 1024 * 1024;

/// Parses external input.
pub type Reader = fn(&[u8]);

/// All readers, with their folder names in `fuzz/corpus`.
pub const READERS: [(&str, Reader); 25] = [
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

/// The memory that a reader may take for an input.
pub fn allowed(bytes: &[u8]) -> u64 {
    MAX_FACTOR * bytes.len() as u64 + MAX_EXTRA_BYTES
}
