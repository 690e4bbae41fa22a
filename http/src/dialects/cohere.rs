//! Cohere's `/v2/embed` and `/v1/embed`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Dialect;
use crate::{
    bodies::{
        inputs::{self, RequestTexts},
        rejection::ApiResult,
        request::{Context, JsonRequest, RequestBody},
        response::by_model,
        truncation::Truncate,
        vectors::{EncodingFormat, Form, Vector},
    },
    service::route::{Api, Route, RouteMethod, Runs, post},
    tasks::ranking::{self, CohereResponse, DocumentsRequest},
};
use kivu::{
    Error, Result,
    json::Content,
    json_schemas::{Object, Texts},
    pipeline::{Input, Usage, embedding::VectorKind},
    task::{Scope, TruncationParameters, embedding::EmbeddingParameters},
};

/// The routes.
pub const COHERE: Api = Api {
    name: "Cohere",
    dialect: Dialect::Cohere,
    prefix: None,
    routes: &[
        post!("/v1/embed", "cohere_embed_v1", embed_v1)
            .request::<CohereEmbedRequest>()
            .response::<EmbedResponse>()
            .runs(Runs::Model),
        post!("/v2/embed", "cohere_embed", embed)
            .request::<CohereEmbedRequest>()
            .response::<EmbedResponse>()
            .runs(Runs::Model),
        post!("/v2/rerank", "cohere", ranking::cohere)
            .request::<DocumentsRequest>()
            .response::<CohereResponse>()
            .runs(Runs::Model),
    ],
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `texts`")]
pub struct CohereEmbedRequest {
    /// Model name; the default is the first embedding model.
    pub model: Option<String>,
    /// The texts to embed; or `inputs`.
    #[schemars(with = "Option<Texts>")]
    pub texts: Option<Content>,
    /// Instead of `texts`: objects whose `content` has texts.
    #[schemars(length(min = 1))]
    pub inputs: Option<Vec<Message>>,
    /// The texts' role, for which the model may have a prompt: `search_document`, `search_query`, `classification` or
    /// `clustering`.
    pub input_type: Option<String>,
    /// The vector types; `float` by default.
    #[schemars(length(min = 1, max = 6))]
    pub embedding_types: Option<Vec<EncodingFormat>>,
    /// Number of leading values to keep per vector, which is normalized again.
    #[schemars(range(min = 1))]
    pub output_dimension: Option<usize>,
    /// How to handle texts beyond the model's limit: `NONE` rejects them, `START` and `END` truncate them at this end.
    pub truncate: Option<Truncate>,
    /// Number of tokens to read of each text; not below the model's limit.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<usize>,
}

impl RequestBody for CohereEmbedRequest {
    const FIELDS: &str = "body.cohere_embed";
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `content`")]
#[schemars(inline)]
pub struct Message {
    /// Texts that are joined with line breaks, and embedded as one.
    #[schemars(length(min = 1))]
    content: Vec<Part>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `type` and `text`")]
#[schemars(inline)]
struct Part {
    /// `text`; images are refused.
    #[serde(rename = "type")]
    _type: PartType,
    /// One of the joined texts.
    #[schemars(length(min = 1))]
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum PartType {
    Text,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereEmbedResponse")]
pub struct EmbedResponse {
    #[serde(flatten)]
    embedded: Embedded,
    /// The API version, and the input tokens as `billed_units`.
    #[schemars(with = "Object")]
    meta: Value,
}

/// The texts and their vectors.
#[derive(Serialize, JsonSchema)]
pub struct Embedded {
    /// A new UUID.
    id: String,
    /// The texts of the request; for inputs with content parts, the joined ones.
    texts: Vec<String>,
    /// Vector lists by type; one list of vectors from `/v1/embed` and from Bedrock without types.
    embeddings: Embeddings,
    /// `embeddings_by_type`, or `embeddings_floats` for one list of vectors.
    #[schemars(extend("enum" = ["embeddings_by_type", "embeddings_floats"]))]
    response_type: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Embeddings {
    Floats(Vec<Vector>),
    ByType(BTreeMap<&'static str, Vec<Vector>>),
}

/// Embed texts, as Cohere does
pub async fn embed(JsonRequest(context, mut body): JsonRequest<CohereEmbedRequest>) -> ApiResult {
    body.embedding_types
        .get_or_insert_with(|| vec![EncodingFormat::Float]);
    embed_with(&context, body, "2").await
}

/// Embed texts, as Cohere's first version does: without types the vectors are floats in a list
pub async fn embed_v1(JsonRequest(context, body): JsonRequest<CohereEmbedRequest>) -> ApiResult {
    embed_with(&context, body, "1").await
}

async fn embed_with(context: &Context, body: CohereEmbedRequest, version: &str) -> ApiResult {
    let (embedded, usage) = embedded(context, body).await?;
    let meta = json!({
        "api_version": { "version": version },
        "billed_units": { "input_tokens": usage.tokens },
    });
    Ok(by_model(&EmbedResponse { embedded, meta }, &usage))
}

/// Embeds texts. Without types the vectors are floats in a list.
pub async fn embedded(context: &Context, body: CohereEmbedRequest) -> Result<(Embedded, Usage)> {
    let name = body.model.as_deref();
    let (_, pipeline) = context.embedding(name).await?;
    inputs::refuse_lower_token_limit(
        "max_tokens",
        body.max_tokens,
        pipeline.settings().max_tokens,
    )?;
    let is_list = body.embedding_types.is_none();
    let types = body
        .embedding_types
        .unwrap_or_else(|| vec![EncodingFormat::Float]);
    inputs::count("embedding_types", types.len(), EncodingFormat::COUNT)?;
    let truncation = body
        .truncate
        .map_or_else(TruncationParameters::default, Truncate::parameters);
    let mut parameters = EmbeddingParameters {
        truncation,
        normalize: Some(true),
        dimensions: body.output_dimension,
        outputs: Some(vec![VectorKind::Dense]),
        ..EmbeddingParameters::default()
    };
    let scope = context.scope();
    let form = |format: &EncodingFormat| {
        let of_type = EmbeddingParameters {
            output_dtype: format.vector_type(),
            ..parameters.clone()
        };
        Ok((
            format.name(),
            Form::new(&of_type.prepare(pipeline, &scope)?, Some(*format)),
        ))
    };
    let forms: BTreeMap<_, _> = types.iter().map(form).collect::<Result<_>>()?;
    let texts = texts(body.texts, body.inputs, &context.texts)?;
    let roles = [
        ("input_type", body.input_type),
        ("model", context.models.named_prompt(name)),
    ];
    parameters.prompt_name = match inputs::one_role(roles)? {
        Some(role) => pipeline.prompt_name(&role)?.map(str::to_owned),
        None => None,
    };
    // Each type is a part of the response.
    let scope = Scope {
        max_values: scope.max_values / forms.len(),
        ..scope
    };
    let options = parameters.options(pipeline, &scope)?;
    let dimensions = pipeline.dimensions(options.dimensions)?;
    let vectors: usize = forms.values().map(|form| form.min_bytes(dimensions)).sum();
    context.check_response(texts.iter().map(|text| text.len() + vectors).sum())?;
    let inputs = texts.iter().cloned().map(Input::Text).collect();
    let found = pipeline.embed(inputs, &options, context.deadline).await?;
    let of_type = |form: &Form| {
        found
            .vectors
            .iter()
            .map(|vector| form.apply(vector.clone()))
            .collect()
    };
    let by_type: BTreeMap<_, Vec<Vector>> = forms
        .iter()
        .map(|(name, form)| (*name, of_type(form)))
        .collect();
    let (embeddings, response_type) = match is_list {
        true => (
            Embeddings::Floats(by_type.into_values().flatten().collect()),
            "embeddings_floats",
        ),
        false => (Embeddings::ByType(by_type), "embeddings_by_type"),
    };
    let embedded = Embedded {
        id: uuid::Uuid::new_v4().to_string(),
        texts,
        embeddings,
        response_type,
    };
    Ok((embedded, found.usage))
}

fn texts(
    texts: Option<Content>,
    contents: Option<Vec<Message>>,
    limit: &RequestTexts,
) -> Result<Vec<String>> {
    match (texts, contents) {
        (Some(texts), None) => inputs::texts("texts", texts, limit),
        (None, Some(contents)) => {
            let text = |message: Message| {
                message
                    .content
                    .into_iter()
                    .map(|part| part.text)
                    .collect::<Vec<_>>()
                    .join("\n")
            };
            let texts: Vec<String> = contents.into_iter().map(text).collect();
            inputs::texts("inputs", texts.into(), limit)
        }
        _ => Err(Error::invalid(
            "expected either `texts` or `inputs`, but found both or neither",
        )),
    }
}
