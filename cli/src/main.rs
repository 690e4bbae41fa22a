//! The `kivu` command as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    kivu_cli::main(std::env::args_os())
}
