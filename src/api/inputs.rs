//! The many forms in which clients send texts.

use serde_json::Value;

use crate::{
    error::{Error, Result},
    pipeline::Input,
};

/// A text, texts, token ids or lists of token ids, from the field called `field`.
///
/// - One to `limit` of them.
/// - No text is empty, and no list of ids.
pub(super) fn read(field: &str, value: Value, limit: usize) -> Result<Vec<Input>> {
    let inputs = match value {
        Value::String(_) => vec![item(field, value)?],
        Value::Array(values) if values.first().is_some_and(Value::is_number) => {
            count(field, 1, limit)?;
            vec![Input::Ids(ids(field, values)?)]
        }
        Value::Array(values) => {
            count(field, values.len(), limit)?;
            let items = values.into_iter().enumerate();
            items.map(|(index, value)| item(&format!("{field}[{index}]"), value)).collect::<Result<_>>()?
        }
        other => {
            return Err(Error::invalid(format!(
                "expected `{field}` to be a string, a list of strings or lists of token ids, but found {}",
                kind(&other)
            )));
        }
    };
    Ok(inputs)
}

/// Texts only, from the field called `field`.
pub(super) fn texts(field: &str, value: Value, limit: usize) -> Result<Vec<String>> {
    let Value::Array(values) = value else { return Ok(vec![text(field, value)?]) };
    count(field, values.len(), limit)?;
    let values = values.into_iter().enumerate();
    values.map(|(index, value)| text(&format!("{field}[{index}]"), value)).collect()
}

/// One text, from the field called `field`.
pub(super) fn text(field: &str, value: Value) -> Result<String> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) => {
            Err(Error::invalid(format!("expected a text in `{field}`, but found an empty one")))
        }
        other => {
            Err(Error::invalid(format!("expected `{field}` to be a string, but found {}", kind(&other))))
        }
    }
}

/// Labels, which are judged by those who know how many there may be, from the field called `field`.
pub(super) fn labels(field: &str, value: Value) -> Result<Vec<String>> {
    let Value::Array(values) = value else {
        return Err(Error::invalid(format!(
            "expected `{field}` to be a list of strings, or a string with commas, but found {}",
            kind(&value)
        )));
    };
    let labels = values.into_iter().enumerate().map(|(index, value)| match value {
        Value::String(label) => Ok(label),
        other => Err(Error::invalid(format!(
            "expected `{field}[{index}]` to be a string, but found {}",
            kind(&other)
        ))),
    });
    labels.collect()
}

/// Lists of token ids, one or several, from the field called `field`.
pub(super) fn id_lists(field: &str, value: Value, limit: usize) -> Result<Vec<Vec<u32>>> {
    read(field, value, limit)?
        .into_iter()
        .map(|input| match input {
            Input::Ids(ids) => Ok(ids),
            Input::Text(_) | Input::Pair(..) => Err(Error::invalid(format!(
                "expected `{field}` to be lists of token ids, but found a string"
            ))),
        })
        .collect()
}

/// Refuses a number of texts outside 1 to `limit`.
pub(super) fn count(field: &str, found: usize, limit: usize) -> Result<()> {
    let message = || format!("expected 1 to {limit} `{field}`, but found {found}");
    match found {
        0 => Err(Error::invalid(message())),
        _ if found > limit => Err(Error::too_large(message())),
        _ => Ok(()),
    }
}

fn item(field: &str, value: Value) -> Result<Input> {
    match value {
        Value::String(text) if text.is_empty() => {
            Err(Error::invalid(format!("expected a text in `{field}`, but found an empty one")))
        }
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(values) if values.is_empty() => {
            Err(Error::invalid(format!("expected token ids in `{field}`, but found an empty list")))
        }
        Value::Array(values) => Ok(Input::Ids(ids(field, values)?)),
        other => {
            Err(Error::invalid(format!("expected `{field}` to be a string, but found {}", kind(&other))))
        }
    }
}

fn ids(field: &str, values: Vec<Value>) -> Result<Vec<u32>> {
    values
        .into_iter()
        .enumerate()
        .map(|(index, value)| {
            value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                Error::invalid(format!(
                    "expected `{field}[{index}]` to be a token id, but found {}",
                    kind(&value)
                ))
            })
        })
        .collect()
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
    fn every_form_is_understood() {
        let text = |text: &str| Input::Text(text.into());
        assert_eq!(read("inputs", json!("a"), 3).unwrap(), [text("a")]);
        assert_eq!(read("inputs", json!(["a", "b"]), 3).unwrap(), [text("a"), text("b")]);
        assert_eq!(read("inputs", json!([1, 2]), 3).unwrap(), [Input::Ids(vec![1, 2])]);
        assert_eq!(read("inputs", json!([[1], [2]]), 3).unwrap(), [Input::Ids(vec![1]), Input::Ids(vec![2])]);
        assert_eq!(read("inputs", json!([1, 2, 3, 4, 5]), 3).unwrap().len(), 1, "ids are one text");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_index() {
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
