//! `kivu search`: passages of text files that are near to a question.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{
    examples::examples,
    interrupt::{Ended, interruptible},
    library::resolve::{BuildArguments, open},
    services::{Hit, SearchRequest, Services},
    terminal::{Format, Progress, print_aside},
};
use kivu::{Error, Result, cloud::unsupported, config::Config, pipeline::Task};
use kivu_compiler::library::model_library::ModelLibrary;

/// Search text files by meaning
///
/// Embeds the passages of text, Markdown, HTML and code files, and prints those that are nearest to QUESTION, the best
/// first. An index in Kivu's home has the passages with their vectors, so that only files that are new or changed are
/// embedded again; it is a Parquet file, which `--json` names, for programs such as DuckDB. Files that `.gitignore`
/// names, hidden files and files without text are left out.
#[derive(Debug, Args)]
#[command(after_help = examples("search"))]
pub struct Arguments {
    /// Files and folders
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// What the passages are about
    question: String,
    /// The embedding model
    #[arg(long, value_name = "NAME", default_value = "minilm")]
    model: String,
    /// A model that ranks the nearest passages [default: one on this machine that reads question and passage together]
    #[arg(long, value_name = "NAME")]
    rank: Option<String>,
    /// The number of passages
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: u16,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    pub build: BuildArguments,
}

pub fn run(arguments: Arguments, config: Config, services: Services) -> Result<ExitCode> {
    interruptible(move || print_hits(&arguments, &config, &services)).map(Ended::code)
}

fn print_hits(arguments: &Arguments, config: &Config, services: &Services) -> Result<ExitCode> {
    let Services { cloud, search, .. } = services;
    let search = search.ok_or_else(|| unsupported("`kivu search`"))?;
    // Refuses what needs no model to be refused, since models may have to be built.
    if arguments.question.trim().is_empty() {
        return Err(Error::config("expected a question, but found an empty one"));
    }
    for path in &arguments.paths {
        if let Err(error) = path.metadata() {
            let error = Error::cannot("read", path.display())(error);
            return Err(error.with_hint("put quotes around a question of several words"));
        }
    }
    let options = arguments.build.clone().options(config);
    let opened = |name: &str| open(Some(name), &options, &mut config.clone(), cloud);
    let model = opened(&arguments.model)?;
    let ranker = arguments.rank.clone().or_else(|| built_ranker(config));
    let ranker = ranker.as_deref().map(opened).transpose()?;
    let progress = Progress::default();
    let found = search(&SearchRequest {
        paths: &arguments.paths,
        question: &arguments.question,
        model: &model,
        ranker: ranker.as_ref(),
        top: arguments.top.into(),
        home: &config.home,
        progress: &progress,
    });
    progress.clear();
    let found = found?;
    for note in &found.notes {
        print_aside(&format!("note: {note}"));
    }
    let lines = |hit: &Hit| {
        let (file, line, text) = (&hit.file, hit.line, hit.text.replace('\n', "\n  "));
        format!("{file}:{line}  {:.2}\n  {text}\n", hit.score)
    };
    let format = arguments.format;
    format.print(&found, |found| found.hits.iter().map(lines).collect())
}

/// The bundle of a ranking model on this machine that reads question and passage together. What it was built from may be
/// gone.
fn built_ranker(config: &Config) -> Option<String> {
    let mut models = ModelLibrary::new(config).list().into_iter();
    let ranker = models.find(|entry| {
        let manifest = entry.bundle.manifest();
        manifest.task == Task::TextRanking && manifest.settings.embedding().is_none()
    })?;
    // A relative path may look like a repository's name.
    Some(std::path::absolute(ranker.path).ok()?.to_str()?.to_owned())
}
