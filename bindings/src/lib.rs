//! Shared by the packages for Python, Node and WebAssembly: models by name with options in JSON, one function that runs
//! tasks, and the classes of errors.
//!
//! The packages convert inputs and results, and wait for the function's future.

mod errors;
mod json;
#[cfg(not(target_family = "wasm"))]
mod load;
mod results;
mod tasks;
mod texts;
#[cfg(not(target_family = "wasm"))]
mod threads;

pub use self::{
    errors::class,
    results::{Joined, Results, Token, Weights},
    tasks::{Task, describe, run},
    texts::{check, half_a_pair, no_pair},
};
#[cfg(not(target_family = "wasm"))]
pub use self::{
    load::Source,
    threads::{on_thread, runtime},
};
