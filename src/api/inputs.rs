//! Parsing of fields that clients send in several forms. Errors name the field and the position.

use serde_json::Value;

use crate::{
    error::{Error, Result},
    pipeline::{Input, zero_shot::Labels},
};

/// A text, texts, token ids or token id lists: 1 to `limit` inputs, none of them empty.
pub(super) fn read(field: &str, value: Value, limit: usize) -> Result<Vec<Input>> {
    match value {
        Value::String(_) => Ok(vec![input(field, value)?]),
        Value::Array(values) if values.first().is_some_and(Value::is_number) => {
            count(field, 1, limit)?;
            Ok(vec![Input::Ids(ids(field, values)?)])
        }
        Value::Array(values) => list(field, values, limit, input),
        other => Err(unexpected(field, "a string, a list of strings or lists of token ids", &other)),
    }
}

/// A text or a list of 1 to `limit` texts.
pub(super) fn texts(field: &str, value: Value, limit: usize) -> Result<Vec<String>> {
    match value {
        Value::Array(values) => list(field, values, limit, text),
        value => Ok(vec![text(field, value)?]),
    }
}

/// A list of 1 to `limit` items, each parsed with its position in the name of the field.
pub(super) fn list<T>(
    field: &str,
    values: Vec<Value>,
    limit: usize,
    parse: impl Fn(&str, Value) -> Result<T>,
) -> Result<Vec<T>> {
    count(field, values.len(), limit)?;
    items(field, values, parse)
}

fn items<T>(field: &str, values: Vec<Value>, parse: impl Fn(&str, Value) -> Result<T>) -> Result<Vec<T>> {
    let values = values.into_iter().enumerate();
    values.map(|(index, value)| parse(&format!("{field}[{index}]"), value)).collect()
}

/// A text that is not empty.
pub(super) fn text(field: &str, value: Value) -> Result<String> {
    match value {
        Value::String(text) if text.is_empty() => {
            Err(Error::invalid(format!("expected a text in `{field}`, but found an empty one")))
        }
        Value::String(text) => Ok(text),
        other => Err(unexpected(field, "a string", &other)),
    }
}

/// A list of labels, or a string with commas between them, of any number and length, which the pipeline checks.
pub(super) fn labels(field: &str, value: Value) -> Result<Vec<String>> {
    match value {
        Value::String(labels) => Ok(Labels::split(&labels)),
        Value::Array(values) => items(field, values, |field, value| match value {
            Value::String(label) => Ok(label),
            other => Err(unexpected(field, "a string", &other)),
        }),
        other => Err(unexpected(field, "a list of strings, or a string with commas", &other)),
    }
}

/// Token ids or token id lists: 1 to `limit` lists, none of them empty.
pub(super) fn id_lists(field: &str, value: Value, limit: usize) -> Result<Vec<Vec<u32>>> {
    let inputs = read(field, value, limit)?.into_iter().map(|input| match input {
        Input::Ids(ids) => Ok(ids),
        Input::Text(_) | Input::Pair(..) => {
            Err(Error::invalid(format!("expected `{field}` to be lists of token ids, but found a string")))
        }
    });
    inputs.collect()
}

/// Checks that a number of texts is between 1 and `limit`.
pub(super) fn count(field: &str, found: usize, limit: usize) -> Result<()> {
    let message = || format!("expected 1 to {limit} `{field}`, but found {found}");
    match found {
        0 => Err(Error::invalid(message())),
        _ if found > limit => Err(Error::too_large(message())),
        _ => Ok(()),
    }
}

fn input(field: &str, value: Value) -> Result<Input> {
    match value {
        Value::Array(values) if values.is_empty() => {
            Err(Error::invalid(format!("expected token ids in `{field}`, but found an empty list")))
        }
        Value::Array(values) => Ok(Input::Ids(ids(field, values)?)),
        value => Ok(Input::Text(text(field, value)?)),
    }
}

fn ids(field: &str, values: Vec<Value>) -> Result<Vec<u32>> {
    items(field, values, |field, value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| unexpected(field, "a token id", &value))
    })
}

fn unexpected(field: &str, expected: &str, found: &Value) -> Error {
    Error::invalid(format!("expected `{field}` to be {expected}, but found {}", kind(found)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_u64() => "a number",
        Value::Number(_) => "a number that is negative or not whole",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(value: Value) -> String {
        read("inputs", value, 3).unwrap_err().to_string()
    }

    #[test]
    fn all_forms_are_parsed() {
        let text = |text: &str| Input::Text(text.into());
        assert_eq!(read("inputs", json!("a"), 3).unwrap(), [text("a")]);
        assert_eq!(read("inputs", json!(["a", "b"]), 3).unwrap(), [text("a"), text("b")]);
        assert_eq!(read("inputs", json!([1, 2]), 3).unwrap(), [Input::Ids(vec![1, 2])]);
        assert_eq!(read("inputs", json!([[1], [2]]), 3).unwrap(), [Input::Ids(vec![1]), Input::Ids(vec![2])]);
        assert_eq!(read("inputs", json!([1, 2, 3, 4, 5]), 3).unwrap().len(), 1, "ids are one text");
    }

    #[test]
    fn errors_name_the_field_and_position() {
        insta::assert_snapshot!(error(json!("")), @"expected a text in `inputs`, but found an empty one");
        insta::assert_snapshot!(error(json!(["a", ""])), @"expected a text in `inputs[1]`, but found an empty one");
        insta::assert_snapshot!(error(json!([])), @"expected 1 to 3 `inputs`, but found 0");
        insta::assert_snapshot!(error(json!(["a", "b", "c", "d"])), @"expected 1 to 3 `inputs`, but found 4");
        insta::assert_snapshot!(error(json!(7)), @"expected `inputs` to be a string, a list of strings or lists of token ids, but found a number");
        insta::assert_snapshot!(error(json!(["a", 7])), @"expected `inputs[1]` to be a string, but found a number");
        insta::assert_snapshot!(error(json!([7, "a"])), @"expected `inputs[1]` to be a token id, but found a string");
        insta::assert_snapshot!(error(json!([[1, -2]])), @"expected `inputs[0][1]` to be a token id, but found a number that is negative or not whole");
        insta::assert_snapshot!(error(json!([[]])), @"expected token ids in `inputs[0]`, but found an empty list");
        insta::assert_snapshot!(error(json!({"a": 1})), @"expected `inputs` to be a string, a list of strings or lists of token ids, but found an object");
    }
}
