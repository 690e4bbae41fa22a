//! Serves Hugging Face transformer models from AWS Lambda and from a laptop.
//!
//! `docs/design.md` describes the layers and their dependencies.

pub mod api;
pub mod aws;
pub mod backend;
pub mod batch;
mod certificates;
pub mod config;
pub mod error;
#[doc(hidden)]
pub mod fuzzing;
mod json;
mod json_schemas;
pub mod model;
pub mod onnx_proto;
pub mod pipeline;
pub mod regular_file;
pub mod repository;
pub mod task;
pub mod telemetry;
pub mod tensor;
pub mod tokenizer;

pub use error::{Error, Result};
