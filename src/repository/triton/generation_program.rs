//! Sequence-to-sequence models on Triton. A program on the server generates whole texts, since a request per
//! token would be too slow.

use std::{fmt::Write, path::Path};

use serde_json::json;

use super::config::{Options, Runner, batching, begin, copy, instances, put, tensors};
use crate::repository::{Bundle, bundle::TOKENIZER};
use kivu_base::{Error, Result, tensor::ElementType};
use kivu_core::{
    backend::TensorSpec,
    pipeline::{
        generation::{Bounds, GenerationConfig, GenerationOptions},
        seq2seq::{
            Seq2SeqSettings,
            remote::{OPTIONS, SCORES, TARGETS},
        },
    },
};

/// The Python program for Triton's `python` backend.
const MODEL_PROGRAM: &str = include_str!("seq2seq.py");
const GENERATION_PROGRAM: &str = include_str!("generation.py");
const SETTINGS: &str = "generation.json";

/// Writes the graphs, the programs and their settings.
pub fn write(
    bundle: &Bundle,
    settings: &Seq2SeqSettings,
    repository: &Path,
    options: &Options,
) -> Result<Vec<String>> {
    let manifest = bundle.manifest();
    check(&manifest.name, settings, options)?;
    let generation = generation(bundle, settings)?;
    bundle.verify()?;
    let version = begin(
        repository,
        &manifest.name,
        &config(&manifest.name, options)?,
    )?;
    for file in &manifest.files {
        let is_tokenizer = file.name.starts_with(TOKENIZER.trim_end_matches(".json"))
            || Some(&file.name) == settings.target_tokenizer.as_ref();
        if !is_tokenizer {
            copy(&bundle.path(&file.name), &version.join(&file.name))?;
        }
    }
    put(&version.join("model.py"), MODEL_PROGRAM)?;
    put(&version.join("generation.py"), GENERATION_PROGRAM)?;
    put(&version.join(SETTINGS), &generation)?;
    Ok(vec![manifest.name.clone()])
}

/// Refuses unsupported models and options.
fn check(name: &str, settings: &Seq2SeqSettings, options: &Options) -> Result<()> {
    if options.backend == Some(Runner::Onnx) || options.tensorrt {
        Err(Error::config(format!(
            "`{name}` generates texts, which needs the backend `python` without TensorRT"
        )))
    } else if options.text {
        Err(Error::config(format!(
            "`--text` is not supported for `{name}`: the program on the server takes token ids"
        )))
    } else if settings.shortlist.is_some() {
        Err(Error::config(format!(
            "`{name}` has a shortlist, which only Kivu supports"
        ))
        .with_hint("such a model is small enough to run without a fleet"))
    } else {
        Ok(())
    }
}

/// Program settings: special tokens, the maximum length, and request option defaults.
fn generation(bundle: &Bundle, settings: &Seq2SeqSettings) -> Result<String> {
    let generation = &settings.generation;
    let bounds = Bounds {
        vocabulary: settings.decoder.vocabulary().unwrap_or(usize::MAX),
        max_length: settings.max_positions + 1,
    };
    let config = GenerationConfig::new(generation, &GenerationOptions::default(), bounds)?;
    if config.samples() || generation.length_factor.is_some() {
        return Err(Error::model(format!(
            "`{}` samples, or its maximum length depends on the text, which the program on the server does not support",
            bundle.manifest().name
        )));
    }
    let settings = json!({
        "decoder_start_token_id": generation.decoder_start_token_id,
        "eos_token_ids": generation.eos_token_ids,
        "pad_token_id": generation.pad_token_id,
        "longest": bounds.max_length,
        "encoder": bundle.manifest().graph,
        "decoder": settings.decoder.graph,
        "defaults": config.options(),
    });
    Ok(format!("{settings:#}\n"))
}

fn config(name: &str, options: &Options) -> Result<String> {
    let mut text = format!(
        "name: \"{name}\"\nbackend: \"python\"\nmax_batch_size: {}\n",
        options.max_batch_size
    );
    let integers = |name: &str| TensorSpec::new(name, ElementType::Int64, [-1, -1]);
    for input in ["input_ids", "attention_mask"] {
        // Sources with different lengths form a batch; the program pads them.
        let tensor = tensors("input", [&integers(input)])?;
        text += &tensor.replace(" } ]", " allow_ragged_batch: true } ]");
    }
    text += &tensors(
        "output",
        [
            &integers(TARGETS),
            &TensorSpec::new(SCORES, ElementType::Fp32, [-1, 1]),
        ],
    )?;
    text += &batching();
    text += &instances(options, "KIND_CPU");
    // The program does not sample.
    let mut known: Vec<String> = GenerationOptions::names().into_iter().collect();
    known.retain(|name| !GenerationOptions::SAMPLING.contains(&name.as_str()));
    let known = known.join(",");
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "parameters {{ key: \"{OPTIONS}\" value {{ string_value: \"{known}\" }} }}"
    );
    Ok(text)
}
