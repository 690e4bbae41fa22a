//! Bundles: model folders that are never changed, the manifests that say what is in them, and their two homes,
//! this machine and S3.

pub mod bundle;
pub mod folder;
pub mod manifest;
pub mod s3;
pub mod staged;
pub mod triton;

pub use self::{bundle::Bundle, manifest::Manifest};

/// Watches bytes go by.
pub trait Meter: Sync {
    /// Something of so many bytes begins.
    fn begin(&self, what: &str, bytes: u64);
    /// So many more of them are done.
    fn advance(&self, bytes: u64);
}

/// Nobody watches.
impl Meter for () {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
}
