//! Bundles that are written, and their calibration.

pub mod bundle;
pub mod calibration;
pub mod detect;
