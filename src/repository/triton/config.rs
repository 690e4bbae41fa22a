//! A model's files in a model repository.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::Deserialize;

use kivu_base::{Error, Result, regular_file, tensor::ElementType};
use kivu_core::backend::TensorSpec;

const CONFIG: &str = "config.pbtxt";
/// The only version, since bundles do not change.
const VERSION: &str = "1";
/// The time that a request may wait for others in its batch, in microseconds.
const MAX_QUEUE_DELAY_US: u32 = 500;

/// How a model is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Runs the graph. The default is [`Runner::Onnx`], or [`Runner::Python`] for models that generate texts.
    pub backend: Option<Runner>,
    /// Maximum texts per batch.
    pub max_batch_size: u32,
    /// Concurrent model instances.
    pub instances: u32,
    /// Whether TensorRT compiles the graph, in half precision.
    pub tensorrt: bool,
    /// Whether a tokenizer is written, too, and an ensemble `NAME_text` whose inputs are texts.
    pub text: bool,
}

/// The Triton backend that runs a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Runner {
    /// The backend for ONNX.
    #[serde(rename = "onnxruntime")]
    Onnx,
    /// The backend for Python, with the package `onnxruntime`.
    Python,
}

/// Refuses a model's folder that exists.
///
/// # Errors
/// It exists.
pub fn require_new(folder: &Path) -> Result<()> {
    match folder.exists() {
        true => Err(
            Error::config(format!("`{}` exists already", folder.display()))
                .with_hint("remove it, or choose another folder"),
        ),
        false => Ok(()),
    }
}

/// Creates a model's folder with its configuration, and returns its version folder.
pub fn begin(repository: &Path, name: &str, config: &str) -> Result<PathBuf> {
    let folder = repository.join(name);
    require_new(&folder)?;
    let version = folder.join(VERSION);
    fs::create_dir_all(&version).map_err(Error::cannot("create", version.display()))?;
    put(&folder.join(CONFIG), config)?;
    Ok(version)
}

pub fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::cannot("write", path.display()))
}

pub fn copy(from: &Path, to: &Path) -> Result<()> {
    regular_file::copy(from, to).map_err(Error::cannot("write", to.display()))
}

/// Tensors in the configuration's format, which omits the first axis, the batch.
pub fn tensors<'a>(list: &str, specs: impl IntoIterator<Item = &'a TensorSpec>) -> Result<String> {
    let mut text = String::new();
    for spec in specs {
        let (-1, dims) = spec
            .shape
            .split_first()
            .map_or((0, &[][..]), |(first, rest)| (*first, rest))
        else {
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

pub fn type_name(element_type: ElementType) -> String {
    match element_type {
        ElementType::Bytes => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}

pub fn instances(options: &Options, kind: &str) -> String {
    format!(
        "instance_group [ {{ count: {} kind: {kind} }} ]\n",
        options.instances
    )
}

pub fn batching() -> String {
    format!("dynamic_batching {{ max_queue_delay_microseconds: {MAX_QUEUE_DELAY_US} }}\n")
}
