//! Bundles: model folders that are never changed, and the manifests that say what is in them.

pub mod bundle;
pub mod manifest;
pub mod triton;

pub use self::{bundle::Bundle, manifest::Manifest};
