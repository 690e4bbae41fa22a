//! A bundle as a folder of Triton's model repository.

mod translation;

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use super::{Bundle, bundle::TOKENIZER};
use crate::{
    backend::TensorSpec,
    error::{Error, Result},
    tensor::ElementType,
};

/// The program of a model that runs the graph beside it, for servers without a backend for graphs.
const GRAPH_PROGRAM: &str = include_str!("graph.py");
/// The program of a model that makes tokens of texts.
const TOKENIZER_PROGRAM: &str = include_str!("tokenizer.py");
const CONFIG: &str = "config.pbtxt";
/// The only version that is written: bundles are never changed.
const VERSION: &str = "1";
/// What comes after a model's name in that of its tokenizer, and in that of both together.
const TOKENIZER_SUFFIX: &str = "_tokenizer";
const TEXT_SUFFIX: &str = "_text";
/// The lengths that are run before the server says that it is ready, in tokens; none is longer than the model takes.
const WARM_UP: [usize; 2] = [16, 128];
/// How long a request may wait for others to run with.
const MOST_DELAY_US: u32 = 500;

/// How a bundle is to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What runs the graph.
    pub runner: Runner,
    /// The most texts in a batch.
    pub max_batch_size: u32,
    /// Copies of the model that run side by side, on each GPU or on the CPU.
    pub instances: u32,
    /// Whether TensorRT compiles the graph, in half precision.
    pub tensorrt: bool,
    /// Whether the server makes the tokens as well: an ensemble that reads texts.
    pub text: bool,
}

/// The Triton backend that runs a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Runner {
    /// The backend for ONNX
    #[value(name = "onnxruntime")]
    Onnx,
    /// The backend for Python, with the package `onnxruntime`
    Python,
}

/// Writes a bundle into the model repository at `repository`; the names of the models that it became.
///
/// Nothing that is there is overwritten.
pub fn write(bundle: &Bundle, repository: &Path, options: &Options) -> Result<Vec<String>> {
    let manifest = bundle.manifest();
    if let Some(settings) = &manifest.translation {
        return translation::write(bundle, settings, repository, options);
    }
    if options.tensorrt && options.runner == Runner::Python {
        return Err(Error::config("expected TensorRT with the backend `onnxruntime`, but found `python`"));
    }
    bundle.verify(&[])?;
    let name = manifest.name.clone();
    let mut names = vec![name.clone()];
    let version = begin(repository, &name, &graph_config(bundle, options)?)?;
    for file in manifest.files.iter().filter(|file| is_of_graph(&file.name)) {
        copy(&bundle.path(&file.name), &version.join(&file.name))?;
    }
    if options.runner == Runner::Python {
        put(&version.join("model.py"), GRAPH_PROGRAM)?;
    }
    if options.text {
        let tokenizer = format!("{name}{TOKENIZER_SUFFIX}");
        let version = begin(repository, &tokenizer, &tokenizer_config(bundle, &tokenizer, options)?)?;
        put(&version.join("model.py"), TOKENIZER_PROGRAM)?;
        copy(&bundle.path(TOKENIZER), &version.join(TOKENIZER))?;
        let ensemble = format!("{name}{TEXT_SUFFIX}");
        begin(repository, &ensemble, &ensemble_config(bundle, [&ensemble, &tokenizer, &name], options)?)?;
        names.extend([tokenizer, ensemble]);
    }
    Ok(names)
}

/// Whether a file belongs to the graph: all but what makes tokens.
fn is_of_graph(name: &str) -> bool {
    !name.starts_with("tokenizer")
}

/// Makes the folder of a model and its version, with its configuration.
fn begin(repository: &Path, name: &str, config: &str) -> Result<PathBuf> {
    let folder = repository.join(name);
    if folder.exists() {
        return Err(Error::config(format!(
            "expected no `{}` yet, but found it; remove it, or choose another folder",
            folder.display()
        )));
    }
    let version = folder.join(VERSION);
    fs::create_dir_all(&version).map_err(Error::io(format!("cannot make `{}`", version.display())))?;
    put(&folder.join(CONFIG), config)?;
    Ok(version)
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::io(format!("cannot write `{}`", path.display())))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(|_| ()).map_err(Error::io(format!("cannot write `{}`", to.display())))
}

/// A list of tensors as the configuration has them. The first axis, that of texts, is not written.
fn tensors<'a>(list: &str, specs: impl IntoIterator<Item = &'a TensorSpec>) -> Result<String> {
    let mut text = String::new();
    for spec in specs {
        let (-1, dims) = spec.shape.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest)) else {
            return Err(Error::model(format!(
                "expected `{}` with a free axis for texts, but found shape {:?}",
                spec.name, spec.shape
            )));
        };
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "{list} [ {{ name: \"{}\" data_type: {} dims: {dims:?} }} ]",
            spec.name,
            type_name(spec.element_type)
        );
    }
    Ok(text)
}

fn type_name(element_type: ElementType) -> String {
    match element_type {
        ElementType::Bytes => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}

fn instances(options: &Options, is_on_cpu: bool) -> String {
    let kind = if is_on_cpu { "KIND_CPU" } else { "KIND_AUTO" };
    format!("instance_group [ {{ count: {} kind: {kind} }} ]\n", options.instances)
}

fn graph_config(bundle: &Bundle, options: &Options) -> Result<String> {
    let manifest = bundle.manifest();
    let backend = match options.runner {
        Runner::Onnx => "backend: \"onnxruntime\"\ndefault_model_filename: \"model.onnx\"",
        Runner::Python => "backend: \"python\"",
    };
    let mut text =
        format!("name: \"{}\"\n{backend}\nmax_batch_size: {}\n", manifest.name, options.max_batch_size);
    text += &tensors("input", &manifest.signature.inputs)?;
    text += &tensors("output", &manifest.signature.outputs)?;
    let _ = writeln!(text, "dynamic_batching {{ max_queue_delay_microseconds: {MOST_DELAY_US} }}");
    text += &instances(options, options.runner == Runner::Python);
    if options.tensorrt {
        text += "optimization { execution_accelerators { gpu_execution_accelerator [ { name: \"tensorrt\" \
                 parameters { key: \"precision_mode\" value: \"FP16\" } } ] } }\n";
    }
    let mut lengths = WARM_UP.map(|tokens| tokens.min(most_tokens(bundle))).to_vec();
    lengths.dedup();
    for tokens in lengths {
        let _ = write!(text, "model_warmup [ {{ name: \"{tokens} tokens\" batch_size: 1 ");
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

/// The most tokens of a text.
fn most_tokens(bundle: &Bundle) -> usize {
    let manifest = bundle.manifest();
    let embedding = manifest.embedding.as_ref().map(|settings| settings.max_tokens);
    let classification = manifest.classification.as_ref().map(|settings| settings.max_tokens);
    embedding.or(classification).unwrap_or(usize::MAX)
}

/// What the ensemble and its tokenizer read.
fn text_spec() -> TensorSpec {
    TensorSpec::new("TEXT", ElementType::Bytes, [-1, 1])
}

fn tokenizer_config(bundle: &Bundle, name: &str, options: &Options) -> Result<String> {
    let manifest = bundle.manifest();
    let mut text =
        format!("name: \"{name}\"\nbackend: \"python\"\nmax_batch_size: {}\n", options.max_batch_size);
    text += &tensors("input", [&text_spec()])?;
    text += &tensors("output", &manifest.signature.inputs)?;
    text += &instances(options, true);
    for (key, value) in
        [("max_tokens", most_tokens(bundle)), ("padding_id", bundle.tokenizer()?.padding_id() as usize)]
    {
        let _ = writeln!(text, "parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}");
    }
    Ok(text)
}

fn ensemble_config(
    bundle: &Bundle,
    [name, tokenizer, graph]: [&str; 3],
    options: &Options,
) -> Result<String> {
    let signature = &bundle.manifest().signature;
    let mut text =
        format!("name: \"{name}\"\nplatform: \"ensemble\"\nmax_batch_size: {}\n", options.max_batch_size);
    text += &tensors("input", [&text_spec()])?;
    text += &tensors("output", &signature.outputs)?;
    let map = |list: &str, specs: &[TensorSpec]| {
        let entries =
            specs.iter().map(|spec| format!("{list} {{ key: \"{0}\" value: \"{0}\" }} ", spec.name));
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
