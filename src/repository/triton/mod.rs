//! Exports bundles to Triton's model repository.

mod config;
mod generation_program;

use std::{fmt::Write, path::Path};

pub use self::config::{Options, Runner, require_new};
use self::config::{batching, begin, copy, instances, put, tensors, type_name};
use super::{Bundle, TaskSettings, bundle::TOKENIZER};
use kivu_base::{Error, Result, tensor::ElementType};
use kivu_core::backend::TensorSpec;

/// Runs a graph in the backend `python`.
const GRAPH_PROGRAM: &str = include_str!("graph.py");
/// Tokenizes texts in the backend `python`.
const TOKENIZER_PROGRAM: &str = include_str!("tokenizer.py");
/// Name suffixes for tokenizers and ensembles.
const TOKENIZER_SUFFIX: &str = "_tokenizer";
const TEXT_SUFFIX: &str = "_text";
/// Input lengths that run before the server is ready, in tokens, limited to the model's maximum.
const WARM_UP: [usize; 2] = [16, 128];

/// Writes a bundle into the model repository at `repository`, and returns its model names. Existing
/// models are not overwritten.
pub fn write(bundle: &Bundle, repository: &Path, options: &Options) -> Result<Vec<String>> {
    let manifest = bundle.manifest();
    if let Some(settings) = manifest.settings.seq2seq() {
        return generation_program::write(bundle, settings, repository, options);
    }
    let is_python = options.backend == Some(Runner::Python);
    if options.tensorrt && is_python {
        return Err(Error::config(
            "expected TensorRT with the backend `onnxruntime`, but found `python`",
        ));
    }
    if options.text
        && matches!(&manifest.settings, TaskSettings::Classification(own) if own.template.is_some())
    {
        return Err(Error::config(format!(
            "`--text` is not supported for `{}`: its tokenizer on the server has no template for pairs",
            manifest.name
        ))
        .with_hint("leave the option out, and let Kivu send token ids"));
    }
    let has_places = matches!(
        manifest.settings,
        TaskSettings::TokenClassification(_)
            | TaskSettings::Listwise(_)
            | TaskSettings::LabelScores(_)
            | TaskSettings::ZeroShotEntities(_)
    );
    if options.text && has_places {
        return Err(Error::config(format!(
            "`--text` is not supported for `{}`: Kivu needs the places of tokens in texts",
            manifest.name
        ))
        .with_hint("leave the option out, and let Kivu send token ids"));
    }
    bundle.verify()?;
    let name = manifest.name.clone();
    let mut names = vec![name.clone()];
    let version = begin(repository, &name, &graph_config(bundle, options)?)?;
    for file in manifest.files.iter().filter(|file| is_of_graph(&file.name)) {
        copy(&bundle.path(&file.name), &version.join(&file.name))?;
    }
    if is_python {
        put(&version.join("model.py"), GRAPH_PROGRAM)?;
    }
    if options.text {
        let tokenizer = format!("{name}{TOKENIZER_SUFFIX}");
        let version = begin(
            repository,
            &tokenizer,
            &tokenizer_config(bundle, &tokenizer, options)?,
        )?;
        put(&version.join("model.py"), TOKENIZER_PROGRAM)?;
        copy(&bundle.path(TOKENIZER), &version.join(TOKENIZER))?;
        let ensemble = format!("{name}{TEXT_SUFFIX}");
        begin(
            repository,
            &ensemble,
            &ensemble_config(bundle, [&ensemble, &tokenizer, &name], options)?,
        )?;
        names.extend([tokenizer, ensemble]);
    }
    Ok(names)
}

/// Whether a file belongs to the graph, not to the tokenizer.
fn is_of_graph(name: &str) -> bool {
    !name.starts_with("tokenizer")
}

fn graph_config(bundle: &Bundle, options: &Options) -> Result<String> {
    let manifest = bundle.manifest();
    let is_python = options.backend == Some(Runner::Python);
    let backend = match is_python {
        true => "backend: \"python\"",
        false => "backend: \"onnxruntime\"\ndefault_model_filename: \"model.onnx\"",
    };
    let mut text = format!(
        "name: \"{}\"\n{backend}\nmax_batch_size: {}\n",
        manifest.name, options.max_batch_size
    );
    text += &tensors("input", &manifest.signature.inputs)?;
    text += &tensors("output", &manifest.signature.outputs)?;
    text += &batching();
    text += &instances(options, if is_python { "KIND_CPU" } else { "KIND_AUTO" });
    if options.tensorrt {
        text += "optimization { execution_accelerators { gpu_execution_accelerator [ { name: \"tensorrt\" \
                 parameters { key: \"precision_mode\" value: \"FP16\" } } ] } }\n";
    }
    let mut lengths = WARM_UP
        .map(|tokens| tokens.min(max_tokens(bundle)))
        .to_vec();
    lengths.dedup();
    // Zeros have no words and no labels.
    if matches!(
        manifest.settings,
        TaskSettings::ZeroShotEntities(_) | TaskSettings::LabelScores(_)
    ) {
        lengths.clear();
    }
    for tokens in lengths {
        let _ = write!(
            text,
            "model_warmup [ {{ name: \"{tokens} tokens\" batch_size: 1 "
        );
        for input in &manifest.signature.inputs {
            let _ = write!(
                text,
                "inputs {{ key: \"{}\" value: {{ data_type: {} dims: [{tokens}] zero_data: true }} }} ",
                input.name,
                type_name(input.element_type)
            );
        }
        text += "} ]\n";
    }
    Ok(text)
}

/// Maximum tokens per text.
fn max_tokens(bundle: &Bundle) -> usize {
    bundle.manifest().settings.max_tokens()
}

/// Input for the ensemble and its tokenizer.
fn text_spec() -> TensorSpec {
    TensorSpec::new("TEXT", ElementType::Bytes, [-1, 1])
}

fn tokenizer_config(bundle: &Bundle, name: &str, options: &Options) -> Result<String> {
    let manifest = bundle.manifest();
    let mut text = format!(
        "name: \"{name}\"\nbackend: \"python\"\nmax_batch_size: {}\n",
        options.max_batch_size
    );
    text += &tensors("input", [&text_spec()])?;
    text += &tensors("output", &manifest.signature.inputs)?;
    text += &instances(options, "KIND_CPU");
    for (key, value) in [
        ("max_tokens", max_tokens(bundle)),
        ("padding_id", bundle.tokenizer()?.padding_id() as usize),
    ] {
        let _ = writeln!(
            text,
            "parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}"
        );
    }
    Ok(text)
}

fn ensemble_config(
    bundle: &Bundle,
    [name, tokenizer, graph]: [&str; 3],
    options: &Options,
) -> Result<String> {
    let signature = &bundle.manifest().signature;
    let mut text = format!(
        "name: \"{name}\"\nplatform: \"ensemble\"\nmax_batch_size: {}\n",
        options.max_batch_size
    );
    text += &tensors("input", [&text_spec()])?;
    text += &tensors("output", &signature.outputs)?;
    let map = |list: &str, specs: &[TensorSpec]| {
        let entries = specs
            .iter()
            .map(|spec| format!("{list} {{ key: \"{0}\" value: \"{0}\" }} ", spec.name));
        entries.collect::<String>()
    };
    let step = |model: &str, inputs: &[TensorSpec], outputs: &[TensorSpec]| {
        let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
        format!("  step [ {{ model_name: \"{model}\" model_version: -1 {inputs}{outputs}}} ]\n")
    };
    let _ = write!(
        text,
        "ensemble_scheduling {{\n{}{}}}\n",
        step(tokenizer, &[text_spec()], &signature.inputs),
        step(graph, &signature.inputs, &signature.outputs)
    );
    Ok(text)
}
