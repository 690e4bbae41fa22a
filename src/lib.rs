//! Serves Hugging Face transformer models from AWS Lambda and from a laptop.
//!
//! # The floors
//!
//! A request goes down and its answer comes up again; a floor names only the floors below it.
//!
//! ```text
//!   functions/api   src/main.rs                 thin programs
//!         │         cli         serve, build, doctor, bench
//!         ▼          ▼   ╲
//!        api ◀───────┘    build                 dialects │ weights → graph → bundle
//!         │                 │
//!         ▼                 ▼
//!        model ── opens a bundle as a pipeline
//!         │
//!         ▼
//!        pipeline           texts → answers
//!         │        ╲
//!         ▼         ▼
//!        backend   tokenizer    repository      tensors → tensors │ texts → ids │ bundles
//!         │
//!         ▼
//!        tensor, error, config
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
pub mod tensor;
pub mod tokenizer;

pub use error::{Error, Result};
