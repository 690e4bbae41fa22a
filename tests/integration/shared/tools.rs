//! Tools for tests, which `make test` installs and names in environment variables; without them, tests are skipped.

use std::{
    array, env,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
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

/// Ports without a listener, each returned once by this process.
///
/// They are below 32,768, where Linux begins to hand out the ports of outgoing connections: one of those could be taken
/// before the server listens.
#[allow(
    dead_code,
    reason = "`models` and `packages` start no server on a port"
)]
pub(crate) fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    const FIRST: u16 = 10_000;
    const LAST: u16 = 32_767;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run beside each other begin at different ports.
    let start = std::process::id().wrapping_mul(97) % u32::from(LAST - FIRST);
    let next = || {
        let offset = start + u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        FIRST + (offset % u32::from(LAST - FIRST)) as u16
    };
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    array::from_fn(|_| std::iter::repeat_with(next).find(is_free).unwrap())
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
