//! The integration tests: one binary, one module per topic.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect fails"
)]

/// Repository root.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

mod access;
mod api;
mod backends;
mod bad_days;
mod batch;
mod batch_rows;
mod bedrock;
mod bergamot;
mod building;
mod classifiers;
mod command_line;
mod corners;
mod corruption;
mod crate_boundaries;
mod damage;
mod decoders;
mod deploying;
mod document;
mod engines;
mod exactness;
mod examples;
mod fast_text;
mod features;
mod files;
mod fleet;
mod gliner2;
mod goldens;
mod hostile_bodies;
mod hostile_models;
mod hub;
mod imports;
mod instructions;
mod label_scores;
mod late_chunking;
mod links;
mod live;
mod models;
mod modules;
mod native;
mod node;
mod on_demand;
mod page;
mod processors;
mod properties;
mod python;
mod quality;
mod readme;
mod refused_models;
mod reliability;
mod requests;
mod row_events;
#[cfg(feature = "s3")]
mod s3;
mod search;
mod serving;
mod skips;
mod static_embeddings;
mod t5_encoders;
mod task_adapters;
mod telemetry;
mod text_to_text;
mod token_classifiers;
mod tokenizer_settings;
mod translation;
mod translation_graphs;
mod vectors;
mod wasm;
mod zero_shot_entities;
