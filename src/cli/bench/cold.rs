//! Cold starts: from the start of the process to the first answer, and the parts that no program gets around.

use std::{
    num::NonZeroUsize,
    path::Path,
    process::{ExitCode, Stdio},
    time::Instant,
};

use super::{
    Program, SHORT, median, ms,
    server::{Message, Server, body},
};
use crate::{
    backend::onnx::{Runtime, Session},
    build::quality,
    cli::say,
    error::{Error, Result},
    repository::{Bundle, bundle::TOKENIZER},
    tokenizer::{Side, Tokenizer, Truncation},
};

/// Starts of each kind; the median of so many is steady to a few percent.
const STARTS: usize = 25;

/// Milliseconds from the start of a server to its first answer, and of loading the library, making the session
/// and running it once in a bare process. Taken in turns.
pub(super) fn medians(program: &Program, bundle: &Path) -> Result<[f64; 2]> {
    let request = Message::json("/embed", &body(&[SHORT]));
    let (mut first_answers, mut pieces) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let started = Instant::now();
        let server = Server::start(program, &[Some(bundle)])?;
        server.connect()?.ask(&request)?;
        first_answers.push(ms(started.elapsed()));
        pieces.push(spawn_pieces(program, bundle)?);
    }
    Ok([median(first_answers), median(pieces)])
}

fn spawn_pieces(program: &Program, bundle: &Path) -> Result<f64> {
    let output = program
        .command()
        .args(["bench", "--pieces"])
        .arg(bundle)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(Error::io("cannot start a bare process"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    text.parse().map_err(|_| Error::config(format!("expected milliseconds, but found `{text}`")))
}

/// Measures the parts in this process, which should have done nothing before.
pub(super) fn print_pieces(bundle: &Bundle, library: &Path) -> Result<ExitCode> {
    // The tokenizer is not among the parts: it can load beside them.
    let tokenizer = Tokenizer::from_json(&bundle.read(TOKENIZER)?)?;
    let encoding = tokenizer.encode(SHORT, usize::MAX, Truncation::At(Side::Right))?;
    let started = Instant::now();
    let runtime = Runtime::load(library)?;
    let graph = bundle.path(&bundle.manifest().graph);
    let session = Session::open(runtime, &graph, NonZeroUsize::MIN)?;
    session.run(&quality::inputs(&session, &encoding)?)?;
    let took = ms(started.elapsed());
    say(&took.to_string())?;
    Ok(ExitCode::SUCCESS)
}
