//! The template, as the official checkers, an emulator of AWS and the code itself see it. `make test` names where
//! the checkers and the emulator are; without that the tests say that they skip.

use std::process::Command;

use crate::live::{root, succeed, tool};

/// A script of `tests/deploy`, run by the Python that has what it needs.
fn script(name: &str) -> Option<Command> {
    let mut command = Command::new(tool("TEST_DEPLOY")?.join("python"));
    command.current_dir(root()).arg(format!("tests/deploy/{name}.py"));
    Some(command)
}

#[test]
fn the_official_checkers_object_to_nothing() {
    let (Some(mut validate), Some(checkov)) = (script("validate"), tool("TEST_CHECKOV")) else { return };
    succeed(validate.arg(checkov));
}
