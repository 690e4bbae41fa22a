//! The files of sentence-transformers: pooling, normalisation, prompts and length limits.
//!
//! Two generations of these files are in use: up to version 4, and from version 5 on.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::Value;

use super::{config::ConfigFile, encoder::Facts, files::read_json_if_exists};
use crate::{
    error::{Error, Result, quoted},
    pipeline::{embedding::EmbeddingSettings, pooling::Pooling},
};

const MODULES: &str = "modules.json";

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
    // A number, since "no limit" is written as 1e30.
    model_max_length: Option<f64>,
}

#[derive(Default, Deserialize)]
struct PromptConfig {
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
    include_prompt: Option<bool>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Whether the folder has settings for pooling.
pub(super) fn has_pooling(folder: &Path) -> bool {
    folder.join(MODULES).is_file()
}

/// The settings of a model whose graph has the output `output`.
///
/// Without the files of sentence-transformers, that package uses the mean of all tokens, not normalised; so does this.
pub(super) fn embedding_settings(folder: &Path, output: &str, facts: &Facts) -> Result<EmbeddingSettings> {
    let prompts: PromptConfig =
        read_json_if_exists(&folder.join("config_sentence_transformers.json"))?.unwrap_or_default();
    if let Some(name) =
        prompts.default_prompt_name.as_ref().filter(|name| !prompts.prompts.contains_key(*name))
    {
        return Err(Error::model(format!("expected the default prompt `{name}` among the prompts")));
    }
    let mut settings = EmbeddingSettings {
        output: output.to_owned(),
        pooling: Pooling::Mean,
        normalize: false,
        dimensions: facts.hidden,
        max_tokens: max_tokens(folder, facts.max_positions)?,
        default_prompt: prompts.default_prompt_name,
        prompts: prompts.prompts,
    };
    let modules: Option<Vec<Module>> = read_json_if_exists(&folder.join(MODULES))?;
    for module in modules.unwrap_or_default() {
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
    Ok(settings)
}

/// The limit of tokens that the files set, or `positions` if that is less.
pub(super) fn max_tokens(folder: &Path, positions: usize) -> Result<usize> {
    let transformer: TransformerConfig =
        read_json_if_exists(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
    if transformer.do_lower_case {
        return Err(Error::model(
            "expected `do_lower_case` false in `sentence_bert_config.json`, but found true: \
             lower-casing before the tokenizer is not supported",
        ));
    }
    let tokenizer: TokenizerConfig =
        read_json_if_exists(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let of_tokenizer = tokenizer.model_max_length.map_or(positions, |length| length as usize);
    Ok(transformer.max_seq_length.unwrap_or(of_tokenizer).min(positions))
}

fn pooling(folder: &Path) -> Result<Pooling> {
    const FLAG: &str = "pooling_mode_";
    let config: PoolingConfig = read_json_if_exists(&folder.join(ConfigFile::NAME))?.ok_or_else(|| {
        Error::model(format!("expected `config.json` in `{}`, but found none", folder.display()))
    })?;
    if config.include_prompt == Some(false) {
        return Err(Error::model(
            "expected `include_prompt` true, but found false: pooling without the prompt is not supported",
        ));
    }
    let modes = match config.pooling_mode {
        Some(Modes::One(mode)) => vec![mode],
        Some(Modes::Several(modes)) => modes,
        None => {
            let set = config.others.iter().filter(|(_, value)| **value == Value::Bool(true));
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
