//! The program, the packages for other languages, their examples, and the repository itself.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect fails"
)]

#[path = "../shared/built.rs"]
mod built;
#[path = "../shared/bundles.rs"]
mod bundles;
#[path = "../shared/copies.rs"]
mod copies;
#[path = "../shared/models.rs"]
mod models;
#[path = "../shared/server.rs"]
mod server;
#[path = "../shared/skips.rs"]
mod skips;
#[path = "../shared/source_files.rs"]
mod source_files;
#[path = "../shared/tools.rs"]
mod tools;

mod clients;
mod command_line;
mod engines;
mod examples;
mod files;
mod node;
mod python;
mod repository;
mod search;
mod wasm;
