//! `gliner_config.json`: fields that describe encoders.

use serde_json::{Map, Value};

use crate::files::config::ConfigFile;
use kivu::error::Result;

/// Model settings.
pub const GLINER: &str = "gliner_config.json";
/// Default `model_type` for encoders.
pub const DEFAULT_ENCODER: &str = "deberta-v2";
/// Maximum number of tokens if attention depends on distances only.
pub const MAX_TOKENS: usize = 1024;
/// The repository of the encoder that reads labels, in models that have one.
pub const LABELS_ENCODER: &str = "labels_encoder";
/// That encoder's settings.
pub const LABELS_ENCODER_CONFIG: &str = "labels_encoder_config";

/// Whether a field has a value.
pub fn is_set(config: &ConfigFile, field: &str) -> bool {
    config
        .fields()
        .get(field)
        .is_some_and(|value| !value.is_null() && value != "")
}

/// An encoder's settings inside of the model's.
pub fn own_encoder(config: &ConfigFile, field: &str) -> Result<Option<ConfigFile>> {
    let own: Option<Map<String, Value>> = config.get(field)?;
    Ok(own.map(|mut fields| {
        fields
            .entry("model_type")
            .or_insert_with(|| DEFAULT_ENCODER.into());
        ConfigFile::new(GLINER, fields)
    }))
}
