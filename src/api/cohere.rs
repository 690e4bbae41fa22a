//! Cohere's `/v2/embed` and `/v1/embed`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    inputs::{self, TextLimit},
    rejection::Reply,
    request::{Call, Context},
    response::with_backend,
    vectors::{EncodingFormat, Form, Vector},
};
use crate::{
    error::{Error, Result},
    pipeline::{Input, embedding::VectorKind},
    task::{Scope, embedding::EmbeddingParameters},
    tokenizer::Side,
};

#[derive(Deserialize)]
#[serde(expecting = "an object with `texts`")]
pub(super) struct CohereEmbedRequest {
    /// The name of the model; by default the first embedding model.
    model: Option<String>,
    /// A list of texts.
    texts: Option<Value>,
    /// Or a list of objects with a `content` of texts.
    inputs: Option<Vec<Content>>,
    /// The role of the texts, for which the model may have a prompt.
    input_type: Option<String>,
    /// The types of the vectors; `float` by default.
    embedding_types: Option<Vec<EncodingFormat>>,
    /// The number of leading values to keep of each vector, which is normalized again.
    output_dimension: Option<usize>,
    /// The treatment of texts beyond the model's limit.
    truncate: Option<Truncate>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `content`")]
struct Content {
    content: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `type` and `text`")]
struct Part {
    #[serde(rename = "type")]
    _type: PartType,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartType {
    Text,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Truncate {
    None,
    Start,
    End,
}

#[derive(Serialize)]
struct EmbedResponse<'a> {
    id: String,
    texts: Vec<&'a str>,
    embeddings: Embeddings,
    response_type: &'static str,
    meta: Value,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Embeddings {
    Floats(Vec<Vector>),
    ByType(BTreeMap<&'static str, Vec<Vector>>),
}

/// Embed texts, as Cohere does
pub(super) async fn embed(Call(context, body): Call<CohereEmbedRequest>) -> Reply {
    embed_with(&context, body, "2").await
}

/// Embed texts, as Cohere's first version does: without types the vectors are floats in a list
pub(super) async fn embed_v1(Call(context, body): Call<CohereEmbedRequest>) -> Reply {
    embed_with(&context, body, "1").await
}

async fn embed_with(context: &Context, body: CohereEmbedRequest, version: &str) -> Reply {
    let app = &context.app;
    let name = body.model.as_deref();
    let (_, pipeline) = app.embedding(name)?;
    let is_list = version == "1" && body.embedding_types.is_none();
    let types = body.embedding_types.unwrap_or_else(|| vec![EncodingFormat::Float]);
    inputs::count("embedding_types", types.len(), EncodingFormat::COUNT)?;
    let (truncate, truncation_direction) = match body.truncate {
        Some(Truncate::None) => (Some(false), None),
        Some(Truncate::Start) => (Some(true), Some(Side::Left)),
        Some(Truncate::End) => (Some(true), Some(Side::Right)),
        None => (None, None),
    };
    let mut parameters = EmbeddingParameters {
        truncate,
        truncation_direction,
        normalize: Some(true),
        dimensions: body.output_dimension,
        outputs: Some(vec![VectorKind::Dense]),
        ..EmbeddingParameters::default()
    };
    let scope = context.scope();
    let form = |format: &EncodingFormat| {
        let of_type = EmbeddingParameters { output_dtype: format.vector_type(), ..parameters.clone() };
        Ok((format.name(), Form::new(&of_type.prepare(pipeline, &scope)?, Some(*format))))
    };
    let forms: BTreeMap<_, _> = types.iter().map(form).collect::<Result<_>>()?;
    let texts = texts(body.texts, body.inputs, &context.texts)?;
    parameters.prompt_name = match body.input_type {
        Some(role) => pipeline.prompt_name(&role)?.map(str::to_owned),
        None => app.named_prompt(name),
    };
    // Each type is a part of the response.
    let options = parameters.options(&Scope { max_values: scope.max_values / forms.len(), ..scope });
    let inputs = texts.iter().cloned().map(Input::Text).collect();
    let found = pipeline.embed(inputs, &options, context.deadline).await?;
    let of_type = |form: &Form| found.vectors.iter().map(|vector| form.apply(vector.clone())).collect();
    let by_type: BTreeMap<_, Vec<Vector>> = forms.iter().map(|(name, form)| (*name, of_type(form))).collect();
    let (embeddings, response_type) = match is_list {
        true => (Embeddings::Floats(by_type.into_values().flatten().collect()), "embeddings_floats"),
        false => (Embeddings::ByType(by_type), "embeddings_by_type"),
    };
    let answer = EmbedResponse {
        id: uuid::Uuid::new_v4().to_string(),
        texts: texts.iter().map(String::as_str).collect(),
        embeddings,
        response_type,
        meta: json!({
            "api_version": { "version": version },
            "billed_units": { "input_tokens": found.usage.tokens },
        }),
    };
    Ok(with_backend(&answer, found.usage.location))
}

fn texts(texts: Option<Value>, contents: Option<Vec<Content>>, limit: &TextLimit) -> Result<Vec<String>> {
    match (texts, contents) {
        (Some(texts), None) => inputs::texts("texts", texts, limit),
        (None, Some(contents)) => {
            let text = |Content { content }: Content| {
                Value::from(content.into_iter().map(|part| part.text).collect::<Vec<_>>().join("\n"))
            };
            inputs::texts("inputs", contents.into_iter().map(text).collect(), limit)
        }
        _ => Err(Error::invalid("expected either `texts` or `inputs`, but found both or neither")),
    }
}
