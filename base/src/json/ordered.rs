//! Values whose objects keep the order of their fields, for requests in which it matters.

use std::{borrow::Cow, collections::BTreeSet};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess},
};
use serde_json::Value;

use super::{FromJson, from_any};

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
        from_any(deserializer)
    }
}

impl JsonSchema for Ordered {
    fn schema_name() -> Cow<'static, str> {
        "JsonValue".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A JSON value." })
    }
}

impl<'de> FromJson<'de> for Ordered {
    fn scalar(value: Value) -> Self {
        match (value.as_bool(), value.as_f64()) {
            (Some(flag), _) => Self::Flag(flag),
            (_, Some(number)) => Self::Number(number),
            _ => Self::Null,
        }
    }

    fn text(text: Cow<'_, str>) -> Self {
        Self::Text(text.into_owned())
    }

    fn list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        Ok(Self::List(values))
    }

    fn object<A: MapAccess<'de>>(mut access: A) -> Result<Self, A::Error> {
        let (mut fields, mut names) = (Vec::new(), BTreeSet::new());
        while let Some((name, value)) = access.next_entry::<String, Self>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!(
                    "duplicate field `{}`",
                    name.escape_debug()
                )));
            }
            fields.push((name, value));
        }
        Ok(Self::Object(fields))
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
