//! AWS Secrets Manager: the only place that speaks to it.

#[cfg_attr(not(feature = "s3"), path = "disabled.rs")]
mod store;

pub use self::store::Secret;
