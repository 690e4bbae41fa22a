//! Values with texts or token ids, in all forms that clients send. The field decides which ones it takes.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::budget::max_texts;

const NUMBER: &str = "a number";
const OTHER_NUMBER: &str = "a number that is negative or not whole";
const LIST: &str = "a list";

/// A type with a form for each JSON type.
pub trait FromJson<'de>: Sized {
    /// Null, a boolean or a number.
    fn scalar(value: Value) -> Self;

    /// A string, which may be empty.
    fn text(text: Cow<'_, str>) -> Self;

    /// A list, read from its items; an error if one of them is invalid.
    fn list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error>;

    /// An object, read from its fields; an error if one of them is invalid.
    fn object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error>;
}

/// Reads a value by its JSON type.
pub fn from_any<'de, F: FromJson<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<F, D::Error> {
    deserializer.deserialize_any(AnyVisitor(PhantomData))
}

struct AnyVisitor<F>(PhantomData<F>);

impl<'de, F: FromJson<'de>> Visitor<'de> for AnyVisitor<F> {
    type Value = F;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<F, E> {
        Ok(F::scalar(Value::Null))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<F, E> {
        Ok(F::scalar(flag.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<F, E> {
        Ok(F::scalar(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<F, E> {
        Ok(F::scalar(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<F, E> {
        Ok(F::scalar(number.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<F, E> {
        Ok(F::text(Cow::Borrowed(text)))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<F, E> {
        Ok(F::text(Cow::Owned(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<F, A::Error> {
        F::list(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<F, A::Error> {
        F::object(fields)
    }
}

/// A value's JSON type in words. The value is not kept.
pub struct Kind(pub &'static str);

impl<'de> FromJson<'de> for Kind {
    fn scalar(value: Value) -> Self {
        Self(match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            number if number.is_u64() => NUMBER,
            _ => OTHER_NUMBER,
        })
    }

    fn text(_: Cow<'_, str>) -> Self {
        Self("a string")
    }

    fn list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(Self(LIST))
    }

    fn object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<Self, Self>()?.is_some() {}
        Ok(Self("an object"))
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_any(deserializer)
    }
}

/// A value with texts or token ids.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A string, which may be empty.
    Text(String),
    /// A whole number that fits in `u32`, as token ids do.
    Id(u32),
    /// A list, which may be empty.
    List(Box<List>),
    /// An object with a text, and a second one that belongs to it.
    Object(Box<[Self; 2]>),
    /// Another value, in words.
    Other(&'static str),
}

/// A list's values, as far as requests may have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct List {
    /// The token ids with which the list begins.
    pub ids: Vec<u32>,
    /// The values after them, up to the request's limit for texts.
    pub rest: Vec<Content>,
    /// Number of all values.
    pub count: usize,
    /// Whether any value is a list.
    pub has_lists: bool,
}

impl Content {
    /// The JSON type in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Id(_) => NUMBER,
            Self::List(_) => LIST,
            Self::Object(_) => "an object",
            Self::Other(kind) => kind,
        }
    }

    /// An object's text; other values themselves.
    pub fn into_text(self) -> Self {
        match self {
            Self::Object(texts) => {
                let [text, _] = *texts;
                text
            }
            other => other,
        }
    }

    /// Whether it is null, as missing fields are by default.
    pub fn is_null(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is a string, empty or not.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Other("null")
    }
}

impl From<Vec<String>> for Content {
    fn from(texts: Vec<String>) -> Self {
        let count = texts.len();
        let rest = texts.into_iter().map(Self::Text).collect();
        Self::List(Box::new(List {
            rest,
            count,
            ..List::default()
        }))
    }
}

impl List {
    /// Whether the first value is a number.
    pub fn begins_with_number(&self) -> bool {
        let is_number = |first: &Content| matches!(first.kind(), NUMBER | OTHER_NUMBER);
        !self.ids.is_empty() || self.rest.first().is_some_and(is_number)
    }

    /// The values that were kept, in order: the token ids, then the rest.
    pub fn values(self) -> impl Iterator<Item = Content> {
        self.ids.into_iter().map(Content::Id).chain(self.rest)
    }
}

impl<'de> FromJson<'de> for Content {
    fn scalar(value: Value) -> Self {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map_or_else(|| Self::Other(Kind::scalar(value).0), Self::Id)
    }

    fn text(text: Cow<'_, str>) -> Self {
        Self::Text(text.into_owned())
    }

    fn list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let (mut list, max) = (List::default(), max_texts());
        loop {
            if list.rest.len() >= max {
                let Some(Kind(kind)) = items.next_element()? else {
                    break;
                };
                list.has_lists |= kind == LIST;
            } else {
                match items.next_element()? {
                    None => break,
                    Some(Self::Id(id)) if list.rest.is_empty() => list.ids.push(id),
                    Some(value) => {
                        list.has_lists |= matches!(value, Self::List(_));
                        list.rest.push(value);
                    }
                }
            }
            list.count += 1;
        }
        Ok(Self::List(Box::new(list)))
    }

    fn object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        let mut texts = [None, None];
        while let Some(name) = fields.next_key::<Cow<'_, str>>()? {
            let (name, text) = match &*name {
                "text" => ("text", &mut texts[0]),
                "text_pair" => ("text_pair", &mut texts[1]),
                _ => {
                    fields.next_value::<Kind>()?;
                    continue;
                }
            };
            if text.replace(fields.next_value()?).is_some() {
                return Err(A::Error::duplicate_field(name));
            }
        }
        Ok(Self::Object(Box::new(texts.map(Option::unwrap_or_default))))
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_any(deserializer)
    }
}
