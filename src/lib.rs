//! Serves Hugging Face transformer models from AWS Lambda and from a laptop.
//!
//! # The floors
//!
//! A request goes down and its answer comes up again; a floor names only the floors below it.
//!
//! ```text
//!   functions/api     src/main.rs            thin programs
//!         │                │
//!         │               cli                the command: serve, build, doctor, bench
//!         ▼              ╱   ╲
//!        api ◀──────────╯   build            dialects │ weights → graph → measured bundle
//!         │                   │
//!         ▼                   │
//!        model                │              a bundle, opened as the pipeline of its task
//!         │                   │
//!         ▼                   ▼
//!             repository                     bundles and their manifests
//!                  │
//!                  ▼
//!              pipeline                      texts → answers
//!              ╱      ╲
//!         backend   tokenizer                tensors → tensors │ texts → ids
//!              ╲      ╱
//!       tensor, config, secrets, telemetry, error
//! ```

pub mod api;
pub mod backend;
pub mod build;
pub mod cli;
pub mod config;
pub mod error;
pub mod model;
pub mod pipeline;
pub mod repository;
pub mod secrets;
pub mod telemetry;
pub mod tensor;
pub mod tokenizer;

pub use error::{Error, Result};
