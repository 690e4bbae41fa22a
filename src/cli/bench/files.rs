//! Files of texts: rows a second against the bare runtime, memory, and what reading and writing cost alone.

use std::{
    fs,
    path::Path,
    process::{Child, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Figure, Program, Target, median, ms, raw::Raw};
use crate::{
    backend::onnx::Weights,
    batch::{Report, pass_through},
    cli::say,
    error::{Error, Result},
    repository::{Bundle, bundle::TOKENIZER},
};

/// Rows whose reading and writing is measured.
const ROWS: usize = 200_000;
/// How often a process is asked for its memory.
const WATCH: Duration = Duration::from_millis(50);

/// The figures of a file of so many rows.
pub(super) fn figures(
    program: &Program,
    bundle: &Path,
    raw: &Raw,
    texts: &[&str],
    rows: usize,
    time: Duration,
) -> Result<Vec<Figure>> {
    let folder = tempfile::tempdir().map_err(Error::io("cannot make a folder for files"))?;
    let (input, output) = (folder.path().join("rows.jsonl"), folder.path().join("answers.jsonl"));
    fs::write(&input, lines(texts, rows)).map_err(Error::io("cannot write the rows"))?;
    let before = raw.best(texts, time)?;
    let mut command = program.command();
    command.arg("batch").arg(&input).arg(&output).arg("--model").arg(bundle);
    let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
    let peak = watch(process.map_err(Error::io("cannot start `kivu batch`"))?)?;
    let after = raw.best(texts, time)?;
    let report =
        fs::read(format!("{}.report.json", output.display())).map_err(Error::io("cannot read the report"))?;
    let report: Report = serde_json::from_slice(&report)
        .map_err(|error| Error::model_because("expected a report of `kivu batch`", error))?;
    // Whole turns of the texts on both sides, so that both have the same lengths.
    let served = report.progress.rows as f64 / report.progress.seconds;
    let mut passes = Vec::new();
    for _ in 0..3 {
        let file = lines(texts, ROWS);
        let started = Instant::now();
        let passed = pass_through(file)?;
        passes.push(ms(started.elapsed()) * 1000.0 / passed as f64);
    }
    Ok(vec![
        Figure::new(
            "kivu batch, JSON Lines | best raw",
            "texts/s",
            [served, (before + after) / 2.0],
            Target::AtLeast(0.9),
        ),
        Figure::new("memory of kivu batch, at most", "MB", [peak, 250.0], Target::AtMost(1.0)),
        Figure::new("reading and writing a row", "µs", [median(passes), 5.0], Target::AtMost(1.0)),
    ])
}

fn lines(texts: &[&str], rows: usize) -> Vec<u8> {
    let row = |(id, text): (usize, &&str)| format!("{}\n", serde_json::json!({ "id": id, "text": text }));
    texts.iter().cycle().enumerate().take(rows).flat_map(|row_of| row(row_of).into_bytes()).collect()
}

/// The most memory that a process had until its end, in MB.
fn watch(mut process: Child) -> Result<f64> {
    let status = format!("/proc/{}/status", process.id());
    let mut peak = 0.0_f64;
    loop {
        if let Ok(text) = fs::read_to_string(&status)
            && let Some(line) = text.lines().find(|line| line.starts_with("VmHWM:"))
        {
            let kb = line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0);
            peak = peak.max(kb * 1024.0 / 1e6);
        }
        match process.try_wait().map_err(Error::io("cannot wait for `kivu batch`"))? {
            Some(status) if status.success() => return Ok(peak),
            Some(status) => {
                return Err(Error::config(format!("expected `kivu batch` to succeed, but found {status}")));
            }
            None => thread::sleep(WATCH),
        }
    }
}

/// Fetches the files of a bundle into memory as loading does, verified, and tells the seconds.
pub(super) fn print_fetch(bundle: &Bundle) -> Result<ExitCode> {
    let started = Instant::now();
    let graph = bundle.read(&bundle.manifest().graph)?;
    let mut weights = Weights::of(&[graph], |name| bundle.manifest().file(name).map(|file| file.size))?;
    for name in weights.files() {
        let mut file = weights.file(&name);
        bundle.stream(&name, |piece| file.take(piece))?;
    }
    bundle.read(TOKENIZER)?;
    say(&started.elapsed().as_secs_f64().to_string())?;
    // What a process has had at most is what it is asked for at its end.
    let status =
        fs::read_to_string("/proc/self/status").map_err(Error::io("cannot read `/proc/self/status`"))?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    drop(weights);
    say(peak)?;
    Ok(ExitCode::SUCCESS)
}
