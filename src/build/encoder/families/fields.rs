//! Fields of a `config.json` that families share.

use std::fmt::Debug;

use serde::de::DeserializeOwned;

use crate::{
    build::{config::ConfigFile, encoder::config::Span, layers::Activation},
    error::{Error, Result},
};

/// The activation that one of the fields names; GELU if none does.
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

/// The spans of the layers that `layer_types` lists, full or sliding; none in files without the list.
pub(super) fn spans_by_type(config: &ConfigFile, [full, sliding]: [Span; 2]) -> Result<Option<Vec<Span>>> {
    let Some(types) = config.get::<Vec<String>>("layer_types")? else { return Ok(None) };
    let layers: usize = config.require("num_hidden_layers")?;
    if types.len() != layers || layers == 0 {
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
