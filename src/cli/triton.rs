//! `kivu triton`: bundles as models of Triton.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::terminal::print;
use crate::{
    error::Result,
    pipeline::Task,
    repository::{
        Bundle,
        triton::{Options, Runner, write},
    },
};

/// Write a bundle into a model repository of Triton
///
/// The repository gets a folder with the bundle's name, its configuration and version 1. Existing files are not
/// overwritten.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A bundle
    bundle: PathBuf,
    /// The model repository
    #[arg(long, value_name = "REPOSITORY")]
    out: PathBuf,
    /// The Triton backend that runs the graph: onnxruntime, or python with the package onnxruntime
    ///
    /// The default is onnxruntime, and python for translation, which needs a program on the server.
    #[arg(long, value_enum)]
    backend: Option<Runner>,
    /// The maximum number of texts in a batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    max_batch_size: u32,
    /// Copies of the model that run concurrently
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    instances: u32,
    /// Let TensorRT compile the graph, in half precision
    #[arg(long)]
    tensorrt: bool,
    /// Also write a tokenizer, and an ensemble NAME_text whose inputs are texts
    #[arg(long)]
    text: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let bundle = Bundle::open(&arguments.bundle)?;
    let options = Options {
        runner: arguments.backend.unwrap_or(match bundle.manifest().task {
            Task::Translation => Runner::Python,
            _ => Runner::Onnx,
        }),
        max_batch_size: arguments.max_batch_size,
        instances: arguments.instances,
        tensorrt: arguments.tensorrt,
        text: arguments.text,
    };
    for name in write(&bundle, &arguments.out, &options)? {
        print(&format!("wrote {}", arguments.out.join(name).display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
