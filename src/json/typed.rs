//! JSON values to types, with errors that name the field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Objects, located};
use crate::error::{Error, Result};

/// The field at `path` in an error.
pub(super) fn field(path: &str) -> String {
    match path {
        "." => "the body".to_owned(),
        path => format!("`{path}`"),
    }
}

/// Error for a value that does not fit its field.
pub(super) fn wrong_value(path: &str, cause: &str) -> Error {
    let (path, cause) = located(path, cause);
    let cause = redacted(cause);
    let (is_body, field) = (path == ".", field(&path));
    if let Some(name) = cause.strip_prefix("missing field `") {
        let parent = if is_body {
            String::new()
        } else {
            format!("{path}.")
        };
        return Error::invalid(format!(
            "expected the field `{parent}{name}, but found none"
        ));
    }
    if let Some((_, known)) = cause
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once("`, expected "))
    {
        let known = known.strip_prefix("one of ").unwrap_or(known);
        return Error::invalid(format!("unknown field {field}; known fields: {known}"));
    }
    if let Some(name) = cause.strip_prefix("duplicate field ") {
        return Error::invalid(format!(
            "expected each field once in {field}, but found {name} twice"
        ));
    }
    let prefixes = ["invalid type: ", "invalid value: ", "unknown variant: "];
    let described = prefixes
        .iter()
        .find_map(|prefix| cause.strip_prefix(prefix)?.split_once(", expected "));
    Error::invalid(match described {
        Some((found, expected)) => {
            format!(
                "expected {field} to be {}, but found {}",
                in_json(expected),
                in_json(found)
            )
        }
        None => format!("wrong value in {field}: {cause}"),
    })
}

/// Replaces serde and Rust terms by JSON terms.
fn in_json(kind: &str) -> &str {
    match kind {
        "u8" => "an integer from 0 to 255",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer from 0 on",
        "i64" => "an integer",
        "f32" | "f64" => "a number",
        "sequence" | "a sequence" => "a list",
        "map" | "a map" => "an object",
        _ => ["integer ", "floating point ", "boolean "]
            .iter()
            .find_map(|prefix| kind.strip_prefix(prefix))
            .unwrap_or(kind),
    }
}

/// The cause without its line and column, which are useless where a program wrote the JSON, and without the string
/// that was found, which may be a client's text.
fn redacted(cause: &str) -> String {
    let without = |start: &str, end: &str, instead: &str| {
        let (from, to) = (cause.find(start)?, cause.rfind(end)?);
        (from < to).then(|| format!("{}{instead}{}", &cause[..from], &cause[to + 1..]))
    };
    let redacted = without("string \"", "\", expected ", "a string")
        .or_else(|| {
            without(
                "unknown variant `",
                "`, expected ",
                "unknown variant: another value",
            )
        })
        .unwrap_or_else(|| cause.to_owned());
    redacted
        .split(" at line ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Deserializes parsed JSON; errors name the field.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(Objects(value)).map_err(|error| {
        let path = error.path().to_string();
        wrong_value(&path, &error.into_inner().to_string())
    })
}

/// Deserializes parameters outside of a JSON body; errors name the parameter.
pub(crate) fn from_parameters<T: DeserializeOwned>(
    parameters: Map<String, Value>,
) -> Result<T, Error> {
    serde_path_to_error::deserialize(Objects(Value::Object(parameters))).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner().to_string();
        let (path, cause) = located(&path, &cause);
        let (name, within) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
        let within = if within.is_empty() {
            "."
        } else {
            within.trim_start_matches('.')
        };
        Error::invalid(format!(
            "invalid parameter `{name}`: {}",
            wrong_value(within, cause)
        ))
    })
}
