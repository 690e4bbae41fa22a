//! Value trees whose objects have each field once, like types with named fields: of a field that is given twice,
//! [`Value`] keeps the last one and says nothing.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{FromJson, from_any};

/// Characters of a field's name in errors.
const MAX_NAME: usize = 40;

/// A JSON value.
#[derive(Debug)]
pub struct Tree(pub Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_any(deserializer)
    }
}

/// Reads an object into a map; `null` has no fields.
pub fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    deserializer.deserialize_option(FieldsVisitor)
}

/// Adds a field, which must be new.
pub fn add_field<E: Error>(
    fields: &mut Map<String, Value>,
    name: String,
    value: Value,
) -> Result<(), E> {
    if fields.contains_key(&name) {
        let name: String = name.chars().take(MAX_NAME).collect();
        return Err(E::custom(format_args!(
            "duplicate field `{}`",
            name.escape_debug()
        )));
    }
    fields.insert(name, value);
    Ok(())
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Map::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, Tree(value))) = access.next_entry()? {
            add_field(&mut fields, name, value)?;
        }
        Ok(fields)
    }
}

impl<'de> FromJson<'de> for Tree {
    fn scalar(value: Value) -> Self {
        Self(value)
    }

    fn text(text: Cow<'_, str>) -> Self {
        Self(text.into())
    }

    fn list<A: SeqAccess<'de>>(mut access: A) -> Result<Self, A::Error> {
        let mut items = Vec::new();
        while let Some(Self(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(Self(items.into()))
    }

    fn object<A: MapAccess<'de>>(access: A) -> Result<Self, A::Error> {
        FieldsVisitor.visit_map(access).map(Value::Object).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_kept_and_fields_that_occur_twice_refused() {
        let value =
            json!({ "a": [null, true, 1, -1, 0.5, "x", {}], "b": { "a": { "a": u64::MAX } } });
        assert_eq!(Tree::deserialize(&value).unwrap().0, value);
        assert_eq!(
            serde_json::from_str::<Tree>(&value.to_string()).unwrap().0,
            value
        );
        for (text, name) in [
            (r#"{"a": 1, "b": 2, "a": 1}"#, "a"),
            (r#"[{"b": {"\u0061\n": 1, "a\n": null}}]"#, r"a\n"),
        ] {
            let error = serde_json::from_str::<Tree>(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("duplicate field `{name}`")),
                "{error}"
            );
        }
        let long = "n".repeat(1000);
        let text = format!(r#"{{"{long}": 1, "{long}": 1}}"#);
        assert!(
            serde_json::from_str::<Tree>(&text)
                .unwrap_err()
                .to_string()
                .len()
                < 100
        );
    }
}
