//! `kivu pull`: bundles from S3.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::resolve::require_local;
use crate::terminal::{Progress, print};
use kivu::{
    cloud::Cloud,
    error::Result,
    repository::{remote, s3::Url},
};

const EXAMPLES: &str = "\
Examples:
  kivu pull s3://bucket/models/my-model --out my-model";

/// Download a bundle from S3
///
/// An interrupted download is resumed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The bundle, as s3://BUCKET/PREFIX/NAME or s3://BUCKET/PREFIX/NAME/DIGEST
    #[arg(value_name = "URL")]
    bundle: Url,
    /// The bundle's folder; an existing bundle is replaced, other files are an error
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub fn run(arguments: &Arguments, cloud: &Cloud) -> Result<ExitCode> {
    require_local(&arguments.out)?;
    let bundle = remote::open(&cloud.store()?, &arguments.bundle)?;
    let (digest, out) = (&bundle.digest()[..12], arguments.out.display());
    print(
        &match remote::pull(&bundle, &arguments.out, &Progress::default())? {
            true => format!("fetched {digest} into {out}"),
            false => format!("known   {digest} in {out}"),
        },
    )?;
    Ok(ExitCode::SUCCESS)
}
