//! Errors as the Python exceptions in `kivuml.errors`.

use kivu::Error;
use kivu_bindings::class;
use pyo3::{PyErr, Python, types::PyAnyMethods};

/// The exception for an error, with the words that a server's client reads, and the causes.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    named(py, class(error), error.chain())
}

/// An exception from `kivuml.errors`, by its class name.
pub fn named(py: Python<'_>, class: &str, message: String) -> PyErr {
    let made = py
        .import("kivuml.errors")
        .and_then(|errors| errors.getattr(class)?.call1((message,)));
    made.map_or_else(|error| error, PyErr::from_value)
}
