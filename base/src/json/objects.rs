//! Deserializes JSON in which structs are objects, and counts its values. Derived implementations also accept a list
//! of field values, in an order that no API defines.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserializer,
    de::{
        DeserializeSeed, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::UnitDeserializer,
    },
};

use super::{
    budget::{OBJECT_BYTES, VALUE_BYTES, take},
    known::{Found, Known, REFUSED, shown},
    tree::Tree,
};

/// A deserializer that expects an object for each struct, and takes memory for each value in a list or an object; also its
/// visitors, seeds and accesses, which pass this on to all values within a value.
pub struct Objects<T> {
    inner: T,
    /// The fields of the object, or of the objects in the list.
    known: Known,
}

impl<T> Objects<T> {
    /// Objects with any fields.
    pub fn new(inner: T) -> Self {
        Self::with(inner, &[])
    }

    /// An object with known fields.
    pub fn with(inner: T, known: Known) -> Self {
        Self { inner, known }
    }
}

/// Takes memory for a value in a list or an object.
fn take_value<E: serde::de::Error>() -> Result<(), E> {
    take(VALUE_BYTES)
}

/// Forwarding deserializer methods.
macro_rules! forward {
    ($($method:ident($($argument:ident: $kind:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($argument,)* Objects::with(visitor, self.known))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner
            .deserialize_map(Objects::with(visitor, self.known))
    }

    forward! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_f32() deserialize_f64()
        deserialize_char() deserialize_str() deserialize_string() deserialize_bytes() deserialize_byte_buf()
        deserialize_option() deserialize_unit() deserialize_seq() deserialize_map() deserialize_identifier()
        deserialize_ignored_any() deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str) deserialize_tuple(length: usize)
        deserialize_tuple_struct(name: &'static str, length: usize)
    }

    /// Values of other types are errors of their field: serde_json would call them a syntax error. All choices are
    /// strings; enums with contents are untagged or have a tag.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Choice { variants, visitor })
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Reads one of several strings.
struct Choice<V> {
    variants: &'static [&'static str],
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Choice<V> {
    type Value = V::Value;

    /// In the words of serde's error for other strings.
    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self
            .variants
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        match names.as_slice() {
            [one] => formatter.write_str(one),
            [one, other] => write!(formatter, "{one} or {other}"),
            names => write!(formatter, "one of {}", names.join(", ")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<V::Value, E> {
        self.visitor.visit_enum(name.into_deserializer())
    }
}

/// Forwarding visitor methods.
macro_rules! visit {
    ($($method:ident($kind:ty))*) => {
        $(fn $method<E: serde::de::Error>(self, value: $kind) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Objects<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    visit! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64) visit_u8(u8) visit_u16(u16)
        visit_u32(u32) visit_u64(u64) visit_f32(f32) visit_f64(f64) visit_char(char) visit_str(&str)
        visit_borrowed_str(&'de str) visit_string(String) visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8])
        visit_byte_buf(Vec<u8>)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner
            .visit_some(Objects::with(deserializer, self.known))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        self.inner
            .visit_newtype_struct(Objects::with(deserializer, self.known))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, values: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Objects::with(values, self.known))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        take(OBJECT_BYTES)?;
        self.inner.visit_map(ObjectFields::new(fields, self.known))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Objects<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner
            .deserialize(Objects::with(deserializer, self.known))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let element = self
            .inner
            .next_element_seed(Objects::with(seed, self.known))?;
        if element.is_some() {
            take_value()?;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl Found {
    /// Reads the field's value for `seed`, or refuses it.
    fn read<'de, A: MapAccess<'de>, S: DeserializeSeed<'de>>(
        self,
        fields: &mut A,
        seed: S,
    ) -> Result<S::Value, A::Error> {
        match self {
            Self::Unknown => fields.next_value_seed(Objects::new(seed)),
            Self::Known(inner) => fields.next_value_seed(Objects::with(seed, inner)),
            Self::Misspelt(name, right) => Err(A::Error::custom(format_args!(
                "{REFUSED}{}` is not a field of this API; use `{right}`",
                name.escape_debug()
            ))),
            Self::Refused(name, field) => {
                let Tree(value) = fields.next_value_seed(Objects::new(PhantomData))?;
                if !field.is_missing(&value) {
                    return Err(A::Error::custom(format_args!(
                        "{REFUSED}{}{}` is not supported: {}",
                        name.escape_debug(),
                        shown(&value),
                        field.hint
                    )));
                }
                seed.deserialize(UnitDeserializer::new())
            }
        }
    }
}

/// The fields of an object.
struct ObjectFields<A> {
    fields: A,
    known: Known,
    found: Found,
}

impl<A> ObjectFields<A> {
    fn new(fields: A, known: Known) -> Self {
        Self {
            fields,
            known,
            found: Found::Unknown,
        }
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ObjectFields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let key = if self.known.is_empty() {
            self.fields.next_key_seed(Objects::new(seed))?
        } else if let Some(name) = self.fields.next_key::<String>()? {
            self.found = Found::of(&name, self.known);
            let key: Result<_, A::Error> = seed.deserialize(name.into_deserializer());
            Some(key?)
        } else {
            None
        };
        if key.is_some() {
            take_value()?;
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        std::mem::take(&mut self.found).read(&mut self.fields, seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.fields.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(expecting = "an object with `number`")]
    struct Inner {
        number: u8,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(expecting = "an object with `one`")]
    struct Outer {
        one: Inner,
        option: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
        #[serde(default)]
        map: BTreeMap<String, Inner>,
        pair: Option<(u8, u8)>,
    }

    #[test]
    fn lists_are_refused_at_any_depth() {
        let read = |value: serde_json::Value| {
            let of_value =
                Outer::deserialize(Objects::new(&value)).map_err(|error| error.to_string());
            let text = value.to_string();
            let of_text =
                Outer::deserialize(Objects::new(&mut serde_json::Deserializer::from_str(&text)));
            assert_eq!(of_text.is_ok(), of_value.is_ok(), "{text}");
            of_value
        };
        let inner = json!({ "number": 1 });
        let all = json!({ "one": inner, "option": inner, "list": [inner], "map": { "a": inner }, "pair": [1, 2] });
        let found = read(all).unwrap();
        assert_eq!(
            (found.list.len(), found.map.len(), found.pair),
            (1, 1, Some((1, 2)))
        );
        for wrong in [
            json!([{ "number": 1 }, null, [], {}, null]),
            json!({ "one": [1] }),
            json!({ "one": inner, "option": [1] }),
            json!({ "one": inner, "list": [[1]] }),
            json!({ "one": inner, "map": { "a": [1] } }),
        ] {
            let error = read(wrong.clone()).unwrap_err();
            assert!(
                error.starts_with("invalid type: sequence, expected an object"),
                "{wrong}: {error}"
            );
        }
    }
}
