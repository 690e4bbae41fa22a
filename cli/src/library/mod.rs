//! Commands for the models on this machine and in S3.

pub mod build;
pub mod fetch;
pub mod models;
pub mod named;
pub mod pull;
pub mod push;
pub mod rm;
pub mod show;
