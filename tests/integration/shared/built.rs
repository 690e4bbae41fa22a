//! What is built besides the program: functions, packages' native modules, and bundles.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use crate::tools::ROOT;

pub(crate) const MINILM: &str = ".kivu/bundles/minilm";

/// A Lambda function's program or a package's native module, compiled if it is not up to date.
pub(crate) fn compiled(name: &str) -> PathBuf {
    static BUILD: LazyLock<bool> = LazyLock::new(|| {
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--workspace", "--lib", "--bins"])
            .current_dir(ROOT);
        outside_of_cargo(&mut build).status().unwrap().success()
    });
    assert!(*BUILD, "`{name}` cannot be compiled");
    Path::new(env!("CARGO_BIN_EXE_kivu")).with_file_name(name)
}

/// Removes the variables that `cargo test` sets for tests. If a command runs cargo with them, crates whose build scripts
/// depend on one are compiled again with all crates above them, and once more by the next cargo without them.
pub(crate) fn outside_of_cargo(command: &mut Command) -> &mut Command {
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command
}
