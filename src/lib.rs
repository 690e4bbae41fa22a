//! Serves Hugging Face transformer models from AWS Lambda and from a laptop.
//!
//! `docs/design.md` has the layers and their dependencies.

pub mod api;
pub mod aws;
pub mod backend;
pub mod batch;
pub mod build;
pub mod cli;
pub mod config;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
#[path = "../fuzz/readers/mod.rs"]
pub mod fuzzing;
mod json;
pub mod model;
pub mod onnx_proto;
pub mod pipeline;
pub mod repository;
pub mod telemetry;
pub mod tensor;
pub mod tokenizer;

pub use error::{Error, Result};

// Files of `tests/` and `fuzz/` that are included here name the crate as those of other crates do.
#[cfg(any(test, feature = "fuzzing"))]
extern crate self as kivu;
