//! `kivu build`: weights to bundles.

mod report;

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use self::report::Report;
use super::resolve::{BuildArguments, load_runtime, require_local};
use crate::{
    examples::examples,
    interrupt::{Ended, interruptible},
    terminal::{Format, Progress},
};
use kivu::{
    Error, Result,
    config::Config,
    repository::{Bundle, manifest::check_name},
};
use kivu_compiler::{
    Request, build,
    library::{
        model_library::{ModelLibrary, NamedModel, Options, Outcome, Tools, build_into},
        resolve,
    },
    plan::path_id::path_id,
    quality::{ColumnNames, Samples},
};
use kivu_jobs::Parquet;

/// Build a bundle from weights: quantized, compared with fp32, ready to serve
///
/// SOURCE is a recipe (models/NAME.toml, or the NAME of a built-in recipe), a Hugging Face Hub repository (ORG/NAME, or
/// ORG/NAME@REVISION), a Hugging Face folder (config.json, model.safetensors, tokenizer.json or SentencePiece models),
/// an ONNX export from `optimum-cli export onnx`, or a Bergamot student's folder (model.….bin, lex.….bin,
/// tokenizer.json).
#[derive(Debug, Args)]
#[command(after_help = examples("build"))]
pub struct Arguments {
    /// A recipe, a hub repository, a Hugging Face folder, an ONNX export or a Bergamot folder
    source: PathBuf,
    /// The bundle's folder; an existing bundle is replaced, other files are an error [default: bundles/NAME in `home`,
    /// which `kivu serve NAME` serves; for a hub repository or a built-in recipe, the bundle that `kivu serve SOURCE`
    /// serves]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The model name in requests [default: the recipe's, or the last part of `--out`, or the source's]
    #[arg(long)]
    name: Option<String>,
    /// File with texts for the quality gate and the ranges of int8 vectors, at least 20: see `kivu quality --help`
    /// [default: Kivu's 300]
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// File with pairs that the bundle and fp32 are measured on: see `kivu quality --help`
    #[arg(long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    pub build: BuildArguments,
}

pub fn run(arguments: Arguments, config: Config, parquet: Parquet) -> Result<ExitCode> {
    interruptible(move || run_build(arguments, &config, parquet)).map(Ended::code)
}

fn run_build(arguments: Arguments, config: &Config, parquet: Parquet) -> Result<ExitCode> {
    // Before a folder is made of it.
    arguments.name.as_deref().map_or(Ok(()), check_name)?;
    arguments.out.as_deref().map_or(Ok(()), require_local)?;
    if !arguments.source.exists()
        && let Some(model) = resolve::model(&arguments.source)?
    {
        return build_named(&model, arguments, config, parquet);
    }
    let source = &arguments.source;
    fs::metadata(source).map_err(|error| match error.kind() {
        ErrorKind::NotFound => resolve::unknown("a folder with a model", source)
            .with_hint("check the path or the name"),
        _ => Error::cannot("read", source.display())(error),
    })?;
    let name = match &arguments.out {
        Some(out) if source.is_dir() => name_of(out, arguments.name)?,
        _ => arguments.name,
    };
    let default = match arguments.out {
        Some(_) => None,
        None => Some(PathBuf::from(default_name(source, name.as_deref())?)),
    };
    let out = arguments
        .out
        .or_else(|| default.as_ref().map(|name| config.bundles().join(name)));
    let out = out.unwrap_or_default();
    // A bundle under its default name is found by `kivu serve SOURCE` until the source changes, so its id is
    // recorded.
    let is_own_name = |name: &str| default_name(source, None).is_ok_and(|default| default == name);
    let is_default = default.is_some() && name.as_deref().is_none_or(is_own_name);
    if is_default && name.is_none() {
        require_own(source, &out, config)?;
    }
    let (texts, pairs) = (arguments.texts.as_deref(), arguments.pairs.as_deref());
    let samples = Samples::open(texts, pairs, &ColumnNames::default(), parquet)?;
    let id = if is_default {
        path_id(source).ok()
    } else {
        None
    };
    let Options {
        task,
        is_sparse,
        precision,
        engine,
        allow,
    } = arguments.build.options(config);
    let request = Request {
        source: source.clone(),
        out: out.clone(),
        name,
        task,
        is_sparse,
        precision,
        engine,
        allow,
        samples,
        is_for_comparison: false,
        cache: config.home.clone(),
    };
    let built = build(&request, &|| load_runtime(config), &Progress::default())?;
    if let Some(id) = &id {
        ModelLibrary::new(config).add_elsewhere(source, id, &built.bundle, &out)?;
    }
    let default = default.as_deref();
    let served = default.and_then(|name| serving(name, &out, config));
    let report = Report::new(&built, &out, config).served_as(served);
    arguments.format.print(&report, Report::lines)
}

/// Refuses to replace the bundle of another folder that happens to have the same name.
fn require_own(source: &Path, out: &Path, config: &Config) -> Result<()> {
    let Some(other) = ModelLibrary::new(config).source_of(out) else {
        return Ok(());
    };
    if source.canonicalize().is_ok_and(|source| source == other) {
        return Ok(());
    }
    let name = out.file_name().unwrap_or_default().display();
    Err(Error::config(format!(
        "expected a new name for the model in `{}`, but found a bundle of `{}` in `{}`",
        source.display(),
        other.display(),
        out.display()
    ))
    .with_hint(format!(
        "name this one with `--name NAME`, or replace that one with `--name {name}`"
    )))
}

/// `name`, if `kivu serve NAME` and other commands use the bundle at `path`.
fn serving<'a>(name: &'a Path, path: &Path, config: &Config) -> Option<&'a Path> {
    let found = resolve::find(name, &Options::of(config), config)
        .ok()
        .flatten()?;
    let is_same = matches!((found.canonicalize(), path.canonicalize()), (Ok(left), Ok(right)) if left == right);
    is_same.then_some(name)
}

/// Builds a built-in recipe or a hub repository at its newest commit. Without `--out` and `--name`, `kivu serve` finds
/// the bundle by the same name.
fn build_named(
    model: &NamedModel,
    arguments: Arguments,
    config: &Config,
    parquet: Parquet,
) -> Result<ExitCode> {
    let progress = Progress::default();
    let Arguments {
        source,
        out,
        name,
        texts,
        pairs,
        format,
        build,
    } = arguments;
    let samples = Samples::open(
        texts.as_deref(),
        pairs.as_deref(),
        &ColumnNames::default(),
        parquet,
    )?;
    let tools = Tools {
        config,
        runtime: &|| load_runtime(config),
        progress: &progress,
    };
    let options = build.options(config);
    let name = match (&out, model) {
        (Some(out), NamedModel::Repository(_)) => name_of(out, name)?,
        _ => name,
    };
    if out.is_some() || name.is_some() {
        let default = || default_name(&source, name.as_deref());
        let out = out.map_or_else(|| default().map(|name| config.bundles().join(name)), Ok)?;
        let built = build_into(out.clone(), name, model, samples, &options, &tools)?;
        return format.print(&Report::new(&built, &out, config), Report::lines);
    }
    if texts.is_some() || pairs.is_some() {
        return Err(Error::config(
            "`--texts` and `--pairs` need `--out DIR` or `--name NAME`, since the bundle may exist already",
        )
        .with_hint("set one, or measure the bundle with `kivu quality`"));
    }
    match ModelLibrary::new(config).build_newest(model, &options, &tools)? {
        Outcome::Built(path, built) => {
            let report = Report::new(&built, &path, config);
            let report = report.served_as(serving(&source, &path, config));
            format.print(&report, Report::lines)
        }
        Outcome::Known(path) => {
            let served = serving(&source, &path, config);
            let bundle = Bundle::open(&path)?;
            let report = Report::known(&bundle, &path).served_as(served);
            let named = served.unwrap_or(&path).display();
            let known = format!("known  {} in {}", source.display(), path.display());
            format.print(&report, |_| {
                vec![known, format!("next   kivu serve {named}")]
            })
        }
    }
}

/// The model's name: as it was given, or the last part of the bundle's folder.
fn name_of(out: &Path, name: Option<String>) -> Result<Option<String>> {
    let last = out.file_name().filter(|_| name.is_none());
    let Some(last) = last.map(|last| last.to_string_lossy().into_owned()) else {
        return Ok(name);
    };
    check_name(&last).map_err(|error| error.with_hint("set `--name`"))?;
    Ok(Some(last))
}

/// The bundle's folder name without `--out`: the model's name, or the source's.
fn default_name(source: &Path, name: Option<&str>) -> Result<OsString> {
    if let Some(name) = name {
        return Ok(name.into());
    }
    let source = source
        .canonicalize()
        .map_err(Error::cannot("read", source.display()))?;
    let name = if source.is_dir() {
        source.file_name()
    } else {
        source.file_stem()
    };
    name.map(OsStr::to_owned).ok_or_else(|| {
        let source = source.display();
        Error::config(format!(
            "expected a source with a name, but found `{source}`"
        ))
        .with_hint("set `--name`")
    })
}
