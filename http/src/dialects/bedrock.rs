//! Amazon Bedrock's `POST /model/{model}/invoke`, with the bodies of Titan and Cohere embedding models and of ranking
//! models.

use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Dialect,
    cohere::{self, CohereEmbedRequest, Embedded, Message},
};
use crate::{
    bodies::{
        inputs,
        rejection::ApiResult,
        request::{Context, NameInPath, UntypedRequest, from_value},
        response::by_model,
        truncation::Truncate,
        vectors::EncodingFormat,
    },
    fields::known,
    service::{
        models::caller_models::CallerModels,
        route::{Api, Route, RouteMethod, Runs, post},
    },
    tasks::ranking::{DocumentsRequest, RankedDocument, rank_documents},
};
use kivu::{
    Error, Result,
    json::{Content, Tree, check},
    json_schemas::{Text, TextOrObject, Texts},
    pipeline::{Input, Usage, embedding::VectorKind},
    task::embedding::EmbeddingParameters,
};

/// The routes.
pub const BEDROCK: Api = Api {
    name: "Amazon Bedrock",
    dialect: Dialect::Bedrock,
    prefix: Some("/model/"),
    routes: &[
        INVOKE,
        INVOKE.at("/model/{model}/{resource}/invoke", "bedrock_invoke_arn"),
    ],
};

const INVOKE: Route = post!("/model/{model}/invoke", "bedrock_invoke", invoke)
    .request::<BedrockRequest>()
    .response::<BedrockResponse>()
    .runs(Runs::Model);

/// A body. Unknown fields are refused, as Bedrock does.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub enum BedrockRequest {
    Titan(TitanRequest),
    CohereEmbed(BedrockEmbedRequest),
    Ranking(BedrockRankRequest),
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub enum BedrockResponse {
    Titan(TitanResponse),
    CohereEmbed(Embedded),
    Ranking(BedrockRanks),
}

/// Titan Text Embeddings' body.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TitanRequest {
    /// The text to embed.
    #[schemars(with = "Text")]
    input_text: Content,
    /// Number of leading values to keep, which are normalized again.
    #[schemars(range(min = 1))]
    dimensions: Option<usize>,
    /// Whether the vector is scaled to length 1; true by default.
    normalize: Option<bool>,
    /// The types in `embeddingsByType`; `float` by default.
    #[schemars(length(min = 1, max = 2))]
    embedding_types: Option<Vec<TitanType>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum TitanType {
    Float,
    Binary,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TitanResponse {
    /// The vector as numbers.
    embedding: Vec<f32>,
    /// The requested types of the vector.
    embeddings_by_type: TitanVectors,
    /// Input tokens, special tokens included.
    input_text_token_count: usize,
}

#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct TitanVectors {
    /// The vector as numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Vec<f32>>,
    /// 1 for each value above 0, and 0 for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<Vec<u8>>,
}

/// Cohere Embed's body.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BedrockEmbedRequest {
    /// The texts to embed; or `inputs`.
    #[schemars(with = "Option<Texts>")]
    texts: Option<Content>,
    /// Instead of `texts`: objects whose `content` has texts.
    #[schemars(length(min = 1))]
    inputs: Option<Vec<Message>>,
    /// The texts' role, for which the model may have a prompt.
    input_type: Option<String>,
    /// The vector types. Without them, the vectors are floats in a list.
    #[schemars(length(min = 1, max = 6))]
    embedding_types: Option<Vec<EncodingFormat>>,
    /// Number of leading values to keep per vector, which is normalized again.
    #[schemars(range(min = 1))]
    output_dimension: Option<usize>,
    /// At least the model's token limit, which a request cannot lower.
    max_tokens: Option<usize>,
    /// How to handle texts beyond the model's limit: `NONE` rejects them, the others truncate them at this end.
    truncate: Option<BedrockTruncate>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
enum BedrockTruncate {
    None,
    Start,
    End,
    /// `START` in version 4.
    Left,
    /// `END` in version 4.
    Right,
}

/// The body of Cohere's and Amazon's ranking models.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BedrockRankRequest {
    /// The text by which the documents are ranked.
    #[schemars(with = "Text")]
    query: Content,
    /// Texts, or objects with a `text`.
    #[schemars(with = "Vec<TextOrObject>", length(min = 1))]
    documents: Content,
    /// Number of documents to return; all by default.
    #[schemars(range(min = 1))]
    top_n: Option<usize>,
    /// Whether the response has the documents.
    return_documents: Option<bool>,
    /// Cohere's API version, 1 or 2, which has no effect.
    #[schemars(range(min = 1, max = 2))]
    api_version: Option<usize>,
}

#[derive(Serialize, JsonSchema)]
pub struct BedrockRanks {
    /// The best documents, in descending order.
    results: Vec<RankedDocument>,
}

/// Run a model, as Bedrock does
///
/// API Gateway decodes the slash in an ARN, so that the id has several segments.
pub async fn invoke(
    NameInPath(id): NameInPath,
    UntypedRequest(context, Tree(body)): UntypedRequest<Tree>,
) -> ApiResult {
    let model = served_name(&context.models, &id);
    match Form::of(&body)? {
        Form::Titan => {
            check(&body, known("Amazon Bedrock.titan")?)?;
            titan(&context, model, from_value(body)?).await
        }
        Form::CohereEmbed => {
            check(&body, known("Amazon Bedrock.embed")?)?;
            cohere_embed(&context, model, from_value(body)?).await
        }
        Form::Ranking => {
            check(&body, known("Amazon Bedrock.rank")?)?;
            rank(&context, model, from_value(body)?).await
        }
    }
}

/// Areas of cross-region inference profiles, whose ids begin with them.
const AREAS: [&str; 8] = [
    "us.", "us-gov.", "eu.", "apac.", "jp.", "au.", "ca.", "global.",
];

/// A served model's name or alias: the whole id, or what follows the slash in an ARN, or either without a profile's area.
fn served_name<'a>(models: &CallerModels, id: &'a str) -> &'a str {
    let resource = id.strip_prefix("arn:").and_then(|arn| arn.rsplit_once('/'));
    let resource = resource.map_or(id, |(_, resource)| resource);
    let model = AREAS.iter().find_map(|area| resource.strip_prefix(area));
    let mut names = [Some(id), Some(resource), model].into_iter().flatten();
    names
        .find(|name| models.find(Some(name)).is_ok())
        .unwrap_or(resource)
}

#[derive(Clone, Copy)]
enum Form {
    Titan,
    CohereEmbed,
    Ranking,
}

impl Form {
    /// The only form that has one of the body's fields.
    fn of(body: &Value) -> Result<Self> {
        const FIELDS: [(Form, &[&str]); 3] = [
            (Form::Titan, &["inputText"]),
            (Form::CohereEmbed, &["texts", "inputs"]),
            (Form::Ranking, &["query", "documents"]),
        ];
        let has = |name: &&str| body.get(*name).is_some_and(|value| !value.is_null());
        let mut forms = FIELDS.iter().filter(|(_, names)| names.iter().any(has));
        let found = match (forms.next(), forms.next()) {
            (Some((form, _)), None) => return Ok(*form),
            (Some(_), Some(_)) => "several",
            (None, _) => "none",
        };
        Err(Error::invalid(format!(
            "expected the fields of one format, `inputText` (Titan), `texts` or `inputs` (Cohere Embed), or `query` and \
             `documents` (ranking), but found {found}"
        )))
    }
}

async fn titan(context: &Context, model: &str, body: TitanRequest) -> ApiResult {
    let (_, pipeline) = context.embedding(Some(model)).await?;
    let types = body
        .embedding_types
        .as_deref()
        .unwrap_or(&[TitanType::Float]);
    inputs::count("embeddingTypes", types.len(), 2)?;
    inputs::above_zero("dimensions", body.dimensions)?;
    context.texts.count("inputText", 1)?;
    let text = inputs::text(&"inputText", body.input_text, &context.texts)?;
    let parameters = EmbeddingParameters {
        prompt_name: context.models.named_prompt(Some(model)),
        normalize: Some(body.normalize.unwrap_or(true)),
        dimensions: body.dimensions,
        outputs: Some(vec![VectorKind::Dense]),
        ..EmbeddingParameters::default()
    };
    let embedder = parameters.prepare(pipeline, &context.scope())?;
    let found = embedder
        .run(vec![Input::Text(text)], context.deadline)
        .await?;
    let embedding: Vec<f32> = found
        .vectors
        .into_iter()
        .filter_map(|text| text.dense)
        .flatten()
        .collect();
    let bits = || {
        embedding
            .iter()
            .map(|value| u8::from(*value > 0.0))
            .collect()
    };
    let embeddings_by_type = TitanVectors {
        float: types.contains(&TitanType::Float).then(|| embedding.clone()),
        binary: types.contains(&TitanType::Binary).then(bits),
    };
    let input_text_token_count = found.usage.tokens;
    let answer = TitanResponse {
        embedding,
        embeddings_by_type,
        input_text_token_count,
    };
    Ok(respond(context, &answer, &found.usage))
}

async fn cohere_embed(context: &Context, model: &str, body: BedrockEmbedRequest) -> ApiResult {
    let truncate = body.truncate.map(|truncate| match truncate {
        BedrockTruncate::None => Truncate::None,
        BedrockTruncate::Start | BedrockTruncate::Left => Truncate::Start,
        BedrockTruncate::End | BedrockTruncate::Right => Truncate::End,
    });
    let request = CohereEmbedRequest {
        model: Some(model.to_owned()),
        texts: body.texts,
        inputs: body.inputs,
        input_type: body.input_type,
        embedding_types: body.embedding_types,
        output_dimension: body.output_dimension,
        truncate,
        max_tokens: body.max_tokens,
    };
    let (embedded, usage) = cohere::embedded(context, request).await?;
    Ok(respond(context, &embedded, &usage))
}

async fn rank(context: &Context, model: &str, body: BedrockRankRequest) -> ApiResult {
    if let Some(version) = body
        .api_version
        .filter(|version| !(1..=2).contains(version))
    {
        return Err(Error::invalid(format!(
            "expected `api_version` 1 or 2, but found {version}"
        ))
        .into());
    }
    let request = DocumentsRequest {
        model: Some(model.to_owned()),
        query: body.query,
        documents: body.documents,
        top_n: body.top_n,
        return_documents: body.return_documents,
        ..DocumentsRequest::default()
    };
    let (_, mut ranked) = rank_documents(context, request).await?;
    let answer = BedrockRanks {
        results: ranked.documents(),
    };
    Ok(respond(context, &answer, &ranked.usage))
}

/// A response with Bedrock's headers, from which clients read token counts.
fn respond<B: Serialize>(context: &Context, body: &B, usage: &Usage) -> axum::response::Response {
    let headers = [
        ("x-amzn-bedrock-input-token-count", usage.tokens.to_string()),
        (
            "x-amzn-bedrock-invocation-latency",
            context.started.elapsed().as_millis().to_string(),
        ),
    ];
    (headers, by_model(body, usage)).into_response()
}
