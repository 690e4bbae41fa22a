//! `kivu batch`: inference on a file's rows.

use std::{
    future::Future,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use clap::Args;
use tokio::runtime::{Builder, Runtime};

use super::task_options::{GivenOptions, argument};
use crate::{
    examples::examples,
    interrupt::{self, Signals, interruptible},
    library::resolve::{BuildArguments, open},
    services::Services,
    terminal::{Progress as Bar, print, print_aside},
};
use kivu::{
    Error, Result,
    cloud::Cloud,
    config::{Config, OtlpConfig, parse_lists},
    error::{Message, quoted},
    model::Model,
    pipeline::Task,
    repository::s3::Url,
    telemetry::{Otlp, trace::Trace},
};
use kivu_http::batch_requests;
use kivu_jobs::{
    Ended, Existing, Job, JobInput, JobOutput, Parameters, Progress, Report, SinkSettings, Sinks,
    Status,
};

/// Path for standard input or output.
pub const STANDARD: &str = "-";
/// The exit code if the output is complete, but every row has an error.
const ONLY_ERRORS: u8 = 3;

/// Run a model on every row in a file: JSON Lines, CSV or Parquet, plain or compressed with gzip or zstd
///
/// OUTPUT has INPUT's format and columns, and result columns; failed rows have an error there. OUTPUT.report.json is a
/// summary. INPUT and OUTPUT may be s3://BUCKET/KEY, a pipe, or `-` for standard input or output. OUTPUT may also be
/// the URL of a vector database or index, which stores the vectors by the rows' ids: PostgreSQL, OpenSearch or S3
/// Vectors. Rows that it does not store are written to a file.
#[derive(Debug, Args)]
#[command(after_help = examples("batch"))]
pub struct Arguments {
    /// A file, s3://BUCKET/KEY, or `-` for standard input
    input: PathBuf,
    /// A new file, s3://BUCKET/KEY, `-` for standard output, postgres://…?table=TABLE, s3vectors://BUCKET/INDEX, or
    /// opensearch+https://HOST/INDEX
    output: PathBuf,
    /// A model in kivu.toml, or a name as in `kivu serve` [default: the first in kivu.toml]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    options: GivenOptions<true>,
    /// The column with the rows' ids in the database [default: id]
    #[arg(long, value_name = "COLUMN")]
    id: Option<String>,
    /// Columns to store with the vectors, separated by commas
    #[arg(long, value_name = "COLUMNS")]
    metadata: Vec<String>,
    /// File for the rows that the database does not store [default: failed-INPUT]
    #[arg(long, value_name = "FILE")]
    failed: Option<PathBuf>,
    /// Replace OUTPUT even if Kivu did not write it, or it was changed since
    #[arg(long)]
    overwrite: bool,
    /// Start from the first row even if an earlier run can be resumed
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    pub build: BuildArguments,
}

pub fn run(arguments: Arguments, mut config: Config, services: Services) -> Result<ExitCode> {
    let Services {
        cloud,
        sinks,
        parquet,
        ..
    } = services;
    let sink = sink(&arguments, sinks)?;
    let output = match &sink {
        Some(_) => output(&cloud, &failed_rows(&arguments)?)?,
        None => output(&cloud, &arguments.output)?,
    };
    let input = input(&cloud, &arguments.input)?;
    // Standard output may have the results.
    let summarize = match output.is_stdout() {
        true => |summary: &str| {
            print_aside(summary);
            Ok(())
        },
        false => print,
    };
    let (named, GivenOptions(parameters)) = (arguments.model, arguments.options);
    let build = arguments.build.options(&config);
    let opened = interruptible(move || {
        open(named.as_deref(), &build, &mut config, &cloud).map(|model| (model, config))
    })?;
    let (model, config) = match opened {
        interrupt::Ended::Done(opened) => opened,
        interrupt::Ended::Signalled(code) => return Ok(code),
    };
    require_options_of(&model, &parameters)?;
    let watcher = Arc::new(Bar::default());
    let job = Job {
        watcher: Arc::clone(&watcher) as _,
        interval: Duration::from_millis(config.batch.save_ms),
        sink,
        parquet,
        existing: Existing {
            overwrite: arguments.overwrite,
            restart: arguments.restart,
        },
        requests: Some(batch_requests(config.limits.clone())),
        trace: Trace::from_environment(),
        ..Job::new(input, output, model, parameters)
    };
    let otlp = OtlpConfig::new(&Config::variables()?);
    let is_resumable = job.is_resumable();
    let runtime = model_threads(&config)?;
    let code = Arc::new(AtomicU8::new(0));
    let stopped = Arc::clone(&code);
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let stop = async move {
            stopped.store(signals.next().await, Ordering::Relaxed);
            // A second signal ends the process at once.
            tokio::spawn(async move { process::exit(signals.next().await.into()) });
        };
        traced(otlp, job.run_until(stop)).await
    });
    // A thread may still be blocked on a pipe, or run an abandoned job's batch.
    runtime.shutdown_background();
    watcher.clear();
    match ended? {
        Ended::Done(report) if report.status == Status::Failed => {
            let failure = report.failure;
            Err(Error::config(
                failure.unwrap_or_else(|| Message::new("the job failed")),
            ))
        }
        Ended::Done(report) => {
            summarize(&summary(&report).join("\n"))?;
            if !report.has_only_errors() {
                return Ok(ExitCode::SUCCESS);
            }
            print_aside("error: every row has an error");
            Ok(ExitCode::from(ONLY_ERRORS))
        }
        Ended::Known => {
            summarize(&format!("known  {}", arguments.output.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Ended::Unfinished(Progress { rows, .. }) => {
            let next = if is_resumable {
                "; run the same command again to resume"
            } else {
                ""
            };
            print_aside(&format!("stopped after {}{next}", rows_text(rows)));
            Ok(ExitCode::from(code.load(Ordering::Relaxed)))
        }
    }
}

/// Runs a job with the exporters of traces and metrics, if there is a receiver.
async fn traced(
    otlp: Option<OtlpConfig>,
    job: impl Future<Output = Result<Ended>>,
) -> Result<Ended> {
    let Some(config) = otlp else { return job.await };
    let otlp = Otlp::start(&config, "kivu")?;
    otlp.install()?;
    let ended = job.await;
    otlp.stop().await;
    ended
}

/// The runtime of a command that waits for a model.
pub fn model_threads(config: &Config) -> Result<Runtime> {
    Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(config.threads().get() + 1)
        .build()
        .map_err(Error::io("cannot start the model's threads"))
}

/// Refuses options without effect on the model.
pub fn require_options_of(model: &Model, parameters: &Parameters) -> Result<()> {
    let task = model.manifest.task;
    let query = (parameters.query.is_some() && task != Task::TextRanking).then_some("query");
    match query.or_else(|| parameters.options.without_effect(&model.pipeline)) {
        Some(name) => Err(Error::config(format!(
            "`--{}` has no effect with `{}`, which is for `{task}`",
            argument(name),
            model.name
        ))
        .with_hint("omit the option, or choose another model")),
        None => Ok(()),
    }
}

/// The items of an option's lists.
pub fn listed(option: &str, lists: &[String]) -> Result<Vec<String>> {
    parse_lists(lists.iter().map(String::as_str)).map_err(|expected| {
        Error::config(format!(
            "expected {expected} in `{option}`, but found {}",
            quoted(lists)
        ))
    })
}

fn output(cloud: &Cloud, output: &Path) -> Result<JobOutput> {
    match Url::of_location(output)? {
        Some(url) => Ok(JobOutput::Object(cloud.store()?, url)),
        None if output.as_os_str() == STANDARD => Ok(JobOutput::Stdout),
        None => Ok(JobOutput::File(output.to_owned())),
    }
}

/// The sink, if OUTPUT is one.
fn sink(arguments: &Arguments, sinks: Sinks) -> Result<Option<SinkSettings>> {
    let Arguments {
        output,
        id,
        metadata,
        failed,
        ..
    } = arguments;
    if let Some(url) = output.to_str().and_then(|text| sinks.find(text)) {
        let metadata = listed("--metadata", metadata)?;
        return SinkSettings::new(url?, id.as_deref(), &metadata).map(Some);
    }
    Url::of_location(output)?;
    let options = [
        ("--id", id.is_some()),
        ("--metadata", !metadata.is_empty()),
        ("--failed", failed.is_some()),
    ];
    match options.iter().find(|(_, is_set)| *is_set) {
        Some((option, _)) => Err(Error::config(format!(
            "`{option}` is for a database, but OUTPUT is a file"
        ))
        .with_hint("omit the option")),
        None => Ok(None),
    }
}

/// The file for rows that a sink does not store: next to the input, unless `--failed` names it.
fn failed_rows(arguments: &Arguments) -> Result<PathBuf> {
    let Arguments { input, failed, .. } = arguments;
    if let Some(path) = failed {
        return Ok(path.clone());
    }
    match input.file_name().and_then(|name| name.to_str()) {
        Some(name) if Url::of_location(input)?.is_none() && input.is_file() => {
            Ok(input.with_file_name(format!("failed-{name}")))
        }
        _ => Err(Error::config(
            "expected `--failed FILE` for the rows that are not stored, because INPUT is not a local file",
        )),
    }
}

fn input(cloud: &Cloud, input: &Path) -> Result<JobInput> {
    if input.as_os_str() == STANDARD {
        return Ok(JobInput::Stdin);
    }
    let Some(url) = Url::of_location(input)? else {
        return Ok(JobInput::File(input.to_owned()));
    };
    if url.key.is_empty() || url.key.ends_with('/') {
        return Err(Error::config(format!(
            "expected an object key for the input, but found the prefix `{url}`"
        )));
    }
    let store = cloud.store()?;
    let object = store.head(&url)?;
    let object = object
        .ok_or_else(|| Error::config(format!("expected a file at `{url}`, but found none")))?;
    Ok(JobInput::Object(store, url, object))
}

fn rows_text(rows: u64) -> String {
    if rows == 1 {
        "1 row".to_owned()
    } else {
        format!("{rows} rows")
    }
}

/// An error kind in the report, in words.
fn problem(kind: &str) -> &str {
    match kind {
        "row" => "malformed",
        "text" => "without a text",
        "input" => "refused by the model",
        "model" => "for which the model failed",
        "sink" => "not stored",
        other => other,
    }
}

fn summary(report: &Report) -> Vec<String> {
    let Progress {
        rows,
        seconds,
        tokens,
        truncated,
        errors,
        samples,
        columns,
        ..
    } = &report.progress;
    let rate = *rows as f64 / seconds.max(1e-3);
    let mut lines = vec![format!(
        "{} in {seconds:.1} s ({rate:.0} per second), {tokens} tokens",
        rows_text(*rows)
    )];
    lines.extend(
        errors
            .iter()
            .map(|(kind, count)| format!("  errors  {} {}", rows_text(*count), problem(kind))),
    );
    lines.extend(
        samples
            .iter()
            .take(3)
            .map(|sample| format!("  row {}: {}", sample.row, sample.message)),
    );
    lines.extend(
        report
            .text_column
            .iter()
            .map(|column| format!("  texts   {}", quoted(&[column]))),
    );
    if *truncated > 0 {
        lines.push(format!(
            "  note    texts truncated to the model's token limit: {truncated}"
        ));
    }
    lines.extend(report.notes.iter().map(|note| format!("  note    {note}")));
    if !columns.is_empty() {
        lines.push(format!(
            "  columns {}",
            quoted(&columns.iter().collect::<Vec<_>>())
        ));
    }
    match &report.sink {
        Some(sink) => {
            let stored = rows - errors.values().sum::<u64>();
            lines.push(format!("  stored  {} in {sink}", rows_text(stored)));
            lines.push(format!("  failed  {}", report.output));
        }
        None => lines.push(format!("  output  {}", report.output)),
    }
    lines
}
