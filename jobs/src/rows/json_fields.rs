//! Fields in a JSON Lines row. Other values are skipped without parsing, so that an out-of-range one, such as
//! `1e400`, does not matter.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::column::Content;

/// A row's text field.
#[derive(Clone, Copy)]
pub enum TextField<'a> {
    Missing,
    Found(&'a RawValue),
    /// Refused, since programs disagree about which value counts.
    Repeated,
}

impl<'a> TextField<'a> {
    /// Finds the field `column` in an object.
    pub fn of(json: &'a str, column: &str) -> serde_json::Result<Self> {
        let mut field = Self::Missing;
        each_field(json, |name, value| {
            if name == column {
                field = match field {
                    Self::Missing => Self::Found(value),
                    _ => Self::Repeated,
                };
            }
        })?;
        Ok(field)
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
    let mut contents = Vec::new();
    each_field(json, |name, value| {
        let content = match other_type(value) {
            None => Content::Texts,
            Some("null") => Content::Empty,
            Some(_) => Content::Other,
        };
        contents.push((name, content));
    })?;
    Ok(contents)
}

/// Calls `each` with the fields of an object.
fn each_field<'a>(
    json: &'a str,
    each: impl FnMut(Cow<'a, str>, &'a RawValue),
) -> serde_json::Result<()> {
    let mut parser = serde_json::Deserializer::from_str(json);
    Deserializer::deserialize_map(&mut parser, EachField(each))?;
    parser.end()
}

struct EachField<F>(F);

impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue)> Visitor<'de> for EachField<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = fields.next_entry::<Name<'de>, &'de RawValue>()? {
            (self.0)(name, value);
        }
        Ok(())
    }
}

/// A key, copied only if it has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
