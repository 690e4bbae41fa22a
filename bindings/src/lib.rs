//! What the packages for Python, Node and WebAssembly share: models by name with options in JSON, a function per task from
//! parameters in JSON to results, and the classes of errors.
//!
//! The packages convert texts and results, and wait for the functions' futures.

mod errors;
#[cfg(not(target_family = "wasm"))]
mod load;
#[cfg(not(target_family = "wasm"))]
mod run;
mod tasks;
mod texts;
mod vectors;

pub use self::{
    errors::class,
    tasks::{
        Token, Weights, classify, describe, encode, entities, extract, generate, multi_vectors,
        rank, sparse, to_json, tokenize, translate, zero_shot,
    },
    texts::{check, half_a_pair, no_pair},
    vectors::{TokenVectors, joined},
};
#[cfg(not(target_family = "wasm"))]
pub use self::{
    load::Source,
    run::{on_thread, runtime},
};
