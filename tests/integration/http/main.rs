//! The HTTP API, servers, the fleet, and jobs on this machine.

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
#[path = "../shared/bundles.rs"]
mod bundles;
#[path = "../shared/scripted/contract.rs"]
mod contract;
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
#[path = "../shared/storage.rs"]
mod storage;
#[path = "../shared/tools.rs"]
mod tools;

mod access;
mod api;
mod bad_days;
mod batch;
mod document;
mod fleet;
mod hostile_bodies;
mod on_demand;
mod page;
mod properties;
mod requests;
mod secrets;
mod serving;
mod telemetry;
