//! The `kivu` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    kivu::cli::run()
}
