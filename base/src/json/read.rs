//! Reads a JSON text within its limits.

use serde::de::DeserializeOwned;

use super::{
    budget::Budget,
    known::Known,
    objects::Objects,
    syntax::{foreign_encoding, foreign_word, syntax, wrong_scalar},
    typed::{field, wrong_value},
};
use crate::error::Error;

/// An error while JSON is read.
#[derive(Debug)]
pub enum ReadError {
    /// The text exceeds its limits.
    Refused(Error),
    /// The syntax is wrong, or the value at a path.
    Wrong(serde_path_to_error::Error<serde_json::Error>),
    /// Another value follows.
    Trailing(serde_json::Error),
}

impl ReadError {
    /// The error for `text`, which names the field. It repeats none of the text.
    pub fn explain(self, text: &[u8]) -> Error {
        let (path, cause) = match self {
            Self::Refused(error) => return error,
            Self::Trailing(cause) => {
                let (line, column) = (cause.line(), cause.column());
                return Error::malformed(format!(
                    "expected one JSON value, but found more at line {line}, column {column}"
                ));
            }
            // An error in a field's name is one of the object.
            Self::Wrong(error) => match error.path().to_string() {
                path if path == "?" => (".".to_owned(), error.into_inner()),
                path => (path.trim_end_matches(".?").to_owned(), error.into_inner()),
            },
        };
        if cause.is_data() {
            return wrong_value(&path, &cause.to_string());
        }
        let at = format!("line {}, column {}", cause.line(), cause.column());
        if text.trim_ascii().is_empty() {
            return Error::malformed("expected JSON, but found an empty body");
        }
        if let Some(found) = foreign_encoding(text) {
            return Error::malformed(format!(
                "expected JSON in UTF-8 without a byte order mark, but found {found}"
            ));
        }
        if let Some(problem) = wrong_scalar(&cause) {
            let error = Error::malformed(format!("{} contains {problem} ({at})", field(&path)));
            return match &*path {
                "." => error,
                path => error.in_field(path),
            };
        }
        if let Some((word, instead)) = foreign_word(text, &cause) {
            return Error::malformed(format!("`{word}` is not JSON ({at})"))
                .with_hint(format!("write {instead}"));
        }
        if cause.is_eof() {
            return Error::malformed(format!("expected JSON, but the body ends too early ({at})"));
        }
        match syntax(&cause).as_str() {
            "recursion limit exceeded" => Error::malformed(format!(
                "the body is nested too deeply: lists and objects may have at most 127 levels ({at})"
            )),
            _ if byte_at(text, &cause) == Some(b'\'') => Error::malformed(format!(
                "expected double quotes in JSON, but found a single quote ({at})"
            )),
            problem => Error::malformed(format!(
                "the body is not JSON: {problem} at line {} column {}",
                cause.line(),
                cause.column()
            )),
        }
    }
}

/// The byte at which an error was found.
fn byte_at(text: &[u8], error: &serde_json::Error) -> Option<u8> {
    let line = text
        .split(|byte| *byte == b'\n')
        .nth(error.line().checked_sub(1)?)?;
    line.get(error.column().checked_sub(1)?).copied()
}

/// Reads a JSON text within its limits.
pub fn read<T: DeserializeOwned>(text: &[u8], budget: Budget) -> Result<T, ReadError> {
    read_known(text, budget, &[])
}

/// Reads an object with known fields from a JSON text within its limits.
pub fn read_known<T: DeserializeOwned>(
    text: &[u8],
    budget: Budget,
    known: Known,
) -> Result<T, ReadError> {
    let (read, refusal) = budget.scope(|| {
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let value = serde_path_to_error::deserialize(Objects::with(&mut deserializer, known))
            .map_err(ReadError::Wrong)?;
        deserializer
            .end()
            .map(|()| value)
            .map_err(ReadError::Trailing)
    });
    refusal.map_or(read, |refusal| Err(ReadError::Refused(refusal)))
}
