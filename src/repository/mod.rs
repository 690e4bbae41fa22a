//! Bundles, which never change, their manifests, and where they are stored: local folders, S3 and
//! Triton model repositories.

pub mod bundle;
#[cfg(not(target_family = "wasm"))]
pub mod folder;
#[cfg(not(target_family = "wasm"))]
mod hashes;
pub mod manifest;
#[cfg(not(target_family = "wasm"))]
pub mod remote;
pub mod s3;
#[cfg(not(target_family = "wasm"))]
pub mod sealed;
mod task_settings;
#[cfg(not(target_family = "wasm"))]
pub mod triton;
#[cfg(not(target_family = "wasm"))]
pub mod verification;
mod weight_form;

pub use self::{
    bundle::Bundle,
    manifest::Manifest,
    task_settings::TaskSettings,
    weight_form::{FAST_TEXT, Int8Products, ModelKind, STATIC_EMBEDDING, WeightForm},
};

/// Observes a transfer.
pub trait Meter: Sync {
    /// A transfer of `bytes` bytes begins; `what` is `push` or `pull`.
    fn begin(&self, what: &str, bytes: u64);
    /// `bytes` more bytes are transferred.
    fn advance(&self, bytes: u64);
}

/// Observes nothing.
impl Meter for () {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
}
