//! Models by name, with progress and notes on standard error.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::{
    choices::choice,
    quality,
    terminal::{Progress, print_aside},
};
use kivu::{
    Error, Result,
    cloud::Cloud,
    config::{Config, EngineChoice, InstructionSet, parse_instructions},
    error::quoted,
    model::Model,
    onnx::Runtime,
    repository::{manifest::Precision, s3::Url},
};
use kivu_compiler::{
    RequestedTask,
    library::{
        model_library::{ModelLibrary, NamedModel, Options, Outcome, Tools, size},
        onnx_runtime, resolve,
    },
};

/// Options for models that a command builds.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Options for models that are built")]
pub struct BuildArguments {
    /// The task, or `sparse-encoder` for sparse vectors [default: as in the model's files]
    #[arg(long)]
    pub task: Option<RequestedTask>,
    /// The weights' number format [default: as in an earlier build or in the recipe, or int8; int8-blocks if an
    /// encoder's int8 quality is below the floor]
    #[arg(long, value_parser = choice::<Precision>())]
    pub precision: Option<Precision>,
    /// The engine for local encoders [default: as in kivu.toml, or auto]
    #[arg(long, value_parser = choice::<EngineChoice>())]
    pub engine: Option<EngineChoice>,
    /// The native engine's instructions: amx-int8, avx512-vnni, avx-vnni, avx2, neon-i8mm, neon-dotprod or portable
    /// [default: as in kivu.toml, or the fastest that this processor has]
    #[arg(long, value_name = "SET", value_parser = parse_instructions)]
    pub instructions: Option<InstructionSet>,
    /// Build the model as if its files did not have this key, although it may change results; repeatable
    #[arg(long, value_name = "KEY")]
    pub allow: Vec<String>,
}

impl BuildArguments {
    /// With the configured engine, unless the command has one.
    pub fn options(self, config: &Config) -> Options {
        let Self {
            task,
            precision,
            engine,
            allow,
            ..
        } = self;
        Options {
            task: task.map(|requested| requested.task),
            is_sparse: task.is_some_and(|requested| requested.is_sparse),
            precision,
            engine: engine.unwrap_or(config.engine),
            allow,
        }
    }
}

/// Loads ONNX Runtime, which is installed first if this machine lacks it.
pub fn load_runtime(config: &Config) -> Result<Runtime> {
    let progress = Progress::default();
    let runtime = onnx_runtime::load(config, print_aside, &progress);
    progress.clear();
    runtime
}

/// Refuses a URL for files that are written on this machine.
pub fn require_local(out: &Path) -> Result<()> {
    match Url::of_location(out)? {
        None => Ok(()),
        Some(url) => Err(Error::config(format!("`{url}` is not a local path"))
            .with_hint("`kivu push` uploads bundles")),
    }
}

/// Finds a bundle by name, or builds it.
pub fn resolve(named: &Path, options: &Options, config: &Config) -> Result<PathBuf> {
    with_tools(config, |tools| resolve::resolve(named, options, tools))
}

/// Finds a model's bundle that complies with the options, or builds it for comparisons only: commands that name the model
/// do not use it.
pub fn for_comparison(model: &NamedModel, options: &Options, config: &Config) -> Result<PathBuf> {
    match ModelLibrary::new(config).find(model, options)? {
        Some(path) => Ok(path),
        None => with_tools(config, |tools| {
            ModelLibrary::for_comparison(config).build(model, options, tools)
        }),
    }
}

/// Runs `find`, which may build a bundle, and notes what it built.
fn with_tools(
    config: &Config,
    find: impl FnOnce(&Tools<'_>) -> Result<Outcome>,
) -> Result<PathBuf> {
    let progress = Progress::default();
    let runtime = || load_runtime(config);
    let outcome = find(&Tools {
        config,
        runtime: &runtime,
        progress: &progress,
    });
    progress.clear();
    let outcome = outcome?;
    if let Outcome::Built(_, built) = &outcome {
        let manifest = built.bundle.manifest();
        print_aside(&format!(
            "built `{}` ({}, {}, {:.1} MB); {}",
            manifest.name,
            manifest.task,
            manifest.weights.precision,
            size(manifest) as f64 / 1e6,
            quality::text(manifest.weights.quality)
        ));
        if !built.other_tasks.is_empty() {
            let others: Vec<String> = built
                .other_tasks
                .iter()
                .map(|task| format!("--task {task}"))
                .collect();
            print_aside(&format!(
                "note: `{}` can also be served with {}",
                manifest.name,
                quoted(&others)
            ));
        }
    }
    Ok(outcome.into_path())
}

/// Replaces the configuration's names by bundles, and builds the missing ones.
pub fn resolve_all(config: &mut Config, options: &Options) -> Result<()> {
    for index in 0..config.models.len() {
        config.models[index].path = resolve(&config.models[index].path, options, config)?;
    }
    Ok(())
}

/// Resolves a model name in the configuration, a bundle's path, or a name as in `kivu serve NAME`, and opens the model for
/// the options' engine.
pub fn open(
    name: Option<&str>,
    options: &Options,
    config: &mut Config,
    cloud: &Cloud,
) -> Result<Model> {
    config.engine = options.engine;
    resolve::open(name, config, cloud, |named, config| {
        resolve(named, options, config)
    })
}
