//! Opens the weights of an encoder, and an adapter's, as the source of a bundle.

use std::path::Path;

use kivu_engine::kernel::LANES;

use super::{
    config::{EncoderConfig, Facts, Head, HeadKind},
    decoder, families,
    graph::{LOGITS, graph},
    heads::OutputHeads,
    vectors,
};
use crate::{
    config::ConfigFile,
    lora::{Adapter, BaseNames},
    plan::Plan,
    sentence_transformers::{default_prompt, max_tokens},
    source::{EncoderSettings, MODEL, Source, TaskSettings},
    tokenizer_config::within_vocabulary,
    weights::Weights,
};
use kivu::{
    backend::Engine,
    config::EngineChoice,
    error::{Error, Result},
    pipeline::{classification::ClassificationSettings, token_classification::TokenClassificationSettings},
    repository::manifest::Precision,
};

/// Reads the encoder in the plan's folder and merges the plan's adapter, if any.
pub(crate) fn open(plan: &Plan) -> Result<Source<'static>> {
    let folder = plan.transformer()?;
    // An adapter's own `config.json` describes the merged model.
    let described = plan.adapter.as_ref().filter(|adapter| adapter.join(ConfigFile::NAME).is_file());
    let mut config = families::open(described.unwrap_or(&folder))?;
    let tokenizer = families::tokenizer(&folder, &config)?;
    // Models with a head store their body under a prefix.
    let prefix = config.names.prefix;
    let mut weights = Weights::open(&folder)?.with_prefix(prefix, config.names.words);
    families::adapt(&mut config, &weights);
    let tokenizer = within_vocabulary(tokenizer, config.vocabulary)?;
    if let Some(folder) = &plan.adapter {
        let adapter = Adapter::open(folder)?;
        let [dense, dense_norm] = [config.names.dense.0, config.names.dense_norm.unwrap_or_default()];
        let head = ["classifier", "score", config.names.labels, dense, dense_norm];
        if let Some(labels) = adapter.merge(&mut weights, BaseNames { prefix, head: &head })? {
            let kind = if adapter.labels_tokens { HeadKind::Tokens } else { HeadKind::Text };
            config.head.get_or_insert_with(|| Head::unnamed(kind, labels));
        }
    }
    let scores = decoder::head(plan, &mut config, &weights, (&tokenizer, LOGITS))?;
    let facts = &config.facts;
    let mut files = Vec::new();
    let (settings, heads) = match (&config.head, scores) {
        (_, Some((settings, modules))) => {
            (EncoderSettings::Classification(settings), OutputHeads::dense(Some(modules)))
        }
        (Some(head), None) if head.kind == HeadKind::Tokens => {
            let settings = token_settings(&plan.folder, head, facts)?;
            (EncoderSettings::TokenClassification(settings), OutputHeads::default())
        }
        (Some(head), None) => {
            let settings = ClassificationSettings {
                output: LOGITS.to_owned(),
                labels: head.labels.clone(),
                function: head.function,
                max_tokens: max_tokens(&plan.folder, facts.max_positions)?,
                template: None,
                query_prompt: default_prompt(&plan.folder)?,
                padding: None,
            };
            (EncoderSettings::Classification(settings), OutputHeads::default())
        }
        (None, None) => {
            let (mut settings, heads) = vectors::open(&plan.folder, &config, &weights, &tokenizer)?;
            files.extend(vectors::add_static_queries(&plan.folder, &config, &mut settings, &tokenizer)?);
            (EncoderSettings::Embedding(settings), heads)
        }
    };
    Ok(Source { files, ..of_parts(plan, config, weights, heads, (settings, tokenizer))? })
}

/// The source of an encoder with these parts, whose graph is written for the engine that the plan asks for.
pub(super) fn of_parts(
    plan: &Plan,
    config: EncoderConfig,
    weights: Weights,
    heads: OutputHeads,
    (settings, tokenizer): (EncoderSettings, Vec<u8>),
) -> Result<Source<'static>> {
    let facts = &config.facts;
    let suits_native_engine = config.suits_native_engine() && heads.suit_native_engine();
    let engine = match plan.engine {
        EngineChoice::Onnx => Engine::Onnx,
        EngineChoice::Auto | EngineChoice::Native if suits_native_engine => Engine::Native,
        EngineChoice::Auto => Engine::Onnx,
        EngineChoice::Native if !heads.suit_native_engine() => {
            return Err(Error::model(
                "expected one pooling (cls, mean or last token), and then layers of texts without a sigmoid, for the native \
                 engine, but found other modules, or spans; use `--engine auto`",
            ));
        }
        EngineChoice::Native => {
            return Err(Error::model(format!(
                "expected a family that `docs/bundles.md` lists, with vectors of a multiple of {LANES} values, for the \
                 native engine, but found `{}` with {} values; use `--engine auto`",
                facts.architecture, facts.hidden
            )));
        }
    };
    Ok(Source {
        architecture: facts.architecture.clone(),
        sha256: weights.sha256.clone(),
        settings: TaskSettings::Encoder(settings),
        tokenizer,
        files: Vec::new(),
        is_quantized: false,
        engine: if plan.precision == Precision::Fp32 { Engine::Onnx } else { engine },
        graphs: Box::new(move |precision| {
            let engine = if precision == Precision::Fp32 { Engine::Onnx } else { engine };
            Ok(vec![(MODEL, graph(&config, &weights, &heads, precision, engine)?)])
        }),
    })
}

/// The settings of a model whose output [`LOGITS`] has a value per token and label.
pub(crate) fn token_settings(
    folder: &Path,
    head: &Head,
    facts: &Facts,
) -> Result<TokenClassificationSettings> {
    Ok(TokenClassificationSettings {
        output: LOGITS.to_owned(),
        labels: head.labels.clone(),
        max_tokens: max_tokens(folder, facts.max_positions)?,
    })
}
