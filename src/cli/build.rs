//! `kivu build`: weights in, a bundle out.

mod report;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use self::report::{Report, Serving};
use super::{interrupt::interruptible, progress::Terminal, say};
use crate::{
    backend::onnx::{Runtime, library},
    build::{Request, abandon, build},
    config::Config,
    error::{Error, Result},
    pipeline::Task,
    repository::manifest::Precision,
};

const EXAMPLES: &str = "\
Examples:
  kivu build path/to/model --out my-model                     a Hugging Face folder
  kivu build path/to/model                                    the same, into the folder that `kivu serve` knows
  kivu build path/to/model --out my-model --precision fp32    the same, unquantised
  kivu build path/to/export --out my-model --task text-classification
  kivu build path/to/model --out my-model --json              for a script
  kivu build models/minilm.toml --out minilm                  a recipe, which fetches its weights";

/// Make a bundle from weights: quantised, measured, ready to be served
///
/// SOURCE is a recipe (models/NAME.toml), a folder as the model hub has them (config.json, model.safetensors,
/// tokenizer.json or SentencePiece models), an ONNX export as `optimum-cli export onnx` writes it, or a folder of a
/// Bergamot student (model.….bin, lex.….bin, tokenizer.json).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A recipe, a Hugging Face folder, an ONNX export or a Bergamot folder
    source: PathBuf,
    /// The folder of the bundle; a bundle that is there is replaced, other files are refused [default: bundles/NAME
    /// in `home`, from where `kivu serve NAME` serves it]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What the model is for, where the source does not say
    #[arg(long)]
    task: Option<Task>,
    /// The name that the model is served by [default: the recipe's, or the folder's]
    #[arg(long)]
    name: Option<String>,
    /// The numbers to store weights as [default: the recipe's, or int8]
    #[arg(long, value_name = "int8|int8-blocks|fp32")]
    precision: Option<Precision>,
    /// Tell what came of it as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: Arguments, config: Config) -> Result<ExitCode> {
    interruptible(move || report(arguments, &config), abandon)
}

fn report(arguments: Arguments, config: &Config) -> Result<ExitCode> {
    let runtime = Runtime::load(&library::locate(config.onnxruntime.as_deref(), &config.home)?)?;
    let out = match arguments.out {
        Some(out) => out,
        None => config.bundles().join(default_name(&arguments.source, arguments.name.as_deref())?),
    };
    let request = Request {
        source: arguments.source,
        out: out.clone(),
        name: arguments.name,
        task: arguments.task,
        precision: arguments.precision,
        cache: config.home.clone(),
    };
    let built = build(&request, runtime, &Terminal::new())?;
    let serving = Serving::measure(&out, &built.bundle, config);
    let out = out.display().to_string();
    let report = Report::new(&built, &out, serving);
    if arguments.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| Error::model_because("the report cannot be written", error))?;
        say(&json)?;
    } else {
        report.lines().iter().try_for_each(|line| say(line))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of a bundle's folder where none is given: the model's name, or that of the source's file or folder.
fn default_name(source: &Path, name: Option<&str>) -> Result<OsString> {
    if let Some(name) = name {
        return Ok(name.into());
    }
    let source = source.canonicalize().map_err(Error::io(format!("cannot read `{}`", source.display())))?;
    let name = if source.is_dir() { source.file_name() } else { source.file_stem() };
    name.map(OsStr::to_owned).ok_or_else(|| {
        Error::config(format!(
            "expected a source with a name, but found `{}`; name it with `--name`",
            source.display()
        ))
    })
}
