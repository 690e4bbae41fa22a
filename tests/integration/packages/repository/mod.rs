//! What the repository promises about its code, documentation and releases.

mod crate_boundaries;
mod features;
mod imports;
mod links;
mod questions;
mod readme;
mod releases;
mod reliability;
mod snapshots;
