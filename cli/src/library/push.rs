//! `kivu push`: bundles to S3.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::resolve::{BuildArguments, resolve};
use crate::{
    examples::examples,
    interrupt::{Ended, interruptible},
    terminal::{Progress, print},
};
use kivu::{
    Error, Result,
    cloud::Cloud,
    config::Config,
    repository::{Bundle, remote, s3::Url},
};

/// The folder in `home` with interrupted uploads' state.
const STATE: &str = "pushes";

/// Upload a bundle to S3
///
/// The bundle is stored under PREFIX/NAME/DIGEST, and PREFIX/NAME/latest refers to it. Existing objects are skipped,
/// and an interrupted upload is resumed. AWS_ENDPOINT_URL selects a store other than AWS.
#[derive(Debug, Args)]
#[command(after_help = examples("push"))]
pub struct Arguments {
    /// A bundle made by `kivu build`, or a name as in `kivu serve`
    bundle: PathBuf,
    /// The prefix, as s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    prefix: Url,
    #[command(flatten)]
    pub build: BuildArguments,
}

pub fn run(arguments: Arguments, config: Config, cloud: Cloud) -> Result<ExitCode> {
    interruptible(move || push(arguments, &config, &cloud)).map(Ended::code)
}

fn push(arguments: Arguments, config: &Config, cloud: &Cloud) -> Result<ExitCode> {
    if Url::of(&arguments.bundle).is_some() {
        return Err(Error::config(format!(
            "expected a bundle in a folder, but found `{}`",
            arguments.bundle.display()
        ))
        .with_hint("`kivu pull` downloads it"));
    }
    let bundle = Bundle::open(&resolve(
        &arguments.bundle,
        &arguments.build.options(config),
        config,
    )?)?;
    let (state, progress) = (config.home.join(STATE), Progress::default());
    let is_new = remote::push(
        &cloud.store()?,
        &bundle,
        &arguments.prefix,
        &state,
        &progress,
    )?;
    let outcome = if is_new { "sent " } else { "known" };
    let name = arguments.prefix.join(&bundle.manifest().name);
    print(&format!(
        "{outcome}  {}\nnext   kivu serve {name}",
        name.join(bundle.digest())
    ))?;
    Ok(ExitCode::SUCCESS)
}
