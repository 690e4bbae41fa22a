//! Errors as the Python exceptions in `kivuml.errors`.

use kivu::Error;
use pyo3::{PyErr, Python, types::PyAnyMethods};

/// The exception for an error, with the words that a server's client reads, and the causes.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error {
        Error::Malformed { .. } | Error::Invalid { .. } => "InvalidError",
        Error::TooLarge { .. } => "TooLargeError",
        Error::UnknownModel { .. } | Error::NoModel => "UnknownModelError",
        Error::Overloaded { .. } | Error::Unavailable { .. } => "UnavailableError",
        Error::DeadlineExceeded { .. } => "DeadlineExceededError",
        Error::Inference { .. } => "InferenceError",
        Error::Model { .. } => "ModelError",
        Error::Config { .. } => "ConfigError",
        Error::Io { .. } => "KivuOSError",
        _ => "KivuError",
    };
    named(py, class, error.chain())
}

/// An exception from `kivuml.errors`, by its class name.
pub(crate) fn named(py: Python<'_>, class: &str, message: String) -> PyErr {
    let made = py.import("kivuml.errors").and_then(|errors| errors.getattr(class)?.call1((message,)));
    made.map_or_else(|error| error, PyErr::from_value)
}
