//! A bundle that translates as a model of Triton's: a program that generates there, since a call a token over the
//! network would be hopeless.

use std::{fmt::Write, path::Path};

use serde_json::json;

use super::{Options, Runner, begin, copy, instances, put, tensors};
use crate::{
    backend::TensorSpec,
    error::{Error, Result},
    pipeline::{
        generation::{Bounds, GenerationConfig, GenerationOptions},
        translation::{
            TranslationSettings,
            remote::{OPTIONS, SCORES, TARGETS},
        },
    },
    repository::{Bundle, bundle::TOKENIZER},
    tensor::ElementType,
};

/// What Triton calls.
const MODEL_PROGRAM: &str = include_str!("translation.py");
/// What generates.
const GENERATION_PROGRAM: &str = include_str!("generation.py");
const SETTINGS: &str = "generation.json";
/// Writes the graphs, the program and what the program is told.
pub(super) fn write(
    bundle: &Bundle,
    settings: &TranslationSettings,
    repository: &Path,
    options: &Options,
) -> Result<Vec<String>> {
    let manifest = bundle.manifest();
    check(&manifest.name, settings, options)?;
    let generation = generation(bundle, settings)?;
    bundle.verify(&[])?;
    let version = begin(repository, &manifest.name, &config(&manifest.name, options)?)?;
    for file in &manifest.files {
        let is_of_words = file.name.starts_with(TOKENIZER.trim_end_matches(".json"))
            || Some(&file.name) == settings.target_tokenizer.as_ref();
        if !is_of_words {
            copy(&bundle.path(&file.name), &version.join(&file.name))?;
        }
    }
    put(&version.join("model.py"), MODEL_PROGRAM)?;
    put(&version.join("generation.py"), GENERATION_PROGRAM)?;
    put(&version.join(SETTINGS), &generation)?;
    Ok(vec![manifest.name.clone()])
}

/// Refuses what the program cannot do.
fn check(name: &str, settings: &TranslationSettings, options: &Options) -> Result<()> {
    let expected = if options.runner != Runner::Python || options.tensorrt {
        "the backend `python` and no TensorRT, since its graphs take a program"
    } else if options.text {
        "no `--text`, since its texts go with languages, which Kivu reads"
    } else if settings.shortlist.is_some() {
        "no shortlist, which only Kivu reads; such a model is small enough to run without a fleet"
    } else {
        return Ok(());
    };
    Err(Error::config(format!("expected for `{name}`, which translates, {expected}")))
}

/// What the program is told of the model: the tokens that targets begin and end with, how many there may be, and
/// every option that a request may say otherwise.
fn generation(bundle: &Bundle, settings: &TranslationSettings) -> Result<String> {
    let generation = &settings.generation;
    let bounds = Bounds {
        vocabulary: settings.decoder.vocabulary().unwrap_or(usize::MAX),
        max_length: settings.max_positions + 1,
    };
    let config = GenerationConfig::new(generation, &GenerationOptions::default(), bounds)?;
    if config.samples() || generation.length_factor.is_some() {
        return Err(Error::model(format!(
            "expected `{}` to write the likeliest tokens, up to a fixed number, but found a model that draws them, \
             or whose number follows the text",
            bundle.manifest().name
        )));
    }
    let told = json!({
        "decoder_start_token_id": generation.decoder_start_token_id,
        "eos_token_ids": generation.eos_token_ids,
        "pad_token_id": generation.pad_token_id,
        "longest": bounds.max_length,
        "encoder": bundle.manifest().graph,
        "decoder": settings.decoder.graph,
        "defaults": config.options(),
    });
    Ok(format!("{told:#}\n"))
}

fn config(name: &str, options: &Options) -> Result<String> {
    let mut text =
        format!("name: \"{name}\"\nbackend: \"python\"\nmax_batch_size: {}\n", options.max_batch_size);
    let integers = |name: &str| TensorSpec::new(name, ElementType::Int64, [-1, -1]);
    for input in ["input_ids", "attention_mask"] {
        // Sources of any length are encoded together; the program fills them up.
        let tensor = tensors("input", [&integers(input)])?;
        text += &tensor.replace(" } ]", " allow_ragged_batch: true } ]");
    }
    text += &tensors("output", [&integers(TARGETS), &TensorSpec::new(SCORES, ElementType::Fp32, [-1, 1])])?;
    text += "dynamic_batching { max_queue_delay_microseconds: 500 }\n";
    text += &instances(options, true);
    // The program draws nothing.
    let mut known = GenerationOptions::NAMES.to_vec();
    known.retain(|name| !GenerationOptions::SAMPLING.contains(name));
    let known = known.join(",");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "parameters {{ key: \"{OPTIONS}\" value {{ string_value: \"{known}\" }} }}");
    Ok(text)
}
