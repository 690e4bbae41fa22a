//! Schemas for JSON that handlers read or write as [`serde_json::Value`]. These types are never constructed.

#![expect(dead_code, missing_docs, reason = "only their schemas are used")]

use schemars::{JsonSchema, Schema, transform::Transform};
use serde_json::{Map, Value};

/// An object with any fields.
pub type Object = Map<String, Value>;

#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Either<A, B> {
    One(A),
    Other(B),
}

#[derive(JsonSchema)]
#[schemars(inline)]
pub struct NonEmpty<T>(#[schemars(length(min = 1))] Vec<T>);

#[derive(JsonSchema)]
#[schemars(inline)]
pub struct Text(#[schemars(length(min = 1))] String);

#[derive(JsonSchema)]
#[schemars(inline)]
pub struct TokenId(#[schemars(range(max = 4_294_967_295_u64))] u32);

#[derive(JsonSchema)]
#[schemars(inline)]
pub struct TextObject {
    /// The text itself.
    text: Text,
}

/// A text or a list of texts.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum Texts {
    One(Text),
    Many(NonEmpty<Text>),
}

/// A text, alone or in a list.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OneText {
    Text(Text),
    List(#[schemars(length(equal = 1))] Vec<Text>),
}

/// A text, token ids, or a list of texts and token id lists.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum Inputs {
    Text(Text),
    Ids(NonEmpty<TokenId>),
    Many(NonEmpty<Either<Text, NonEmpty<TokenId>>>),
}

/// A text, token ids, or a list of texts, token id lists or objects with a text.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum InputsOrObjects {
    Inputs(Inputs),
    Objects(NonEmpty<TextObject>),
}

pub type TokenIdLists = Either<NonEmpty<TokenId>, NonEmpty<NonEmpty<TokenId>>>;

/// A text, a pair as a list, or a list whose items are lists with one or two texts.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum Pairs {
    Text(Text),
    Pair(Pair),
    Many(NonEmpty<Either<Text, Pair>>),
}

#[derive(JsonSchema)]
#[schemars(inline)]
pub struct Pair(#[schemars(length(min = 1, max = 2))] Vec<Text>);

/// A text, or an object with a text and its pair.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum Classified {
    Text(Text),
    Pair {
        /// The text, or the first one of a pair.
        text: Text,
        /// The second text.
        text_pair: Option<String>,
    },
}

pub type OneOrManyClassified = Either<Classified, NonEmpty<Classified>>;

pub type TextOrObject = Either<Text, TextObject>;

/// A text, which may be empty, or a list of texts.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OptionalTexts {
    Text(String),
    Texts(Vec<Text>),
}

/// A text, which may be empty, or a list of at most one text.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OptionalText {
    Text(String),
    List(#[schemars(length(max = 1))] Vec<Text>),
}

/// A number from 0 to 9.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Digit {
    Number(#[schemars(range(max = 9))] u8),
    Text(#[schemars(regex(pattern = "^[0-9]$"))] String),
}

/// Adds a second name, as `serde(alias)` does: `Alias(name, alias)`.
pub struct Alias(pub &'static str, pub &'static str);

impl Transform for Alias {
    fn transform(&mut self, schema: &mut Schema) {
        let Self(name, alias) = *self;
        let Some(Value::Object(properties)) = schema.get_mut("properties") else {
            return;
        };
        let Some(mut field) = properties.get(name).cloned() else {
            return;
        };
        field["description"] = format!("Another name for `{name}`.").into();
        properties.insert(alias.to_owned(), field);
        let Some(Value::Array(required)) = schema.get_mut("required") else {
            return;
        };
        let before = required.len();
        required.retain(|field| field != name);
        if required.len() < before {
            let either = serde_json::json!([{ "required": [name] }, { "required": [alias] }]);
            schema.insert("anyOf".to_owned(), either);
        }
    }
}
