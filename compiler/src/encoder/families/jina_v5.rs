//! jina-embeddings-v5-text: EuroBERT (nano) or Qwen3 (small) with an adapter for each task, in PEFT's form.

use std::path::Path;

use super::{jina_v3, llama, qwen};
use crate::{
    encoder::config::{EncoderConfig, Tasks},
    files::{config::ConfigFile, weights::Weights},
};
use kivu::{Error, Result};

pub const JINA_V5: &str = "jina_embeddings_v5";
/// The class in the authors' code.
pub const CLASS: &str = "JinaEmbeddingsV5Model";
/// The folder with a folder for each task.
const ADAPTERS: &str = "adapters";
const TASKS: &str = "task_names";
/// Keys of Qwen3's config class that EuroBERT's does not have.
const OF_QWEN3: [&str; 2] = ["max_window_layers", "use_sliding_window"];

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    if config.architecture() != CLASS {
        return Err(Error::model(format!(
            "expected the class `{CLASS}` for `{JINA_V5}`, but found `{}`",
            config.architecture()
        )));
    }
    let is_qwen3 = OF_QWEN3.iter().any(|key| config.value(key).is_some());
    let shared = match is_qwen3 {
        true => qwen::read_qwen3(config)?,
        false => llama::read_eurobert(config)?,
    };
    let names = jina_v3::task_names(config, TASKS)?.ok_or_else(|| {
        Error::model(format!(
            "expected `{TASKS}` in `{}`, but found none",
            ConfigFile::NAME
        ))
    })?;
    Ok(EncoderConfig {
        tasks: Some(Tasks::unread(names)),
        ..shared
    })
}

/// Reads the adapters in `folder`.
pub fn read_adapters(
    config: &mut EncoderConfig,
    weights: &mut Weights,
    folder: &Path,
) -> Result<()> {
    let Some(tasks) = config
        .tasks
        .as_ref()
        .filter(|_| config.encoder_limits.architecture == CLASS)
    else {
        return Ok(());
    };
    let folder = folder.join(ADAPTERS);
    let folders = tasks
        .names
        .iter()
        .map(|name| (name.clone(), folder.join(name)));
    let folders = folders.collect();
    jina_v3::join_adapters(config, weights, folders)
}
