//! Tools for tests, which `make test` installs and names in environment variables; without them, tests are skipped.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{server::alone, skips::missing};

/// Repository root.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The path in an environment variable. Prints a note if it is not set.
pub(crate) fn tool(variable: &str) -> Option<PathBuf> {
    let tool = env::var_os(variable).map(PathBuf::from);
    if tool.is_none() {
        missing(variable);
    }
    tool
}

pub(crate) fn root() -> PathBuf {
    Path::new(ROOT).canonicalize().unwrap()
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let _alone = alone();
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
    stdout.into_owned()
}
