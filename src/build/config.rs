//! The fields of a model's `config.json`.

use std::path::Path;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::files::read_json_if_exists;
use crate::error::{Error, Result};

/// A `config.json`, or another JSON object with a model's settings. A field that is `null` counts as missing.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct ConfigFile(Map<String, Value>);

impl ConfigFile {
    /// The file name.
    pub(super) const NAME: &str = "config.json";

    /// Reads the `config.json` in `folder`.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        read_json_if_exists(&folder.join(Self::NAME))?.ok_or_else(|| {
            Error::model(format!("expected a model in `{}`, but found no `config.json`", folder.display()))
        })
    }

    pub(super) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.get_any(&[name])
    }

    /// The value of a field that families of models call differently.
    pub(super) fn get_any<T: DeserializeOwned>(&self, names: &[&str]) -> Result<Option<T>> {
        let found = names.iter().filter_map(|name| Some((name, self.0.get(*name)?)));
        let Some((name, value)) = found.into_iter().find(|(_, value)| !value.is_null()) else {
            return Ok(None);
        };
        T::deserialize(value)
            .map(Some)
            .map_err(|error| Error::model_because(format!("cannot read `{name}` in `config.json`"), error))
    }

    /// The value of a field that the model cannot do without.
    pub(super) fn require<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.require_any(&[name])
    }

    pub(super) fn require_any<T: DeserializeOwned>(&self, names: &[&str]) -> Result<T> {
        let missing = || Error::model(format!("expected `{}` in `config.json`, but found none", names[0]));
        self.get_any(names)?.ok_or_else(missing)
    }

    /// The `model_type`; empty if there is none.
    pub(super) fn model_type(&self) -> &str {
        self.0.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The class that the weights were trained as, or the model type if no class is named.
    pub(super) fn architecture(&self) -> &str {
        self.0.get("architectures").and_then(|names| names[0].as_str()).unwrap_or(self.model_type())
    }

    /// The fields called `names`, as an object.
    pub(super) fn select<T: DeserializeOwned>(&self, names: &[&str]) -> Result<T> {
        let fields = self.0.iter().filter(|(name, _)| names.contains(&name.as_str()));
        let fields = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        serde_json::from_value(Value::Object(fields))
            .map_err(|error| Error::model_because("cannot read the settings of the model", error))
    }
}

/// Checks that attention heads share a token's vector evenly.
pub(super) fn check_heads(hidden: usize, heads: usize) -> Result<()> {
    if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
        return Err(Error::model(format!(
            "expected `hidden_size` to be a multiple of `num_attention_heads`, but found {hidden} and {heads}"
        )));
    }
    Ok(())
}
