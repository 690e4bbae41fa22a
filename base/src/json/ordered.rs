//! Values whose objects keep the order of their fields, for requests in which it matters.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Ordered {
    /// `null`.
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A score, which has the digits of its type.
    Score(f32),
    /// A position in a text.
    Position(usize),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Self>),
    /// An object; names are different.
    Object(Vec<(String, Self)>),
}

impl Ordered {
    /// Its type's name for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Flag(_) => "a boolean",
            Self::Number(_) | Self::Score(_) | Self::Position(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Score(score) => serializer.serialize_f32(*score),
            Self::Position(position) => position.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(values) => serializer.collect_seq(values),
            Self::Object(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OrderedVisitor)
    }
}

impl JsonSchema for Ordered {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "JsonValue".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A JSON value." })
    }
}

struct OrderedVisitor;

impl<'de> Visitor<'de> for OrderedVisitor {
    type Value = Ordered;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Ordered, E> {
        Ok(Ordered::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Ordered, E> {
        Ok(Ordered::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Ordered, D::Error> {
        Ordered::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Ordered, E> {
        Ok(Ordered::Flag(flag))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Ordered, E> {
        Ok(Ordered::Number(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Ordered, E> {
        Ok(Ordered::Number(number as f64))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Ordered, E> {
        Ok(Ordered::Number(number as f64))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Ordered, E> {
        Ok(Ordered::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Ordered, E> {
        Ok(Ordered::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Ordered, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element()? {
            values.push(value);
        }
        Ok(Ordered::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Ordered, A::Error> {
        let (mut fields, mut names) = (Vec::new(), std::collections::BTreeSet::new());
        while let Some((name, value)) = access.next_entry::<String, Ordered>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!(
                    "duplicate field `{}`",
                    name.escape_debug()
                )));
            }
            fields.push((name, value));
        }
        Ok(Ordered::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_keep_their_order() {
        let text = r#"{"b":[1.5,null,true],"a":{"z":"x","y":-2.0}}"#;
        let value: Ordered = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        assert_eq!(serde_json::to_string(&Ordered::Score(0.1)).unwrap(), "0.1");
        let error = serde_json::from_str::<Ordered>(r#"{"a": 1, "a": 2}"#)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("duplicate field `a`"), "{error}");
    }
}
