//! `kivu triton`: bundles as Triton models.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    choices::choice,
    interrupt::{Ended, interruptible},
    library::resolve::{BuildArguments, require_local, resolve},
    terminal::{print, print_aside},
};
use crate::examples::examples;
use kivu::{
    Error, Result,
    backend::Engine,
    config::{Config, EngineChoice},
    repository::{
        Bundle,
        triton::{Options, Runner, require_new, write},
    },
};
use kivu_compiler::{Scratch, library::model_library};

/// Write a bundle into a Triton model repository
///
/// The repository gets a folder with the bundle's name, its configuration and version 1. Existing files are not
/// overwritten. A model without a bundle is built for ONNX Runtime first.
#[derive(Debug, Args)]
#[command(after_help = examples("triton"))]
pub struct Arguments {
    /// A bundle made by `kivu build`, or a name as in `kivu serve`
    bundle: PathBuf,
    /// The model repository
    #[arg(long, value_name = "REPOSITORY")]
    out: PathBuf,
    /// The Triton backend that runs the graph: onnxruntime, or python with the package onnxruntime
    ///
    /// The default is onnxruntime, and python for text-generating models, which need a program on the server.
    #[arg(long, value_parser = choice::<Runner>())]
    backend: Option<Runner>,
    /// Maximum texts per batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    max_batch_size: u32,
    /// Concurrent model instances
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    instances: u32,
    /// Let TensorRT compile the graph, in half precision
    #[arg(long)]
    tensorrt: bool,
    /// Also write a tokenizer, and an ensemble NAME_text whose inputs are texts
    #[arg(long)]
    text: bool,
    #[command(flatten)]
    pub build: BuildArguments,
}

pub fn run(arguments: Arguments, config: Config) -> Result<ExitCode> {
    interruptible(move || write_models(arguments, &config)).map(Ended::code)
}

fn write_models(arguments: Arguments, config: &Config) -> Result<ExitCode> {
    require_local(&arguments.out)?;
    let engine = arguments.build.engine.unwrap_or(EngineChoice::Onnx);
    let options = model_library::Options {
        engine,
        ..arguments.build.options(config)
    };
    let bundle = Bundle::open(&resolve(&arguments.bundle, &options, config)?)?;
    let manifest = bundle.manifest();
    if manifest.engine == Engine::Native {
        print_aside(&format!(
            "note: the graph of `{}` is for the native engine; built with `--engine onnx`, it is faster on Triton",
            manifest.name
        ));
    }
    let options = Options {
        backend: arguments.backend,
        max_batch_size: arguments.max_batch_size,
        instances: arguments.instances,
        tensorrt: arguments.tensorrt,
        text: arguments.text,
    };
    // Triton may watch the repository: it finds complete models, and none after an error.
    let scratch = Scratch::new_in(&arguments.out)?;
    let names = write(&bundle, scratch.path(), &options)?;
    let places = names.iter().map(|name| arguments.out.join(name));
    let places: Vec<PathBuf> = places.collect();
    places.iter().try_for_each(|place| require_new(place))?;
    for (name, place) in names.iter().zip(&places) {
        fs::rename(scratch.path().join(name), place)
            .map_err(Error::cannot("create", place.display()))?;
        print(&format!("wrote {}", place.display()))?;
    }
    drop(scratch);
    print(&format!(
        "next  tritonserver --model-repository {}\n      KIVU_FLEET__URLS=http://HOST:8000 kivu serve {}",
        arguments.out.display(),
        arguments.bundle.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
