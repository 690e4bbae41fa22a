//! Parses fields that clients send in several forms. Errors name the field and the position.

use std::{
    fmt::{self, Display},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use serde_json::Value;

pub(super) use crate::task::count;
use crate::{
    error::{Error, Result},
    json::kind,
    pipeline::Input,
};

/// Maximum and remaining texts for a request, which may consist of several requests that share the limit.
#[derive(Clone, Debug)]
pub(super) struct TextLimit {
    /// Per field.
    max: usize,
    /// Per request.
    total: usize,
    left: Arc<AtomicUsize>,
}

impl TextLimit {
    pub(super) fn new(max: usize) -> Self {
        Self { max, total: max, left: Arc::new(max.into()) }
    }

    /// The same limit for a field with fewer texts.
    pub(super) fn at_most(&self, max: usize) -> Self {
        Self { max: max.min(self.max), ..self.clone() }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Counts a field's texts.
    pub(super) fn count(&self, field: impl Display, found: usize) -> Result<()> {
        count(field, found, self.max)?;
        self.count_more(found)
    }

    /// Counts texts that are built from the request's texts, such as text-label pairs.
    pub(super) fn count_more(&self, found: usize) -> Result<()> {
        let take = |left: usize| left.checked_sub(found);
        self.left.fetch_update(Relaxed, Relaxed, take).map(drop).map_err(|_| {
            Error::too_large(format!("expected at most {} texts in the request, but found more", self.total))
        })
    }
}

/// A value's position in a list. Formatted only in errors: lists may have millions of values.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    list: &'a dyn Display,
    index: usize,
}

impl Display for Place<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}[{}]", self.list, self.index)
    }
}

/// A text, texts, token ids or token id lists: 1 to `limit` inputs, all non-empty.
pub(super) fn read(field: &str, value: Value, limit: &TextLimit) -> Result<Vec<Input>> {
    match value {
        Value::String(_) => {
            limit.count(field, 1)?;
            Ok(vec![input(&field, value)?])
        }
        Value::Array(values) if values.first().is_some_and(Value::is_number) => {
            limit.count(field, 1)?;
            Ok(vec![Input::Ids(ids(&field, values)?)])
        }
        Value::Array(values) => list(field, values, limit, |place, value| input(&place, value)),
        other => Err(unexpected(field, "a string, a list of strings or lists of token ids", &other)),
    }
}

/// A text or a list of 1 to `limit` texts.
pub(super) fn texts(field: impl Display, value: Value, limit: &TextLimit) -> Result<Vec<String>> {
    match value {
        Value::Array(values) => list(field, values, limit, |place, value| text(place, value)),
        value => {
            limit.count(&field, 1)?;
            Ok(vec![text(field, value)?])
        }
    }
}

/// A list with 1 to `limit` texts, or items with a text, each parsed with its position.
pub(super) fn list<T>(
    field: impl Display,
    values: Vec<Value>,
    limit: &TextLimit,
    parse: impl Fn(Place<'_>, Value) -> Result<T>,
) -> Result<Vec<T>> {
    limit.count(&field, values.len())?;
    items(&field, values, parse)
}

fn items<T>(
    list: &dyn Display,
    values: Vec<Value>,
    parse: impl Fn(Place<'_>, Value) -> Result<T>,
) -> Result<Vec<T>> {
    let values = values.into_iter().enumerate();
    values.map(|(index, value)| parse(Place { list, index }, value)).collect()
}

/// A text that is not empty.
pub(super) fn text(field: impl Display, value: Value) -> Result<String> {
    match value {
        Value::String(text) if text.is_empty() => {
            Err(Error::invalid(format!("expected a text in `{field}`, but found an empty one")))
        }
        Value::String(text) => Ok(text),
        other => Err(unexpected(field, "a string", &other)),
    }
}

/// Token ids or token id lists: 1 to `limit` lists, all non-empty.
pub(super) fn id_lists(field: &str, value: Value, limit: &TextLimit) -> Result<Vec<Vec<u32>>> {
    let inputs = read(field, value, limit)?.into_iter().map(|input| match input {
        Input::Ids(ids) => Ok(ids),
        Input::Text(_) | Input::Pair(..) => {
            Err(Error::invalid(format!("expected `{field}` to be lists of token ids, but found a string")))
        }
    });
    inputs.collect()
}

/// Refuses 0.
pub(super) fn above_zero(field: &str, value: Option<usize>) -> Result<()> {
    match value {
        Some(0) => Err(Error::invalid(format!("expected `{field}` above 0, but found 0"))),
        _ => Ok(()),
    }
}

fn input(field: &dyn Display, value: Value) -> Result<Input> {
    match value {
        Value::Array(values) if values.is_empty() => {
            Err(Error::invalid(format!("expected token ids in `{field}`, but found an empty list")))
        }
        Value::Array(values) => Ok(Input::Ids(ids(field, values)?)),
        value => Ok(Input::Text(text(field, value)?)),
    }
}

fn ids(field: &dyn Display, values: Vec<Value>) -> Result<Vec<u32>> {
    items(field, values, |place, value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| unexpected(place, "a token id", &value))
    })
}

fn unexpected(field: impl Display, expected: &str, found: &Value) -> Error {
    Error::invalid(format!("expected `{field}` to be {expected}, but found {}", kind(found)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(value: Value) -> String {
        read("inputs", value, &TextLimit::new(3)).unwrap_err().to_string()
    }

    #[test]
    fn all_forms_are_parsed() {
        let text = |text: &str| Input::Text(text.into());
        assert_eq!(read("inputs", json!("a"), &TextLimit::new(3)).unwrap(), [text("a")]);
        assert_eq!(read("inputs", json!(["a", "b"]), &TextLimit::new(3)).unwrap(), [text("a"), text("b")]);
        assert_eq!(read("inputs", json!([1, 2]), &TextLimit::new(3)).unwrap(), [Input::Ids(vec![1, 2])]);
        assert_eq!(
            read("inputs", json!([[1], [2]]), &TextLimit::new(3)).unwrap(),
            [Input::Ids(vec![1]), Input::Ids(vec![2])]
        );
        assert_eq!(
            read("inputs", json!([1, 2, 3, 4, 5]), &TextLimit::new(3)).unwrap().len(),
            1,
            "ids are one text"
        );
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

    #[test]
    fn the_parts_of_a_request_share_its_limit() {
        let limit = TextLimit::new(4);
        let read =
            |value: Value| texts("inputs", value, &limit.at_most(3)).map_err(|error| error.to_string());
        assert!(read(json!(["a", "b", "c"])).is_ok());
        insta::assert_snapshot!(read(json!(["d", "e"])).unwrap_err(), @"expected at most 4 texts in the request, but found more");
        assert!(read(json!("d")).is_ok(), "refused texts are not counted");
        assert!(read(json!("e")).is_err());
    }
}
