//! `kivu key`: API keys.

use std::process::ExitCode;

use clap::Args;

use super::terminal::print;
use crate::{api::make_key, error::Result};

const EXAMPLES: &str = "\
Examples:
  kivu key alice    a key for alice, and the line for `auth.keys` of the server that accepts it";

/// Make an API key, and the line that makes a server accept it
///
/// The key is for the caller and is not stored. The line contains only a hash of it; add it to `auth.keys`, to
/// `auth.keys_file` or to the secret.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The name of the caller, which the log has for each request
    #[arg(value_name = "NAME", default_value = "default")]
    name: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (key, line) = make_key(&arguments.name)?;
    print(&format!("key:  {key}\nline: {line}"))?;
    Ok(ExitCode::SUCCESS)
}
