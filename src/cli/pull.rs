//! `kivu pull`: bundles from S3.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::terminal::{Progress, print};
use crate::{
    error::Result,
    repository::{Bundle, s3::Url, staged},
};

const EXAMPLES: &str = "\
Examples:
  kivu pull s3://bucket/models/my-model --out my-model";

/// Download a bundle from S3
///
/// An interrupted download is resumed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The bundle, as s3://BUCKET/PREFIX/NAME or s3://BUCKET/PREFIX/NAME/DIGEST
    #[arg(value_name = "URL")]
    bundle: Url,
    /// The folder of the bundle; an existing bundle is replaced, other files are an error
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let bundle = Bundle::open(arguments.bundle.to_string().as_ref())?;
    let (digest, out) = (&bundle.digest()[..12], arguments.out.display());
    print(&match staged::pull(&bundle, &arguments.out, &Progress::default())? {
        true => format!("fetched {digest} into {out}"),
        false => format!("known   {digest} in {out}"),
    })?;
    Ok(ExitCode::SUCCESS)
}
