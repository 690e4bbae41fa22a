//! Errors for texts, which are named by their place in an argument, such as `texts[3]`.

use kivu::{Error, Result};

/// Refuses an empty text.
pub fn check(text: String, place: impl FnOnce() -> String) -> Result<String> {
    match text.is_empty() {
        true => Err(Error::invalid(format!(
            "expected a text in `{}`, but found an empty one",
            place()
        ))),
        false => Ok(text),
    }
}

/// The error for a string that is no Unicode text.
pub fn half_a_pair(place: &str) -> Error {
    Error::invalid(format!(
        "expected Unicode text in `{place}`, but found half of a surrogate pair"
    ))
}

/// Error for a text list where a pair is expected.
pub fn no_pair(place: &str, found: usize) -> Error {
    Error::invalid(format!(
        "expected a text or a pair in `{place}`, but found {found} texts"
    ))
}
