//! Opens models saved by `transformers` as bundle sources.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    graphs,
    model::{Memory, Norms, Positions, Seq2SeqModel, Sinusoids, Stack, Tables, Waves},
    names::{Half, Names},
    t5,
    tokenizer_files::{Tokenizers, many_to_many, marian, mbart, monolingual},
};
use crate::{
    config::{ConfigFile, OneOrMany, head_width},
    export,
    layers::{Activation, NormKind},
    module_list::has_pooling,
    plan::Build,
    source::{Source, TARGET_TOKENIZER, TaskSettings, unread_decoder},
    task,
    token_rows::within_vocabulary,
    weights::Weights,
};
use kivu::{
    backend::Engine,
    error::{Error, Result, quoted},
    pipeline::{
        Task,
        generation::{GenerationOptions, GenerationSettings, TokenIds},
        seq2seq::{LanguagePair, Languages, Seq2SeqSettings},
    },
};

/// Supported `model_type`s.
pub(crate) const MODEL_TYPES: [&str; 7] = [M2M100, MARIAN, BART, MBART, PEGASUS, t5::T5, t5::MT5];
const M2M100: &str = "m2m_100";
const MARIAN: &str = "marian";
const BART: &str = "bart";
const MBART: &str = "mbart";
const PEGASUS: &str = "pegasus";

/// Class name suffixes without another head. `Model` has no head at all: the output matrix is the embedding table.
const ARCHITECTURES: [&str; 4] = ["ForConditionalGeneration", "WithLMHeadModel", "MTModel", "Model"];

/// Epsilon for families with files that do not state it.
const EPSILON: f32 = 1e-5;
const PREFIX: (&str, &str) = ("model.", "encoder.layers.0.fc1.weight");
/// Rows in BART's position tables without a token.
const UNUSED_POSITIONS: usize = 2;

/// Maximum number of values in a position table, a hundred times the largest models'.
const MAX_POSITION_VALUES: usize = 1 << 28;

/// Whether `folder` has a supported model, or any model's encoder-decoder export.
///
/// T5's encoder can also be a separate model, for embeddings.
pub(crate) fn is_in(folder: &Path) -> bool {
    let is_encoder = |config: &ConfigFile| {
        let is_whole = config.architecture().ends_with("EncoderModel") || has_pooling(folder);
        is_whole && t5::is_described_by(config)
    };
    let is_supported =
        |config: ConfigFile| MODEL_TYPES.contains(&config.model_type()) && !is_encoder(&config);
    export::is_seq2seq_in(folder)
        || Weights::are_in(folder) && ConfigFile::open(folder).is_ok_and(is_supported)
}

/// Reads the weights or the export in the plan's folder.
pub(crate) fn open(build: Build<'_>) -> Result<Source<'_>> {
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
    check_head(config)?;
    let mut instructions = instructions(config)?;
    if let Some(LanguagePair { source, target }) = &plan.languages {
        instructions.retain(|pair| pair.source == *source && pair.target == *target);
    }
    let tasks = tasks(model_type, !instructions.is_empty());
    let (task, _) = task::choose(plan, tasks.to_vec());
    let translates = task == Task::Translation && tasks.contains(&task);
    if task == Task::Translation && !translates && t5::is_described_by(config) {
        return Err(Error::model(format!(
            "expected `translation_…_to_…` with a `prefix` in `task_specific_params` of `config.json` for the task \
             `{task}`, but found none; use another task, and write the instruction before each text"
        )));
    }
    let rows = config.require_size("vocab_size")?;
    let sizes = [rows, config.get_size("decoder_vocab_size")?.unwrap_or(rows)];
    let Tokenizers { source, target, end, unknown_tokens, languages, max_tokens } = match model_type {
        MARIAN => marian(folder, sizes),
        MBART => {
            let class: Option<String> = config.get("tokenizer_class")?;
            mbart(folder, class.as_deref(), (rows, translates))
        }
        BART | PEGASUS | t5::T5 | t5::MT5 => monolingual(folder, rows),
        _ => many_to_many(folder, rows),
    }?;
    let source = within_vocabulary(source, sizes[0])?;
    let target = target.map(|target| within_vocabulary(target, sizes[1])).transpose()?;
    // Maximum number of tokens in a source and in a target.
    let lengths = if t5::is_described_by(config) {
        t5::lengths(config, max_tokens)?
    } else {
        let positions = config.require_size("max_position_embeddings")?;
        [max_tokens.map_or(positions, |tokens| tokens.min(positions)), positions]
    };
    let (sha256, is_quantized, graphs) = if Weights::are_in(folder) {
        let weights = Weights::open(folder)?.with_prefix(PREFIX.0, PREFIX.1);
        let model = match model_type {
            t5::T5 | t5::MT5 => t5::model(config, &weights, lengths),
            _ => model(config, &weights, sizes),
        }?;
        (weights.sha256.clone(), false, graphs(model, weights))
    } else if tasks == [Task::Translation] {
        export::open_seq2seq(build)?
    } else {
        return Err(Error::model(format!(
            "expected the weights of `{model_type}`, which is not built from an ONNX export, but found none"
        )));
    };
    let generation = generation(folder, config)?;
    check_tokens(&generation, target.as_ref().unwrap_or(&source), sizes[1])?;
    let (languages, generation, prefix) = match (translates, &instructions[..]) {
        (true, []) => (plan.languages(languages)?, generation, String::new()),
        (true, [first, ..]) => {
            let (generation, _) = for_pipeline(generation, config, (&first.task, lengths[1]))?;
            (by_instructions(config, &instructions)?, generation, String::new())
        }
        (false, _) => {
            let (generation, prefix) = for_pipeline(generation, config, (&task.to_string(), lengths[1]))?;
            (Languages::None, generation, prefix)
        }
    };
    let settings = Seq2SeqSettings {
        max_tokens: lengths[0],
        max_positions: lengths[1],
        prefix,
        source_end_token_id: end.filter(|end| translates && generation.eos_token_ids.first() != Some(end)),
        unknown_tokens,
        target_tokenizer: target.as_ref().map(|_| TARGET_TOKENIZER.to_owned()),
        shortlist: None,
        decoder: unread_decoder(),
        languages,
        generation,
    };
    Ok(Source {
        architecture: config.architecture().to_owned(),
        sha256,
        settings: TaskSettings::Seq2Seq(Box::new(settings), tasks),
        tokenizer: source,
        files: target.map(|target| (TARGET_TOKENIZER, target)).into_iter().collect(),
        is_quantized,
        engine: Engine::Onnx,
        graphs,
    })
}

/// Refuses models with another head, such as one for labels, or without a decoder.
fn check_head(config: &ConfigFile) -> Result<()> {
    let architecture = config.architecture();
    let is_known = ARCHITECTURES.iter().any(|end| architecture.ends_with(end));
    // Files without a class name are identified by type.
    if architecture == config.model_type() || (is_known && !architecture.ends_with("EncoderModel")) {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected a model of this family that generates texts (`…ForConditionalGeneration`), but found \
         `{architecture}`, whose head is not supported"
    )))
}

/// A family's tasks, most likely first.
fn tasks(model_type: &str, has_instructions: bool) -> &'static [Task] {
    match model_type {
        BART | PEGASUS => &[Task::Summarization, Task::TextToText],
        MBART => &[Task::Translation, Task::Summarization, Task::TextToText],
        t5::T5 | t5::MT5 if has_instructions => &[Task::TextToText, Task::Summarization, Task::Translation],
        t5::T5 | t5::MT5 => &[Task::TextToText, Task::Summarization],
        _ => &[Task::Translation],
    }
}

/// A translation entry in `task_specific_params`, such as `translation_en_to_de`.
struct Instruction {
    task: String,
    source: String,
    target: String,
    prefix: String,
}

/// Translations that T5 does by instruction, according to its config.
fn instructions(config: &ConfigFile) -> Result<Vec<Instruction>> {
    let instruction = |(task, of_task): (String, Value)| {
        let (source, target) = task.strip_prefix("translation_")?.split_once("_to_")?;
        let (source, target) = (source.to_owned(), target.to_owned());
        let prefix = of_task.get("prefix")?.as_str()?.to_owned();
        Some(Instruction { task, source, target, prefix })
    };
    let all = if t5::is_described_by(config) { of_tasks(config)? } else { Map::new() };
    Ok(all.into_iter().filter_map(instruction).collect())
}

/// Languages for translation by instruction; all must have the same generation settings.
fn by_instructions(config: &ConfigFile, instructions: &[Instruction]) -> Result<Languages> {
    let of_tasks = of_tasks(config)?;
    let options_of = |task: &str| {
        let mut fields = of_tasks.get(task).and_then(Value::as_object).cloned().unwrap_or_default();
        fields.remove("prefix");
        fields
    };
    let mut pairs: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for Instruction { task, source, target, prefix } in instructions {
        if options_of(task) != options_of(&instructions[0].task) {
            return Err(Error::model(format!(
                "expected the same settings in `{task}` and `{}` of `task_specific_params`, but found others",
                instructions[0].task
            )));
        }
        pairs.entry(source.clone()).or_default().insert(target.clone(), prefix.clone());
    }
    Ok(Languages::Instructions { pairs })
}

/// Task parameters in `config.json`.
fn of_tasks(config: &ConfigFile) -> Result<Map<String, Value>> {
    Ok(config.get("task_specific_params")?.unwrap_or_default())
}

/// Model shape for the given weights and source and target vocabulary sizes.
pub(crate) fn model(config: &ConfigFile, weights: &Weights, sizes: [usize; 2]) -> Result<Seq2SeqModel> {
    let (hidden, length) = (config.require_size("d_model")?, config.require_size("max_position_embeddings")?);
    let stack = |half: &str| -> Result<Stack> {
        let size = |of: &str| config.require_size(&format!("{half}_{of}"));
        let (layers, heads, intermediate) = (size("layers")?, size("attention_heads")?, size("ffn_dim")?);
        Ok(Stack { layers, heads, head: head_width(hidden, heads)?, intermediate })
    };
    let padding: i64 = config.require("pad_token_id")?;
    // The table may be computed, so that no weight confirms its size.
    let values = length
        .checked_add(usize::try_from(padding).unwrap_or(0))
        .and_then(|rows| rows.checked_add(1)?.checked_mul(hidden));
    if values.is_none_or(|values| values > MAX_POSITION_VALUES) {
        return Err(Error::model(format!(
            "expected `max_position_embeddings` times `d_model` of at most {MAX_POSITION_VALUES}, but found {length} \
             times {hidden}, with the padding at {padding}"
        )));
    }
    let sinusoids = |waves, padding| Positions::Sinusoidal(Sinusoids { length, waves, padding });
    let has_positions = weights.has(&format!("{}{}", weights.prefix, Names::positions(Half::Encoder)));
    let (norms, positions) = match config.model_type() {
        MARIAN => (Norms::After, sinusoids(Waves::ShortOfTheEnd, None)),
        BART => (Norms::After, Positions::Learned { length, unused: UNUSED_POSITIONS }),
        MBART => (Norms::Before, Positions::Learned { length, unused: UNUSED_POSITIONS }),
        // Most files have the sinusoids, some rounded to 16 bits.
        PEGASUS if has_positions => (Norms::Before, Positions::Learned { length, unused: 0 }),
        PEGASUS => (Norms::Before, sinusoids(Waves::ShortOfTheEnd, None)),
        _ => (Norms::Before, sinusoids(Waves::ToTheEnd, Some(padding))),
    };
    if let Positions::Sinusoidal(sinusoids) = &positions
        && config.model_type() == MARIAN
    {
        check_sinusoids(sinusoids, weights, hidden)?;
    }
    let activation: Option<String> = config.get("activation_function")?;
    let is_bart = [BART, MBART].contains(&config.model_type());
    let is_m2m100 = config.model_type() == M2M100;
    let default = if is_m2m100 { "relu" } else { "gelu" };
    Ok(Seq2SeqModel {
        architecture: config.architecture().to_owned(),
        hidden,
        encoder: stack("encoder")?,
        decoder: stack("decoder")?,
        tables: Tables::find(config, weights, sizes)?,
        names: Names::Fairseq,
        has_biases: true,
        activation: Activation::named(activation.as_deref().unwrap_or(default))?,
        is_gated: false,
        norms,
        norm: NormKind::Layer { has_bias: true },
        epsilon: EPSILON,
        positions,
        scale: if config.get("scale_embedding")?.unwrap_or(is_m2m100) { (hidden as f32).sqrt() } else { 1.0 },
        normalizes_embeddings: is_bart,
        attention_scale: None,
        output_scale: 1.0,
        memory: Memory::Attention,
        is_trained_in_int8: false,
        starts_empty: false,
        has_shortlist: false,
    })
}

/// Refuses position tables that differ from the sinusoids by more than 16-bit rounding.
fn check_sinusoids(sinusoids: &Sinusoids, weights: &Weights, hidden: usize) -> Result<()> {
    const TOLERANCE: f32 = 1e-3;
    for half in [Half::Encoder, Half::Decoder] {
        let name = format!("{}{}", weights.prefix, Names::positions(half));
        if !weights.has(&name) {
            continue;
        }
        let found = weights.take_whole(&name, &[sinusoids.rows(), hidden])?;
        let expected = sinusoids.table(hidden);
        let is_same = |(found, expected): (&f32, &f32)| (found - expected).abs() <= TOLERANCE;
        if !found.values.iter().zip(&expected).all(is_same) {
            return Err(Error::model(format!("expected sinusoids in `{name}`, but found other positions")));
        }
    }
    Ok(())
}

/// Generation settings from `generation_config.json`, or from `config.json` if that file does not exist.
pub(crate) fn generation(folder: &Path, config: &ConfigFile) -> Result<GenerationSettings> {
    let own = ConfigFile::open_if_exists(folder, "generation_config.json")?;
    let forced = if own.is_none() { forced_tokens(config)? } else { GenerationOptions::default() };
    let config = own.as_ref().unwrap_or(config);
    let eos_token_ids = config.require::<OneOrMany<i64>>("eos_token_id")?.into_vec();
    let Some(end) = eos_token_ids.first().copied() else {
        return Err(Error::model("expected an `eos_token_id` at least, but found an empty list"));
    };
    let defaults = options(config.fields())?.or(&forced);
    Ok(GenerationSettings {
        decoder_start_token_id: start(config)?,
        pad_token_id: config.get("pad_token_id")?.unwrap_or(end),
        eos_token_ids,
        length_factor: None,
        defaults,
    })
}

/// Refuses tokens of `generation` that are beyond the model's `rows`, and tokens at the ends of texts that the tokenizer
/// writes into texts like others.
fn check_tokens(generation: &GenerationSettings, tokenizer: &[u8], rows: usize) -> Result<()> {
    let special = special_ids(tokenizer)?;
    let ends = [("decoder_start_token_id", generation.decoder_start_token_id)];
    let ends = ends.into_iter().chain(generation.eos_token_ids.iter().map(|id| ("eos_token_id", *id)));
    if let Some((name, id)) = ends.clone().find(|(_, id)| !special.contains(id)) {
        return Err(Error::model(format!(
            "expected a special token as `{name}`, but found {id}, which is not among `added_tokens` with `special` \
             true in the tokenizer"
        )));
    }
    let options = &generation.defaults;
    let forced = options.forced_eos_token_id.iter().flat_map(|ids| ids.as_slice());
    let others = [("pad_token_id", generation.pad_token_id)].into_iter();
    let others = others.chain(options.forced_bos_token_id.map(|id| ("forced_bos_token_id", id)));
    let mut others = others.chain(forced.map(|id| ("forced_eos_token_id", *id))).chain(ends);
    let is_known = |id: i64| usize::try_from(id).is_ok_and(|id| id < rows);
    match others.find(|(_, id)| !is_known(*id)) {
        None => Ok(()),
        Some((name, id)) => {
            Err(Error::model(format!("expected a `{name}` below {rows}, the model's ids, but found {id}")))
        }
    }
}

/// Ids of a `tokenizer.json`'s special tokens.
fn special_ids(tokenizer: &[u8]) -> Result<Vec<i64>> {
    #[derive(Deserialize)]
    struct Token {
        id: i64,
        special: bool,
    }
    #[derive(Deserialize)]
    struct File {
        added_tokens: Vec<Token>,
    }
    let file: File = serde_json::from_slice(tokenizer)
        .map_err(|error| Error::model_because("cannot read the tokenizer", error))?;
    Ok(file.added_tokens.into_iter().filter(|token| token.special).map(|token| token.id).collect())
}

/// The decoder's start token, alone or as a one-element list. Longer lists have one per text in a batch.
fn start(config: &ConfigFile) -> Result<i64> {
    let ids: TokenIds = config.require_any(&["decoder_start_token_id", "bos_token_id"])?;
    match ids.as_slice() {
        [id] => Ok(*id),
        ids => Err(Error::model(format!(
            "expected one `decoder_start_token_id`, but found {}, which `transformers` takes for the texts of a batch",
            ids.len()
        ))),
    }
}

/// Tokens that `transformers` forces in models without a `generation_config.json`, by config class.
fn forced_tokens(config: &ConfigFile) -> Result<GenerationOptions> {
    let end = match config.model_type() {
        BART | MBART => Some(2),
        PEGASUS => Some(1),
        MARIAN => Some(0),
        _ => None,
    };
    // A `null` field forces nothing.
    let is_given = config.fields().contains_key("forced_eos_token_id");
    // The option's name in old BART files.
    let forces_begin = config.model_type() == BART && config.is_set("force_bos_token_to_be_generated")?;
    let begin = if forces_begin { Some(config.get("bos_token_id")?.unwrap_or(0)) } else { None };
    Ok(GenerationOptions {
        forced_bos_token_id: begin,
        forced_eos_token_id: end.filter(|_| !is_given).map(TokenIds::One),
        ..GenerationOptions::default()
    })
}

/// Generation options among a file's fields.
fn options(fields: &Map<String, Value>) -> Result<GenerationOptions> {
    let mut names = GenerationOptions::names();
    // Reproducible sampling is up to requests, and the start token has a separate setting.
    for name in ["seed", "decoder_start_token_id"] {
        names.remove(name);
    }
    let fields = fields.iter().filter(|(name, _)| names.contains(*name));
    let fields: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| Error::model_because("cannot read the generation options", error))
}

/// Settings and text prefix that the `transformers` pipeline for `task` uses; the model's decoder has `positions`.
///
/// Pipeline defaults take precedence over the model's. Both yield to the task's parameters in `config.json`, except for
/// the maximum number of new tokens, which takes precedence over a length there.
fn for_pipeline(
    settings: GenerationSettings,
    config: &ConfigFile,
    (task, positions): (&str, usize),
) -> Result<(GenerationSettings, String)> {
    const BEAMS: usize = 4;
    const NEW_TOKENS: usize = 256;
    /// Maximum length in `transformers` that counts as unset.
    const DEFAULT_LENGTH: usize = 20;
    let of_task = of_tasks(config)?.get(task).and_then(Value::as_object).cloned().unwrap_or_default();
    let mut defaults = settings.defaults;
    defaults.num_beams = Some(BEAMS);
    if defaults.max_length.is_none_or(|length| length == DEFAULT_LENGTH) {
        defaults.max_new_tokens = Some(NEW_TOKENS);
    }
    let mut merged = options(&of_task)?;
    // A request replaces lengths in either unit; here each has a separate setting.
    merged.max_length = merged.max_length.or(defaults.max_length);
    merged.max_new_tokens = merged.max_new_tokens.or(defaults.max_new_tokens);
    merged.max_length = merged.max_length.map(|length| length.min(positions + 1));
    merged.max_new_tokens = merged.max_new_tokens.map(|tokens| tokens.min(positions));
    merged.min_length = merged.min_length.or(defaults.min_length);
    merged.min_new_tokens = merged.min_new_tokens.or(defaults.min_new_tokens);
    let prefix = of_task.get("prefix").and_then(Value::as_str).map(str::to_owned);
    let prefix = match prefix {
        Some(prefix) => prefix,
        None => config.get("prefix")?.unwrap_or_default(),
    };
    Ok((GenerationSettings { defaults: merged.or(&defaults), ..settings }, prefix))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Settings for a model with `config.json` alone.
    fn generation_of(fields: &Value) -> Result<GenerationOptions> {
        let mut config = json!({"eos_token_id": 2, "decoder_start_token_id": 2});
        config.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
        let config = ConfigFile::new("config.json", config.as_object().cloned().unwrap());
        Ok(generation(tempfile::tempdir().unwrap().path(), &config)?.defaults)
    }

    #[test]
    fn classes_force_tokens_that_their_files_leave_out() {
        let forced = |fields: &Value| {
            let options = generation_of(fields).unwrap();
            let last = options.forced_eos_token_id.map(|ids| ids.as_slice().to_vec());
            (options.forced_bos_token_id, last.map(|ids| ids[0]))
        };
        assert_eq!(forced(&json!({"model_type": "bart"})), (None, Some(2)));
        assert_eq!(forced(&json!({"model_type": "pegasus"})), (None, Some(1)));
        assert_eq!(forced(&json!({"model_type": "marian"})), (None, Some(0)));
        assert_eq!(forced(&json!({"model_type": "m2m_100"})), (None, None));
        assert_eq!(forced(&json!({"model_type": "mbart", "forced_eos_token_id": null})), (None, None));
        let old = json!({"model_type": "bart", "bos_token_id": 7, "force_bos_token_to_be_generated": true});
        assert_eq!(forced(&old), (Some(7), Some(2)));
    }

    #[test]
    fn defaults_are_those_of_the_config_classes() {
        const FIXTURES: [&str; 7] =
            ["tiny-bart", "tiny-m2m100", "tiny-marian", "tiny-mbart", "tiny-mt5", "tiny-pegasus", "tiny-t5"];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let read = |path: &str| -> Map<String, Value> {
            serde_json::from_slice(&std::fs::read(folder.join(path)).unwrap()).unwrap()
        };
        let defaults = read("published/defaults.json");
        let table = crate::weights::Weight { shape: vec![1, 1], values: vec![0.0] };
        let weights = Weights::of_tensors([("shared.weight".to_owned(), table)].into(), String::new());
        for fixture in FIXTURES {
            let fields = read(&format!("models/{fixture}/config.json"));
            let model_type = fields["model_type"].as_str().unwrap();
            let describe = |fields: &Map<String, Value>| {
                let config = ConfigFile::new("config.json", fields.clone());
                match t5::is_described_by(&config) {
                    true => t5::model(&config, &weights, [8, 8]),
                    false => model(&config, &weights, [8, 8]),
                }
                .map(|model| format!("{model:?}"))
            };
            for (key, default) in defaults[model_type].as_object().unwrap() {
                let mut without = fields.clone();
                without.remove(key);
                let mut with = without.clone();
                with.insert(key.clone(), default.clone());
                // Other files are refused without the key.
                let Ok(without) = describe(&without) else { continue };
                assert_eq!(without, describe(&with).unwrap_or_default(), "{model_type}: {key}");
            }
        }
    }

    #[test]
    fn tokens_at_the_ends_of_texts_are_special_and_known() {
        let tokenizer = json!({"added_tokens": [{"id": 2, "special": true}, {"id": 3, "special": false}]});
        let check = |start: i64, end: i64, pad: i64| {
            let settings = GenerationSettings {
                decoder_start_token_id: start,
                eos_token_ids: vec![2, end],
                pad_token_id: pad,
                length_factor: None,
                defaults: GenerationOptions::default(),
            };
            check_tokens(&settings, tokenizer.to_string().as_bytes(), 4)
        };
        check(2, 2, 3).unwrap();
        let refusals = [check(3, 2, 3), check(2, 0, 3), check(2, 2, 4)];
        let refusals = refusals.map(|refusal| refusal.unwrap_err().to_string()).join("\n");
        insta::assert_snapshot!(refusals, @"
        expected a special token as `decoder_start_token_id`, but found 3, which is not among `added_tokens` with `special` true in the tokenizer
        expected a special token as `eos_token_id`, but found 0, which is not among `added_tokens` with `special` true in the tokenizer
        expected a `pad_token_id` below 4, the model's ids, but found 4
        ");
    }

    #[test]
    fn several_start_tokens_are_refused() {
        let refusal = generation_of(&json!({"decoder_start_token_id": [2, 3]})).unwrap_err();
        insta::assert_snapshot!(refusal, @"expected one `decoder_start_token_id`, but found 2, which `transformers` takes for the texts of a batch");
    }

    #[test]
    fn limits_of_sampling_and_lists_of_tokens_are_read() {
        let options = generation_of(&json!({
            "decoder_start_token_id": [2], "forced_eos_token_id": [2, 5], "min_p": 0.1, "typical_p": 0.9,
            "epsilon_cutoff": 0.0, "eta_cutoff": null,
        }));
        let options = options.unwrap();
        assert_eq!(options.forced_eos_token_id, Some(TokenIds::Many(vec![2, 5])));
        assert_eq!(
            (options.min_p, options.typical_p, options.epsilon_cutoff),
            (Some(0.1), Some(0.9), Some(0.0))
        );
    }
}
