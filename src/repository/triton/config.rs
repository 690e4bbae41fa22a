//! The files of a model in a model repository.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    backend::TensorSpec,
    error::{Error, Result},
    tensor::ElementType,
};

const CONFIG: &str = "config.pbtxt";
/// The only version, since bundles do not change.
const VERSION: &str = "1";
/// The time that a request may wait for others in its batch, in microseconds.
const MAX_QUEUE_DELAY_US: u32 = 500;

/// The configuration of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The backend of Triton that runs the graph.
    pub runner: Runner,
    /// The maximum number of texts in a batch.
    pub max_batch_size: u32,
    /// Instances of the model, on each GPU or on the CPU.
    pub instances: u32,
    /// Whether TensorRT compiles the graph, with half precision.
    pub tensorrt: bool,
    /// Whether the server tokenizes too, in an ensemble with texts as input.
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

/// Creates the folder of a model with its configuration, and returns the folder of its version.
pub(super) fn begin(repository: &Path, name: &str, config: &str) -> Result<PathBuf> {
    let folder = repository.join(name);
    if folder.exists() {
        return Err(Error::config(format!(
            "expected no `{}`, but found it; remove it, or choose another folder",
            folder.display()
        )));
    }
    let version = folder.join(VERSION);
    fs::create_dir_all(&version).map_err(Error::io(format!("cannot create `{}`", version.display())))?;
    put(&folder.join(CONFIG), config)?;
    Ok(version)
}

pub(super) fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::io(format!("cannot write `{}`", path.display())))
}

pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(|_| ()).map_err(Error::io(format!("cannot write `{}`", to.display())))
}

/// Tensors in the format of the configuration, which omits the first axis, that of the batch.
pub(super) fn tensors<'a>(list: &str, specs: impl IntoIterator<Item = &'a TensorSpec>) -> Result<String> {
    let mut text = String::new();
    for spec in specs {
        let (-1, dims) = spec.shape.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest)) else {
            return Err(Error::model(format!(
                "expected `{}` with a free axis for texts, but found shape {:?}",
                spec.name, spec.shape
            )));
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{list} [ {{ name: \"{}\" data_type: {} dims: {dims:?} }} ]",
            spec.name,
            type_name(spec.element_type)
        );
    }
    Ok(text)
}

pub(super) fn type_name(element_type: ElementType) -> String {
    match element_type {
        ElementType::Bytes => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}

pub(super) fn instances(options: &Options, is_on_cpu: bool) -> String {
    let kind = if is_on_cpu { "KIND_CPU" } else { "KIND_AUTO" };
    format!("instance_group [ {{ count: {} kind: {kind} }} ]\n", options.instances)
}

/// The batching of requests.
pub(super) fn batching() -> String {
    format!("dynamic_batching {{ max_queue_delay_microseconds: {MAX_QUEUE_DELAY_US} }}\n")
}
