//! Fields of a `config.json` that families share.

use std::fmt::Debug;

use serde::de::DeserializeOwned;

use crate::{
    build::{config::ConfigFile, layers::Activation},
    error::{Error, Result},
};

/// The activation that one of the fields names; GELU if none does.
pub(super) fn activation(config: &ConfigFile, fields: &[&str]) -> Result<Activation> {
    Activation::named(config.get_any::<String>(fields)?.as_deref().unwrap_or("gelu"))
}

/// Refuses a config whose `field` is there and has another value than `expected`.
pub(super) fn expect<T: DeserializeOwned + Debug + PartialEq>(
    config: &ConfigFile,
    field: &str,
    expected: &T,
) -> Result<()> {
    match config.get::<T>(field)? {
        Some(found) if found != *expected => {
            let message = format!("expected `{field}` {expected:?}, but found {found:?}");
            Err(Error::model(message.replace('"', "`")))
        }
        _ => Ok(()),
    }
}
