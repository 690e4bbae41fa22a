//! `kivu batch`: a file of texts to a file of answers.

use std::{path::Path, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use tokio::runtime::Builder;

use super::{progress::Terminal, say};
use crate::{
    batch::{Ended, Job, Parameters, Report, Sink, Source, Status},
    config::Config,
    error::{Error, Result},
    model::Model,
    repository::{
        bundle::MANIFEST,
        s3::{Store, Url},
    },
};

const EXAMPLES: &str = "\
Examples:
  kivu batch reviews.csv answers.csv --model my-model
  kivu batch texts.jsonl.gz labels.jsonl.gz --model zero-shot --labels sport,cooking
  kivu batch s3://bucket/in/a.parquet s3://bucket/out/a.parquet --model my-model";

/// Answer every row of a file: JSON Lines, CSV or Parquet, plain or packed with gzip or zstd
///
/// OUTPUT has the form of INPUT, with the answers in columns at the end of each row; a row that cannot be answered
/// has an error there. OUTPUT.report.json says what was done. Either file may be an s3://BUCKET/KEY; a job whose
/// output is in S3 goes on where it stopped when it is started again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The file of texts
    input: PathBuf,
    /// The file of answers
    output: PathBuf,
    /// The name of a model of kivu.toml, or a bundle [default: the first of kivu.toml]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The column of texts [default: `text` or another that is known]
    #[arg(long)]
    column: Option<String>,
    /// Labels of zero-shot classification, with commas between them
    #[arg(long, value_delimiter = ',')]
    labels: Vec<String>,
    /// The sentence that labels are put into, with {} for the label
    #[arg(long)]
    template: Option<String>,
    /// Score each label on its own
    #[arg(long)]
    multi_label: bool,
    /// The query that texts are ranked for
    #[arg(long)]
    query: Option<String>,
    /// The language of the texts, where the model has several
    #[arg(long, value_name = "LANGUAGE")]
    source_language: Option<String>,
    /// The language that they are wanted in, where the model has several
    #[arg(long, value_name = "LANGUAGE")]
    target_language: Option<String>,
    /// The name of a prompt
    #[arg(long)]
    prompt: Option<String>,
    /// Keep only that many values of each vector
    #[arg(long)]
    dimensions: Option<usize>,
    /// Refuse texts of too many tokens instead of cutting them
    #[arg(long)]
    no_truncate: bool,
}

pub(super) fn run(arguments: Arguments, mut config: Config) -> Result<ExitCode> {
    let source = source(&arguments.input)?;
    let sink = match Url::of(&arguments.output) {
        Some(url) => Sink::Object(url?),
        None => Sink::File(arguments.output.clone()),
    };
    let model = open(arguments.model.as_deref(), &mut config)?;
    let parameters = Parameters {
        model: None,
        column: arguments.column,
        labels: arguments.labels,
        template: arguments.template,
        multi_label: arguments.multi_label.then_some(true),
        query: arguments.query,
        source_language: arguments.source_language,
        target_language: arguments.target_language,
        normalize: None,
        dimensions: arguments.dimensions,
        prompt: arguments.prompt,
        truncate: arguments.no_truncate.then_some(false),
    };
    let job = Job {
        source,
        sink,
        model,
        parameters,
        meter: Arc::new(Terminal::new()),
        until: None,
        interval: Duration::from_millis(config.batch.save_ms),
    };
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(config.threads().get() + 1)
        .build()
        .map_err(Error::io("cannot start the threads of the job"))?;
    match runtime.block_on(job.run())? {
        Ended::Done(report) => tell(&report),
        Ended::Known => {
            say(&format!("known  {}", arguments.output.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Ended::Unfinished(progress) => {
            say(&format!("stopped after {} rows; start it again to go on", progress.rows))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn source(input: &Path) -> Result<Source> {
    let Some(url) = Url::of(input).transpose()? else { return Ok(Source::File(input.to_owned())) };
    let object = Store::open()?.head(&url, None)?;
    let object =
        object.ok_or_else(|| Error::config(format!("expected a file at `{url}`, but found none")))?;
    Ok(Source::Object(url, object))
}

/// The model of that name, or the bundle there.
fn open(name: Option<&str>, config: &mut Config) -> Result<Model> {
    if let Some(name) = name {
        let path = Path::new(name);
        if Url::of(path).is_some() || path.join(MANIFEST).is_file() {
            config.models = vec![path.to_owned().into()];
            return Ok(Model::open_all(config)?.remove(0));
        }
    }
    let mut models = Model::open_all(config)?;
    let known = models.iter().map(|model| model.name.clone()).collect();
    let place = match name {
        None => Some(0),
        Some(name) => models.iter().position(|model| model.name == name),
    };
    let unknown = || Error::UnknownModel { name: name.unwrap_or_default().to_owned(), known };
    place.map(|place| models.swap_remove(place)).ok_or_else(unknown)
}

fn tell(report: &Report) -> Result<ExitCode> {
    if report.status == Status::Failed {
        return Err(Error::config(report.error.clone().unwrap_or_default()));
    }
    let progress = &report.progress;
    let rate = progress.rows as f64 / progress.seconds.max(1e-3);
    say(&format!(
        "{} rows in {:.1} s ({rate:.0} a second), {} tokens",
        progress.rows, progress.seconds, progress.tokens
    ))?;
    for (kind, count) in &progress.errors {
        say(&format!("  {count} errors of the kind `{kind}`"))?;
    }
    for sample in progress.samples.iter().take(3) {
        say(&format!("  row {}: {}", sample.row, sample.message))?;
    }
    say(&format!("  output  {}", report.output))?;
    Ok(ExitCode::SUCCESS)
}
