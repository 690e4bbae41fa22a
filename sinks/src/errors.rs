//! Errors that sinks share.

use kivu::Error;

/// The error for a sink whose vectors have another number of dimensions.
pub fn other_dimensions(place: &str, expected: usize, found: i64) -> Error {
    Error::config(format!(
        "expected {place} for vectors of {expected} values, as the model's, but found {found}"
    ))
    .with_hint("choose another model or `dimensions`")
}
