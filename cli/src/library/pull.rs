//! `kivu pull`: bundles from S3.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::resolve::require_local;
use crate::examples::examples;
use crate::terminal::{Progress, print};
use kivu::{
    Error, Result,
    cloud::Cloud,
    repository::{remote, s3::Url},
};
use kivu_compiler::library::hub::RepositoryName;

/// Download a bundle from S3
///
/// An interrupted download is resumed.
#[derive(Debug, Args)]
#[command(after_help = examples("pull"))]
pub struct Arguments {
    /// The bundle, as s3://BUCKET/PREFIX/NAME or s3://BUCKET/PREFIX/NAME/DIGEST
    #[arg(value_name = "URL", value_parser = bundle)]
    bundle: Url,
    /// The bundle's folder; an existing bundle is replaced, other files are an error
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn bundle(text: &str) -> Result<Url> {
    if RepositoryName::is_name(text) {
        return Err(Error::config(format!(
            "expected a bundle's `s3://` URL, but found the hub repository `{text}`"
        ))
        .with_hint(format!(
            "`kivu serve {text}` downloads, builds and serves it, and `kivu build {text}` only builds it"
        )));
    }
    text.parse()
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
