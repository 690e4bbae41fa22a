//! `kivu completions`: completion scripts for shells.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::examples::examples;
use crate::terminal::print;
use kivu::Result;

/// Print a script that completes commands and options in a shell
#[derive(Debug, Args)]
#[command(after_help = examples("completions"))]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

pub fn run(arguments: &Arguments, command: &mut Command) -> Result<ExitCode> {
    // Into memory first: `generate` panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, command, "kivu", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
