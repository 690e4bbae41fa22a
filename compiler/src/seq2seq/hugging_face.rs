//! Opens models saved by `transformers` as bundle sources.

use super::{
    fairseq::{self, BART, M2M100, MARIAN, MBART, PEGASUS},
    generation::{check_tokens, for_pipeline, generation},
    graphs,
    instructions::{Instruction, by_instructions, instructions},
    t5,
    tokenizer_files::{Tokenizers, many_to_many, marian, mbart, monolingual},
    tokenizer_json::tags,
};
use crate::{
    encoder::alternative,
    export,
    files::{config::ConfigFile, module_list::has_pooling, weights::Weights},
    plan::{
        Build, Plan,
        opened_model::{OpenedModel, TARGET_TOKENIZER, unread_decoder},
        task,
    },
    tokenizers::{
        sentencepiece::BuiltTokenizer,
        token_rows::{within_vocabulary, within_vocabulary_or_unknown},
    },
};
use kivu::{
    Error, Result,
    backend::Engine,
    error::quoted,
    pipeline::{
        Task,
        seq2seq::{LanguagePair, Languages, Seq2SeqSettings},
    },
    repository::TaskSettings,
};

/// Supported `model_type`s.
pub const MODEL_TYPES: [&str; 7] = [M2M100, MARIAN, BART, MBART, PEGASUS, t5::T5, t5::MT5];
/// Class name suffixes for text generators. `Model` has no head: its output matrix is the embedding table.
const ARCHITECTURES: [&str; 4] = [
    "ForConditionalGeneration",
    "WithLMHeadModel",
    "MTModel",
    "Model",
];

const PREFIX: (&str, &str) = ("model.", "encoder.layers.0.fc1.weight");
/// Whether `folder` has a supported model, or any model's encoder-decoder export.
///
/// T5's encoder can also be a separate model, for embeddings.
pub fn is_in(plan: &Plan) -> bool {
    let folder = &plan.folder;
    let is_encoder = |config: &ConfigFile| {
        let is_whole = config.architecture().ends_with("EncoderModel") || has_pooling(folder);
        is_whole && t5::is_described_by(config) || fairseq::has_labels(plan, config)
    };
    let is_supported =
        |config: ConfigFile| MODEL_TYPES.contains(&config.model_type()) && !is_encoder(&config);
    export::is_seq2seq_in(folder)
        || Weights::are_in(folder) && ConfigFile::open(folder).is_ok_and(is_supported)
}

/// Reads the weights or the export in the plan's folder.
pub fn open(build: Build<'_>) -> Result<OpenedModel<'_>> {
    let folder = &build.plan.folder;
    let config = ConfigFile::open(folder)?;
    read(build, &config).map_err(|error| {
        Error::model_because(format!("cannot build from `{}`", folder.display()), error)
    })
}

fn read<'a>(build: Build<'a>, config: &ConfigFile) -> Result<OpenedModel<'a>> {
    let plan = build.plan;
    let (folder, model_type) = (&plan.folder, config.model_type());
    if !MODEL_TYPES.contains(&model_type) {
        return Err(Error::model(format!(
            "the `model_type` `{model_type}` is not supported; supported: {}",
            quoted(&MODEL_TYPES)
        ))
        .with_hint(alternative(config)));
    }
    check_head(config)?;
    check_prefix(config)?;
    let mut instructions = instructions(config)?;
    if let Some(LanguagePair { source, target }) = &plan.languages {
        instructions.retain(|pair| pair.source == *source && pair.target == *target);
    }
    let rows = config.require_size("vocab_size")?;
    let own = own_tokenizer(plan, model_type, rows)?;
    let has_tags = own.as_ref().is_some_and(|own| own.languages.is_some());
    let tasks: &'static [Task] = match has_tags {
        true => &[Task::Translation, Task::TextToText],
        false => tasks(model_type, &instructions),
    };
    let (task, _) = task::choose(plan, tasks.to_vec());
    let translates = task == Task::Translation && tasks.contains(&task);
    if task == Task::Translation && !translates && t5::is_described_by(config) {
        return Err(Error::model(format!(
            "expected `translation_…_to_…` with a `prefix` in `task_specific_params` of \
             `config.json` for the task `{task}`, but found none"
        ))
        .with_hint("use another task, and write the instruction before each text"));
    }
    let sizes = [rows, config.get_size("decoder_vocab_size")?.unwrap_or(rows)];
    let Tokenizers {
        source: BuiltTokenizer {
            json: source,
            unknown_tokens,
        },
        target,
        end,
        languages,
        max_tokens,
    } = match model_type {
        MARIAN => marian(folder, sizes),
        MBART => {
            let class: Option<String> = config.get("tokenizer_class")?;
            mbart(folder, class.as_deref(), rows, task)
        }
        _ => own.map_or_else(|| many_to_many(folder, rows), Ok),
    }?;
    let source = within_vocabulary_or_unknown(source, sizes[0], unknown_tokens.as_ref())?;
    let target = target
        .map(|target| within_vocabulary(target, sizes[1]))
        .transpose()?;
    // Maximum number of tokens in a source and in a target.
    let lengths = if t5::is_described_by(config) {
        t5::lengths(config, max_tokens)?
    } else {
        let positions = config.require_size("max_position_embeddings")?;
        [
            max_tokens.map_or(positions, |tokens| tokens.min(positions)),
            positions,
        ]
    };
    let (sha256, is_quantized, graphs) = if Weights::are_in(folder) {
        let weights = Weights::open(folder)?.with_prefix(PREFIX.0, PREFIX.1);
        check_labels(config, &weights)?;
        let model = match model_type {
            t5::T5 | t5::MT5 => t5::model(config, &weights, lengths),
            _ => fairseq::model(config, &weights, sizes),
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
        (true, []) if !has_tags => (plan.languages(languages)?, generation, String::new()),
        (true, [first, ..]) if !has_tags => {
            let (generation, _) = for_pipeline(generation, config, &first.task, lengths[1])?;
            (
                by_instructions(config, &instructions)?,
                generation,
                String::new(),
            )
        }
        _ => {
            let (generation, prefix) =
                for_pipeline(generation, config, &task.to_string(), lengths[1])?;
            (
                languages.filter(|_| translates).unwrap_or(Languages::None),
                generation,
                prefix,
            )
        }
    };
    let settings = Seq2SeqSettings {
        max_tokens: lengths[0],
        max_positions: lengths[1],
        prefix,
        source_end_token_id: end
            .filter(|end| translates && generation.eos_token_ids.first() != Some(end)),
        unknown_tokens,
        target_tokenizer: target.as_ref().map(|_| TARGET_TOKENIZER.to_owned()),
        shortlist: None,
        decoder: unread_decoder(),
        languages,
        generation,
    };
    Ok(OpenedModel {
        architecture: config.architecture().to_owned(),
        sha256,
        settings: TaskSettings::Seq2Seq(Box::new(settings)),
        generates: tasks,
        tokenizer: source,
        files: target
            .map(|target| (TARGET_TOKENIZER, target))
            .into_iter()
            .collect(),
        unused_heads: Vec::new(),
        keeps_attention: false,
        is_export: !Weights::are_in(folder),
        is_quantized,
        engine: Engine::Onnx,
        fp32_engine: Engine::Onnx,
        graphs,
    })
}

/// The tokenizer of families that do not translate, with the languages that tags in T5's vocabulary name.
fn own_tokenizer(plan: &Plan, model_type: &str, rows: usize) -> Result<Option<Tokenizers>> {
    let own = match model_type {
        BART | PEGASUS => return monolingual(&plan.folder, rows).map(Some),
        t5::T5 | t5::MT5 => monolingual(&plan.folder, rows)?,
        _ => return Ok(None),
    };
    match tags(&own.source.json)? {
        Some(_) if plan.languages.is_some() => Err(Error::model(
            "`[languages]` in the recipe is not supported: the model's tokenizer has language tags",
        )
        .with_hint("requests select the language")),
        languages => Ok(Some(Tokenizers { languages, ..own })),
    }
}

/// Refuses models with another head, such as one for labels, or without a decoder.
fn check_head(config: &ConfigFile) -> Result<()> {
    let architecture = config.architecture();
    let is_known = ARCHITECTURES.iter().any(|end| architecture.ends_with(end));
    // Files without a class name are identified by type.
    if architecture == config.model_type() || (is_known && !architecture.ends_with("EncoderModel"))
    {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected a model of this family that generates texts (`…ForConditionalGeneration`), but found \
         `{architecture}`, whose head is not supported"
    )))
}

/// Refuses BART's label head in weights whose class does not name it.
fn check_labels(config: &ConfigFile, weights: &Weights) -> Result<()> {
    let labels = format!("{}.weight", fairseq::LABELS);
    match config.model_type() == BART && !config.names_head() && weights.has(&labels) {
        true => Err(Error::model(format!(
            "the model has a label head (`{labels}`), but `architectures` in `config.json` names \
             no class with one"
        ))
        .with_hint(format!(
            "use `--task {}` or `--task {}` to use the head",
            Task::TextClassification,
            Task::ZeroShotClassification
        ))),
        false => Ok(()),
    }
}

/// Refuses a prefix for Marian's texts. Pipelines put it before texts, but not before language tokens.
fn check_prefix(config: &ConfigFile) -> Result<()> {
    let prefix: Option<String> = config.get("prefix")?;
    match prefix.filter(|prefix| config.model_type() == MARIAN && !prefix.is_empty()) {
        Some(found) => Err(Error::model(format!(
            "`prefix` `{found}` is not supported for `{MARIAN}`"
        ))),
        None => Ok(()),
    }
}

/// A family's tasks, most likely first.
fn tasks(model_type: &str, instructions: &[Instruction]) -> &'static [Task] {
    match model_type {
        BART | PEGASUS => &[Task::Summarization, Task::TextToText],
        MBART => &[Task::Translation, Task::Summarization, Task::TextToText],
        t5::T5 | t5::MT5 if !instructions.is_empty() => {
            &[Task::TextToText, Task::Summarization, Task::Translation]
        }
        t5::T5 | t5::MT5 => &[Task::TextToText, Task::Summarization],
        _ => &[Task::Translation],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marian_has_no_prefix() {
        let checked = |model_type: &str, prefix: Option<&str>| {
            let fields = json!({"model_type": model_type, "prefix": prefix});
            check_prefix(&ConfigFile::new(
                "config.json",
                fields.as_object().cloned().unwrap(),
            ))
        };
        checked("m2m_100", Some("a"))
            .and(checked(MARIAN, Some("")))
            .and(checked(MARIAN, None))
            .unwrap();
        let refusal = checked(MARIAN, Some("a")).unwrap_err();
        insta::assert_snapshot!(refusal, @"`prefix` `a` is not supported for `marian`");
    }
}
