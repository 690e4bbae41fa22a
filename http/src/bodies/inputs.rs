//! Parses fields that clients send in several forms. Errors name the field and the position.

use std::{
    fmt::{self, Display},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

pub use kivu::task::count;
use kivu::{
    Error, Result,
    json::{Content, List},
    pipeline::{Input, embedding::roles},
    telemetry::request::count_texts,
};

/// A request's text limits, which its parts share: maximum, remaining texts, and characters.
#[derive(Clone, Debug)]
pub struct RequestTexts {
    /// Per field.
    max: usize,
    /// Per request.
    total: usize,
    left: Arc<AtomicUsize>,
    characters: Arc<AtomicUsize>,
}

impl RequestTexts {
    pub fn new(max: usize) -> Self {
        Self {
            max,
            total: max,
            left: Arc::new(max.into()),
            characters: Arc::default(),
        }
    }

    /// Characters in all texts that were read.
    pub fn characters(&self) -> usize {
        self.characters.load(Relaxed)
    }

    /// The same limit for a field with fewer texts.
    pub fn at_most(&self, max: usize) -> Self {
        Self {
            max: max.min(self.max),
            ..self.clone()
        }
    }

    pub fn max(&self) -> usize {
        self.max
    }

    /// Counts a field's texts.
    pub fn count(&self, field: impl Display, found: usize) -> Result<()> {
        count(field, found, self.max)?;
        count_texts(found);
        self.count_more(found)
    }

    /// Counts texts that are built from the request's texts, such as text-label pairs.
    pub fn count_more(&self, found: usize) -> Result<()> {
        let take = |left: usize| left.checked_sub(found);
        self.left
            .fetch_update(Relaxed, Relaxed, take)
            .map(drop)
            .map_err(|_| {
                Error::too_large(format!(
                    "expected at most {} texts in the request, but found more",
                    self.total
                ))
            })
    }
}

/// A value's position in a list. Formatted only in errors: lists may have millions of values.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    list: &'a dyn Display,
    index: usize,
}

impl Display for Place<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}[{}]", self.list, self.index)
    }
}

/// The value of a field that has several names. Different values are refused, since only one of them would count.
pub fn one_value<T: PartialEq, const N: usize>(
    fields: [(&'static str, Option<T>); N],
) -> Result<Option<T>> {
    one_of(fields, |one, other| one == other)
}

/// The role in fields of several names, such as `query` and `search_query`.
pub fn one_role<const N: usize>(
    fields: [(&'static str, Option<String>); N],
) -> Result<Option<String>> {
    one_of(fields, |one, other| roles::are_same(one, other))
}

fn one_of<T, const N: usize>(
    fields: [(&'static str, Option<T>); N],
    are_same: impl Fn(&T, &T) -> bool,
) -> Result<Option<T>> {
    let mut found: Option<(&str, T)> = None;
    for (name, value) in fields {
        let Some(value) = value else { continue };
        match &found {
            Some((first, one)) if !are_same(one, &value) => return Err(different(first, name)),
            Some(_) => {}
            None => found = Some((name, value)),
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// Refuses a request's token limit below the model's: texts are read up to the model's.
pub fn refuse_lower_token_limit(field: &str, found: Option<usize>, limit: usize) -> Result<()> {
    match found.filter(|tokens| *tokens < limit) {
        None => Ok(()),
        Some(found) => Err(Error::invalid(format!(
            "expected `{field}` of at least {limit}, the model's limit, but found {found}"
        ))
        .in_field(field)
        .with_hint("leave it out")),
    }
}

/// The error for two fields that contradict each other.
pub fn different(one: &str, other: &str) -> Error {
    Error::invalid(format!("`{one}` and `{other}` have different values"))
        .with_hint("leave one of them out")
}

/// A text, texts, token ids or token id lists: 1 to `texts` inputs, all non-empty.
pub fn read(field: &str, content: Content, texts: &RequestTexts) -> Result<Vec<Input>> {
    match content {
        Content::List(values) if values.begins_with_number() => {
            texts.count(field, 1)?;
            Ok(vec![Input::Ids(ids(&field, *values)?)])
        }
        Content::Text(_) | Content::List(_) => one_or_list(field, content, texts, input),
        other => Err(unexpected(
            field,
            "a string, a list of strings or lists of token ids",
            &other,
        )),
    }
}

/// A text or a list of 1 to `texts` texts.
pub fn texts(field: &str, content: Content, texts: &RequestTexts) -> Result<Vec<String>> {
    one_or_list(field, content, texts, text)
}

/// An item or a list of 1 to `texts` items, each parsed with its position.
pub fn one_or_list<T>(
    field: &str,
    content: Content,
    texts: &RequestTexts,
    parse: impl Fn(&dyn Display, Content, &RequestTexts) -> Result<T>,
) -> Result<Vec<T>> {
    match content {
        Content::List(values) => {
            texts.count(field, values.count)?;
            let values = values.values().enumerate();
            values
                .map(|(index, value)| {
                    parse(
                        &Place {
                            list: &field,
                            index,
                        },
                        value,
                        texts,
                    )
                })
                .collect()
        }
        value => {
            texts.count(field, 1)?;
            Ok(vec![parse(&field, value, texts)?])
        }
    }
}

/// A text that is not empty.
pub fn text(field: &dyn Display, content: Content, texts: &RequestTexts) -> Result<String> {
    match content {
        Content::Text(text) if text.is_empty() => Err(Error::invalid(format!(
            "expected a text in `{field}`, but found an empty one"
        ))
        .in_field(field)),
        Content::Text(text) => {
            texts.characters.fetch_add(text.chars().count(), Relaxed);
            Ok(text)
        }
        other => Err(unexpected(field, "a string", &other)),
    }
}

/// A text, or a list with one or two texts that the model reads together.
pub fn one_or_two(field: &dyn Display, content: Content, texts: &RequestTexts) -> Result<Input> {
    let Content::List(values) = content else {
        return text(field, content, texts).map(Input::Text);
    };
    let found = values.count;
    let values = values.values().take(2).enumerate();
    let mut parsed = values.map(|(index, value)| text(&Place { list: field, index }, value, texts));
    match (found, parsed.next(), parsed.next()) {
        (1, Some(one), _) => one.map(Input::Text),
        (2, Some(first), Some(second)) => Ok(Input::Pair(first?.into(), second?.into())),
        _ => Err(Error::invalid(format!(
            "expected a text or a pair in `{field}`, but found {found} texts"
        ))
        .in_field(field)),
    }
}

/// A text, or an object with a `text` and perhaps its `text_pair`.
pub fn text_or_object(
    field: &dyn Display,
    content: Content,
    texts: &RequestTexts,
) -> Result<Input> {
    let Content::Object(values) = content else {
        return text(field, content, texts).map(Input::Text);
    };
    let [first, second] = *values;
    let first = text(&format_args!("{field}.text"), first, texts)?;
    match second {
        // `transformers` ignores an empty second text.
        Content::Text(second) if second.is_empty() => Ok(Input::Text(first)),
        second if second.is_null() => Ok(Input::Text(first)),
        second => {
            let second = text(&format_args!("{field}.text_pair"), second, texts)?;
            Ok(Input::Pair(first.into(), second.into()))
        }
    }
}

/// Token ids or token id lists: 1 to `texts` lists, all non-empty.
pub fn id_lists(field: &str, content: Content, texts: &RequestTexts) -> Result<Vec<Vec<u32>>> {
    let inputs = read(field, content, texts)?
        .into_iter()
        .map(|input| match input {
            Input::Ids(ids) => Ok(ids),
            Input::Text(_) | Input::Pair(..) => Err(Error::invalid(format!(
                "expected `{field}` to be lists of token ids, but found a string"
            ))
            .in_field(field)),
        });
    inputs.collect()
}

/// Refuses 0.
pub fn above_zero(field: &str, value: Option<usize>) -> Result<()> {
    match value {
        Some(0) => {
            Err(Error::invalid(format!("expected `{field}` above 0, but found 0")).in_field(field))
        }
        _ => Ok(()),
    }
}

fn input(field: &dyn Display, content: Content, texts: &RequestTexts) -> Result<Input> {
    match content {
        Content::List(values) if values.count == 0 => Err(Error::invalid(format!(
            "expected token ids in `{field}`, but found an empty list"
        ))
        .in_field(field)),
        Content::List(values) => Ok(Input::Ids(ids(field, *values)?)),
        value => Ok(Input::Text(text(field, value, texts)?)),
    }
}

fn ids(field: &dyn Display, values: List) -> Result<Vec<u32>> {
    match values.rest.first() {
        Some(other) => Err(unexpected(
            Place {
                list: field,
                index: values.ids.len(),
            },
            "a token id",
            other,
        )),
        None => Ok(values.ids),
    }
}

fn unexpected(field: impl Display, expected: &str, found: &Content) -> Error {
    Error::invalid(format!(
        "expected `{field}` to be {expected}, but found {}",
        found.kind()
    ))
    .in_field(field)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    fn read(field: &str, value: Value, texts: &RequestTexts) -> Result<Vec<Input>> {
        super::read(field, Content::deserialize(value).unwrap(), texts)
    }

    fn error(value: Value) -> String {
        read("inputs", value, &RequestTexts::new(3))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn all_forms_are_parsed() {
        let text = |text: &str| Input::Text(text.into());
        assert_eq!(
            read("inputs", json!("a"), &RequestTexts::new(3)).unwrap(),
            [text("a")]
        );
        assert_eq!(
            read("inputs", json!(["a", "b"]), &RequestTexts::new(3)).unwrap(),
            [text("a"), text("b")]
        );
        assert_eq!(
            read("inputs", json!([1, 2]), &RequestTexts::new(3)).unwrap(),
            [Input::Ids(vec![1, 2])]
        );
        assert_eq!(
            read("inputs", json!([[1], [2]]), &RequestTexts::new(3)).unwrap(),
            [Input::Ids(vec![1]), Input::Ids(vec![2])]
        );
        assert_eq!(
            read("inputs", json!([1, 2, 3, 4, 5]), &RequestTexts::new(3))
                .unwrap()
                .len(),
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
        insta::assert_snapshot!(error(json!([7, -1, "a"])), @"expected `inputs[1]` to be a token id, but found a number that is negative or not whole");
        insta::assert_snapshot!(error(json!([4_294_967_296_u64])), @"expected `inputs[0]` to be a token id, but found a number");
        insta::assert_snapshot!(error(json!([["a"]])), @"expected `inputs[0][0]` to be a token id, but found a string");
        insta::assert_snapshot!(error(json!({"a": 1})), @"expected `inputs` to be a string, a list of strings or lists of token ids, but found an object");
    }

    #[test]
    fn the_parts_of_a_request_share_its_limit() {
        let limit = RequestTexts::new(4);
        let read = |value: Value| {
            let content = Content::deserialize(value).unwrap();
            texts("inputs", content, &limit.at_most(3)).map_err(|error| error.to_string())
        };
        assert!(read(json!(["a", "b", "c"])).is_ok());
        insta::assert_snapshot!(read(json!(["d", "e"])).unwrap_err(), @"expected at most 4 texts in the request, but found more");
        assert!(read(json!("d")).is_ok(), "refused texts are not counted");
        assert!(read(json!("e")).is_err());
    }
}
