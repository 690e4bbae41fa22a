//! The Python module `kivuml._native`: models, and the `kivu` command.
//!
//! The package in `kivuml/` has everything that Python can do as well: it reads texts from lists, arrays and series,
//! divides them into batches, and makes arrays from the bytes that this module returns.

mod errors;
mod model;
mod run;
mod texts;

use pyo3::pymodule;

#[pymodule(name = "_native")]
mod native {
    use std::{ffi::OsString, path::PathBuf};

    use pyo3::{Python, pyfunction};

    #[pymodule_export]
    use crate::model::Model;

    /// Runs the `kivu` command with these arguments, of which the first is the program's name; returns its exit code.
    /// `interpreter` is the command that starts it again.
    #[pyfunction]
    fn command(py: Python<'_>, interpreter: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| {
            kivu_cli::main_of_package(interpreter, arguments, |config| kivu_cli::Services {
                cloud: kivu_aws::cloud(config),
                sinks: kivu_sinks::sinks(),
                parquet: kivu_parquet::parquet(),
                search: Some(kivu_search::search),
            })
        })
    }

    /// Names the folder with the package's own ONNX Runtime.
    #[pyfunction]
    fn add_package(folder: PathBuf) {
        kivu::onnx::library::add_package(folder);
    }
}
