//! Builds and results of models.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect fails"
)]

#[path = "../shared/scripted/contract.rs"]
mod contract;
#[path = "../shared/copies.rs"]
mod copies;
#[path = "../shared/flips.rs"]
mod flips;
#[path = "../shared/scripted/jobs.rs"]
mod jobs;
#[path = "../shared/scripted/messages.rs"]
mod messages;
#[path = "../shared/models.rs"]
mod models;
#[path = "../shared/pipelines.rs"]
mod pipelines;
#[path = "../shared/scripted/model.rs"]
mod scripted;
#[path = "../shared/server.rs"]
mod server;
#[path = "../shared/skips.rs"]
mod skips;
#[path = "../shared/tools.rs"]
mod tools;

mod builds {
    pub mod building;
    pub mod corners;
    pub mod damage;
    pub mod hostile_models;
    pub mod hub;
    pub mod quality;
    pub mod refused_models;
    pub mod report_card;
    pub mod tokenizer_settings;
}

mod classification {
    pub mod classifiers;
    pub mod fast_text;
    pub mod gliner2;
    pub mod label_scores;
    pub mod listwise;
    pub mod pair_templates;
    pub mod redaction;
    pub mod token_classifiers;
    pub mod zero_shot_entities;
}

mod embedding {
    pub mod decoders;
    pub mod goldens;
    pub mod late_chunking;
    pub mod modules;
    pub mod search;
    pub mod static_embeddings;
    pub mod t5_encoders;
    pub mod task_adapters;
    pub mod vectors;
}

mod engines {
    pub mod backends;
    pub mod encoders;
    pub mod exactness;
    pub mod instructions;
    pub mod native;
    pub mod processors;
}

mod generation {
    pub mod bergamot;
    pub mod text_to_text;
    pub mod translation;
    pub mod translation_graphs;
}
