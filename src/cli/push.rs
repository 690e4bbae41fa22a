//! `kivu push`: a bundle to S3.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{progress::Terminal, say};
use crate::{
    config::Config,
    error::{Error, Result},
    repository::{
        Bundle,
        bundle::Home,
        s3::{Store, Url},
        staged::{self, Pushed},
    },
};

/// Where it is remembered what was sent, under the home of what is fetched.
const NOTES: &str = "pushes";

const EXAMPLES: &str = "\
Examples:
  kivu push my-model s3://bucket/models    from now on: kivu serve s3://bucket/models/my-model";

/// Send a bundle to S3, whence it is served
///
/// It comes to lie under PREFIX/NAME/DIGEST, and PREFIX/NAME/latest names it. What is there already is not sent
/// again, and a push that was interrupted goes on where it stopped. AWS_ENDPOINT_URL names another server than
/// AWS's.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A bundle that `kivu build` made
    bundle: PathBuf,
    /// The prefix, as s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    prefix: Url,
}

pub(super) fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
    let bundle = Bundle::open(&arguments.bundle)?;
    if let Home::S3(..) = bundle.home() {
        return Err(Error::config(format!(
            "expected a bundle in a folder, but found `{}`; `kivu pull` fetches it",
            arguments.bundle.display()
        )));
    }
    let notes = config.home.join(NOTES);
    let pushed = staged::push(&Store::open()?, &bundle, &arguments.prefix, &notes, &Terminal::new())?;
    let name = arguments.prefix.join(&bundle.manifest().name);
    match pushed {
        Pushed::Sent => say(&format!("sent   {}", name.join(bundle.digest())))?,
        Pushed::Known => say(&format!("known  {}", name.join(bundle.digest())))?,
    }
    say(&format!("next   kivu serve {name}"))?;
    Ok(ExitCode::SUCCESS)
}
