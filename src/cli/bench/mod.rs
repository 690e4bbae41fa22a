//! `kivu bench`: what a bundle's service costs over the bare runtime, every figure against its own measure,
//! both taken in the same run.

mod cold;
mod decode;
mod files;
mod raw;
mod server;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use self::server::{Message, Server};
use super::say;
use crate::{
    backend::onnx::{Runtime, library},
    build::quality::SENTENCES,
    config::Config,
    error::{Error, Result},
    repository::{Bundle, manifest::Quality},
};

/// The texts of a request in the throughput figure, and how many clients send such requests at once.
const TEXTS: usize = 32;
const CLIENTS: usize = 4;
/// A short text, for latencies.
const SHORT: &str = "What is deep learning?";
/// The labels of a request for zero-shot classification.
const LABELS: usize = 10;

const EXAMPLES: &str = "\
Examples:
  kivu bench my-model
  kivu bench minilm --zero-shot zero-shot --json figures.json    with other bundles beside it, and for a script";

/// Measure a bundle against the bare runtime
///
/// Starts `kivu serve` on a free port of this machine, sends it what clients would send, and runs the same texts
/// straight through ONNX Runtime. Every speed is told beside its own measure, taken in the same run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A bundle
    #[arg(default_value = ".kivu/bundles/minilm")]
    bundle: PathBuf,
    /// How long each throughput is measured, in seconds
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Write the figures to this file as well, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A bundle for zero-shot classification, to be measured as well
    #[arg(long, value_name = "BUNDLE")]
    zero_shot: Option<PathBuf>,
    /// A bundle for translation, to be measured as well
    #[arg(long, value_name = "BUNDLE")]
    translation: Option<PathBuf>,
    /// Measure a file of so many rows, and nothing else
    #[arg(long, value_name = "ROWS")]
    batch: Option<usize>,
    /// Fetch the bundle into memory, print the seconds and the memory that it took
    #[arg(long, hide = true)]
    fetch: bool,
    /// Load the library, make a session, run it once, print the milliseconds: the parts of a cold start
    #[arg(long, hide = true)]
    parts: bool,
}

/// This program, to be started again as a process of its own.
struct Program {
    path: PathBuf,
    config: Option<PathBuf>,
}

impl Program {
    fn new(config: Option<&Path>) -> Result<Self> {
        let path = std::env::current_exe().map_err(Error::io("cannot tell this program's path"))?;
        Ok(Self { path, config: config.map(Path::to_owned) })
    }

    /// The program with the configuration that this process has.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command
    }
}

/// Two measurements of one run, and what they are to each other.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    /// What was measured of Kivu.
    kivu: f64,
    /// What it is measured against.
    against: f64,
    unit: &'static str,
    /// `kivu` relative to `against`: their quotient, or their difference where the target is one.
    result: f64,
    target: Target,
}

/// What a figure should come to.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// The difference should be at most this.
    DifferenceAtMost(f64),
}

impl Figure {
    fn new(name: &'static str, unit: &'static str, [kivu, against]: [f64; 2], target: Target) -> Self {
        let result = match target {
            Target::DifferenceAtMost(_) => kivu - against,
            _ => kivu / against,
        };
        Self { name, kivu, against, unit, result, target }
    }

    fn is_reached(&self) -> bool {
        match self.target {
            Target::AtLeast(least) => self.result >= least,
            Target::AtMost(most) | Target::DifferenceAtMost(most) => self.result <= most,
        }
    }

    fn line(&self) -> String {
        let target = match self.target {
            Target::AtLeast(least) => format!("≥ {least}"),
            Target::AtMost(most) => format!("≤ {most}"),
            Target::DifferenceAtMost(most) => format!("≤ {most} {} more", self.unit),
        };
        let Self { name, kivu, against, unit, result, .. } = self;
        let reached = if self.is_reached() { "reached" } else { "missed" };
        format!("{name:46} {kivu:9.3} {against:9.3} {unit:7} {result:8.3}  {target:15} {reached}")
    }
}

pub(super) fn run(arguments: &Arguments, config: &Config, file: Option<&Path>) -> Result<ExitCode> {
    let bundle = Bundle::open(&arguments.bundle)?;
    if arguments.fetch {
        return files::print_fetch(&bundle);
    }
    let library = library::locate(config.onnxruntime.as_deref(), &config.home)?;
    if arguments.parts {
        return cold::print_parts(&bundle, &library);
    }
    let program = Program::new(file)?;
    let figures = measure(arguments, config, &bundle, &library, &program)?;
    say(&format!("{:46} {:>9} {:>9} {:7} {:>8}  target", "", "kivu", "against", "", "result"))?;
    for figure in &figures {
        say(&figure.line())?;
    }
    if let Some(path) = &arguments.json {
        let json = serde_json::to_vec_pretty(&figures)
            .map_err(|error| Error::model_because("the figures cannot be written", error))?;
        fs::write(path, json).map_err(Error::io(format!("cannot write `{}`", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    arguments: &Arguments,
    config: &Config,
    bundle: &Bundle,
    library: &Path,
    program: &Program,
) -> Result<Vec<Figure>> {
    let time = Duration::from_secs(arguments.seconds);
    if let Some(rows) = arguments.batch {
        let raw = raw::Raw::new(bundle, Runtime::load(library)?, config.threads())?;
        let texts: Vec<&str> = SENTENCES.lines().collect();
        return files::figures(program, &arguments.bundle, &raw, &texts, rows, time);
    }
    let mut figures = Vec::new();
    if let Some(Quality::Embedding { mean_cosine, worst_cosine, .. }) = bundle.manifest().weights.quality {
        let name = "mean cosine to fp32";
        let mean = [f64::from(mean_cosine), 1.0];
        figures.push(Figure::new(name, "cosine", mean, Target::AtLeast(0.99)));
        let worst = [f64::from(worst_cosine), 1.0];
        figures.push(Figure::new("worst cosine to fp32", "cosine", worst, Target::AtLeast(0.97)));
    }

    // Cold starts first, while nothing else of ours runs.
    let (first_answer, parts) = cold::medians(program, &arguments.bundle)?;
    figures.push(Figure::new(
        "start to first answer | library, session, run",
        "ms",
        [first_answer, parts.in_line()],
        Target::AtMost(1.3),
    ));
    figures.push(Figure::new(
        "reading the tokenizer | making the session",
        "ms",
        [parts.tokenizer, parts.session],
        Target::AtMost(1.0),
    ));

    let runtime = Runtime::load(library)?;
    let raw = raw::Raw::new(bundle, runtime, config.threads())?;
    let texts: Vec<&str> = SENTENCES.lines().collect();
    let server = Server::start(program, &[Some(&arguments.bundle), arguments.zero_shot.as_ref()])?;
    let requests: Vec<String> = texts.chunks(TEXTS).map(server::body).collect();

    // Taken in turns, so that what else the machine does falls on all of them alike.
    let (mut served, mut best, mut unsorted) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        best.push(raw.best(&texts, time / 3)?);
        served.push(server.throughput(&requests, CLIENTS, time / 3)? * mean_texts(&texts));
        unsorted.push(raw.unsorted(&texts, TEXTS, time / 3)?);
    }
    let (served, best, unsorted) = (median(served), median(best), median(unsorted));
    figures.push(Figure::new(
        "POST /embed, 32 texts, 4 clients | best raw",
        "texts/s",
        [served, best],
        Target::AtLeast(0.9),
    ));
    figures.push(Figure::new(
        "best raw schedule | raw batches of 32, unsorted",
        "texts/s",
        [best, unsorted],
        Target::AtLeast(2.0),
    ));

    let embed = Message::json("/embed", &server::body(&[SHORT]));
    figures.push(Figure::new(
        "POST /embed, one short text, p50 | raw session",
        "ms",
        latencies(&server, &raw, |_| &embed, 1)?,
        Target::DifferenceAtMost(0.3),
    ));
    let infer = Message::tensors(&bundle.manifest().name, &raw.ids(SHORT)?);
    figures.push(Figure::new(
        "KServe infer, binary tensors, p50 | raw session",
        "ms",
        latencies(&server, &raw, |_| &infer, 1)?,
        Target::DifferenceAtMost(0.2),
    ));
    if let Some(bundle) = &arguments.zero_shot {
        let bundle = Bundle::open(bundle)?;
        let path = format!("/models/{}", bundle.manifest().name);
        let classify = |labels: &[&str]| {
            let body = json!({ "inputs": SHORT, "parameters": { "candidate_labels": labels } });
            Message::json(&path, &body.to_string())
        };
        let words = distinct_words();
        let usual = classify(&words[..LABELS]);
        figures.push(Figure::new(
            "zero-shot, 10 labels, p50 | 10 runs, raw session",
            "ms",
            latencies(&server, &raw, |_| &usual, LABELS)?,
            Target::AtMost(0.7),
        ));
        // More words than the service keeps, so that it has forgotten those that come again.
        let unseen: Vec<Message> = words.chunks_exact(LABELS).map(classify).collect();
        figures.push(Figure::new(
            "zero-shot, 10 new labels, p50 | the same",
            "ms",
            latencies(&server, &raw, |turn| &unseen[turn % unseen.len()], LABELS)?,
            Target::AtMost(0.7),
        ));
    }
    figures.push(Figure::new(
        "resident memory while serving",
        "MB",
        [server.resident_mb()?, 90.0],
        Target::AtMost(1.0),
    ));
    drop(server);
    if let Some(bundle) = &arguments.translation {
        figures.extend(decode::measure(bundle, config)?);
    }
    Ok(figures)
}

/// The mean number of texts in a request: the last one may be short.
fn mean_texts(texts: &[&str]) -> f64 {
    texts.len() as f64 / texts.len().div_ceil(TEXTS) as f64
}

/// The words of the sample texts, each once.
fn distinct_words() -> Vec<&'static str> {
    let is_letter = |character: char| character.is_alphabetic();
    let words: BTreeSet<&str> = SENTENCES.split(|character| !is_letter(character)).collect();
    words.into_iter().filter(|word| word.len() > 3).collect()
}

/// Milliseconds of a message over HTTP, and of so many runs of a short text straight from a session, taken in
/// turns.
fn latencies<'a>(
    server: &Server,
    raw: &raw::Raw,
    message: impl Fn(usize) -> &'a Message,
    runs: usize,
) -> Result<[f64; 2]> {
    const TURNS: usize = 400;
    let (mut bare, mut connection) = (raw.single(SHORT)?, server.connect()?);
    let (mut over_http, mut alone) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let http = connection.ask(message(turn))?;
        let raw = (0..runs).map(|_| bare()).sum::<Result<f64>>()?;
        // The first turns warm both up.
        if turn >= TURNS / 10 {
            over_http.push(http);
            alone.push(raw);
        }
    }
    Ok([median(over_http), median(alone)])
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
