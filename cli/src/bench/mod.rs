//! `kivu bench`: a bundle's throughput, latency, cold start and memory, with the bare runtime as the baseline.

mod raw;
mod server;
mod timing;
mod workload;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use self::{
    raw::Raw,
    server::{Request, Server},
    timing::{median, ms, percentile},
    workload::{body, rows},
};
use super::{
    interrupt::{Ended, interruptible},
    library::resolve::{BuildArguments, require_local, resolve},
    quality,
    terminal::print,
};
use crate::examples::examples;
use kivu::{
    Error, Result,
    config::Config,
    onnx::{Runtime, library},
    pipeline::{
        Task,
        seq2seq::{Directions, Languages},
    },
    repository::{Bundle, Manifest},
};
use kivu_compiler::quality::SENTENCES;
use kivu_http::example;

/// Throughput measurement: texts per request, and concurrent clients.
const TEXTS: usize = 32;
const CLIENTS: usize = 4;
/// Text for the latency measurement.
const SHORT: &str = "What is deep learning?";
/// Requests per latency measurement; the first tenth warms up.
const TURNS: usize = 400;
/// Process starts per cold start measurement.
const STARTS: usize = 5;
/// Generated tokens per run, and number of runs.
const TOKENS: usize = 32;
const TRANSLATIONS: usize = 20;

/// Measure a bundle: throughput, latency, cold start, memory and quality
///
/// Starts `kivu serve` on a free local port and sends it requests. Each speed's baseline is ONNX Runtime alone, measured
/// in the same run with the same texts. For text-generating models, the decoding speed is measured instead, without a
/// baseline.
#[derive(Debug, Args)]
#[command(after_help = examples("bench"))]
pub struct Arguments {
    /// A bundle, or a name as in `kivu serve`
    bundle: PathBuf,
    /// The bundle for the ONNX Runtime baseline, if different: a graph for the native engine is slower there
    #[arg(long, value_name = "BUNDLE")]
    baseline: Option<PathBuf>,
    /// Duration of the throughput measurement, in seconds
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    pub build: BuildArguments,
}

/// Milliseconds.
const MS: &str = "ms";

/// A measured value, and the bare runtime's in the same run.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<f64>,
}

impl Figure {
    fn new(name: &'static str, unit: &'static str, value: f64, baseline: Option<f64>) -> Self {
        Self {
            name,
            unit,
            value,
            baseline,
        }
    }

    fn line(&self) -> String {
        let Self {
            name,
            unit,
            value,
            baseline,
        } = self;
        let baseline = baseline.map(|baseline| {
            let is_time = *unit == MS;
            let speedup = if is_time {
                baseline / value
            } else {
                value / baseline
            };
            format!(
                "   ONNX Runtime alone {:>6} {unit:8}  {speedup:.2} × as fast",
                rounded(baseline)
            )
        });
        format!(
            "{name:34} {:>6} {unit:8}{}",
            rounded(*value),
            baseline.unwrap_or_default()
        )
        .trim_end()
        .to_owned()
    }
}

/// A number with three significant digits, or without decimals.
fn rounded(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

pub fn run(arguments: Arguments, config: Config) -> Result<ExitCode> {
    interruptible(move || bench(arguments, config)).map(Ended::code)
}

fn bench(arguments: Arguments, mut config: Config) -> Result<ExitCode> {
    arguments.json.as_deref().map_or(Ok(()), require_place)?;
    let options = arguments.build.options(&config);
    config.engine = options.engine;
    let config = &config;
    let path = resolve(&arguments.bundle, &options, config)?;
    let bundle = Bundle::open(&path)?;
    let start_ms = cold_start(&path, bundle.manifest(), config)?;
    let mut figures = vec![Figure::new(
        "start to first response, median",
        MS,
        start_ms,
        None,
    )];
    let server = Server::start(&path, config)?;
    figures.extend(match bundle.manifest().task {
        Task::Translation | Task::Summarization | Task::TextToText => {
            decoding(&server, bundle.manifest())?
        }
        _ => {
            let baseline = match &arguments.baseline {
                Some(baseline) => &Bundle::open(&resolve(baseline, &options, config)?)?,
                None => &bundle,
            };
            speed(
                &server,
                [&bundle, baseline],
                config,
                Duration::from_secs(arguments.seconds),
            )?
        }
    });
    figures.push(Figure::new(
        "resident memory",
        "MB",
        server.resident_mb()?,
        None,
    ));
    print(&format!(
        "quality: {}",
        quality::text(bundle.manifest().weights.quality)
    ))?;
    figures
        .iter()
        .try_for_each(|figure| print(&figure.line()))?;
    if let Some(path) = &arguments.json {
        let json = serde_json::to_vec_pretty(&figures)
            .map_err(|error| Error::model_because("cannot serialize the figures", error))?;
        let is_new = !path.exists();
        fs::write(path, json).map_err(|error| {
            if is_new {
                let _ = fs::remove_file(path);
            }
            Error::cannot("write", path.display())(error)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a folder, and a file without one, before anything is measured.
fn require_place(path: &Path) -> Result<()> {
    require_local(path)?;
    let folder = path.parent().filter(|folder| *folder != "");
    if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(Error::config(format!(
            "cannot write `{}`: expected a file in a folder that exists",
            path.display()
        )));
    }
    Ok(())
}

/// Milliseconds from process start to the first complete response.
fn cold_start(bundle: &Path, manifest: &Manifest, config: &Config) -> Result<f64> {
    let request = Request::json(manifest, &example::body(manifest));
    let start = |_| {
        let started = Instant::now();
        Server::start(bundle, config)?.connect()?.send(&request)?;
        Ok(ms(started.elapsed()))
    };
    Ok(median((0..STARTS).map(start).collect::<Result<_>>()?))
}

/// Throughput and latency, both against the same rows run by the bare session.
fn speed(
    server: &Server,
    [bundle, baseline]: [&Bundle; 2],
    config: &Config,
    time: Duration,
) -> Result<Vec<Figure>> {
    let library = library::locate(config.onnxruntime.as_deref(), &config.home)?;
    let (manifest, tokenizer) = (bundle.manifest(), bundle.tokenizer()?);
    let graph = baseline.path(&baseline.manifest().graph);
    let raw = Raw {
        runtime: Runtime::load(&library)?,
        graph,
        cpus: config.threads(),
    };
    let request = |texts: &[&str]| Request::json(manifest, &body(manifest, texts).to_string());
    let texts: Vec<&str> = SENTENCES.lines().collect();
    let requests: Vec<Request> = texts.chunks(TEXTS).map(request).collect();
    let all_rows = rows(manifest, &tokenizer, &texts)?;
    let rows_per_request = all_rows.len() as f64 / requests.len() as f64;
    // Alternating, so that other load on the machine affects both.
    let (mut served, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        bare.push(raw.throughput(&all_rows, time / 3)?);
        served.push(server.throughput(&requests, CLIENTS, time / 3)? * rows_per_request);
    }
    let (short, row) = (request(&[SHORT]), rows(manifest, &tokenizer, &[SHORT])?);
    let (mut run, mut connection) = (raw.runner(&row)?, server.connect()?);
    let (mut http, mut alone) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let times = (connection.send(&short)?, run()?);
        if turn >= TURNS / 10 {
            http.push(times.0);
            alone.push(times.1);
        }
    }
    let unit = if all_rows.len() == texts.len() {
        "texts/s"
    } else {
        "pairs/s"
    };
    let [p99, p99_alone] = [&mut http, &mut alone].map(|times| percentile(times, 99));
    Ok(vec![
        Figure::new(
            "throughput, 32 texts, 4 clients",
            unit,
            median(served),
            Some(median(bare)),
        ),
        Figure::new(
            "one short text, median",
            MS,
            median(http),
            Some(median(alone)),
        ),
        Figure::new("one short text, 99th percentile", MS, p99, Some(p99_alone)),
    ])
}

/// Generated tokens per second, greedily and with five beams, one request at a time.
fn decoding(server: &Server, manifest: &Manifest) -> Result<Vec<Figure>> {
    let settings = manifest
        .settings
        .seq2seq()
        .filter(|settings| settings.languages != Languages::None);
    let pair = settings.map(|settings| Directions::new(&settings.languages).example_pair());
    let mut connection = server.connect()?;
    let mut speed = |name, beams: usize| {
        let generate =
            json!({ "num_beams": beams, "min_new_tokens": TOKENS, "max_new_tokens": TOKENS });
        let mut parameters = json!({ "generate_parameters": generate });
        if let Some(pair) = &pair {
            parameters["src_lang"] = pair.source.as_str().into();
            parameters["tgt_lang"] = pair.target.as_str().into();
        }
        let body = json!({ "inputs": SHORT, "parameters": parameters });
        let request = Request::json(manifest, &body.to_string());
        let times = (0..TRANSLATIONS)
            .map(|_| connection.send(&request))
            .collect::<Result<_>>()?;
        Ok(Figure::new(
            name,
            "tokens/s",
            TOKENS as f64 * 1000.0 / median(times),
            None,
        ))
    };
    Ok(vec![
        speed("decoding, greedy", 1)?,
        speed("decoding, 5 beams", 5)?,
    ])
}

/// Measurements from `kivu serve` with a bundle.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Serving {
    /// After short texts.
    pub resident_mb: f64,
    /// Median HTTP latency for a short text.
    pub answer_ms: f64,
    /// With a text at the maximum length. `None` for text generators, and above [`MAX_TOKENS`].
    pub longest: Option<Longest>,
}

/// Measurement with a text at the maximum length.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Longest {
    pub tokens: usize,
    /// The server's peak memory.
    pub peak_mb: f64,
}

/// Longer texts would take minutes.
const MAX_TOKENS: usize = 8192;

/// Serves a bundle and sends it several example requests, and a text at the maximum length.
pub fn serve_once(bundle: &Path, manifest: &Manifest, config: &Config) -> Result<Serving> {
    const MAX_REQUESTS: usize = 15;
    const MAX_TIME: Duration = Duration::from_millis(800);
    let server = Server::start(bundle, config)?;
    let (mut connection, request) = (
        server.connect()?,
        Request::json(manifest, &example::body(manifest)),
    );
    connection.send(&request)?;
    let (mut times, started) = (vec![connection.send(&request)?], Instant::now());
    while times.len() < MAX_REQUESTS && started.elapsed() < MAX_TIME {
        times.push(connection.send(&request)?);
    }
    let resident_mb = server.resident_mb()?;
    let tokens = manifest.max_tokens().filter(|tokens| *tokens <= MAX_TOKENS);
    let longest = tokens.map(|tokens| {
        // A word has a token or more; the server truncates.
        let words = SENTENCES.split_whitespace().cycle().take(tokens);
        let text = words.collect::<Vec<_>>().join(" ");
        connection.send(&Request::json(
            manifest,
            &body(manifest, &[&text]).to_string(),
        ))?;
        Ok::<_, Error>(Longest {
            tokens,
            peak_mb: server.peak_mb()?,
        })
    });
    // The figures for short texts are useful without it.
    Ok(Serving {
        resident_mb,
        answer_ms: median(times),
        longest: longest.and_then(Result::ok),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_1_is_faster_in_every_unit() {
        let lines = [
            Figure::new("throughput", "texts/s", 963.7, Some(743.21)).line(),
            Figure::new("one short text, median", MS, 0.4567, Some(0.913)).line(),
            Figure::new("resident memory", "MB", 71.25, None).line(),
        ];
        insta::assert_snapshot!(lines.join("\n"), @"
        throughput                            964 texts/s    ONNX Runtime alone    743 texts/s   1.30 × as fast
        one short text, median               0.46 ms         ONNX Runtime alone   0.91 ms        2.00 × as fast
        resident memory                      71.2 MB
        ");
    }

    #[test]
    fn files_that_cannot_be_written_are_refused_first() {
        let folder = tempfile::tempdir().unwrap();
        for path in [Path::new("new.json"), &folder.path().join("new.json")] {
            require_place(path).unwrap();
        }
        for place in [
            folder.path().join("none/new.json"),
            folder.path().to_owned(),
        ] {
            let error = require_place(&place).unwrap_err().to_string();
            let expected = "expected a file in a folder that exists";
            assert!(error.ends_with(expected), "{error}");
        }
    }
}
