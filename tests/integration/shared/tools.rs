//! Tools for tests, which `make test` installs and names in environment variables; without them, tests are skipped.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    server::alone,
    skips::{missing, unsupported},
};

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

/// The Python that a variable names, if its environment has this module: some need a newer Python than the machine's.
#[allow(dead_code, reason = "`aws` and `models` need no module of that kind")]
pub(crate) fn interpreter(variable: &str, module: &str) -> Option<PathBuf> {
    let python = tool(variable)?;
    // Importing a framework takes seconds.
    let find = format!(
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    );
    let found = Command::new(&python).args(["-c", &find]).status();
    if !found.is_ok_and(|status| status.success()) {
        unsupported(format_args!("{module} needs Python 3.11"));
        return None;
    }
    Some(python)
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
