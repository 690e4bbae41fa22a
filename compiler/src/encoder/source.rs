//! Opens an encoder's weights, and an adapter's, as a bundle source.

use std::path::Path;

use kivu_engine::kernel::LANES;
use sha2::{Digest, Sha256};

use super::{
    attention::decoder,
    config::{EncoderConfig, EncoderLimits, Head, HeadKind, Positions},
    families,
    graph::{GraphForm, LOGITS, graph, unused_heads},
    heads::OutputHeads,
    listwise, unnamed_heads, vectors,
};
use crate::{
    files::{
        config::ConfigFile,
        lora::{Adapter, BaseNames},
        model_folder::ModelFolder,
        weights::{Weights, combined_sha256},
    },
    plan::{
        Plan,
        opened_model::{LABEL_TOKENIZER, LABELS, MODEL, OpenedModel},
    },
    sentence_transformers::{
        default_prompt, makes_vectors, max_tokens, modules::Modules, names_sigmoid, score_modules,
    },
    tokenizers::token_rows::{has_positions, other_unknown_token, within_types, within_vocabulary},
};
use kivu::{
    Error, Result,
    backend::Engine,
    config::EngineChoice,
    hexadecimal::hex,
    pipeline::{
        classification::{ClassificationSettings, scores::ScoreFunction},
        entities::token_classification::TokenClassificationSettings,
    },
    repository::TaskSettings,
};

/// Reads the encoder in the plan's folder and merges the plan's adapter, if any.
pub fn open(plan: &Plan) -> Result<OpenedModel<'static>> {
    let folder = plan.transformer()?;
    let described = plan.described()?;
    let file = ConfigFile::open(&described)?;
    let mut config = families::of(&file, &described)?;
    let tokenizer = families::tokenizer(&folder, &file, &config)?;
    // Models with a head store their body under a prefix.
    let prefix = config.names.prefix;
    let mut weights = families::weights(&mut config, Weights::open(&folder)?, &folder)?;
    families::adapt(&mut config, &weights)?;
    let tokenizer = within_vocabulary(tokenizer, config.vocabulary)?;
    // sentence-transformers leaves out the class's head. An adapter may add one.
    let makes_vectors = makes_vectors(&plan.folder)?;
    if plan.adapter.is_none() && makes_vectors {
        config.head = None;
    }
    if let Some(folder) = &plan.adapter {
        merge(folder, &mut config, &mut weights, prefix)?;
    }
    if let Some((settings, heads)) = listwise::open(plan, &config, &weights)? {
        let settings = TaskSettings::Listwise(settings);
        return of_parts(
            plan,
            Parts {
                config,
                weights,
                heads,
                settings,
                tokenizer,
                labels: None,
            },
        );
    }
    if config.head.is_none() && !makes_vectors {
        config.head = unnamed_heads::in_weights(plan, &file, config.names, &weights)?;
        families::check_bart_head(&config)?;
    }
    if config.head.is_none() {
        vectors::name_masked_class(plan, &file, &mut config, &weights)?;
    }
    let modules = match plan.adapter.is_none() {
        true => score_modules(&plan.folder, config.encoder_limits.hidden)?,
        false => None,
    };
    let reads_pairs = modules.is_some()
        || config
            .head
            .as_ref()
            .is_some_and(|head| head.kind == HeadKind::Text);
    within_types(&tokenizer, config.types, reads_pairs)?;
    let scores = match modules {
        Some(modules) => Some(head_of_modules(plan, &config.encoder_limits, modules)?),
        None => decoder::head(plan, &mut config, &mut weights, &tokenizer, LOGITS)?,
    };
    let encoder_limits = &config.encoder_limits;
    let (mut files, mut heads) = (Vec::new(), OutputHeads::default());
    let settings = match (&config.head, scores) {
        (_, Some((settings, modules))) => {
            heads = OutputHeads::dense(Some(modules));
            TaskSettings::Classification(settings)
        }
        (Some(head), None) if head.kind == HeadKind::Tokens => {
            let unknown_token = other_unknown_token(&folder, &tokenizer)?;
            TaskSettings::TokenClassification(TokenClassificationSettings {
                unknown_token,
                context: config.context(),
                ..token_settings(&plan.folder, head, encoder_limits)?
            })
        }
        (Some(head), None) => {
            TaskSettings::Classification(text_settings(&plan.folder, head, encoder_limits)?)
        }
        (None, None) => {
            let (mut settings, of_vectors) =
                vectors::open(plan, &config, &mut weights, &tokenizer)?;
            heads = of_vectors;
            let placeholders = config.details.placeholders.into_iter().flatten();
            settings.placeholders = placeholders.collect();
            files.extend(vectors::add_static_queries(
                &plan.folder,
                &config,
                &mut settings,
                &tokenizer,
            )?);
            TaskSettings::Embedding(settings)
        }
    };
    for (_, bytes) in &files {
        weights.add_source(&hex(&Sha256::digest(bytes)));
    }
    Ok(OpenedModel {
        files,
        ..of_parts(
            plan,
            Parts {
                config,
                weights,
                heads,
                settings,
                tokenizer,
                labels: None,
            },
        )?
    })
}

/// Merges the adapter in `folder` into the weights, whose body has this prefix; an adapter may add a head.
fn merge(
    folder: &Path,
    config: &mut EncoderConfig,
    weights: &mut Weights,
    prefix: &'static str,
) -> Result<()> {
    let adapter = Adapter::open(folder)?;
    let [dense, dense_norm] = [
        config.names.dense.0,
        config.names.dense_norm.unwrap_or_default(),
    ];
    let head = [
        "classifier",
        "score",
        config.names.labels,
        dense,
        dense_norm,
    ];
    if let Some(labels) = adapter.merge(
        weights,
        BaseNames {
            prefix,
            head: &head,
        },
    )? {
        let kind = if adapter.labels_tokens {
            HeadKind::Tokens
        } else {
            HeadKind::Text
        };
        config
            .head
            .get_or_insert_with(|| Head::unnamed(kind, labels));
    }
    Ok(())
}

/// An encoder whose weights were read from an export with these settings and this tokenizer.
///
/// # Errors
/// The family reads other tokens, or its form is not the export's.
pub fn source_of_layers(
    plan: &Plan,
    file: &ConfigFile,
    weights: Weights,
    head: Option<Head>,
    settings: &TaskSettings,
    tokenizer: &[u8],
) -> Result<OpenedModel<'static>> {
    let mut config = families::of(file, &plan.folder)?;
    let mut heads = OutputHeads::default();
    match &head {
        None => heads = OutputHeads::dense(None),
        Some(head) if head.kind == HeadKind::Text && config.names.has_decoder_head() => {
            return Err(Error::model(
                "the head of a decoder reads the token that the export chooses",
            ));
        }
        Some(_) => {}
    }
    let own = families::tokenizer(&plan.folder, file, &config)?;
    if within_vocabulary(own, config.vocabulary)? != tokenizer {
        return Err(Error::model("the family reads other tokens"));
    }
    let reads_pairs = head
        .as_ref()
        .is_some_and(|head| head.kind == HeadKind::Text);
    within_types(tokenizer, config.types, reads_pairs)?;
    let weights = families::weights(&mut config, weights, &plan.folder)?;
    families::adapt(&mut config, &weights)?;
    config.head = head;
    let parts = Parts {
        config,
        weights,
        heads,
        settings: settings.clone(),
        tokenizer: tokenizer.to_vec(),
        labels: None,
    };
    of_parts(plan, parts)
}

/// A CrossEncoder's label scores, from modules.
fn head_of_modules(
    plan: &Plan,
    encoder_limits: &EncoderLimits,
    modules: Modules,
) -> Result<(ClassificationSettings, Modules)> {
    let head = Head::unnamed(HeadKind::Text, modules.dimensions()?);
    Ok((
        text_settings(&plan.folder, &head, encoder_limits)?,
        modules.with_output(LOGITS),
    ))
}

/// An encoder model's parts.
pub struct Parts {
    pub config: EncoderConfig,
    pub weights: Weights,
    pub heads: OutputHeads,
    pub settings: TaskSettings,
    /// A `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// The encoder that reads labels, in models that have one.
    pub labels: Option<LabelParts>,
}

/// A second encoder in a bundle.
pub struct LabelParts {
    pub config: EncoderConfig,
    pub weights: Weights,
    pub heads: OutputHeads,
    /// A `tokenizer.json`.
    pub tokenizer: Vec<u8>,
}

/// Builds an encoder source; its graph is written for the plan's engine.
pub fn of_parts(plan: &Plan, parts: Parts) -> Result<OpenedModel<'static>> {
    let Parts {
        config,
        weights,
        heads,
        settings,
        tokenizer,
        labels,
    } = parts;
    if let Positions::TableAfter { padding } = config.positions {
        has_positions(&tokenizer, padding)?;
    }
    let unused_heads = match &settings {
        TaskSettings::Embedding(found) if found.dense.is_some() || found.multi_vector.is_some() => {
            unused_heads(&config, &weights).into_iter().collect()
        }
        _ => Vec::new(),
    };
    let encoder_limits = &config.encoder_limits;
    let suits_native_engine = config.suits_native_engine()
        && heads.suit_native_engine()
        && labels.as_ref().is_none_or(|labels| {
            labels.config.suits_native_engine() && labels.heads.suit_native_engine()
        });
    let engine = match plan.engine {
        EngineChoice::Onnx => Engine::Onnx,
        EngineChoice::Auto | EngineChoice::Native if suits_native_engine => Engine::Native,
        EngineChoice::Auto => Engine::Onnx,
        EngineChoice::Native if !heads.suit_native_engine() => {
            return Err(Error::model(
                "the native engine does not run the model's modules: it needs one pooling (cls, mean or \
                 last token), and after it layers without a sigmoid",
            )
            .with_hint("use `--engine auto`"));
        }
        EngineChoice::Native => {
            return Err(Error::model(format!(
                "the native engine does not run this `{}`: it needs layers that `docs/bundle-reference.md` \
                 lists, and widths that {LANES} divides",
                encoder_limits.architecture
            ))
            .with_hint("use `--engine auto`"));
        }
    };
    Ok(OpenedModel {
        architecture: encoder_limits.architecture.clone(),
        sha256: combined_sha256(&weights.sha256, heads.sources()),
        settings,
        generates: &[],
        tokenizer,
        files: labels
            .iter()
            .map(|labels| (LABEL_TOKENIZER, labels.tokenizer.clone()))
            .collect(),
        unused_heads,
        keeps_attention: config.details.keeps_attention,
        is_export: false,
        is_quantized: false,
        engine,
        fp32_engine: engine,
        graphs: Box::new(move |precision, calibration| {
            let form = GraphForm {
                precision,
                engine,
                calibration,
            };
            let mut graphs = vec![(MODEL, graph(&config, &weights, &heads, form)?)];
            if let Some(LabelParts {
                config,
                weights,
                heads,
                ..
            }) = &labels
            {
                // Its layers may have the same names.
                let form = GraphForm {
                    calibration: None,
                    ..form
                };
                graphs.push((LABELS, graph(config, weights, heads, form)?));
            }
            Ok(graphs)
        }),
    })
}

/// Settings for a model with a value per text and label in its output [`LOGITS`].
pub fn text_settings(
    folder: &ModelFolder,
    head: &Head,
    encoder_limits: &EncoderLimits,
) -> Result<ClassificationSettings> {
    Ok(ClassificationSettings {
        output: LOGITS.to_owned(),
        labels: head.labels.clone(),
        // A CrossEncoder's own function in place of the one in `transformers`.
        function: match head.function {
            ScoreFunction::Softmax if names_sigmoid(folder)? => ScoreFunction::Sigmoid,
            function => function,
        },
        max_tokens: max_tokens(folder, encoder_limits)?,
        template: None,
        query_prompt: default_prompt(folder)?,
        padding: None,
        identifies_languages: false,
    })
}

/// Settings for a model with a value per token and label in its output [`LOGITS`].
pub fn token_settings(
    folder: &ModelFolder,
    head: &Head,
    encoder_limits: &EncoderLimits,
) -> Result<TokenClassificationSettings> {
    Ok(TokenClassificationSettings {
        output: LOGITS.to_owned(),
        labels: head.labels.clone(),
        max_tokens: max_tokens(folder, encoder_limits)?,
        unknown_token: None,
        context: None,
    })
}

#[cfg(test)]
mod tests;
