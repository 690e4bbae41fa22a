//! The shapes of fields that a dialect reads by hand, because clients send them in several forms.

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, RefOr, SchemaFormat,
        schema::{AnyOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type},
    },
};

use crate::api::tei::classify::{Prediction, Rank};

/// What a field may hold.
pub(in crate::api) type Shape = RefOr<Schema>;

/// A text that is not empty.
pub(in crate::api) fn text() -> Shape {
    ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).into()
}

/// A text, or several.
pub(in crate::api) fn texts() -> Shape {
    one_of([text(), list(text())])
}

/// A text, by itself or in a list.
pub(in crate::api) fn one_text() -> Shape {
    one_of([text(), ArrayBuilder::new().items(text()).min_items(Some(1)).max_items(Some(1)).into()])
}

/// A text, token ids, or a list of texts and lists of ids.
pub(in crate::api) fn inputs() -> Shape {
    one_of([text(), list(one_of([text(), list(id())])), list(id())])
}

/// A list of token ids, or a list of such lists.
pub(in crate::api) fn id_lists() -> Shape {
    one_of([list(id()), list(list(id()))])
}

/// A text, a pair as a list of two, or a list of lists of one or two.
pub(in crate::api) fn pairs() -> Shape {
    let one_or_two = || ArrayBuilder::new().items(text()).min_items(Some(1)).max_items(Some(2));
    one_of([text(), one_or_two().into(), list(one_of([text(), one_or_two().into()]))])
}

/// A text, an object with a text and its pair, or a list of them.
pub(in crate::api) fn classified() -> Shape {
    let none = ObjectBuilder::new().schema_type(Type::Null).into();
    let second = ObjectBuilder::new().schema_type(Type::String).into();
    let pair = ObjectBuilder::new().property("text", text()).property("text_pair", one_of([second, none]));
    let pair: Shape = pair.required("text").into();
    let one = || one_of([text(), pair.clone()]);
    one_of([one(), list(one())])
}

/// Texts, or objects with a `text`.
pub(in crate::api) fn documents() -> Shape {
    let object = ObjectBuilder::new().property("text", text()).required("text");
    list(one_of([text(), object.into()]))
}

/// The hub's body of a ranking: that of `/rerank`, one level deeper.
pub(in crate::api) fn ranking_inputs() -> Shape {
    let inputs = ObjectBuilder::new().property("query", text()).property("texts", texts());
    ObjectBuilder::new()
        .property("inputs", inputs.required("query").required("texts"))
        .required("inputs")
        .into()
}

/// How OpenAI's vectors are written.
pub(in crate::api) fn encoding_format() -> Shape {
    let nullable = SchemaType::Array(vec![Type::String, Type::Null]);
    let values = [Some("float"), Some("base64"), None];
    ObjectBuilder::new().schema_type(nullable).enum_values(Some(values)).into()
}

/// Bytes that are no text.
pub(in crate::api) struct Bytes;

impl PartialSchema for Bytes {
    fn schema() -> Shape {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl ToSchema for Bytes {}

/// The labels of one input, or a list of those.
pub(in crate::api) struct Predictions;

impl PartialSchema for Predictions {
    fn schema() -> Shape {
        one_of([list(Prediction::schema()), list(list(Prediction::schema()))])
    }
}

impl ToSchema for Predictions {}

/// What the routes answer whose task is the model's.
pub(in crate::api) struct TaskAnswer;

impl PartialSchema for TaskAnswer {
    fn schema() -> Shape {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let translation = || ObjectBuilder::new().property("translation_text", text());
        let translation = || -> Shape { translation().required("translation_text").into() };
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

impl ToSchema for TaskAnswer {}

/// The shape of a type.
pub(in crate::api) fn of<T: PartialSchema>() -> Shape {
    T::schema()
}

/// One shape or another, or several of them.
pub(in crate::api) fn any_of(shapes: impl IntoIterator<Item = Shape>) -> Shape {
    shapes.into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item).into()
}

/// One shape or another, which exclude each other.
fn one_of(shapes: impl IntoIterator<Item = Shape>) -> Shape {
    shapes.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item).into()
}

fn list(item: Shape) -> Shape {
    ArrayBuilder::new().items(item).min_items(Some(1)).into()
}

fn id() -> Shape {
    let id = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(u32::MAX));
    id.into()
}
