//! `kivu build`: weights in, a bundle out.

mod report;

use std::{path::PathBuf, process::ExitCode};

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
    /// The folder of the bundle; a bundle that is there is replaced, other files are refused
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
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
    let request = Request {
        source: arguments.source,
        out: arguments.out.clone(),
        name: arguments.name,
        task: arguments.task,
        precision: arguments.precision,
        cache: config.home.clone(),
    };
    let built = build(&request, runtime, &Terminal::new())?;
    let serving = Serving::measure(&arguments.out, &built.bundle, config);
    let out = arguments.out.display().to_string();
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
