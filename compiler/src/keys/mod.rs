//! Accounts for a model's settings: every key in every file is read, or known to have no effect on results, or refused.
//!
//! Which keys an encoder's reader reads is recorded by `ConfigFile`. Only `keys.toml` says which others a file may have.

mod rules;
mod walk;

pub use self::walk::{Kind, check};
