//! The integration tests: one binary, a module a topic.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect fails"
)]

mod api;
mod backends;
mod bergamot;
mod building;
mod classifiers;
mod doors;
mod goldens;
mod live;
mod models;
mod serving;
mod translation;
mod translation_graphs;
