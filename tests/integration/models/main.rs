//! Builds and results of models.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect fails"
)]

#[path = "../shared/contract.rs"]
mod contract;
#[path = "../shared/copies.rs"]
mod copies;
#[path = "../shared/flips.rs"]
mod flips;
#[path = "../shared/jobs.rs"]
mod jobs;
#[path = "../shared/messages.rs"]
mod messages;
#[path = "../shared/models.rs"]
mod models;
#[path = "../shared/pipelines.rs"]
mod pipelines;
#[path = "../shared/scripted.rs"]
mod scripted;
#[path = "../shared/server.rs"]
mod server;
#[path = "../shared/skips.rs"]
mod skips;
#[path = "../shared/tools.rs"]
mod tools;

mod backends;
mod bergamot;
mod building;
mod classifiers;
mod corners;
mod damage;
mod decoders;
mod exactness;
mod fast_text;
mod gliner2;
mod goldens;
mod hostile_models;
mod hub;
mod instructions;
mod label_scores;
mod late_chunking;
mod modules;
mod native;
mod processors;
mod quality;
mod refused_models;
mod search;
mod static_embeddings;
mod t5_encoders;
mod task_adapters;
mod text_to_text;
mod token_classifiers;
mod tokenizer_settings;
mod translation;
mod translation_graphs;
mod vectors;
mod zero_shot_entities;
