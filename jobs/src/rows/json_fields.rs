//! Fields in a JSON Lines row. Other values are skipped without parsing, so that an out-of-range one, such as
//! `1e400`, does not matter.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::column::Content;

/// A row's text field.
pub enum TextField<'a> {
    Missing,
    Found(&'a RawValue),
    /// Refused, since programs disagree about which value counts.
    Repeated,
}

impl<'a> TextField<'a> {
    /// Finds the field `column` in an object.
    pub fn of(json: &'a str, column: &str) -> serde_json::Result<Self> {
        let mut parser = serde_json::Deserializer::from_str(json);
        let field = Search { column }.deserialize(&mut parser)?;
        parser.end().map(|()| field)
    }
}

/// A value's type name; `None` for a text.
pub fn other_type(value: &RawValue) -> Option<&'static str> {
    match value.get().as_bytes().first() {
        Some(b'"') => None,
        Some(b'n') => Some("null"),
        Some(b't' | b'f') => Some("a boolean"),
        Some(b'[') => Some("a list"),
        Some(b'{') => Some("an object"),
        _ => Some("a number"),
    }
}

/// Field contents in an object.
pub fn contents(json: &str) -> serde_json::Result<Vec<(Cow<'_, str>, Content)>> {
    serde_json::from_str::<Contents<'_>>(json).map(|contents| contents.0)
}

struct Search<'a> {
    column: &'a str,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = TextField<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = TextField<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut field = TextField::Missing;
        while let Some(name) = fields.next_key::<Name<'_>>()? {
            if name.0 != self.column {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = fields.next_value()?;
            field = match field {
                TextField::Missing => TextField::Found(value),
                _ => TextField::Repeated,
            };
        }
        Ok(field)
    }
}

struct Contents<'a>(Vec<(Cow<'a, str>, Content)>);

impl<'de> Deserialize<'de> for Contents<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AllFields)
    }
}

struct AllFields;

impl<'de> Visitor<'de> for AllFields {
    type Value = Contents<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut contents = Vec::new();
        while let Some((name, value)) = fields.next_entry::<Name<'de>, &RawValue>()? {
            let content = match other_type(value) {
                None => Content::Texts,
                Some("null") => Content::Empty,
                Some(_) => Content::Other,
            };
            contents.push((name.0, content));
        }
        Ok(Contents(contents))
    }
}

/// A key, copied only if it has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
