//! The functions, what they use in AWS, and their deployment.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect fails"
)]

#[path = "../shared/scripted/app.rs"]
mod app;
#[path = "../shared/built.rs"]
mod built;
#[path = "../shared/scripted/messages.rs"]
mod messages;
#[path = "../shared/models.rs"]
mod models;
#[path = "../shared/scripted/model.rs"]
mod scripted;
#[path = "../shared/server.rs"]
mod server;
#[path = "../shared/skips.rs"]
mod skips;
#[path = "../shared/source_files.rs"]
mod source_files;
#[path = "../shared/storage.rs"]
mod storage;
#[path = "../shared/tools.rs"]
mod tools;

mod bedrock;
mod deploying;
mod lambda;
mod restores;
mod row_events;
mod s3;
