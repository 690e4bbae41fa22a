//! The request for a build.

use std::path::PathBuf;

use crate::{config::EngineChoice, pipeline::Task, repository::manifest::Precision};

/// The source of a build, its target, and settings that override the source's.
#[derive(Clone, Debug)]
pub struct Request {
    /// A recipe, a Hugging Face folder or an ONNX export.
    pub source: PathBuf,
    /// The bundle's folder. An existing bundle is replaced when the new one is complete.
    pub out: PathBuf,
    /// The model's name; that of the recipe or the folder if none.
    pub name: Option<String>,
    /// The model's task; that of the recipe or the most likely one if none.
    pub task: Option<Task>,
    /// The precision of the weights; the recipe's or int8 if none.
    pub precision: Option<Precision>,
    /// The engine that an encoder in int8 is built for.
    pub engine: EngineChoice,
    /// The folder of downloaded packages.
    pub cache: PathBuf,
}
