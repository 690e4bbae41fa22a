//! An embedding model's vectors, according to its files: dense, sparse, multi-vectors, or several kinds.

use sha2::{Digest, Sha256};

use super::{
    config::{EncoderConfig, Tasks},
    families::JINA_V5_CLASS,
    graph::OUTPUT,
    heads::{LARGEST_LOGITS, OutputHeads, Prediction, SparseHead, TOKEN_WEIGHTS, tie_words},
};
use crate::{
    files::{
        config::ConfigFile,
        io as files,
        model_folder::ModelFolder,
        module_list::{has_pooling, static_queries},
        pickle,
        weights::{Weight, Weights},
    },
    model_types::Family,
    plan::{Plan, model_card::has_tag, opened_model::QUERY_WEIGHTS, task::SPARSE},
    sentence_transformers::{
        Expanding, LateInteraction, Layout, OF_TOKENIZER, RoleFiles, embedding_settings, layout,
        max_active_dims, max_tokens, max_tokens_of_roles, modules::Dense, punctuation,
        text_settings, transformer_folder,
    },
    tokenizers::tokenizer_config::{self, UNKNOWN, read_tokenizer, special_token},
};
use kivu::{
    Error, Result,
    backend::native::MULTI_VECTORS,
    hexadecimal::hex,
    pipeline::embedding::{
        EmbeddingSettings,
        multi_vector::{MaxSim, MultiVectorSettings},
        roles::{Expansion, RoleSettings},
        sparse::{SparseSettings, SparseValues, StaticQueries},
    },
    tokenizer::Tokenizer,
};

const SPARSE_LINEAR: &str = "sparse_linear.pt";
const COLBERT_LINEAR: &str = "colbert_linear.pt";
/// Files with bge-m3's heads.
pub const HEADS: [&str; 2] = [COLBERT_LINEAR, SPARSE_LINEAR];
/// gte-multilingual-base's class; its head produces token weights.
const GTE: &str = "NewForTokenClassification";
/// Settings of Stanford's ColBERT.
const ARTIFACT: &str = "artifact.metadata";

/// Architecture and projection of Stanford's ColBERT.
const STANFORD: &str = "HF_ColBERT";
const PROJECTION: &str = "linear.weight";
/// Class name suffix for masked language models.
const MASKED: &str = "ForMaskedLM";

/// Settings and heads for the plan's model, with its tokenizer as JSON.
pub fn open(
    plan: &Plan,
    config: &EncoderConfig,
    weights: &mut Weights,
    tokenizer: &[u8],
) -> Result<(EmbeddingSettings, OutputHeads)> {
    let (folder, is_sparse) = (&plan.folder, plan.is_sparse);
    let encoder_limits = &config.encoder_limits;
    let is_stanfords = encoder_limits.architecture == STANFORD || folder.join(ARTIFACT).is_file();
    match layout(folder)? {
        Layout::Sparse(module) => {
            let settings = text_settings(folder, None, max_tokens(folder, encoder_limits)?)?;
            sparse(folder, config, weights, settings, Some(&module))
        }
        Layout::LateInteraction(files) => {
            late_interaction(folder, config, *files, &Tokenizer::from_json(tokenizer)?)
        }
        Layout::None if is_stanfords && weights.has(PROJECTION) => {
            stanfords(folder, config, weights, &Tokenizer::from_json(tokenizer)?)
        }
        Layout::None
            if encoder_limits.architecture.ends_with(MASKED)
                && (is_sparse || has_tag(folder, &SPARSE)) =>
        {
            let settings = text_settings(folder, None, max_tokens(folder, encoder_limits)?)?;
            sparse(folder, config, weights, settings, None)
        }
        Layout::None | Layout::Pooled => {
            let (mut settings, modules) = embedding_settings(folder, OUTPUT, encoder_limits)?;
            add_tasks(config, &mut settings);
            let mut heads = OutputHeads::dense(modules);
            if HEADS.iter().all(|head| folder.join(head).is_file()) {
                add_heads(
                    folder,
                    config,
                    &mut settings,
                    &mut heads,
                    &Tokenizer::from_json(tokenizer)?,
                )?;
            } else if has_pooling(folder) && encoder_limits.architecture == GTE {
                let layer = gte_weights(config, weights)?;
                let tokenizer = Tokenizer::from_json(tokenizer)?;
                settings.sparse = Some(token_weights(folder, config, &tokenizer)?);
                heads.sparse = Some(SparseHead::Tokens(layer));
            }
            Ok((settings, heads))
        }
    }
}

/// Names the class with a masked language model's head if `config.json` names none, but the model is for sparse vectors.
pub fn name_masked_class(
    plan: &Plan,
    file: &ConfigFile,
    config: &mut EncoderConfig,
    weights: &Weights,
) -> Result<()> {
    let family = Family::named(file.model_type()).filter(|_| !file.names_head());
    let Some(class) = family.and_then(|family| family.masked_class.as_deref()) else {
        return Ok(());
    };
    let is_sparse = match layout(&plan.folder)? {
        Layout::Sparse(_) => true,
        Layout::None => {
            (plan.is_sparse || has_tag(&plan.folder, &SPARSE))
                && Prediction::of(class, config)?.is_in(weights)
        }
        Layout::Pooled | Layout::LateInteraction(_) => false,
    };
    if is_sparse {
        class.clone_into(&mut config.encoder_limits.architecture);
    }
    Ok(())
}

/// Adds tasks with adapters, and a prompt for each; jina-embeddings-v5 has prompts for roles instead.
fn add_tasks(config: &EncoderConfig, settings: &mut EmbeddingSettings) {
    let Some(Tasks { names, prompts, .. }) = &config.tasks else {
        return;
    };
    settings.tasks.clone_from(names);
    if config.encoder_limits.architecture == JINA_V5_CLASS {
        settings.default_task = names.first().cloned();
        return;
    }
    for name in names {
        let prompt = || prompts.get(name).cloned().unwrap_or_default();
        settings.prompts.entry(name.clone()).or_insert_with(prompt);
    }
}

/// SPLADE. `module` is its pooling's folder.
fn sparse(
    folder: &ModelFolder,
    config: &EncoderConfig,
    weights: &mut Weights,
    mut settings: EmbeddingSettings,
    module: Option<&ModelFolder>,
) -> Result<(EmbeddingSettings, OutputHeads)> {
    let mut logarithms = 1;
    if let Some(module) = module {
        let file = ConfigFile::open(module)?;
        let pooling: Option<String> = file.get("pooling_strategy")?;
        if let Some(found) = pooling.filter(|pooling| pooling != "max") {
            return Err(Error::model(format!(
                "expected `pooling_strategy` `max`, but found `{found}`"
            )));
        }
        logarithms = match file.get::<String>("activation_function")?.as_deref() {
            None | Some("relu") => 1,
            Some("log1p_relu") => 2,
            Some(found) => {
                return Err(Error::model(format!(
                    "expected `activation_function` `relu` or `log1p_relu`, but found `{found}`"
                )));
            }
        };
    }
    settings.sparse = Some(SparseSettings {
        output: LARGEST_LOGITS.to_owned(),
        dimensions: config.vocabulary,
        values: SparseValues::Vocabulary { logarithms },
        max_active_dims: max_active_dims(folder)?,
        queries: None,
    });
    let prediction = Prediction::of(&config.encoder_limits.architecture, config)?;
    tie_words(config, weights, prediction.matrix)?;
    let heads = OutputHeads {
        sparse: Some(SparseHead::Vocabulary(prediction)),
        ..OutputHeads::default()
    };
    Ok((settings, heads))
}

/// Adds static query weights, if the model in `folder` has them; returns their file.
pub fn add_static_queries(
    folder: &ModelFolder,
    config: &EncoderConfig,
    settings: &mut EmbeddingSettings,
    tokenizer: &[u8],
) -> Result<Option<(&'static str, Vec<u8>)>> {
    let (Some(folder), Some(sparse)) = (static_queries(folder)?, &mut settings.sparse) else {
        return Ok(None);
    };
    if !files::are_same_tokenizers(&read_tokenizer(&folder)?, tokenizer)? {
        return Err(Error::model(format!(
            "queries have a tokenizer of their own in `{}`, which is not supported",
            folder.display()
        )));
    }
    let weights = Weights::open(&folder)?;
    let count = weights
        .tensors
        .get("weight")
        .map_or(sparse.dimensions, |weight| weight.values.len());
    let mut values = weights.take_whole("weight", &[count])?.values.clone();
    weights.check_all(|_| false)?;
    if count > sparse.dimensions {
        return Err(Error::model(format!(
            "expected query weights for at most {} tokens, the model's vocabulary, but found {count}",
            sparse.dimensions
        )));
    }
    values.resize(sparse.dimensions, 0.0);
    let positions = config.encoder_limits.max_positions;
    let found =
        ConfigFile::open_or_empty(&folder, tokenizer_config::NAME)?.get::<f64>(OF_TOKENIZER)?;
    // Queries have no positions: longer ones would not be truncated.
    if found.is_none_or(|length| length > positions as f64) {
        return Err(Error::model(format!(
            "expected a `{OF_TOKENIZER}` of at most {positions} in `{}` of `{}`, but found {}",
            tokenizer_config::NAME,
            folder.display(),
            found.map_or("none".to_owned(), |length| length.to_string())
        )));
    }
    let max_tokens = Some(max_tokens(&folder, &config.encoder_limits)?);
    let form = RoleSettings {
        max_tokens,
        is_bare: true,
        ..RoleSettings::default()
    };
    sparse.queries = Some(
        StaticQueries {
            weights: QUERY_WEIGHTS.to_owned(),
            form,
        }
        .into(),
    );
    Ok(Some((
        QUERY_WEIGHTS,
        values.into_iter().flat_map(f32::to_le_bytes).collect(),
    )))
}

/// gte-multilingual-base's head: its only label is the token weight.
fn gte_weights(config: &EncoderConfig, weights: &Weights) -> Result<Dense> {
    Dense::with_bias(weights, "classifier.", [1, config.encoder_limits.hidden])
}

/// Token weight settings; the tokens that the authors' code leaves out have no weight.
fn token_weights(
    folder: &ModelFolder,
    config: &EncoderConfig,
    tokenizer: &Tokenizer,
) -> Result<SparseSettings> {
    let folder = transformer_folder(folder)?;
    let named = ["cls_token", "eos_token", "pad_token", UNKNOWN]
        .map(|key| named_token(&folder, key, tokenizer));
    let mut ignored = Vec::new();
    for token in named {
        ignored.extend(token?);
    }
    Ok(SparseSettings {
        output: TOKEN_WEIGHTS.to_owned(),
        dimensions: config.vocabulary,
        values: SparseValues::Tokens { ignored },
        max_active_dims: None,
        queries: None,
    })
}

/// bge-m3's heads, in addition to its dense vectors.
fn add_heads(
    folder: &ModelFolder,
    config: &EncoderConfig,
    settings: &mut EmbeddingSettings,
    heads: &mut OutputHeads,
    tokenizer: &Tokenizer,
) -> Result<()> {
    let hidden = config.encoder_limits.hidden;
    let layer = |file: &'static str, outputs: Option<usize>| {
        let bytes = files::read(&folder.join(file))?;
        let values = pickle::read(&bytes)?;
        let tensors = values
            .into_iter()
            .map(|(name, (shape, values))| (name, Weight { shape, values }));
        let weights = Weights::of_tensors(tensors.collect(), hex(&Sha256::digest(&bytes)));
        let found = weights
            .tensors
            .get("weight")
            .and_then(|weight| weight.shape.first().copied());
        let outputs = outputs.or(found).unwrap_or(0);
        let layer = Dense::with_bias(&weights, "", [outputs, hidden])?;
        Ok::<_, Error>(layer.with_source(&weights.sha256))
    };
    let named =
        |error| Error::model_because("cannot read the sparse and multi-vector heads", error);
    let sparse = layer(SPARSE_LINEAR, Some(1)).map_err(named)?;
    let projection = layer(COLBERT_LINEAR, None).map_err(named)?;
    settings.sparse = Some(token_weights(folder, config, tokenizer)?);
    settings.multi_vector = Some(Box::new(MultiVectorSettings {
        output: MULTI_VECTORS.to_owned(),
        dimensions: projection.outputs(),
        skips_first: true,
        score: MaxSim::Mean,
        query: RoleSettings::default(),
        document: RoleSettings::default(),
    }));
    heads.sparse = Some(SparseHead::Tokens(sparse));
    heads.multi_vector = Some(vec![projection]);
    Ok(())
}

/// PyLate's models, and `MultiVectorEncoder`.
fn late_interaction(
    folder: &ModelFolder,
    config: &EncoderConfig,
    mut files: LateInteraction,
    tokenizer: &Tokenizer,
) -> Result<(EmbeddingSettings, OutputHeads)> {
    check_expansion(folder, config, files.query.expansion.as_ref())?;
    let roles = [
        ("query_length", &mut files.query),
        ("document_length", &mut files.document),
    ];
    let max_tokens = max_tokens_of_roles(folder, &config.encoder_limits, roles)?;
    let mut settings = text_settings(folder, None, max_tokens)?;
    let (mut projections, mut width) = (Vec::new(), config.encoder_limits.hidden);
    for (folder, input) in &files.projections {
        let layer = Dense::of_tokens(folder, width, input)?;
        width = layer.outputs();
        projections.push(layer);
    }
    let transformer = transformer_folder(folder)?;
    let unknown = match files.skips_unknown {
        true => named_token(&transformer, UNKNOWN, tokenizer)?,
        false => None,
    };
    let [query, document] = [files.query, files.document]
        .map(|role| role_settings(&transformer, role, unknown, tokenizer));
    let (query, document) = (query?, document?);
    check_reach(config, &query)?;
    if settings.default_prompt.is_none() && settings.prompts.contains_key("document") {
        settings.default_prompt = Some("document".to_owned());
    }
    Ok(with_multi_vectors(
        settings,
        projections,
        width,
        [query, document],
    ))
}

/// Refuses queries that are padded in a way that is not supported.
fn check_expansion(
    folder: &ModelFolder,
    config: &EncoderConfig,
    expansion: Option<&Expanding>,
) -> Result<()> {
    let tokenizer_file =
        ConfigFile::open_or_empty(&transformer_folder(folder)?, tokenizer_config::NAME)?;
    let side: Option<String> = tokenizer_file.get("padding_side")?;
    if expansion.is_some() && side.as_deref() == Some("left") {
        return Err(Error::model(
            "expected `padding_side` `right` in a model that pads queries, but found `left`",
        ));
    }
    if config.reads_later_rows() && expansion.is_some_and(|expansion| !expansion.is_attended) {
        return Err(Error::model(
            "expected convolutions that read no rows after a token's own in a model that pads queries, but found others: \
             the code of LFM2.5-ColBERT does not set padding to zero, unlike that of LFM2.5-Encoder, which Kivu implements",
        ));
    }
    Ok(())
}

/// A role's settings, with the token ids of a model in `folder`. In place of skipped words that are no tokens, the token
/// `unknown` is skipped.
fn role_settings(
    folder: &ModelFolder,
    role: RoleFiles,
    unknown: Option<u32>,
    tokenizer: &Tokenizer,
) -> Result<RoleSettings> {
    let marker = role
        .marker
        .map(|marker| require_token(tokenizer, &marker))
        .transpose()?;
    let expansion = role
        .expansion
        .map(|expanding| expansion(folder, expanding, tokenizer))
        .transpose()?;
    Ok(RoleSettings {
        marker,
        max_tokens: role.max_tokens,
        expansion,
        skipped: skipped(&role.skipped, unknown, tokenizer),
        is_bare: false,
    })
}

/// Stanford's ColBERT.
fn stanfords(
    folder: &ModelFolder,
    config: &EncoderConfig,
    weights: &Weights,
    tokenizer: &Tokenizer,
) -> Result<(EmbeddingSettings, OutputHeads)> {
    let file = ConfigFile::open_or_empty(folder, ARTIFACT)?;
    let marker = |field: &str, default: &str| {
        let token: Option<String> = file.get(field)?;
        Ok::<_, Error>(Some(token.unwrap_or_else(|| default.to_owned())))
    };
    let length = file.get("query_maxlen")?.unwrap_or(32);
    let mut query = RoleFiles {
        marker: marker("query_token_id", "[unused0]")?,
        max_tokens: Some(length),
        expansion: Some(Expanding {
            token: None,
            length,
            is_attended: file.is_set("attend_to_mask_tokens")?,
        }),
        skipped: Vec::new(),
    };
    let mut document = RoleFiles {
        marker: marker("doc_token_id", "[unused1]")?,
        max_tokens: Some(file.get("doc_maxlen")?.unwrap_or(180)),
        expansion: None,
        skipped: match file.is_set_or("mask_punctuation", true)? {
            true => punctuation(),
            false => Vec::new(),
        },
    };
    check_expansion(folder, config, query.expansion.as_ref())?;
    let roles = [("query_maxlen", &mut query), ("doc_maxlen", &mut document)];
    let max_tokens = max_tokens_of_roles(folder, &config.encoder_limits, roles)?;
    let settings = text_settings(folder, None, max_tokens)?;
    let unknown = named_token(folder, UNKNOWN, tokenizer)?;
    let [query, document] =
        [query, document].map(|role| role_settings(folder, role, unknown, tokenizer));
    let (query, document) = (query?, document?);
    check_reach(config, &query)?;
    let rows = weights
        .tensors
        .get(PROJECTION)
        .and_then(|weight| weight.shape.first().copied());
    let rows = rows.unwrap_or(0);
    if let Some(found) = file.get::<usize>("dim")?.filter(|dim| *dim != rows) {
        return Err(Error::model(format!(
            "expected `dim` {rows} in `{ARTIFACT}`, the rows of `{PROJECTION}`, but found {found}"
        )));
    }
    let weight = weights.take_whole(PROJECTION, &[rows, config.encoder_limits.hidden])?;
    let projection = Dense::of_weights(weight, None)?;
    let width = projection.outputs();
    Ok(with_multi_vectors(
        settings,
        vec![projection],
        width,
        [query, document],
    ))
}

/// Settings and heads for a model with multi-vectors only.
fn with_multi_vectors(
    mut settings: EmbeddingSettings,
    projections: Vec<Dense>,
    dimensions: usize,
    [query, document]: [RoleSettings; 2],
) -> (EmbeddingSettings, OutputHeads) {
    settings.multi_vector = Some(Box::new(MultiVectorSettings {
        output: MULTI_VECTORS.to_owned(),
        dimensions,
        skips_first: false,
        score: MaxSim::Sum,
        query,
        document,
    }));
    (
        settings,
        OutputHeads {
            multi_vector: Some(projections),
            ..OutputHeads::default()
        },
    )
}

fn require_token(tokenizer: &Tokenizer, token: &str) -> Result<u32> {
    tokenizer.id(token).ok_or_else(|| {
        Error::model(format!(
            "expected the marker `{token}` among the tokenizer's tokens, but found none"
        ))
    })
}

fn expansion(
    folder: &ModelFolder,
    expanding: Expanding,
    tokenizer: &Tokenizer,
) -> Result<Expansion> {
    let Expanding {
        token,
        length,
        is_attended,
    } = expanding;
    let found = match &token {
        Some(token) => tokenizer.id(token),
        None => match named_token(folder, "mask_token", tokenizer)? {
            Some(mask) => Some(mask),
            None => named_token(folder, "eos_token", tokenizer)?,
        },
    };
    let token = found.ok_or_else(|| {
        let expected = token.map_or("`mask_token` or `eos_token`".to_owned(), |token| {
            format!("the token `{token}`")
        });
        Error::model(format!(
            "expected {expected} in the tokenizer, to pad queries with, but found none"
        ))
    })?;
    Ok(Expansion {
        token,
        length,
        is_attended,
    })
}

/// The id of the special token that the files in `folder`, or its tokenizer's class, name as `key`.
fn named_token(folder: &ModelFolder, key: &str, tokenizer: &Tokenizer) -> Result<Option<u32>> {
    let token = special_token(folder, key)?;
    Ok(token.and_then(|token| tokenizer.id(&token)))
}

/// Tokens for skipped words. PyLate's and Stanford's code skip the `unknown` token if a word is not a token, unlike
/// sentence-transformers.
fn skipped(words: &[String], unknown: Option<u32>, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut ids: Vec<u32> = words
        .iter()
        .filter_map(|word| tokenizer.id(word).or(unknown))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Refuses expansions longer than the attention window: their last tokens would attend to nothing.
fn check_reach(config: &EncoderConfig, query: &RoleSettings) -> Result<()> {
    let Some(expansion) = query.expansion.filter(|expansion| !expansion.is_attended) else {
        return Ok(());
    };
    let window = config
        .spans
        .iter()
        .filter_map(|span| span.window.before)
        .min()
        .unwrap_or(usize::MAX);
    match expansion.length > window {
        true => Err(Error::model(format!(
            "expected queries that are padded to at most {window} tokens, the local attention window, but found \
             {}: tokens beyond it would attend to nothing",
            expansion.length
        ))),
        false => Ok(()),
    }
}
