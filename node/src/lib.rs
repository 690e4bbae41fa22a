//! The native module of the npm package `kivuml`: models, and the `kivu` command.
//!
//! The JavaScript in `kivuml/` has everything that it can do as well: it reads texts from iterables, divides them into
//! batches, makes vectors from the arrays that this module returns, and chooses the classes of errors.

#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "`napi` registers no functions when clippy checks the library as a test"
    )
)]

mod call;
mod failure;
mod model;
mod texts;

use std::{ffi::OsString, path::PathBuf};

use napi_derive::napi;

/// Runs the `kivu` command with these arguments, of which the first is the program's name; returns its exit code.
/// `interpreter` is the command that starts it again.
#[napi]
pub fn command(interpreter: Vec<String>, arguments: Vec<String>) -> u8 {
    let [interpreter, arguments] = [interpreter, arguments]
        .map(|words| words.into_iter().map(OsString::from).collect::<Vec<_>>());
    kivu_cli::main_of_package(interpreter, arguments, |config| kivu_cli::Services {
        cloud: kivu_aws::cloud(config),
        sinks: kivu_sinks::sinks(),
        parquet: kivu_parquet::parquet(),
        search: Some(kivu_search::search),
    })
}

/// Names the folder with the package's own ONNX Runtime.
#[napi]
pub fn add_package(folder: String) {
    kivu::onnx::library::add_package(PathBuf::from(folder));
}
