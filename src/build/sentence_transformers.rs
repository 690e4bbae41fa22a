//! The files of sentence-transformers: pooling, normalisation, prompts and length limits.
//!
//! Two generations of these files are in use: up to version 4, and from version 5 on.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{
    config::{ConfigFile, OneOrMany},
    encoder::Facts,
    files::read_json_if_exists,
};
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

/// Whether the folder has settings for pooling.
pub(super) fn has_pooling(folder: &Path) -> bool {
    folder.join(MODULES).is_file()
}

/// The settings of a model whose graph has the output `output`.
///
/// Without the files of sentence-transformers, that package uses the mean of all tokens, not normalised; so does this.
pub(super) fn embedding_settings(folder: &Path, output: &str, facts: &Facts) -> Result<EmbeddingSettings> {
    let config = ConfigFile::open_or_empty(folder, "config_sentence_transformers.json")?;
    let mut settings = EmbeddingSettings {
        output: output.to_owned(),
        pooling: Pooling::Mean,
        normalize: false,
        dimensions: facts.hidden,
        max_tokens: max_tokens(folder, facts.max_positions)?,
        default_prompt: config.get("default_prompt_name")?,
        prompts: config.get("prompts")?.unwrap_or_default(),
    };
    if let Some(name) = settings.default_prompt.as_ref().filter(|name| !settings.prompts.contains_key(*name))
    {
        return Err(Error::model(format!("expected the default prompt `{name}` among the prompts")));
    }
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
    let transformer = ConfigFile::open_or_empty(folder, "sentence_bert_config.json")?;
    if transformer.is_set("do_lower_case")? {
        return Err(Error::model(
            "expected `do_lower_case` false in `sentence_bert_config.json`, but found true: \
             lower-casing before the tokenizer is not supported",
        ));
    }
    // A float, since "no limit" is written as 1e30.
    let tokenizer = ConfigFile::open_or_empty(folder, "tokenizer_config.json")?;
    let of_tokenizer = tokenizer.get("model_max_length")?.map_or(positions, |length: f64| length as usize);
    Ok(transformer.get("max_seq_length")?.unwrap_or(of_tokenizer).min(positions))
}

fn pooling(folder: &Path) -> Result<Pooling> {
    let config = ConfigFile::open(folder)?;
    if config.get("include_prompt")? == Some(false) {
        return Err(Error::model(
            "expected `include_prompt` true, but found false: pooling without the prompt is not supported",
        ));
    }
    let flags = config.fields().iter().filter(|(_, value)| **value == Value::Bool(true));
    let flags = flags.filter_map(|(name, _)| name.strip_prefix("pooling_mode_")).map(str::to_owned);
    let modes: Option<OneOrMany<String>> = config.get("pooling_mode")?;
    let modes = modes.map_or_else(|| flags.collect(), OneOrMany::into_vec);
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
