//! The WebAssembly module of the npm package `kivuml-wasm`: models from bytes.
//!
//! The JavaScript in `kivuml/`, and what it shares with the package for Node.js, fetches bundles, divides texts into
//! batches and chooses the classes of errors. Calls return when they are done: there is one thread.

#![cfg(target_family = "wasm")]

mod failure;
mod memory;
mod model;
mod texts;

use kivu::{
    backend::native::{instructions, use_instructions},
    config::parse_instructions,
};
use wasm_bindgen::prelude::*;

use crate::failure::{Failure, report_panics};

#[wasm_bindgen(start)]
fn start() {
    report_panics();
}

/// Chooses the engine's instructions, `portable` or others of this host, before the first model is opened.
#[wasm_bindgen(js_name = useInstructions)]
pub fn choose_instructions(name: &str) -> Result<(), JsValue> {
    let chosen = parse_instructions(name)
        .map_err(kivu::Error::config)
        .map_err(Failure::from)?;
    Ok(use_instructions(Some(chosen)).map_err(Failure::from)?)
}

/// The engine's instructions: `relaxed-dot`, `relaxed-madd`, `simd128` or `portable`.
#[wasm_bindgen(js_name = instructionsInUse)]
pub fn instructions_in_use() -> String {
    instructions().name().to_owned()
}

/// The size of the instance's memory, in bytes.
#[wasm_bindgen(js_name = memoryBytes)]
pub fn memory_bytes() -> f64 {
    const PAGE_BYTES: usize = 64 * 1024;
    (core::arch::wasm32::memory_size(0) * PAGE_BYTES) as f64
}
