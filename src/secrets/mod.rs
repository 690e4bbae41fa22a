//! Secrets in AWS Secrets Manager.

#[cfg_attr(not(feature = "s3"), path = "disabled.rs")]
mod store;

pub use self::store::Secret;
