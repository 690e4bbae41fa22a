//! Shared by all crates: errors, configuration, JSON, tensors and files.

pub mod address;
#[cfg(not(target_family = "wasm"))]
pub mod certificates;
pub mod clock;
pub mod config;
pub mod error;
pub mod foreign_file;
pub mod hexadecimal;
pub mod json;
pub mod json_schemas;
pub mod names;
pub mod onnx_proto;
pub mod random;
pub mod regular_file;
pub mod tensor;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::error::{Error, Result};

/// Locks a value, also after a thread that held it has panicked.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
