//! `kivu build`: weights in, a bundle out.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{progress::Terminal, say};
use crate::{
    backend::onnx::{Runtime, library},
    build::{Request, build},
    config::Config,
    error::Result,
    pipeline::Task,
    repository::{
        Bundle,
        manifest::{Precision, Quality},
    },
};

const EXAMPLES: &str = "\
Examples:
  kivu build path/to/model --out my-model                     a Hugging Face folder
  kivu build path/to/model --out my-model --precision fp32    the same, unquantised
  kivu build path/to/export --out my-model --task text-classification
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
    /// The folder of the bundle; a bundle that is there is replaced
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
}

pub(super) fn run(arguments: Arguments, config: &Config) -> Result<ExitCode> {
    let runtime = Runtime::load(&library::locate(config.onnxruntime.as_deref(), &config.home)?)?;
    let request = Request {
        source: arguments.source,
        out: arguments.out.clone(),
        name: arguments.name,
        task: arguments.task,
        precision: arguments.precision,
        cache: config.home.clone(),
    };
    let bundle = build(&request, runtime, &Terminal::new())?;
    report(&bundle, &arguments.out.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn report(bundle: &Bundle, path: &str) -> Result<()> {
    let manifest = bundle.manifest();
    let size: u64 = manifest.files.iter().map(|file| file.size).sum();
    say(&format!("{} ({}, {})", manifest.name, manifest.task, manifest.source.architecture))?;
    say(&format!("  bundle   {path}, {:.1} MB, {}", size as f64 / 1e6, &bundle.digest()[..12]))?;
    let quality = match manifest.weights.quality {
        Some(Quality::Embedding { texts, mean_cosine, worst_cosine }) => {
            format!("cosine to fp32 over {texts} texts: mean {mean_cosine:.4}, worst {worst_cosine:.4}")
        }
        Some(Quality::Classification { texts, agreement, mean_difference }) => format!(
            "against fp32 over {texts} texts: the same label for {:.1} %, scores differ by {mean_difference:.4}",
            agreement * 100.0
        ),
        Some(Quality::Translation {
            texts,
            similarity,
            identical,
            similarity_without_shortlist,
            token_agreement,
            ..
        }) => {
            let without = similarity_without_shortlist
                .map(|similarity| format!(" ({similarity:.4} without the shortlist)"))
                .unwrap_or_default();
            format!(
                "against fp32 over {texts} texts: similarity {similarity:.4}{without}, {:.0} % the same, {:.1} % of \
                 tokens",
                identical * 100.0,
                token_agreement * 100.0
            )
        }
        None => "not measured: there is no other precision to compare with".to_owned(),
    };
    say(&format!("  quality  {quality}"))?;
    say(&format!("  next     kivu serve {path}"))
}
