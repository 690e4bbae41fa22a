//! The models that requests use.

pub mod caller_models;
pub mod lookup;
pub mod pull;
pub mod used_models;
