//! The integration tests: one binary, a module a topic.

mod api;
mod backends;
mod building;
mod goldens;
mod models;
mod serving;
