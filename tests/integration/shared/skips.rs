//! Skipped tests: visible in the output, and failures under `make test` if a part is missing that it installs.

use std::{
    env,
    fmt::Display,
    io::{self, Write},
};

/// Notes that a test is skipped, because a part that `make test` installs is missing.
///
/// # Panics
/// Under `make test`, which sets `TEST_COMPLETE`.
pub(crate) fn missing(part: impl Display) {
    assert!(
        env::var_os("TEST_COMPLETE").is_none(),
        "expected everything that tests need, but found a missing part: {part}"
    );
    unsupported(format_args!("{part}; `make test` installs it"));
}

/// Notes that a test is skipped, because this machine cannot run it.
pub(crate) fn unsupported(reason: impl Display) {
    // Not `eprintln!`, whose output the test harness shows for failed tests only.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}
