//! Commands for the models on this machine and in S3.

pub mod build;
pub mod catalogue;
pub mod fetcher;
pub mod models;
pub mod pull;
pub mod push;
pub mod resolve;
pub mod rm;
pub mod show;
