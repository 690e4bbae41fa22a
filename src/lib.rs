//! Serves Hugging Face transformer models from AWS Lambda and from a laptop.
//!
//! # The floors
//!
//! A request goes down and its answer comes up again; a floor names only the floors below it.
//!
//! ```text
//!   functions/*       src/main.rs            thin programs
//!         │                │
//!         │               cli                the command: serve, build, push, pull, batch, doctor, bench
//!         ▼              ╱   ╲
//!     api, batch ◀──────╯   build            dialects, files │ weights → graph → measured bundle
//!         │                   │
//!         ▼                   │
//!        model                │              a bundle, opened as the pipeline of its task
//!         │                   │
//!         ▼                   ▼
//!             repository                     bundles and their manifests, here and in S3
//!                  │
//!                  ▼
//!              pipeline                      texts → answers
//!              ╱      ╲
//!         backend   tokenizer                tensors → tensors │ texts → ids
//!              ╲      ╱
//!       tensor, config, json, secrets, telemetry, error
//! ```

pub mod api;
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
pub mod secrets;
pub mod telemetry;
pub mod tensor;
pub mod tokenizer;

pub use error::{Error, Result};
