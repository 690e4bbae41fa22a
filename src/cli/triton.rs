//! `kivu triton`: a bundle as a model of Triton's.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};

use super::say;
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
/// The repository gets a folder with the bundle's name, its configuration and version 1. What is there already is
/// not overwritten.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A bundle
    bundle: PathBuf,
    /// The model repository
    #[arg(long, value_name = "REPOSITORY")]
    out: PathBuf,
    /// What runs the graph: Triton's backend for ONNX, or its backend for Python with the package onnxruntime
    ///
    /// By default onnxruntime, and python for a model that translates, which takes a program there.
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// The most texts in a batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    max_batch_size: u32,
    /// Copies of the model that run side by side
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    instances: u32,
    /// Let TensorRT compile the graph, in half precision
    #[arg(long)]
    tensorrt: bool,
    /// Write a tokenizer too, and an ensemble NAME_text that reads texts
    #[arg(long)]
    text: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Backend {
    Onnxruntime,
    Python,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let bundle = Bundle::open(&arguments.bundle)?;
    let options = Options {
        runner: match arguments.backend {
            Some(Backend::Onnxruntime) => Runner::Onnx,
            Some(Backend::Python) => Runner::Python,
            None if bundle.manifest().task == Task::Translation => Runner::Python,
            None => Runner::Onnx,
        },
        max_batch_size: arguments.max_batch_size,
        instances: arguments.instances,
        tensorrt: arguments.tensorrt,
        text: arguments.text,
    };
    for name in write(&bundle, &arguments.out, &options)? {
        say(&format!("wrote {}", arguments.out.join(name).display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
