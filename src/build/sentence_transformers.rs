//! The files of sentence-transformers: pooling, normalisation, prompts and length limits.
//!
//! Two generations of these files are in use: up to version 4, and from version 5 on.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{
    config::ConfigFile,
    encoder::Facts,
    files::read_json_if_exists,
    modules::{Modules, POOLED},
};
use crate::{
    error::{Error, Result},
    pipeline::{embedding::EmbeddingSettings, pooling::Pooling},
};

const MODULES: &str = "modules.json";
/// The settings of the transformer, in the order in which sentence-transformers looks for them: old versions named the
/// file after the architecture.
const TRANSFORMER: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

#[derive(Deserialize)]
struct Module {
    path: String,
    r#type: String,
}

/// Whether the folder has settings for pooling.
pub(super) fn has_pooling(folder: &Path) -> bool {
    folder.join(MODULES).is_file()
}

/// The settings of a model whose graph has the output `output`, and the modules that its graph has to contain; then the
/// output is [`POOLED`].
///
/// Without the files of sentence-transformers, that package uses the mean of all tokens, not normalised; so does this.
pub(super) fn embedding_settings(
    folder: &Path,
    output: &str,
    facts: &Facts,
) -> Result<(EmbeddingSettings, Option<Modules>)> {
    let modules = modules(folder, facts.hidden)?;
    let config = ConfigFile::open_or_empty(folder, "config_sentence_transformers.json")?;
    let pooling = modules.pooling();
    let settings = EmbeddingSettings {
        output: if pooling.is_some() { output } else { POOLED }.to_owned(),
        pooling: pooling.unwrap_or(Pooling::Graph),
        normalize: modules.normalizes(),
        dimensions: modules.dimensions()?,
        max_tokens: max_tokens(folder, facts.max_positions)?,
        default_prompt: config.get("default_prompt_name")?,
        prompts: config.get("prompts")?.unwrap_or_default(),
    };
    if let Some(name) = settings.default_prompt.as_ref().filter(|name| !settings.prompts.contains_key(*name))
    {
        return Err(Error::model(format!("expected the default prompt `{name}` among the prompts")));
    }
    Ok((settings, pooling.is_none().then_some(modules)))
}

/// The modules after the transformer, whose tokens have `width` values.
fn modules(folder: &Path, width: usize) -> Result<Modules> {
    let list: Option<Vec<Module>> = read_json_if_exists(&folder.join(MODULES))?;
    let Some(list) = list else { return Ok(Modules::mean(width)) };
    let mut modules = Modules::new(width);
    for (place, Module { path, r#type }) in list.iter().enumerate() {
        match r#type.rsplit('.').next().unwrap_or_default() {
            "Transformer" if place == 0 => {
                if !is_here(path) {
                    return Err(Error::model(format!(
                        "expected the files of the transformer next to `{MODULES}`, but found them in `{path}`; build from \
                         that folder, or save the model again with a newer sentence-transformers"
                    )));
                }
            }
            class => modules.add(class, &inside(folder, path)?)?,
        }
    }
    Ok(modules)
}

/// Whether the path of a module is that of the model.
fn is_here(path: &str) -> bool {
    path.is_empty() || path == "."
}

/// The folder of a module, which must be inside of the model's.
fn inside(folder: &Path, path: &str) -> Result<PathBuf> {
    let mut parts = Path::new(path).components();
    if !parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::model(format!("expected modules in the folder of the model, but found `{path}`")));
    }
    Ok(folder.join(path))
}

/// The limit of tokens that the files set, or `positions` if that is less.
pub(super) fn max_tokens(folder: &Path, positions: usize) -> Result<usize> {
    let mut transformer = ConfigFile::open_or_empty(folder, TRANSFORMER[0])?;
    for name in TRANSFORMER {
        if let Some(file) = ConfigFile::open_if_exists(folder, name)? {
            transformer = file;
            break;
        }
    }
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
