//! Input files: their place, format and compression.

pub mod columns;
#[doc(hidden)]
pub mod compression;
#[cfg(test)]
mod corruption_tests;
pub mod format;
pub mod location;
pub mod opened;
