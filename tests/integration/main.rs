//! The integration tests: one binary, a module a topic.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect fails"
)]

mod access;
mod api;
mod backends;
mod bad_days;
mod building;
mod classifiers;
mod deploying;
mod doors;
mod goldens;
mod live;
mod models;
mod serving;
