//! `kivu key`: a key for a caller.

use std::process::ExitCode;

use clap::Args;

use super::say;
use crate::{api::make_key, error::Result};

const EXAMPLES: &str = "\
Examples:
  kivu key alice    a key for alice, and the line for `auth.keys` of the server that is to know it";

/// Make a key, and the line by which a server knows it
///
/// The key is for whoever is to call the server, and is not kept anywhere. The line, which gives nothing away,
/// goes to `auth.keys`, into `auth.keys_file` or into the secret.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Who the key is for; the name stands in the log with each request
    #[arg(value_name = "NAME", default_value = "default")]
    name: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (key, line) = make_key(&arguments.name)?;
    say(&format!("key:  {key}"))?;
    say(&format!("line: {line}"))?;
    Ok(ExitCode::SUCCESS)
}
