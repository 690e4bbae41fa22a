//! sentence-transformers files: pooling, normalization, prompts and length limits.
//!
//! Two file generations are in use: up to version 4, and from version 5 on.

pub mod modules;
pub mod poolings;
pub mod static_embedding;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    encoder::{EMBEDDING_GEMMA2, EncoderLimits},
    files::{
        config::{ConfigFile, OneOrMany},
        io::read,
        model_folder::ModelFolder,
        module_list::{Module, modules},
    },
    model_types::Family,
    sentence_transformers::modules::{Modules, POOLED, TOKENS, expect_normalized, makes_scores},
};
use kivu::{
    Error, Result,
    pipeline::embedding::{DenseSettings, EmbeddingSettings, pooling::Pooling},
};

/// Prompts and PyLate's settings.
const SETTINGS: &str = "config_sentence_transformers.json";
/// Keys in [`SETTINGS`] that PyLate writes. sentence-transformers makes modules of them.
const PYLATE: [&str; 7] = [
    "attend_to_expansion_tokens",
    "do_query_expansion",
    "document_length",
    "document_prefix",
    "query_length",
    "query_prefix",
    "skiplist_words",
];
/// Maximum tokens per text.
const LENGTH: &str = "max_seq_length";
/// Maximum tokens per text, in tokenizer settings.
pub const OF_TOKENIZER: &str = "model_max_length";
/// Number of tokens above which texts that are to be embedded do not matter.
const UNREACHED: usize = 1 << 14;
/// Key for the number of leading values to keep.
const TRUNCATION: &str = "truncate_dim";
/// A chat template, if `tokenizer_config.json` has none.
pub const TEMPLATE: &str = "chat_template.jinja";
/// model2vec's `model_type` in `config.json`.
pub const MODEL2VEC: &str = "model2vec";
/// Transformer settings, in sentence-transformers' lookup order: old versions named the file after the architecture.
pub const TRANSFORMER: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Settings for a model with the graph output `output`, and the modules that its graph must contain; then the output is
/// [`POOLED`].
///
/// Without sentence-transformers files, uses mean pooling without normalization, as that package does.
pub fn embedding_settings(
    folder: &ModelFolder,
    output: &str,
    encoder_limits: &EncoderLimits,
) -> Result<(EmbeddingSettings, Option<Modules>)> {
    let list = modules(folder)?;
    let mut modules = match &list[..] {
        [] => Modules::mean(encoder_limits.hidden),
        [only] if only.is_task_pooling(folder)? => Modules::last_token(encoder_limits.hidden),
        [first, rest @ ..] if first.class() == "Transformer" => {
            add_all(Modules::new(encoder_limits.hidden), rest, folder)?
        }
        list => add_all(Modules::new(encoder_limits.hidden), list, folder)?,
    };
    truncate(&mut modules, folder)?;
    let pooling = modules.pooling();
    let output = if pooling.is_some() { output } else { POOLED };
    let dense = dense_settings(folder, output, &modules)?;
    let mut settings = text_settings(folder, Some(dense), max_tokens(folder, encoder_limits)?)?;
    settings.unpooled = (!modules.includes_prompt()).then(BTreeMap::new);
    Ok((settings, pooling.is_none().then_some(modules)))
}

/// Modules after a model's transformer.
pub enum Layout {
    /// No module list.
    None,
    /// Pooled token vectors.
    Pooled,
    /// Pooled logits, with the pooling in this folder.
    Sparse(ModelFolder),
    /// Projected token vectors.
    LateInteraction(Box<LateInteraction>),
}

/// A model with a vector per token, in PyLate's or `MultiVectorEncoder`'s form.
pub struct LateInteraction {
    /// Layer folders, and the vectors that their layers transform if the files do not say.
    pub projections: Vec<(ModelFolder, &'static str)>,
    pub query: RoleFiles,
    pub document: RoleFiles,
    /// Whether unknown tokens are skipped if a skip word is not a token.
    pub skips_unknown: bool,
}

/// How texts in a role are encoded, by token names.
#[derive(Default)]
pub struct RoleFiles {
    pub marker: Option<String>,
    pub max_tokens: Option<usize>,
    pub expansion: Option<Expanding>,
    pub skipped: Vec<String>,
}

/// Token for padding; by default the mask token.
pub struct Expanding {
    pub token: Option<String>,
    pub length: usize,
    pub is_attended: bool,
}

/// Whether the modules of the model in `folder` produce vectors, regardless of its class's head.
pub fn makes_vectors(folder: &ModelFolder) -> Result<bool> {
    let classes = ["Pooling", "SpladePooling", "MultiVectorMask"];
    let list = modules(folder)?;
    Ok(list
        .iter()
        .any(|module| module.is_pylates() || classes.contains(&module.class())))
}

/// Modules after the transformer of the model in `folder`.
pub fn layout(folder: &ModelFolder) -> Result<Layout> {
    let list = modules(folder)?;
    let is_of = |module: &&Module, name: &str| module.class() == name;
    let find = |name: &str| list.iter().find(|module| is_of(module, name));
    if list.is_empty() {
        return Ok(Layout::None);
    }
    if let Some(module) = list.iter().find(|module| module.is_splade()) {
        let known = ["MLMTransformer", "Transformer", "SpladePooling"];
        return match list.iter().find(|module| !known.contains(&module.class())) {
            None => Ok(Layout::Sparse(module.folder(folder)?)),
            Some(other) => Err(Error::model(format!(
                "expected only `MLMTransformer` and `SpladePooling` in a sparse model, but found `{}`",
                other.class()
            ))),
        };
    }
    let mask = find("MultiVectorMask");
    let is_pylates = list.iter().any(Module::is_pylates);
    if mask.is_none() && !is_pylates {
        return Ok(Layout::Pooled);
    }
    let mut projections = Vec::new();
    // PyLate scales vectors without a module.
    let mut are_scaled = mask.is_none();
    for module in list.iter().skip(1) {
        match module.class() {
            "Dense" if mask.is_some() && are_scaled => {
                return Err(Error::model(
                    "expected `Normalize` after `Dense`, but found it before",
                ));
            }
            "Dense" => {
                // PyLate's layers do not say so.
                let input = if module.is_pylates() { TOKENS } else { POOLED };
                projections.push((module.folder(folder)?, input));
            }
            "Normalize" if mask.is_some() => {
                expect_normalized(&module.folder(folder)?, TOKENS)?;
                are_scaled = true;
            }
            "Normalize" | "MultiVectorMask" | "Dropout" => {}
            other => {
                return Err(Error::model(format!(
                    "expected modules among `Transformer`, `Dense`, `Normalize`, `MultiVectorMask` in a \
                     late-interaction model, but found `{other}`"
                )));
            }
        }
    }
    if !are_scaled {
        return Err(Error::model(
            "expected `Normalize` in a model with `MultiVectorMask`, but found none",
        )
        .with_hint("Kivu's multi-vectors have length 1"));
    }
    let (query, document) = match mask {
        Some(mask) => multi_vector_roles(folder, &mask.folder(folder)?)?,
        None => pylate_roles(folder)?,
    };
    let skips_unknown = mask.is_none();
    let files = LateInteraction {
        projections,
        query,
        document,
        skips_unknown,
    };
    Ok(Layout::LateInteraction(Box::new(files)))
}

/// How PyLate's files encode queries and documents.
fn pylate_roles(folder: &ModelFolder) -> Result<(RoleFiles, RoleFiles)> {
    let file = settings(folder)?;
    let marker = |field: &str, default: &str| {
        let marker: String = file.get(field)?.unwrap_or_else(|| default.to_owned());
        Ok::<_, Error>(Some(marker).filter(|marker| !marker.is_empty()))
    };
    let length = file.get("query_length")?.unwrap_or(32);
    let is_expanded = file.is_set_or("do_query_expansion", true)?;
    let is_attended = file.is_set("attend_to_expansion_tokens")?;
    let query = RoleFiles {
        marker: marker("query_prefix", "[Q] ")?,
        max_tokens: Some(length),
        expansion: is_expanded.then_some(Expanding {
            token: None,
            length,
            is_attended,
        }),
        skipped: Vec::new(),
    };
    let document = RoleFiles {
        marker: marker("document_prefix", "[D] ")?,
        max_tokens: Some(file.get("document_length")?.unwrap_or(180)),
        expansion: None,
        skipped: file.get("skiplist_words")?.unwrap_or_else(punctuation),
    };
    Ok((query, document))
}

/// How `MultiVectorEncoder`'s files encode queries and documents; its markers are prompts.
fn multi_vector_roles(folder: &ModelFolder, mask: &ModelFolder) -> Result<(RoleFiles, RoleFiles)> {
    #[derive(Deserialize)]
    struct QueryExpansion {
        strategy: String,
        #[serde(default)]
        attend: bool,
        token: Option<String>,
        length: usize,
    }
    let transformer = transformer(folder)?;
    let file = settings(folder)?;
    if let Some(key) = PYLATE.iter().find(|key| file.fields().contains_key(**key)) {
        return Err(Error::model(format!(
            "`{key}` of PyLate in `{SETTINGS}` has no effect in a model with `MultiVectorMask`, whose modules replace it"
        )));
    }
    let mask = ConfigFile::open(mask)?;
    if mask.get::<Vec<u32>>("keep_only_token_ids")?.is_some() {
        return Err(Error::model(
            "`keep_only_token_ids` of `MultiVectorMask` is not supported: it is for models that read images",
        ));
    }
    let words: Vec<String> = mask.get("skiplist_words")?.unwrap_or_default();
    let roles: OneOrMany<String> = mask
        .get("skiplist_tasks")?
        .unwrap_or_else(|| OneOrMany::One("document".to_owned()));
    let roles = roles.into_vec();
    let skipped = |role: &str| {
        if roles.iter().any(|other| other == role) {
            words.clone()
        } else {
            Vec::new()
        }
    };
    let expansion: Option<QueryExpansion> = transformer.get("query_expansion")?;
    let mut query = RoleFiles {
        max_tokens: transformer.get("query_length")?,
        skipped: skipped("query"),
        ..RoleFiles::default()
    };
    if let Some(QueryExpansion {
        strategy,
        attend,
        token,
        length,
    }) = expansion
    {
        match (strategy.as_str(), query.max_tokens) {
            ("fixed" | "min", Some(found)) if found < length => {
                return Err(Error::model(format!(
                    "expected a `query_length` of at least {length}, the `length` of `query_expansion`, but found {found}"
                )));
            }
            ("fixed", _) => query.max_tokens = Some(length),
            ("min", _) => {}
            (other, _) => {
                return Err(Error::model(format!(
                    "expected a `query_expansion` of `fixed` or `min`, but found `{other}`"
                )));
            }
        }
        query.expansion = Some(Expanding {
            token,
            length,
            is_attended: attend,
        });
    }
    let document = RoleFiles {
        max_tokens: transformer.get("document_length")?,
        skipped: skipped("document"),
        ..RoleFiles::default()
    };
    Ok((query, document))
}

/// Python's `string.punctuation`.
pub fn punctuation() -> Vec<String> {
    (b'!'..=b'~')
        .filter(u8::is_ascii_punctuation)
        .map(|byte| char::from(byte).to_string())
        .collect()
}

/// The folder with a static embedding model's table, if it is one: see [`static_settings`].
pub fn static_folder(folder: &ModelFolder) -> Result<Option<ModelFolder>> {
    match modules(folder)?.first() {
        Some(first) if first.class() == "StaticEmbedding" => first.folder(folder).map(Some),
        Some(_) => Ok(None),
        // Old model2vec exports have no module list.
        None => {
            let config = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
            Ok((config.model_type() == MODEL2VEC).then(|| folder.clone()))
        }
    }
}

/// Tokens for a logit comparison, the better one first, if the model is a CrossEncoder that ranks by one. Its chat
/// template must contain `parts`.
pub fn logit_score(folder: &ModelFolder, parts: &[&str]) -> Result<Option<[u32; 2]>> {
    let list = modules(folder)?;
    let Some(module) = list.iter().find(|module| module.class() == "LogitScore") else {
        return Ok(None);
    };
    let config = ConfigFile::open(&module.folder(folder)?)?;
    let path = folder.join(TEMPLATE);
    if !path.is_file() {
        return Err(Error::model(format!(
            "expected the template of Qwen3-Reranker in `{TEMPLATE}`, but found no such file: without a template, \
             sentence-transformers puts nothing around a pair"
        )));
    }
    let template = read(&path)?;
    let template = String::from_utf8_lossy(&template);
    if let Some(missing) = parts.iter().find(|part| !template.contains(**part)) {
        return Err(Error::model(format!(
            "expected the template of Qwen3-Reranker in `{TEMPLATE}`, but found one without `{missing}`: templates are not run"
        )));
    }
    Ok(Some([
        config.require("true_token_id")?,
        config.require("false_token_id")?,
    ]))
}

/// Whether the last module makes label scores, in a CrossEncoder of separate modules.
pub fn has_scores(folder: &ModelFolder) -> Result<bool> {
    match modules(folder)?.last() {
        Some(last) if last.class() == "Dense" => makes_scores(&last.folder(folder)?),
        _ => Ok(false),
    }
}

/// Modules from token vectors with `width` values to label scores; `None` if there are none: see [`has_scores`].
pub fn score_modules(folder: &ModelFolder, width: usize) -> Result<Option<Modules>> {
    if !has_scores(folder)? {
        return Ok(None);
    }
    let list = modules(folder)?;
    let modules = add_all(
        Modules::new(width),
        list.get(1..).unwrap_or_default(),
        folder,
    )?;
    match modules.includes_prompt() {
        true => Ok(Some(modules)),
        false => Err(Error::model(
            "expected `include_prompt` true in a CrossEncoder, but found false",
        )),
    }
}

/// Text before a CrossEncoder's queries, if its files have a default prompt.
pub fn default_prompt(folder: &ModelFolder) -> Result<Option<String>> {
    let config = settings(folder)?;
    let Some(name) = config.get::<String>("default_prompt_name")? else {
        return Ok(None);
    };
    let mut prompts: BTreeMap<String, String> = config.get("prompts")?.unwrap_or_default();
    match prompts.remove(&name) {
        Some(prompt) => Ok(Some(prompt).filter(|prompt| !prompt.is_empty())),
        None => Err(Error::model(format!(
            "expected `{name}`, which is the `default_prompt_name`, among the `prompts` of `{SETTINGS}`, but found none"
        ))),
    }
}

/// Whether a CrossEncoder's score function is the sigmoid. Older versions name it in `config.json`.
pub fn names_sigmoid(folder: &ModelFolder) -> Result<bool> {
    let config = ConfigFile::open_or_empty(&transformer_folder(folder)?, ConfigFile::NAME)?;
    let mut owned: BTreeMap<String, Value> =
        config.get("sentence_transformers")?.unwrap_or_default();
    let name = match settings(folder)?.get("activation_fn")? {
        None => match owned.remove("activation_fn") {
            None => config.get("sbert_ce_default_activation_function")?,
            Some(name) => name.as_str().map(str::to_owned),
        },
        name => name,
    };
    Ok(name.is_some_and(|name: String| name.ends_with(".Sigmoid")))
}

/// Settings for static embeddings with `width` values, averaged per text, and the modules that follow.
pub fn static_settings(
    folder: &ModelFolder,
    width: usize,
    max_tokens: usize,
) -> Result<(EmbeddingSettings, Modules)> {
    let list = modules(folder)?;
    let mut modules = add_all(
        Modules::of_texts(width),
        list.get(1..).unwrap_or_default(),
        folder,
    )?;
    let config = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    if list.is_empty() && config.is_set("normalize")? {
        modules.add("Normalize", folder)?;
    }
    truncate(&mut modules, folder)?;
    Ok((
        text_settings(
            folder,
            Some(dense_settings(folder, POOLED, &modules)?),
            max_tokens,
        )?,
        modules,
    ))
}

/// Truncates vectors to `truncate_dim`, which does not scale them to length 1 again.
fn truncate(modules: &mut Modules, folder: &ModelFolder) -> Result<()> {
    match settings(folder)?.get(TRUNCATION)? {
        None => Ok(()),
        Some(0) => Err(Error::model(format!(
            "expected a `{TRUNCATION}` of at least 1 in `{SETTINGS}`, but found 0"
        ))),
        Some(dimensions) => {
            modules.truncate(dimensions);
            Ok(())
        }
    }
}

fn dense_settings(folder: &ModelFolder, output: &str, modules: &Modules) -> Result<DenseSettings> {
    Ok(DenseSettings {
        output: output.to_owned(),
        pooling: modules.pooling().unwrap_or(Pooling::Graph),
        normalize: modules.normalizes(),
        dimensions: modules.dimensions()?,
        similarity: settings(folder)?
            .get("similarity_fn_name")?
            .unwrap_or_default(),
    })
}

/// Number of the largest weights that a model's sparse vectors have, if its files limit it.
pub fn max_active_dims(folder: &ModelFolder) -> Result<Option<usize>> {
    settings(folder)?.get_size("max_active_dims")
}

/// Settings with these dense vectors, if any; callers add other kinds.
pub fn text_settings(
    folder: &ModelFolder,
    dense: Option<DenseSettings>,
    max_tokens: usize,
) -> Result<EmbeddingSettings> {
    let config = settings(folder)?;
    if let Some(found) = config.get::<usize>(TRUNCATION)?.filter(|_| dense.is_none()) {
        return Err(Error::model(format!(
            "`{TRUNCATION}` {found} in `{SETTINGS}` is not supported: the model has no dense vectors"
        ))
        .with_hint("remove it"));
    }
    let settings = EmbeddingSettings {
        dense,
        sparse: None,
        multi_vector: None,
        max_tokens,
        default_prompt: config.get("default_prompt_name")?,
        prompts: config.get("prompts")?.unwrap_or_default(),
        unpooled: None,
        tasks: Vec::new(),
        default_task: None,
        placeholders: Vec::new(),
    };
    match settings
        .default_prompt
        .as_ref()
        .filter(|name| !settings.prompts.contains_key(*name))
    {
        Some(name) => Err(Error::model(format!(
            "expected the default prompt `{name}` among the prompts"
        ))),
        None => Ok(settings),
    }
}

/// The folder with the transformer's weights, `config.json` and tokenizer, for the model in `folder`.
pub fn transformer_folder(folder: &ModelFolder) -> Result<ModelFolder> {
    match modules(folder)?.first() {
        Some(first) if ["Transformer", "MLMTransformer"].contains(&first.class()) => {
            first.folder(folder)
        }
        _ => Ok(folder.clone()),
    }
}

fn add_all(mut modules: Modules, list: &[Module], folder: &ModelFolder) -> Result<Modules> {
    for module in list {
        modules.add(module.class(), &module.folder(folder)?)?;
    }
    Ok(modules)
}

/// Reads the model's settings. Without a module list, sentence-transformers reads none.
fn settings(folder: &ModelFolder) -> Result<ConfigFile> {
    match modules(folder)?.is_empty() {
        true => Ok(ConfigFile::new(SETTINGS, Map::new())),
        false => ConfigFile::open_or_empty(folder, SETTINGS),
    }
}

/// Reads the transformer's settings; see [`settings`].
fn transformer(folder: &ModelFolder) -> Result<ConfigFile> {
    if modules(folder)?.is_empty() {
        return Ok(ConfigFile::new(TRANSFORMER[0], Map::new()));
    }
    let folder = &transformer_folder(folder)?;
    for name in TRANSFORMER {
        if let Some(file) = ConfigFile::open_if_exists(folder, name)? {
            return Ok(file);
        }
    }
    ConfigFile::open_or_empty(folder, TRANSFORMER[0])
}

/// Maximum number of tokens according to the files, or to the model's positions if that is less.
pub fn max_tokens(folder: &ModelFolder, encoder_limits: &EncoderLimits) -> Result<usize> {
    let positions = encoder_limits.max_positions;
    let transformer = transformer(folder)?;
    check_case(&transformer)?;
    // A float, since "no limit" is written as 1e30.
    let tokenizer =
        ConfigFile::open_or_empty(&transformer_folder(folder)?, "tokenizer_config.json")?;
    let of_tokenizer: Option<f64> = tokenizer.get(OF_TOKENIZER)?;
    // The tokens around a text need room. Below 1, `transformers` truncates no text.
    if let Some(found) = of_tokenizer.filter(|length| *length < 2.0) {
        return Err(Error::model(format!(
            "expected a `{OF_TOKENIZER}` of at least 2, but found {found}"
        )));
    }
    let stated = of_tokenizer.map(|length| length as usize);
    if let Some(found) = transformer.get(LENGTH)? {
        return within_positions(folder, encoder_limits, LENGTH, found, 2);
    }
    let model = ConfigFile::open_or_empty(&transformer_folder(folder)?, ConfigFile::NAME)?;
    // sentence-transformers does not see the positions inside of `text_config`.
    let positions = match model.model_type() == EMBEDDING_GEMMA2 {
        true => positions.max(UNREACHED),
        false => positions,
    };
    Ok(stated.unwrap_or(positions).min(positions))
}

/// Maximum number of tokens in any text of a late-interaction model, whose queries and documents have lengths of their
/// own, with the tokens around them. As in PyLate and sentence-transformers, such a length replaces the model's.
pub fn max_tokens_of_roles(
    folder: &ModelFolder,
    encoder_limits: &EncoderLimits,
    roles: [(&'static str, &mut RoleFiles); 2],
) -> Result<usize> {
    check_case(&transformer(folder)?)?;
    let mut limits = [0; 2];
    for ((length, role), limit) in roles.into_iter().zip(&mut limits) {
        // The special tokens and the marker.
        let least = 2 + usize::from(role.marker.is_some());
        *limit = match role.max_tokens {
            Some(found) => within_positions(folder, encoder_limits, length, found, least)?,
            None => max_tokens(folder, encoder_limits)?,
        };
        role.max_tokens = Some(*limit);
        if let Some(expanding) = &role.expansion
            && expanding.length > encoder_limits.longest
        {
            return Err(Error::model(format!(
                "expected queries that are padded to at most {} tokens, the positions of the model, but found {}",
                encoder_limits.longest, expanding.length
            )));
        }
    }
    Ok(limits[0].max(limits[1]))
}

fn check_case(transformer: &ConfigFile) -> Result<()> {
    match transformer.is_set("do_lower_case")? {
        true => Err(Error::model(
            "expected `do_lower_case` false in `sentence_bert_config.json`, but found true: \
             lower-casing before the tokenizer is not supported",
        )),
        false => Ok(()),
    }
}

/// The length `found` under a name in the files, of at least `least` tokens; or the model's positions if that is less.
fn within_positions(
    folder: &ModelFolder,
    encoder_limits: &EncoderLimits,
    name: &str,
    found: usize,
    least: usize,
) -> Result<usize> {
    if found < least {
        return Err(Error::model(format!(
            "expected a `{name}` of at least {least}, but found {found}"
        )));
    }
    let longest = encoder_limits.longest;
    let model = ConfigFile::open_or_empty(&transformer_folder(folder)?, ConfigFile::NAME)?;
    let family = Family::named(model.model_type());
    // Longer texts fail in families with a position table.
    match found > longest && family.is_some_and(|family| family.is_unlimited) {
        true => Err(Error::model(format!(
            "expected a `{name}` of at most {longest}, the positions of the model, but found \
             {found}"
        ))
        .with_hint(format!("set it to {longest}"))),
        false => Ok(found.min(longest)),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::{Value, json};

    use super::*;

    fn max_tokens_of(folder: &Path) -> Result<usize> {
        let encoder_limits = EncoderLimits {
            architecture: String::new(),
            hidden: 8,
            max_positions: 64,
            longest: 64,
        };
        max_tokens(&ModelFolder::new(folder), &encoder_limits)
    }

    #[test]
    fn lengths_beyond_the_positions_are_refused_where_no_table_limits_them() {
        let length = |model_type: &str, length: usize| {
            let folder = tempfile::tempdir().unwrap();
            let write = |name: &str, fields: Value| {
                fs::write(folder.path().join(name), fields.to_string()).unwrap();
            };
            write("config.json", json!({"model_type": model_type}));
            write(
                "sentence_bert_config.json",
                json!({"max_seq_length": length}),
            );
            assert_eq!(
                max_tokens_of(folder.path()).unwrap(),
                64,
                "nothing reads it without a module list"
            );
            write(
                "modules.json",
                json!([{"path": "", "type": "sentence_transformers.models.Transformer"}]),
            );
            max_tokens_of(folder.path())
        };
        assert_eq!(
            (length("bert", 32).unwrap(), length("bert", 80).unwrap()),
            (32, 64)
        );
        assert_eq!(length("modernbert", 64).unwrap(), 64);
        let of_tokenizer = |length: i32| {
            let folder = tempfile::tempdir().unwrap();
            let text = json!({"model_max_length": length}).to_string();
            fs::write(folder.path().join("tokenizer_config.json"), text).unwrap();
            max_tokens_of(folder.path())
        };
        assert_eq!(of_tokenizer(20).unwrap(), 20);
        let without_length = |model_type: &str| {
            let folder = tempfile::tempdir().unwrap();
            let config = json!({ "model_type": model_type }).to_string();
            fs::write(folder.path().join(ConfigFile::NAME), config).unwrap();
            max_tokens_of(folder.path())
        };
        assert_eq!(without_length("modernbert").unwrap(), 64);
        assert_eq!(without_length(EMBEDDING_GEMMA2).unwrap(), UNREACHED);
        let refusals = [
            length("modernbert", 80),
            length("bert", 1),
            of_tokenizer(1),
            of_tokenizer(-1),
        ];
        let refusals = refusals
            .map(|refusal| refusal.unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @"
        expected a `max_seq_length` of at most 64, the positions of the model, but found 80; set it to 64
        expected a `max_seq_length` of at least 2, but found 1
        expected a `model_max_length` of at least 2, but found 1
        expected a `model_max_length` of at least 2, but found -1
        ");
    }

    #[test]
    fn normalizations_of_other_vectors_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let module = |class: &str| folder.path().join(class);
        fs::create_dir(module("Normalize")).unwrap();
        let settings = |input: &str, output: &str| {
            let settings = json!({"module_input_name": input, "module_output_name": output});
            fs::write(
                module("Normalize").join("config.json"),
                settings.to_string(),
            )
            .unwrap();
        };
        let message = |error: Error| {
            error
                .to_string()
                .replace(&*folder.path().to_string_lossy(), "[folder]")
        };
        let multi_vector = |classes: &[&str]| {
            let list: Vec<Value> = ["Transformer", "MultiVectorMask"]
                .iter()
                .chain(classes)
                .map(|class| json!({"path": class, "type": format!("sentence_transformers.base.modules.{class}")}))
                .collect();
            fs::write(folder.path().join("modules.json"), json!(list).to_string()).unwrap();
            message(
                layout(&ModelFolder::new(folder.path()))
                    .map(drop)
                    .unwrap_err(),
            )
        };
        let text = || {
            message(
                Modules::of_texts(8)
                    .add("Normalize", &ModelFolder::new(module("Normalize")))
                    .unwrap_err(),
            )
        };
        let mut refusals = vec![multi_vector(&["Dense"]), multi_vector(&["Normalize"])];
        settings(TOKENS, TOKENS);
        refusals.extend([multi_vector(&["Normalize", "Dense"]), text()]);
        settings(TOKENS, POOLED);
        refusals.extend([multi_vector(&["Dense", "Normalize"]), text()]);
        insta::assert_snapshot!(refusals.join("\n"), @"
        expected `Normalize` in a model with `MultiVectorMask`, but found none; Kivu's multi-vectors have length 1
        expected a `Normalize` from `token_embeddings` to `token_embeddings` in `[folder]/Normalize`, but found `sentence_embedding` and `sentence_embedding`
        expected `Normalize` after `Dense`, but found it before
        expected a `Normalize` from `sentence_embedding` to `sentence_embedding` in `[folder]/Normalize`, but found `token_embeddings` and `token_embeddings`
        expected a `Normalize` from `token_embeddings` to `token_embeddings` in `[folder]/Normalize`, but found `token_embeddings` and `sentence_embedding`
        expected a `Normalize` from `sentence_embedding` to `sentence_embedding` in `[folder]/Normalize`, but found `token_embeddings` and `sentence_embedding`
        ");
        settings(POOLED, POOLED);
        Modules::of_texts(8)
            .add("Normalize", &ModelFolder::new(module("Normalize")))
            .unwrap();
        fs::remove_file(module("Normalize").join("config.json")).unwrap();
        Modules::of_texts(8)
            .add("Normalize", &ModelFolder::new(module("Normalize")))
            .unwrap();
    }
}
