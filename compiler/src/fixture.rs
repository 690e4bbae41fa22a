//! Test fixtures.

use std::path::Path;

use serde_json::{Map, Value};

use super::files::io as files;

/// A small BERT's `tokenizer.json`.
pub fn tokenizer() -> Map<String, Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/models/tiny-bert/tokenizer.json");
    serde_json::from_slice(&files::read(&path).unwrap()).unwrap()
}
