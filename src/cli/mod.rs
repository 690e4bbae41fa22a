//! The `kivu` command: what its words mean, and how it speaks to a terminal.

mod batch;
mod bench;
mod build;
mod completions;
mod connections;
mod doctor;
mod interrupt;
mod key;
mod progress;
mod pull;
mod push;
mod serve;
mod triton;

use std::{
    io::{self, IsTerminal, Write},
    panic,
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::{
    config::{Config, LogFormat},
    error::{Error, Result},
};

const EXAMPLES: &str = "\
Examples:
  kivu doctor --fix                          fetch what this machine lacks
  kivu build path/to/model --out my-model    make a bundle of a Hugging Face model
  kivu serve my-model                        serve it, with a page on http://127.0.0.1:8080

Exit codes: 0 done; 1 it failed, and standard error says why; 2 the command line cannot be understood; 130 and 143
`kivu build` or `kivu batch` was stopped by Ctrl-C or SIGTERM.";

/// Serves Hugging Face transformer models from AWS Lambda and from a laptop.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    /// The configuration file [default: what KIVU_CONFIG names, or kivu.toml if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Batch(batch::Arguments),
    Bench(bench::Arguments),
    Build(build::Arguments),
    Completions(completions::Arguments),
    Doctor(doctor::Arguments),
    Key(key::Arguments),
    Pull(pull::Arguments),
    Push(push::Arguments),
    Serve(serve::Arguments),
    Triton(triton::Arguments),
}

/// Runs the command that this process was called with; says on standard error what went wrong.
pub fn run() -> ExitCode {
    write_no_core_dumps();
    let arguments = Arguments::parse();
    match execute(arguments) {
        Ok(code) => code,
        Err(error) => {
            // Nobody is left to be told that standard error is gone.
            let _ = writeln!(io::stderr(), "error: {}", error.chain());
            ExitCode::FAILURE
        }
    }
}

/// A core dump would hold keys and the texts of callers: none is written, whatever the shell would allow.
fn write_no_core_dumps() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    // What a system refuses to lower is as it was.
    let _ = setrlimit(Resource::Core, none);
}

fn execute(arguments: Arguments) -> Result<ExitCode> {
    let file = arguments.config;
    let config = Config::load(file.as_deref(), &Config::variables())?;
    start_log(config.log);
    match arguments.command {
        Command::Batch(arguments) => batch::run(arguments, config),
        Command::Bench(arguments) => bench::run(&arguments, &config, file.as_deref()),
        Command::Build(arguments) => build::run(arguments, config),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments, &config),
        Command::Key(arguments) => key::run(&arguments),
        Command::Pull(arguments) => pull::run(&arguments),
        Command::Push(arguments) => push::run(&arguments, &config),
        Command::Serve(arguments) => serve::run(arguments, config),
        Command::Triton(arguments) => triton::run(&arguments),
    }
}

/// Sends the log to standard error, in the given form; `RUST_LOG` chooses what goes into it.
///
/// A second call changes nothing.
pub fn start_log(format: LogFormat) {
    let chosen = std::env::var("RUST_LOG").ok().filter(|chosen| !chosen.is_empty());
    let filter = EnvFilter::new(chosen.as_deref().unwrap_or("warn,aws_config=error,kivu=info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Whoever started a log before has the say.
    let _ = match format {
        LogFormat::Text => log.with_ansi(wants_colours()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    // The message of a panic may quote a user's text; its place never does.
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panicked");
    }));
}

/// Whether standard error is a terminal whose user has not said, by `NO_COLOR`, that colours are unwelcome.
fn wants_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

/// The bundle that a command line names: a path or URL, or else the name of a bundle in [`Config::bundles`].
fn bundle(named: PathBuf, config: &Config) -> PathBuf {
    let built = config.bundles().join(&named);
    let is_name = named.components().count() == 1 && !named.exists();
    if is_name && built.is_dir() { built } else { named }
}

/// Writes a result to standard output. A reader that has left, as `head` does, wants no more of it: that is no failure
/// of the work that the result is about.
fn say(line: &str) -> Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to standard output")(error))
        }
        _ => Ok(()),
    }
}
