//! Values with types of their own: the `config` crate reads the number 1.5 as the integer 2, and `true` as 1.

use config::{ConfigError, Value, ValueKind};
use serde::{
    Deserializer,
    de::{
        Error, IntoDeserializer, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

/// A value that is an integer or a boolean only if it is written as one, or as a text with one, as in variables.
pub struct Exact(pub Value);

impl Exact {
    fn integer(self) -> Result<Value, ConfigError> {
        let found = match &self.0.kind {
            ValueKind::Boolean(found) => Unexpected::Bool(*found),
            ValueKind::Float(found) => Unexpected::Float(*found),
            ValueKind::String(found) if found.parse::<i128>().is_err() => Unexpected::Str(found),
            _ => return Ok(self.0),
        };
        Err(Error::invalid_type(found, &"an integer"))
    }

    fn boolean(self) -> Result<Value, ConfigError> {
        let found = match &self.0.kind {
            ValueKind::I64(found) => Unexpected::Signed(*found),
            ValueKind::Float(found) => Unexpected::Float(*found),
            _ => return Ok(self.0),
        };
        Err(Error::invalid_type(found, &"a boolean"))
    }
}

impl IntoDeserializer<'_, ConfigError> for Exact {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
            self.integer()?.$method(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Exact {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match self.0.kind {
            ValueKind::Array(list) => {
                SeqDeserializer::new(list.into_iter().map(Self)).deserialize_any(visitor)
            }
            ValueKind::Table(table) => {
                let fields = table.into_iter().map(|(key, value)| (key, Self(value)));
                MapDeserializer::new(fields).deserialize_any(visitor)
            }
            _ => self.0.deserialize_any(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.boolean()?.deserialize_bool(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        visitor.visit_some(self)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.0.deserialize_str(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.0.deserialize_string(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        // Otherwise, a list would be read by the fields' order.
        match self.0.kind {
            ValueKind::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &"a table")),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        visitor.visit_newtype_struct(self)
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple tuple_struct map enum identifier
        ignored_any
    }
}
