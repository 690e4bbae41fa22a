//! The files of sentence-transformers: pooling, normalisation, prompts and length limits.
//!
//! Two generations of these files are in use: up to version 4, and from version 5 on.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{
    config::ConfigFile,
    encoder::Facts,
    files::{read, read_json_if_exists},
    modules::{Modules, POOLED},
};
use crate::{
    error::{Error, Result},
    pipeline::{embedding::EmbeddingSettings, pooling::Pooling},
};

const MODULES: &str = "modules.json";
/// The template of chats.
const TEMPLATE: &str = "chat_template.jinja";
/// The `model_type` of the `config.json` of model2vec.
const MODEL2VEC: &str = "model2vec";
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
    let list = modules(folder)?;
    let modules = match &list[..] {
        [] => Modules::mean(facts.hidden),
        [Module { path, r#type }, ..] if class(r#type) == "Transformer" && !is_here(path) => {
            return Err(Error::model(format!(
                "expected the files of the transformer next to `{MODULES}`, but found them in `{path}`; build from that \
                 folder, or save the model again with a newer sentence-transformers"
            )));
        }
        [first, rest @ ..] if class(&first.r#type) == "Transformer" => {
            add_all(Modules::new(facts.hidden), rest, folder)?
        }
        list => add_all(Modules::new(facts.hidden), list, folder)?,
    };
    let pooling = modules.pooling();
    let output = if pooling.is_some() { output } else { POOLED };
    let settings = settings(folder, output, &modules, max_tokens(folder, facts.max_positions)?)?;
    Ok((settings, pooling.is_none().then_some(modules)))
}

/// The folder of a model's table of vectors, if the model is one: see [`static_settings`].
pub(super) fn static_folder(folder: &Path) -> Result<Option<PathBuf>> {
    match modules(folder)?.first() {
        Some(first) if class(&first.r#type) == "StaticEmbedding" => inside(folder, &first.path).map(Some),
        Some(_) => Ok(None),
        // Old exports of model2vec have no list of modules.
        None => {
            let config = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
            Ok((config.model_type() == MODEL2VEC).then(|| folder.to_owned()))
        }
    }
}

/// The tokens whose logits a model compares to rank, if it is a CrossEncoder that does: the better one first. Its chat
/// template, if it has one of its own, must contain `sentence`.
pub(super) fn logit_score(folder: &Path, sentence: &str) -> Result<Option<[u32; 2]>> {
    let list = modules(folder)?;
    let Some(module) = list.iter().find(|module| class(&module.r#type) == "LogitScore") else {
        return Ok(None);
    };
    let config = ConfigFile::open(&inside(folder, &module.path)?)?;
    let template = folder.join(TEMPLATE);
    if template.is_file() && !String::from_utf8_lossy(&read(&template)?).contains(sentence) {
        return Err(Error::model(format!(
            "expected the template of Qwen3-Reranker in `{TEMPLATE}`, but found another: templates are not run"
        )));
    }
    Ok(Some([config.require("true_token_id")?, config.require("false_token_id")?]))
}

/// The settings of a model whose texts have the mean of vectors of `width` values, and the modules that follow.
pub(super) fn static_settings(
    folder: &Path,
    width: usize,
    max_tokens: usize,
) -> Result<(EmbeddingSettings, Modules)> {
    let list = modules(folder)?;
    let mut modules = add_all(Modules::of_texts(width), list.get(1..).unwrap_or_default(), folder)?;
    let config = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    if list.is_empty() && config.is_set("normalize")? {
        modules.add("Normalize", folder)?;
    }
    Ok((settings(folder, POOLED, &modules, max_tokens)?, modules))
}

fn settings(folder: &Path, output: &str, modules: &Modules, max_tokens: usize) -> Result<EmbeddingSettings> {
    let config = ConfigFile::open_or_empty(folder, "config_sentence_transformers.json")?;
    let settings = EmbeddingSettings {
        output: output.to_owned(),
        pooling: modules.pooling().unwrap_or(Pooling::Graph),
        normalize: modules.normalizes(),
        dimensions: modules.dimensions()?,
        max_tokens,
        default_prompt: config.get("default_prompt_name")?,
        prompts: config.get("prompts")?.unwrap_or_default(),
    };
    match settings.default_prompt.as_ref().filter(|name| !settings.prompts.contains_key(*name)) {
        Some(name) => Err(Error::model(format!("expected the default prompt `{name}` among the prompts"))),
        None => Ok(settings),
    }
}

/// The list of modules; empty if the folder has none.
fn modules(folder: &Path) -> Result<Vec<Module>> {
    Ok(read_json_if_exists(&folder.join(MODULES))?.unwrap_or_default())
}

/// Adds the modules of a list.
fn add_all(mut modules: Modules, list: &[Module], folder: &Path) -> Result<Modules> {
    for Module { path, r#type } in list {
        modules.add(class(r#type), &inside(folder, path)?)?;
    }
    Ok(modules)
}

/// The class of a module, without its package.
fn class(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
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
    Ok(if is_here(path) { folder.to_owned() } else { folder.join(path) })
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
