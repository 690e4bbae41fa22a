//! Fields of a `config.json` that families share.

use std::fmt::Debug;

use serde::de::DeserializeOwned;

use crate::{
    build::{config::ConfigFile, encoder::config::Span, layers::Activation},
    error::{Error, Result},
};

/// The activation that one of the fields names; GELU by default.
pub(super) fn activation(config: &ConfigFile, fields: &[&str]) -> Result<Activation> {
    Activation::named(config.get_any::<String>(fields)?.as_deref().unwrap_or("gelu"))
}

/// Refuses a config whose `field` exists and has another value than `expected`.
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

/// The number of tokens in the window of layers with local attention.
pub(super) fn window(config: &ConfigFile, field: &str, default: usize) -> Result<usize> {
    match config.get::<usize>(field)? {
        Some(found) if found < 2 => {
            Err(Error::model(format!("expected `{field}` of at least 2, but found {found}")))
        }
        _ => Ok(config.get_size(field)?.unwrap_or(default)),
    }
}

/// The number of layers of which one attends to all tokens.
pub(super) fn period(config: &ConfigFile, fields: &[&str], default: usize) -> Result<usize> {
    /// Far above that of any model.
    const MAX: usize = 1 << 12;
    match config.get_any(fields)?.unwrap_or(default) {
        layers @ 1..=MAX => Ok(layers),
        found => Err(Error::model(format!("expected `{}` from 1 to {MAX}, but found {found}", fields[0]))),
    }
}

/// The spans of the layers that `layer_types` lists, full or sliding; `None` in files without the list.
pub(super) fn spans_by_type(config: &ConfigFile, [full, sliding]: [Span; 2]) -> Result<Option<Vec<Span>>> {
    let Some(types) = config.get::<Vec<String>>("layer_types")? else { return Ok(None) };
    let layers = config.require_size("num_hidden_layers")?;
    if types.len() != layers {
        return Err(Error::model(format!(
            "expected `layer_types` of {layers} layers, but found {}",
            types.len()
        )));
    }
    let spans = types.iter().map(|name| match name.as_str() {
        "full_attention" => Ok(full),
        "sliding_attention" => Ok(sliding),
        other => Err(Error::model(format!(
            "expected `layer_types` `full_attention` or `sliding_attention`, but found `{other}`"
        ))),
    });
    spans.collect::<Result<_>>().map(Some)
}
