//! Starts this command again in another process.

use std::{ffi::OsString, process::Command, sync::OnceLock};

use kivu::{Error, Result};

/// The interpreter and its arguments, if this command is part of a package.
static INTERPRETER: OnceLock<Vec<OsString>> = OnceLock::new();

/// Names the command that starts this one, for packages that another program loads.
pub fn start_with(interpreter: Vec<OsString>) {
    let _ = INTERPRETER.set(interpreter);
}

/// This command, without arguments.
pub fn command() -> Result<Command> {
    if let Some([program, arguments @ ..]) = INTERPRETER.get().map(Vec::as_slice) {
        let mut command = Command::new(program);
        command.args(arguments);
        return Ok(command);
    }
    std::env::current_exe()
        .map(Command::new)
        .map_err(Error::io("cannot find the path of this program"))
}
