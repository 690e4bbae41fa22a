//! The `kivu` command, which the program and the packages for Python and Node.js run.

mod bench;
mod choices;
mod examples;
mod interrupt;
mod library;
mod program;
mod quality;
mod server;
mod services;
mod setup;
mod start;
mod tasks;
mod terminal;
mod triton;

use std::{
    ffi::OsString,
    io::{self, ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};
use rustix::process::{Resource, Rlimit, setrlimit};

pub use self::services::{Found, Hit, Search, SearchRequest, Services};
use self::{
    examples::examples,
    setup::{completions, doctor, init},
    tasks::{batch, jobs, redact, run, search},
};
use kivu::{
    Result,
    address::shown_value,
    backend::native,
    config::{Config, InstructionSet},
    telemetry,
};

/// Serves Hugging Face transformer models from AWS Lambda and from a laptop.
#[derive(Debug, Parser)]
#[command(name = "kivu", version, after_help = examples("kivu"))]
struct Arguments {
    /// The configuration file [default: KIVU_CONFIG, or kivu.toml if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(server::Arguments),
    Run(Box<run::Arguments>),
    Search(search::Arguments),
    Build(library::build::Arguments),
    #[command(visible_alias = "list")]
    Models(library::models::Arguments),
    Show(library::show::Arguments),
    Ps(server::ps::Arguments),
    Rm(library::rm::Arguments),
    Batch(Box<batch::Arguments>),
    Jobs(jobs::Arguments),
    Redact(Box<redact::Arguments>),
    Restore(redact::RestoreArguments),
    Bench(bench::Arguments),
    Quality(Box<quality::Arguments>),
    Push(library::push::Arguments),
    Pull(library::pull::Arguments),
    Triton(triton::Arguments),
    Key(server::key::Arguments),
    Init(init::Arguments),
    Doctor(doctor::Arguments),
    Completions(completions::Arguments),
}

impl Command {
    /// The instructions on the command line.
    fn instructions(&self) -> Option<InstructionSet> {
        let build = match self {
            Self::Serve(arguments) => &arguments.build,
            Self::Run(arguments) => &arguments.build,
            Self::Search(arguments) => &arguments.build,
            Self::Build(arguments) => &arguments.build,
            Self::Batch(arguments) => &arguments.build,
            Self::Redact(arguments) => &arguments.build,
            Self::Bench(arguments) => &arguments.build,
            Self::Quality(arguments) => &arguments.build,
            Self::Push(arguments) => &arguments.build,
            Self::Triton(arguments) => &arguments.build,
            _ => return None,
        };
        build.instructions
    }
}

/// Runs the command in another program, which starts it again with `interpreter`, a program and its arguments; returns
/// its exit code.
pub fn main_of_package(
    interpreter: Vec<OsString>,
    arguments: impl IntoIterator<Item = OsString>,
    services: fn(&Config) -> Services,
) -> u8 {
    program::start_with(interpreter);
    let code = main(arguments, services);
    let _ = io::stdout().flush();
    // The standard library has no conversion.
    (0..=u8::MAX)
        .find(|number| ExitCode::from(*number) == code)
        .unwrap_or(1)
}

/// Runs the command with these arguments, of which the first is the program's name.
pub fn main(
    arguments: impl IntoIterator<Item = OsString>,
    services: fn(&Config) -> Services,
) -> ExitCode {
    // A core dump would contain keys and request texts. Ignored if the system refuses.
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return explained(&without_users(error)),
    };
    execute(arguments, services).unwrap_or_else(|error| {
        terminal::print_error(&error);
        ExitCode::FAILURE
    })
}

/// Prints what is wrong with the arguments, or the help that they ask for.
fn explained(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(failure) if !error.use_stderr() && failure.kind() != ErrorKind::BrokenPipe => {
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1)),
    }
}

/// An error about arguments that shows addresses without user information.
fn without_users(mut error: clap::Error) -> clap::Error {
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg] {
        if let Some(ContextValue::String(value)) = error.get(kind) {
            let value = shown_value(value).into_owned();
            error.insert(kind, ContextValue::String(value));
        }
    }
    error
}

/// Without a command: what can be served, on a terminal; elsewhere the help, as after an invalid command line.
fn start_or_help(config: Config, services: fn(&Config) -> Services) -> Result<ExitCode> {
    if start::is_possible() {
        let services = services(&config);
        return start::run(config, services.cloud);
    }
    terminal::print_aside(&Arguments::command().render_help().to_string());
    Ok(ExitCode::from(2))
}

fn execute(arguments: Arguments, services: fn(&Config) -> Services) -> Result<ExitCode> {
    let mut config = Config::load(arguments.config.as_deref(), &Config::variables()?)?;
    telemetry::start_log(config.log);
    let Some(command) = arguments.command else {
        return start_or_help(config, services);
    };
    config.instructions = command.instructions().or(config.instructions);
    native::use_instructions(config.instructions)?;
    let services = services(&config);
    match command {
        Command::Batch(arguments) => batch::run(*arguments, config, services),
        Command::Bench(arguments) => bench::run(arguments, config),
        Command::Build(arguments) => library::build::run(arguments, config, services.parquet),
        Command::Completions(arguments) => completions::run(&arguments, &mut Arguments::command()),
        Command::Doctor(arguments) => doctor::run(&arguments, &config),
        Command::Init(arguments) => init::run(&arguments),
        Command::Jobs(arguments) => jobs::run(&arguments, &services.cloud),
        Command::Key(arguments) => server::key::run(&arguments),
        Command::Models(arguments) => library::models::run(&arguments, &config),
        Command::Ps(arguments) => server::ps::run(&arguments, &config),
        Command::Pull(arguments) => library::pull::run(&arguments, &services.cloud),
        Command::Push(arguments) => library::push::run(arguments, config, services.cloud),
        Command::Quality(arguments) => quality::run(*arguments, config, services),
        Command::Redact(arguments) => redact::run(*arguments, config, services),
        Command::Restore(arguments) => redact::run_restore(arguments, config, services.parquet),
        Command::Rm(arguments) => library::rm::run(&arguments, &config),
        Command::Run(arguments) => run::run(*arguments, config, services.cloud),
        Command::Search(arguments) => search::run(arguments, config, services),
        Command::Serve(arguments) => server::run(arguments, config, services.cloud),
        Command::Show(arguments) => library::show::run(&arguments, &config, &services.cloud),
        Command::Triton(arguments) => triton::run(arguments, config),
    }
}
