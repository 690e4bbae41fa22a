//! Runs Hugging Face transformer models in your program. The crate `kivu-http` has the HTTP APIs, and `kivu-jobs` batch jobs.
//!
//! # In a program
//! [`Model::open`] opens a bundle, a model in Kivu's format, also from S3 with the crate `kivu-aws`; `load` in the crate `kivu-compiler` also downloads and builds
//! models by name. A method per task checks its parameters, and returns a value that runs on texts:
//!
//! | task | method | parameters |
//! |---|---|---|
//! | vectors | [`Model::embedder`] | [`EmbeddingParameters`](task::embedding::EmbeddingParameters) |
//! | classification | [`Model::classifier`] | [`ClassificationParameters`](task::classification::ClassificationParameters) |
//! | classification with your labels | [`Model::zero_shot_classifier`] | [`ZeroShotParameters`](task::classification::ZeroShotParameters) |
//! | entities | [`Model::entity_finder`] | [`TokenClassificationParameters`](task::entities::TokenClassificationParameters) |
//! | entities with your labels | [`Model::labelled_entity_finder`] | [`ZeroShotEntitiesParameters`](task::entities::ZeroShotEntitiesParameters) |
//! | ranking | [`Model::ranker`] | [`RankingParameters`](task::ranking::RankingParameters) |
//! | translation | [`Model::translator`] | [`TextToTextParameters`](task::text_to_text::TextToTextParameters) |
//! | summaries and other texts | [`Model::text_generator`] | [`TextToTextParameters`](task::text_to_text::TextToTextParameters) |
//! | tokens | [`Model::token_reader`] | [`TokenParameters`](task::tokens::TokenParameters) |
//!
//! Runs are futures for a Tokio runtime with a timer. Models have their own threads; the runtime only waits for them, and
//! tokenizes long texts on its threads for blocking work.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use kivu::{Deadline, Model, cloud::Cloud, config::Config, task::embedding::EmbeddingParameters};
//!
//! # async fn run() -> kivu::Result<()> {
//! let model = Model::open(Path::new("my-model"), &Config::default(), &Cloud::default())?;
//! let parameters = EmbeddingParameters { prompt_name: Some("query".into()), ..Default::default() };
//! let embedder = model.embedder(&parameters)?;
//! let found = embedder.run(vec!["What is deep learning?".into()], Deadline::none()).await?;
//! println!("{:?}", found.vectors[0].dense);
//! # Ok(())
//! # }
//! ```
//!
//! # In WebAssembly
//! `Model::from_memory` opens a bundle whose files are in memory, and encoders run on the caller's thread. There are no
//! servers, jobs, fleets, ONNX Runtime and telemetry.
//!
//! # In this crate
//! `docs/design.md` describes the layers and their dependencies.

#![cfg_attr(
    target_family = "wasm",
    allow(
        dead_code,
        unused_imports,
        reason = "used by the modules that WebAssembly lacks"
    )
)]

#[cfg(not(target_family = "wasm"))]
pub mod cloud;
pub mod model;
pub mod repository;
pub mod task;

#[cfg(not(target_family = "wasm"))]
pub use kivu_base::certificates;
pub use kivu_base::{
    Error, Result, address, clock, config, error, foreign_file, hexadecimal, json, json_schemas,
    locked, names, onnx_proto, random, regular_file, tensor,
};
pub use kivu_core::{backend, backend::Deadline, observer, pipeline};
#[cfg(not(target_family = "wasm"))]
pub use kivu_fleet as fleet;
#[cfg(not(target_family = "wasm"))]
pub use kivu_onnx as onnx;
#[cfg(not(target_family = "wasm"))]
pub use kivu_telemetry as telemetry;
pub use kivu_text as tokenizer;

pub use self::model::Model;
