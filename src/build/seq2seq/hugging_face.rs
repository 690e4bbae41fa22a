//! Opens M2M100, NLLB and Marian, as `transformers` saves them, as the source of a bundle.

use std::path::Path;

use serde_json::Value;

use super::{
    graphs,
    model::{Memory, Norms, Positions, Seq2SeqModel, Stack, Table, Tables, Waves},
    tokenizer_files::{Tokenizers, many_to_many, marian},
};
use crate::{
    backend::Engine,
    build::{
        config::{ConfigFile, OneOrMany, check_heads},
        export,
        layers::Activation,
        plan::Build,
        source::{Source, TARGET_TOKENIZER, TaskSettings, unread_decoder},
        weights::Weights,
    },
    error::{Error, Result, quoted},
    pipeline::{
        generation::{GenerationOptions, GenerationSettings},
        seq2seq::Seq2SeqSettings,
    },
};

/// The `model_type`s that are supported.
pub(in crate::build) const MODEL_TYPES: [&str; 2] = ["m2m_100", MARIAN];
const MARIAN: &str = "marian";

/// The epsilon of both families, which their files do not name.
const EPSILON: f32 = 1e-5;
const PREFIX: (&str, &str) = ("model.", "encoder.layers.0.fc1.weight");
const SHARED: &str = "model.shared.weight";
const SOURCE: &str = "model.encoder.embed_tokens.weight";
const TARGET: &str = "model.decoder.embed_tokens.weight";
const OUTPUT: &str = "lm_head.weight";
const BIAS: &str = "final_logits_bias";

/// The limit of values in a table of positions, a hundred times that of the largest models.
const MAX_POSITION_VALUES: usize = 1 << 28;

/// Whether `folder` has a supported model, or an encoder-decoder export of any model.
pub(in crate::build) fn is_in(folder: &Path) -> bool {
    let is_supported = |config: ConfigFile| MODEL_TYPES.contains(&config.model_type());
    export::is_seq2seq_in(folder)
        || Weights::are_in(folder) && ConfigFile::open(folder).is_ok_and(is_supported)
}

/// Reads the weights or the export in the plan's folder.
pub(in crate::build) fn open(build: Build<'_>) -> Result<Source<'_>> {
    let folder = &build.plan.folder;
    let config = ConfigFile::open(folder)?;
    read(build, &config)
        .map_err(|error| Error::model_because(format!("cannot build from `{}`", folder.display()), error))
}

fn read<'a>(build: Build<'a>, config: &ConfigFile) -> Result<Source<'a>> {
    let plan = build.plan;
    let (folder, model_type) = (&plan.folder, config.model_type());
    if !MODEL_TYPES.contains(&model_type) {
        return Err(Error::model(format!(
            "expected a `model_type` of {}, but found `{model_type}`",
            quoted(&MODEL_TYPES)
        )));
    }
    let rows = config.require("vocab_size")?;
    let sizes = [rows, config.get("decoder_vocab_size")?.unwrap_or(rows)];
    let positions = config.require("max_position_embeddings")?;
    let (sha256, is_quantised, graphs) = if Weights::are_in(folder) {
        let weights = Weights::open(folder)?.with_prefix(PREFIX.0, PREFIX.1);
        let model = model(config, &weights, sizes)?;
        (weights.sha256.clone(), false, graphs(model, weights))
    } else {
        export::open_seq2seq(build)?
    };
    let Tokenizers { source, target, unknown_tokens, languages, max_tokens } = match model_type {
        MARIAN => marian(folder, sizes),
        _ => many_to_many(folder, rows),
    }?;
    let settings = Seq2SeqSettings {
        max_tokens: max_tokens.map_or(positions, |tokens| tokens.min(positions)),
        max_positions: positions,
        unknown_tokens,
        target_tokenizer: target.as_ref().map(|_| TARGET_TOKENIZER.to_owned()),
        shortlist: None,
        decoder: unread_decoder(),
        languages: plan.languages(languages)?,
        generation: generation(folder, config)?,
    };
    Ok(Source {
        architecture: config.architecture().to_owned(),
        sha256,
        settings: TaskSettings::Seq2Seq(Box::new(settings)),
        tokenizer: source,
        files: target.map(|target| (TARGET_TOKENIZER, target)).into_iter().collect(),
        is_quantised,
        engine: Engine::Onnx,
        graphs,
    })
}

/// The shape of a model with the given weights and numbers of source and target ids.
pub(in crate::build) fn model(
    config: &ConfigFile,
    weights: &Weights,
    sizes: [usize; 2],
) -> Result<Seq2SeqModel> {
    let (hidden, length): (usize, usize) =
        (config.require("d_model")?, config.require("max_position_embeddings")?);
    let stack = |half: &str| -> Result<Stack> {
        let heads = config.require(&format!("{half}_attention_heads"))?;
        check_heads(hidden, heads)?;
        let layers = config.require(&format!("{half}_layers"))?;
        Ok(Stack { layers, heads, intermediate: config.require(&format!("{half}_ffn_dim"))? })
    };
    let padding: i64 = config.require("pad_token_id")?;
    // The table is computed, so that no weight confirms its size.
    let values = length
        .checked_add(usize::try_from(padding).unwrap_or(0))
        .and_then(|rows| rows.checked_add(1)?.checked_mul(hidden));
    if values.is_none_or(|values| values > MAX_POSITION_VALUES) {
        return Err(Error::model(format!(
            "expected `max_position_embeddings` times `d_model` of at most {MAX_POSITION_VALUES}, but found {length} \
             times {hidden}, with the padding at {padding}"
        )));
    }
    let (norms, waves, padding) = match config.model_type() {
        MARIAN => (Norms::After, Waves::ShortOfTheEnd, None),
        _ => (Norms::Before, Waves::ToTheEnd, Some(padding)),
    };
    let activation: Option<String> = config.get("activation_function")?;
    Ok(Seq2SeqModel {
        architecture: config.architecture().to_owned(),
        hidden,
        encoder: stack("encoder")?,
        decoder: stack("decoder")?,
        tables: tables(config, weights, sizes)?,
        activation: Activation::named(activation.as_deref().unwrap_or("relu"))?,
        norms,
        epsilon: EPSILON,
        positions: Positions { length, waves, padding },
        scale: if config.is_set("scale_embedding")? { (hidden as f32).sqrt() } else { 1.0 },
        memory: Memory::Attention,
        is_trained_in_int8: false,
        starts_empty: false,
        has_shortlist: false,
    })
}

/// The tables of tokens. Files of tied matrices have one of them, under any of their names.
fn tables(config: &ConfigFile, weights: &Weights, [rows, target_rows]: [usize; 2]) -> Result<Tables> {
    let table = |names: &[&str], rows| match names.iter().find(|name| weights.has(name)) {
        Some(name) => Ok(Table { name: (*name).to_owned(), rows }),
        None => Err(Error::model(format!("expected one of the weights {}, but found none", quoted(names)))),
    };
    let is_shared = config.get("share_encoder_decoder_embeddings")?.unwrap_or(true);
    let (sources, targets): (&[&str], &[&str]) = match is_shared {
        true => (&[SHARED, SOURCE, TARGET, OUTPUT], &[SHARED, TARGET, SOURCE, OUTPUT]),
        false => (&[SOURCE], &[TARGET, OUTPUT]),
    };
    let (source, target) = (table(sources, rows)?, table(targets, target_rows)?);
    let has_own_output = config.get("tie_word_embeddings")? == Some(false) && weights.has(OUTPUT);
    let output = if has_own_output { table(&[OUTPUT], target_rows)? } else { target.clone() };
    Ok(Tables { source, target, output, bias: weights.has(BIAS).then(|| BIAS.to_owned()) })
}

/// The settings of generation in `generation_config.json`, or in `config.json` if that file does not exist.
pub(in crate::build) fn generation(folder: &Path, config: &ConfigFile) -> Result<GenerationSettings> {
    let own = ConfigFile::open_if_exists(folder, "generation_config.json")?;
    let config = own.as_ref().unwrap_or(config);
    let eos_token_ids = config.require::<OneOrMany<i64>>("eos_token_id")?.into_vec();
    let Some(last) = eos_token_ids.first().copied() else {
        return Err(Error::model("expected an `eos_token_id` at least, but found an empty list"));
    };
    let mut names = GenerationOptions::names();
    // Reproducible samples are a matter of requests.
    names.remove("seed");
    let fields = config.fields().iter().filter(|(name, _)| names.contains(*name));
    let fields = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    let defaults = serde_json::from_value(Value::Object(fields))
        .map_err(|error| Error::model_because("cannot read the options of generation", error))?;
    Ok(GenerationSettings {
        decoder_start_token_id: config.require_any(&["decoder_start_token_id", "bos_token_id"])?,
        pad_token_id: config.get("pad_token_id")?.unwrap_or(last),
        eos_token_ids,
        length_factor: None,
        defaults,
    })
}
