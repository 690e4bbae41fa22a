//! Cargo features: `make run` builds its program without features, and shares all its crates with the tests.

use std::{collections::BTreeSet, path::Path, process::Command};

/// Each crate in a build with its version and enabled features.
fn crates(options: &[&str]) -> BTreeSet<String> {
    let mut command = Command::new(env!("CARGO"));
    let command = command.current_dir(Path::new(crate::tools::ROOT)).args([
        "tree",
        "--locked",
        "--offline",
        "--no-dedupe",
        "--prefix=none",
        "--format={p} {f}",
    ]);
    let output = command.args(options).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter(|line| !line.starts_with("kivu"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn tests_compile_no_crate_of_make_run_a_second_time() {
    let run = crates(&[
        "--package=kivu-program",
        "--edges=normal,build",
        "--no-default-features",
    ]);
    let tests = crates(&["--workspace", "--edges=normal,build,dev"]);
    let differing: Vec<_> = run.difference(&tests).collect();
    assert!(
        differing.is_empty(),
        "expected the same features of each crate in every build, but found other ones in the build of `make run`; \
         add those that are missing at the end of `[dependencies]` in `Cargo.toml`: {differing:#?}"
    );
    assert!(
        run.len() * 4 < tests.len() * 3,
        "{} of {} crates",
        run.len(),
        tests.len()
    );
}

#[test]
fn tests_and_programs_share_their_crates() {
    let tests = crates(&["--workspace", "--edges=normal,build,dev"]);
    // The Lambda emulator compiles the functions alone.
    for packages in ["--workspace", "--package=kivu-functions"] {
        let programs = crates(&[packages, "--edges=normal,build"]);
        let differing: Vec<_> = programs.difference(&tests).collect();
        assert!(
            differing.is_empty(),
            "expected the features of the tests in {packages}, but found {differing:#?}"
        );
    }
}
