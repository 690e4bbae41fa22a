//! `kivu batch`: a file of texts to a file of answers.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use clap::Args;
use tokio::runtime::Builder;

use super::{interrupt::Signals, progress::Rows, say};
use crate::{
    batch::{Ended, Existing, Format, Job, Parameters, Progress, Report, Sink, Source, Status},
    config::Config,
    error::{Error, Result, quoted},
    model::Model,
    pipeline::zero_shot::Labels,
    repository::{
        bundle::MANIFEST,
        s3::{Store, Url},
    },
};

const EXAMPLES: &str = "\
Examples:
  kivu batch reviews.csv answers.csv --model my-model
  kivu batch texts.jsonl.gz labels.jsonl.gz --model zero-shot --labels sport,cooking
  kivu batch s3://bucket/in/a.parquet s3://bucket/out/a.parquet --model my-model
  zcat texts.jsonl.gz | kivu batch - - --model my-model > answers.jsonl

A job that was stopped continues where it was when the same command is run again.";

/// What `-` means in place of a path: standard input or output.
const STANDARD: &str = "-";

/// Answer every row of a file: JSON Lines, CSV or Parquet, plain or packed with gzip or zstd
///
/// OUTPUT has the format of INPUT, with the answers in columns at the end of each row; a row that cannot be answered
/// has an error there. OUTPUT.report.json says what was done. Either may be an s3://BUCKET/KEY, a pipe, or `-` for
/// standard input or output.
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
    /// The format of INPUT: json-lines, csv or parquet [default: what the content looks like]
    #[arg(long)]
    format: Option<Format>,
    /// Labels of zero-shot classification, with commas between them
    #[arg(long)]
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
    /// Replace OUTPUT though Kivu did not write it, or it was changed since
    #[arg(long)]
    overwrite: bool,
    /// Start from the first row though an earlier run can be continued
    #[arg(long)]
    restart: bool,
}

pub(super) fn run(arguments: Arguments, mut config: Config) -> Result<ExitCode> {
    let source = source(&arguments.input)?;
    let sink = match Url::of(&arguments.output) {
        Some(url) => Sink::Object(url?),
        None if arguments.output.as_os_str() == STANDARD => Sink::Stdout,
        None => Sink::File(arguments.output.clone()),
    };
    // Results do not go where the answers go.
    let tell: fn(&str) -> Result<()> = if sink.is_stdout() { say_aside } else { say };
    let model = open(arguments.model.as_deref(), &mut config)?;
    let parameters = Parameters {
        model: None,
        format: arguments.format,
        column: arguments.column,
        labels: arguments.labels.iter().flat_map(|labels| Labels::split(labels)).collect(),
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
    let watcher = Arc::new(Rows::default());
    let job = Job {
        source,
        sink,
        model,
        parameters,
        watcher: Arc::clone(&watcher) as _,
        until: None,
        interval: Duration::from_millis(config.batch.save_ms),
        existing: Existing { overwrite: arguments.overwrite, restart: arguments.restart },
    };
    let is_resumable = job.is_resumable();
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(config.threads().get() + 1)
        .build()
        .map_err(Error::io("cannot start the threads of the job"))?;
    let code = Arc::new(AtomicU8::new(0));
    let stopped = Arc::clone(&code);
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let stop = async move {
            stopped.store(signals.next().await, Ordering::Relaxed);
            // A second signal ends the process at once.
            tokio::spawn(async move { process::exit(signals.next().await.into()) });
        };
        job.run_until(stop).await
    });
    // A thread may be waiting for the other end of a pipe, or for a batch whose answers nobody wants any more.
    runtime.shutdown_background();
    watcher.clear();
    match ended? {
        Ended::Done(report) => tell_report(&report, tell),
        Ended::Known => {
            tell(&format!("known  {}", arguments.output.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Ended::Unfinished(Progress { rows, .. }) => {
            let next = if is_resumable { "; run the same command again to continue" } else { "" };
            say_aside(&format!("stopped after {rows} rows{next}"))?;
            Ok(ExitCode::from(code.load(Ordering::Relaxed)))
        }
    }
}

/// Writes a result to standard error, where standard output has other contents.
fn say_aside(line: &str) -> Result<()> {
    // Nobody is left to be told that standard error is gone.
    let _ = writeln!(io::stderr(), "{line}");
    Ok(())
}

fn source(input: &Path) -> Result<Source> {
    if input.as_os_str() == STANDARD {
        return Ok(Source::Stdin);
    }
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

fn tell_report(report: &Report, tell: fn(&str) -> Result<()>) -> Result<ExitCode> {
    if report.status == Status::Failed {
        return Err(Error::config(report.error.clone().unwrap_or_default()));
    }
    let progress = &report.progress;
    let rate = progress.rows as f64 / progress.seconds.max(1e-3);
    tell(&format!(
        "{} rows in {:.1} s ({rate:.0} a second), {} tokens",
        progress.rows, progress.seconds, progress.tokens
    ))?;
    for (kind, count) in &progress.errors {
        tell(&format!("  {count} errors of the kind `{kind}`"))?;
    }
    for sample in progress.samples.iter().take(3) {
        tell(&format!("  row {}: {}", sample.row, sample.message))?;
    }
    for note in &report.notes {
        tell(&format!("  note    {note}"))?;
    }
    if !progress.columns.is_empty() {
        let columns: Vec<_> = progress.columns.iter().collect();
        tell(&format!("  columns {}", quoted(&columns)))?;
    }
    tell(&format!("  output  {}", report.output))?;
    Ok(ExitCode::SUCCESS)
}
