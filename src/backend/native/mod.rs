//! Runs encoders with 8-bit weights on kernels of this crate.

#[allow(dead_code, unused_imports, reason = "the backend does not use the kernels yet")]
pub(crate) mod kernel;
