//! Cold starts: from the start of the process to the first answer, and the parts that no program gets around.

use std::{
    num::NonZeroUsize,
    path::Path,
    process::{ExitCode, Stdio},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::{
    Program, SHORT, median, ms,
    server::{Message, Server, body},
};
use crate::{
    backend::onnx::{Runtime, Session},
    build::quality,
    cli::say,
    error::{Error, Result},
    repository::Bundle,
    tokenizer::{Side, Truncation},
};

/// Starts of each kind; the median of so many is steady to a few percent.
const STARTS: usize = 25;

/// Milliseconds from the start of a server to its first answer, and of the parts in a bare process; taken in
/// turns.
pub(super) fn medians(program: &Program, bundle: &Path) -> Result<(f64, Parts)> {
    let request = Message::json("/embed", &body(&[SHORT]));
    let (mut first_answers, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let started = Instant::now();
        let server = Server::start(program, &[Some(bundle)])?;
        server.connect()?.ask(&request)?;
        first_answers.push(ms(started.elapsed()));
        parts.push(spawn_parts(program, bundle)?);
    }
    let median_of = |part: fn(&Parts) -> f64| median(parts.iter().map(part).collect());
    let parts = Parts {
        tokenizer: median_of(|parts| parts.tokenizer),
        library: median_of(|parts| parts.library),
        session: median_of(|parts| parts.session),
        run: median_of(|parts| parts.run),
    };
    Ok((median(first_answers), parts))
}

/// The parts of a cold start that no program gets around, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Parts {
    /// Reading the tokenizer, which can be done beside the others.
    pub(super) tokenizer: f64,
    /// Loading ONNX Runtime.
    pub(super) library: f64,
    /// Making the session.
    pub(super) session: f64,
    /// The first run.
    pub(super) run: f64,
}

impl Parts {
    /// What has to be done one after the other.
    pub(super) fn in_line(&self) -> f64 {
        self.library + self.session + self.run
    }
}

fn spawn_parts(program: &Program, bundle: &Path) -> Result<Parts> {
    let output = program
        .command()
        .args(["bench", "--parts"])
        .arg(bundle)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(Error::io("cannot start a bare process"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        Error::model_because("expected the parts of a cold start from a bare process", error)
    })
}

/// Measures the parts in this process, which should have done nothing before.
pub(super) fn print_parts(bundle: &Bundle, library: &Path) -> Result<ExitCode> {
    let mut started = Instant::now();
    let mut lap = || ms(std::mem::replace(&mut started, Instant::now()).elapsed());
    let runtime = Runtime::load(library)?;
    let library = lap();
    let graph = bundle.path(&bundle.manifest().graph);
    let session = Session::open(runtime, &graph, NonZeroUsize::MIN)?;
    let session_time = lap();
    let tokenizer = bundle.tokenizer()?;
    let tokenizer_time = lap();
    let encoding = tokenizer.encode(SHORT, usize::MAX, Truncation::At(Side::Right))?;
    lap();
    session.run(&quality::inputs(&session, &encoding)?)?;
    let parts = Parts { tokenizer: tokenizer_time, library, session: session_time, run: lap() };
    let json = serde_json::to_string(&parts)
        .map_err(|error| Error::model_because("the parts of a cold start cannot be written", error))?;
    say(&json)?;
    Ok(ExitCode::SUCCESS)
}
