//! `kivu completions`: a shell that knows the commands.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::error::{Error, Result};

const EXAMPLES: &str = "\
Examples:
  source <(kivu completions bash)                                     for this shell only
  kivu completions bash > ~/.local/share/bash-completion/completions/kivu
  kivu completions zsh > ~/.zfunc/_kivu                               with ~/.zfunc in fpath
  kivu completions fish > ~/.config/fish/completions/kivu.fish";

/// Print a script by which a shell completes commands and options
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The shell that the script is for
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Written at once: a reader that has seen enough is told as an error, not as a panic.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut super::Arguments::command(), "kivu", &mut script);
    io::stdout().write_all(&script).map_err(Error::io("cannot write to standard output"))?;
    Ok(ExitCode::SUCCESS)
}
