//! `kivu pull`: a bundle from S3.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{progress::Terminal, say};
use crate::{
    error::Result,
    repository::{Bundle, s3::Url, staged},
};

const EXAMPLES: &str = "\
Examples:
  kivu pull s3://bucket/models/my-model --out my-model";

/// Fetch a bundle from S3
///
/// A fetch that was interrupted goes on where it stopped.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The bundle, as s3://BUCKET/PREFIX/NAME or s3://BUCKET/PREFIX/NAME/DIGEST
    #[arg(value_name = "URL")]
    bundle: Url,
    /// The folder of the bundle; a bundle that is there is replaced, other files are refused
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let bundle = Bundle::open(arguments.bundle.to_string().as_ref())?;
    let (digest, out) = (&bundle.digest()[..12], arguments.out.display());
    if staged::pull(&bundle, &arguments.out, &Terminal::new())? {
        say(&format!("fetched {digest} into {out}"))?;
    } else {
        say(&format!("known   {digest} in {out}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
