//! `kivu key`: API keys.

use std::{process::ExitCode, time::SystemTime};

use clap::Args;

use crate::{examples::examples, tasks::batch::listed, terminal::print};
use kivu::{Error, Result};
use kivu_http::{Date, KeyLimits, make_limited_key};

/// Make an API key, and the line that makes a server accept it
///
/// The key is for the caller and is not stored. The line contains only its hash; add it to `auth.keys`, to
/// `auth.keys_file` or to the secret.
#[derive(Debug, Args)]
#[command(after_help = examples("key"))]
pub struct Arguments {
    /// The caller's name, which is logged with each request
    #[arg(value_name = "NAME", default_value = "default")]
    name: String,
    /// Last day on which the key is valid, in UTC
    #[arg(long, value_name = "YYYY-MM-DD")]
    expires: Option<Date>,
    /// Models that the key may use, separated by commas; all by default
    #[arg(long, value_name = "NAMES")]
    models: Vec<String>,
    /// Maximum requests per minute, in each server process
    #[arg(long, value_name = "COUNT")]
    per_minute: Option<u32>,
    /// Maximum requests per UTC day; `auth.quota_table` shares the count among servers
    #[arg(long, value_name = "COUNT")]
    per_day: Option<u32>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments {
        name,
        expires,
        models,
        per_minute,
        per_day,
    } = arguments;
    let limits = KeyLimits {
        expires: *expires,
        models: listed("--models", models)?,
        per_minute: *per_minute,
        per_day: *per_day,
    };
    if limits.models.is_empty() && !models.is_empty() {
        return Err(Error::config("`--models` is empty")
            .with_hint("omit it for a key that may use all models"));
    }
    if let Some(date) = expires.filter(|_| limits.has_expired(SystemTime::now())) {
        return Err(Error::config(format!(
            "expected `--expires` to be today or later, but found {date}"
        )));
    }
    let (key, line) = make_limited_key(name, &limits)?;
    print(&format!("key:  {key}\nline: {line}"))?;
    Ok(ExitCode::SUCCESS)
}
