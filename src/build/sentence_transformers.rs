//! What the files of sentence-transformers say of pooling, normalisation, prompts and length.
//!
//! Two generations of these files are in use: up to version 4, and from version 5 on.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    error::{Error, Result, quoted},
    pipeline::{embedding::EmbeddingSettings, pooling::Pooling},
};

#[derive(Deserialize)]
struct Module {
    path: String,
    r#type: String,
}

#[derive(Default, Deserialize)]
struct TransformerConfig {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    // "No limit" is written as 1e30.
    model_max_length: Option<f64>,
}

#[derive(Default, Deserialize)]
struct ModelConfig {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Modes {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct PoolingConfig {
    pooling_mode: Option<Modes>,
    #[serde(default = "yes")]
    include_prompt: bool,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

fn yes() -> bool {
    true
}

/// What a model's own files say about a model of `hidden` values a token and room for `positions` tokens.
///
/// A folder without the files of sentence-transformers gets what that package makes of it: the mean of all
/// tokens, not normalised.
pub(super) fn settings(
    folder: &Path,
    output: &str,
    hidden: usize,
    positions: usize,
) -> Result<EmbeddingSettings> {
    let mut settings = EmbeddingSettings {
        output: output.to_owned(),
        pooling: Pooling::Mean,
        normalize: false,
        dimensions: hidden,
        max_tokens: max_tokens(folder, positions)?,
        default_prompt: None,
        prompts: BTreeMap::new(),
    };
    for module in read::<Vec<Module>>(folder, "modules.json")?.unwrap_or_default() {
        match module.r#type.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => settings.pooling = pooling(&folder.join(&module.path))?,
            "Normalize" => settings.normalize = true,
            other => {
                return Err(Error::model(format!(
                    "expected modules among `Transformer`, `Pooling`, `Normalize`, but found `{other}`"
                )));
            }
        }
    }
    let config: ModelConfig = read(folder, "config_sentence_transformers.json")?.unwrap_or_default();
    settings.prompts = config.prompts;
    settings.default_prompt = config.default_prompt_name;
    if let Some(name) = settings.default_prompt.as_ref().filter(|name| !settings.prompts.contains_key(*name))
    {
        return Err(Error::model(format!("expected the default prompt `{name}` among the prompts")));
    }
    Ok(settings)
}

/// The most tokens that a model's own files allow, of the `positions` that it has room for.
pub(super) fn max_tokens(folder: &Path, positions: usize) -> Result<usize> {
    let transformer: TransformerConfig = read(folder, "sentence_bert_config.json")?.unwrap_or_default();
    if transformer.do_lower_case {
        return Err(Error::model(
            "expected `do_lower_case` false in `sentence_bert_config.json`, but found true: \
             lower-casing before the tokenizer is not supported",
        ));
    }
    let tokenizer: TokenizerConfig = read(folder, "tokenizer_config.json")?.unwrap_or_default();
    // Beyond the position table a model cannot go, whatever its files say.
    let of_tokenizer = tokenizer.model_max_length.map_or(positions, |length| length as usize);
    Ok(transformer.max_seq_length.unwrap_or(of_tokenizer).min(positions))
}

fn pooling(folder: &Path) -> Result<Pooling> {
    const FLAG: &str = "pooling_mode_";
    let config: PoolingConfig = read(folder, "config.json")?.ok_or_else(|| {
        Error::model(format!("expected `config.json` in `{}`, but found none", folder.display()))
    })?;
    if !config.include_prompt {
        return Err(Error::model(
            "expected `include_prompt` true, but found false: pooling without the prompt is not supported",
        ));
    }
    let modes = match config.pooling_mode {
        Some(Modes::One(mode)) => vec![mode],
        Some(Modes::Several(modes)) => modes,
        None => {
            let set = config.others.iter().filter(|(_, value)| **value == serde_json::Value::Bool(true));
            set.filter_map(|(name, _)| name.strip_prefix(FLAG)).map(str::to_owned).collect()
        }
    };
    match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | ["mean" | "mean_tokens"] => Ok(Pooling::Mean),
        ["cls" | "cls_token"] => Ok(Pooling::Cls),
        ["lasttoken"] => Ok(Pooling::LastToken),
        _ => Err(Error::model(format!(
            "expected one pooling mode of `mean`, `cls`, `lasttoken`, but found {}",
            quoted(&modes)
        ))),
    }
}

/// The contents of a JSON file, or nothing where there is no such file.
fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>> {
    let path = folder.join(name);
    match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { action: format!("cannot read `{}`", path.display()), source }),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| Error::model_because(format!("cannot read `{}`", path.display()), error)),
    }
}
