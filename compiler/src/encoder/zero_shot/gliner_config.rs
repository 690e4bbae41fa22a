//! The encoders in models that read labels, and the fields of `gliner_config.json` that describe them.

use serde_json::{Map, Value};

use crate::{
    encoder::{config::EncoderConfig, families},
    files::{config::ConfigFile, model_folder::ModelFolder, weights::Weights},
};
use kivu::{Error, Result, error::quoted};

/// Model settings.
pub const GLINER: &str = "gliner_config.json";
/// Default `model_type` for encoders.
pub const DEFAULT_ENCODER: &str = "deberta-v2";
/// Maximum number of tokens if attention depends on distances only.
const MAX_TOKENS: usize = 1024;
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

/// What `config.json` chooses from these by name; the first by default.
pub fn choice<T: Copy, const COUNT: usize>(
    config: &ConfigFile,
    field: &str,
    choices: [(&str, T); COUNT],
) -> Result<T> {
    let Some(found) = config.get::<String>(field)? else {
        return Ok(choices[0].1);
    };
    match choices.iter().find(|(name, _)| *name == found) {
        Some((_, choice)) => Ok(*choice),
        None => Err(Error::model(format!(
            "`{field}` `{found}` in `config.json` is not supported; supported: {}",
            quoted(&choices.map(|(name, _)| name))
        ))),
    }
}

/// Error for a model published without the `files` of an encoder, which its settings name in `repository`.
pub fn incomplete(
    config: &ConfigFile,
    repository: &str,
    [encoder, files]: [&str; 2],
    error: Error,
) -> Error {
    let base: String = config.get(repository).ok().flatten().unwrap_or_default();
    let expected = format!("expected the tokenizer and the config of {encoder} next to `{GLINER}`");
    Error::model_because(expected, error).with_hint(format!(
        "copy {files} of `{base}` there, or load the model with the Python package `gliner` and save it again with \
         `save_pretrained`"
    ))
}

/// The encoder in a `model` without its own class' head.
pub fn encoder_of(file: &ConfigFile, folder: &ModelFolder, model: &str) -> Result<EncoderConfig> {
    let mut encoder = families::of(file, folder)?;
    // The class may have a head, but the model lacks its weights.
    encoder.head = None;
    encoder.encoder_limits.architecture = model.to_owned();
    if encoder.types > 1 {
        return Err(Error::model(format!(
            "expected an encoder without token types in a {model} model, but found `{}` with {}",
            file.model_type(),
            encoder.types
        )));
    }
    if encoder.depends_on_distances_only() {
        let positions = &mut encoder.encoder_limits.max_positions;
        *positions = MAX_TOKENS.max(*positions);
    }
    Ok(encoder)
}

/// The weights of an encoder, whose names have a prefix. Tokens were added to its vocabulary.
pub fn weights_of(encoder: &mut EncoderConfig, weights: Weights, prefix: &str) -> Result<Weights> {
    let words = encoder.names.words;
    let weights = weights.with_prefix(prefix, words);
    let table = weights.tensors.get(&format!("{prefix}{words}"));
    let rows = table.and_then(|table| table.shape.first().copied());
    encoder.vocabulary = rows.unwrap_or(encoder.vocabulary);
    families::adapt(encoder, &weights)?;
    Ok(weights)
}
