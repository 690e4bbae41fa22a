//! `kivu triton`: bundles as models of Triton.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::terminal::print;
use crate::{
    error::Result,
    repository::{
        Bundle,
        triton::{Options, write},
    },
};

/// Write a bundle into a model repository of Triton
///
/// The repository gets a folder with the bundle's name, its configuration and version 1. Existing files are not
/// overwritten.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A bundle
    bundle: PathBuf,
    /// The model repository
    #[arg(long, value_name = "REPOSITORY")]
    out: PathBuf,
    #[command(flatten)]
    options: Options,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let bundle = Bundle::open(&arguments.bundle)?;
    for name in write(&bundle, &arguments.out, &arguments.options)? {
        print(&format!("wrote {}", arguments.out.join(name).display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
