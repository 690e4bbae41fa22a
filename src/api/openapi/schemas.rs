//! Schemas of fields that clients send in several forms, and of responses that depend on the task.

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, RefOr, SchemaFormat,
        schema::{AnyOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type},
    },
};

use crate::api::response::{Prediction, Rank};

pub(in crate::api) type FieldSchema = RefOr<Schema>;

/// A non-empty text.
pub(in crate::api) fn text() -> FieldSchema {
    ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).into()
}

/// A text or a list of texts.
pub(in crate::api) fn texts() -> FieldSchema {
    one_of([text(), list(text())])
}

/// A text, or a list of one text.
pub(in crate::api) fn one_text() -> FieldSchema {
    one_of([text(), ArrayBuilder::new().items(text()).min_items(Some(1)).max_items(Some(1)).into()])
}

/// A text, token ids, or a list of texts and token id lists.
pub(in crate::api) fn inputs() -> FieldSchema {
    one_of([text(), list(one_of([text(), list(id())])), list(id())])
}

/// Token ids, or a list of token id lists.
pub(in crate::api) fn id_lists() -> FieldSchema {
    one_of([list(id()), list(list(id()))])
}

/// A text, a pair as a list of two texts, or a list of lists of one or two texts.
pub(in crate::api) fn pairs() -> FieldSchema {
    let one_or_two = || ArrayBuilder::new().items(text()).min_items(Some(1)).max_items(Some(2));
    one_of([text(), one_or_two().into(), list(one_of([text(), one_or_two().into()]))])
}

/// A text, an object with a text and its pair, or a list of these.
pub(in crate::api) fn classified() -> FieldSchema {
    let none = ObjectBuilder::new().schema_type(Type::Null).into();
    let second = ObjectBuilder::new().schema_type(Type::String).into();
    let pair = ObjectBuilder::new().property("text", text()).property("text_pair", one_of([second, none]));
    let pair: FieldSchema = pair.required("text").into();
    let one = || one_of([text(), pair.clone()]);
    one_of([one(), list(one())])
}

/// Texts, or objects with a `text`.
pub(in crate::api) fn documents() -> FieldSchema {
    let object = ObjectBuilder::new().property("text", text()).required("text");
    list(one_of([text(), object.into()]))
}

/// The hub's body for ranking: that of `/rerank`, inside `inputs`.
pub(in crate::api) fn ranking_inputs() -> FieldSchema {
    let inputs = ObjectBuilder::new().property("query", text()).property("texts", texts());
    ObjectBuilder::new()
        .property("inputs", inputs.required("query").required("texts"))
        .required("inputs")
        .into()
}

/// Binary data.
pub(in crate::api) struct Bytes;

impl PartialSchema for Bytes {
    fn schema() -> FieldSchema {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl ToSchema for Bytes {}

/// The labels of one input, or a list of these.
pub(in crate::api) struct Predictions;

impl PartialSchema for Predictions {
    fn schema() -> FieldSchema {
        one_of([list(Prediction::schema()), list(list(Prediction::schema()))])
    }
}

impl ToSchema for Predictions {}

/// The response of a route that runs any task.
pub(in crate::api) struct TaskResponse;

impl PartialSchema for TaskResponse {
    fn schema() -> FieldSchema {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let translation = || ObjectBuilder::new().property("translation_text", text());
        let translation = || -> FieldSchema { translation().required("translation_text").into() };
        any_of([
            Vec::<f32>::schema(),
            Vec::<Vec<f32>>::schema(),
            Predictions::schema(),
            list(Rank::schema()),
            list(translation()),
            list(list(translation())),
        ])
    }
}

impl ToSchema for TaskResponse {}

pub(in crate::api) fn of<T: PartialSchema>() -> FieldSchema {
    T::schema()
}

/// At least one of several schemas.
pub(in crate::api) fn any_of(schemas: impl IntoIterator<Item = FieldSchema>) -> FieldSchema {
    schemas.into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item).into()
}

/// Exactly one of several schemas.
fn one_of(schemas: impl IntoIterator<Item = FieldSchema>) -> FieldSchema {
    schemas.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item).into()
}

fn list(item: FieldSchema) -> FieldSchema {
    ArrayBuilder::new().items(item).min_items(Some(1)).into()
}

fn id() -> FieldSchema {
    let id = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(u32::MAX));
    id.into()
}
