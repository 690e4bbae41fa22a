//! `kivu bench`: what a bundle's service costs over the bare runtime, every figure against its own measure,
//! both taken in the same run.

mod cold;
mod decode;
mod figure;
mod files;
mod pictures;
mod raw;
mod server;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;

use self::{
    figure::{Figure, Target},
    server::{Message, Server},
};
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
  kivu bench minilm --zero-shot zero-shot --json figures.json    with other bundles beside it, and for a script
  kivu bench minilm --pictures pictures --from figures.json      draw what was measured before";

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
    /// Bundles of the same model in other precisions, to be compared in size and quality
    #[arg(long, value_name = "BUNDLE", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// Draw the figures into this folder, as SVG
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Measure nothing, and take the figures from this file
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    from: Option<PathBuf>,
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

pub(super) fn run(arguments: &Arguments, config: &Config, file: Option<&Path>) -> Result<ExitCode> {
    if let Some(path) = &arguments.from {
        return finish(arguments, &figure::read(path)?);
    }
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
    if let Some(path) = &arguments.json {
        figure::write(&figures, path)?;
    }
    finish(arguments, &figures)
}

/// Tells and draws figures.
fn finish(arguments: &Arguments, figures: &[Figure]) -> Result<ExitCode> {
    say(&format!("{:46} {:>9} {:>9} {:7} {:>8}  target", "", "kivu", "against", "", "result"))?;
    for figure in figures {
        say(&figure.line())?;
    }
    if let Some(folder) = &arguments.pictures {
        pictures::draw(figures, folder)?;
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

    for path in &arguments.compare {
        figures.extend(precision(bundle, &Bundle::open(path)?));
    }

    // Cold starts first, while nothing else of ours runs.
    let (first_answer, parts) = cold::medians(program, &arguments.bundle)?;
    let start = Figure::new(figure::START, "ms", [first_answer, parts.in_line()], Target::AtMost(1.3));
    figures.push(start.made_of([
        ("library", parts.library),
        ("session", parts.session),
        ("first run", parts.run),
    ]));
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
    figures.push(Figure::new(figure::THROUGHPUT, "texts/s", [served, best], Target::AtLeast(0.9)));
    figures.push(Figure::new(figure::SCHEDULE, "texts/s", [best, unsorted], Target::AtLeast(2.0)));

    let embed = Message::json("/embed", &server::body(&[SHORT]));
    figures.push(Figure::new(
        figure::LATENCY,
        "ms",
        latencies(&server, &raw, |_| &embed, 1)?,
        Target::DifferenceAtMost(0.3),
    ));
    let infer = Message::tensors(&bundle.manifest().name, &raw.ids(SHORT)?);
    figures.push(Figure::new(
        figure::TENSORS,
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

/// What a bundle has and how near it comes to fp32, beside the same in another precision; nothing where the quality
/// is not that of vectors.
fn precision(bundle: &Bundle, other: &Bundle) -> Option<Figure> {
    let own = Quality::Embedding { texts: 0, mean_cosine: 1.0, worst_cosine: 1.0 };
    let facts = |bundle: &Bundle| {
        let manifest = bundle.manifest();
        let bytes: u64 = manifest.files.iter().map(|file| file.size).sum();
        // What is fp32 is as near to it as can be.
        let Quality::Embedding { mean_cosine, .. } = manifest.weights.quality.unwrap_or(own) else {
            return None;
        };
        Some((manifest.weights.precision.to_string(), bytes as f64 / 1e6, f64::from(mean_cosine)))
    };
    let ((name, size, cosine), (other, other_size, other_cosine)) = (facts(bundle)?, facts(other)?);
    let figure =
        Figure::new(&format!("size in {name} | in {other}"), "MB", [size, other_size], Target::AtMost(1.0));
    Some(figure.made_of([(name.as_str(), cosine), (other.as_str(), other_cosine)]))
}

/// Serves a bundle alone and asks it a few times: the memory of the server in MB, and the milliseconds of an answer.
pub(super) fn serve_once(bundle: &Path, path: &str, body: &str, config: &Config) -> Result<[f64; 2]> {
    const TURNS: usize = 15;
    const PATIENCE: Duration = Duration::from_millis(800);
    let server = Server::start_alone(&Program::new(None)?, bundle, config)?;
    let (mut connection, message) = (server.connect()?, Message::json(path, body));
    connection.ask(&message)?;
    let (mut answers, started) = (vec![connection.ask(&message)?], Instant::now());
    while answers.len() < TURNS && started.elapsed() < PATIENCE {
        answers.push(connection.ask(&message)?);
    }
    Ok([server.resident_mb()?, median(answers)])
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
