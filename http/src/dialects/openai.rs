//! OpenAI's `/v1/embeddings`, which is also Voyage's, Jina's and (as `/embeddings`) TEI's, and `/v1/models`.

use std::{collections::BTreeMap, mem, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, header::USER_AGENT},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bodies::{
        inputs,
        rejection::ApiResult,
        request::{JsonRequest, NameInPath, RequestBody},
        response::{TokenUsage, by_model},
        truncation::{BooleanOrTruncate, RequestedTruncation},
        vectors::{EncodingFormat, Form, Vector},
    },
    service::{app::App, models::caller_models::CallerModels},
};
use kivu::{
    Error, Result,
    backend::Deadline,
    json::Content,
    json_schemas::{Alias, InputsOrObjects},
    pipeline::{
        Input,
        embedding::{EmbeddingPipeline, VectorKind, vectors::VectorType},
        encoder::chunks::Chunks,
    },
    task::embedding::EmbeddingParameters,
    tokenizer::{Side, models::cl100k},
};

/// A header of OpenAI's clients.
const OPENAI_CLIENT: &str = "x-stainless-lang";

/// Whether Mistral's client, for Python or TypeScript, asks.
fn is_mistrals(headers: &HeaderMap) -> bool {
    let agent = headers
        .get(USER_AGENT)
        .and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.contains("mistral"))
}

/// Fields from OpenAI, and from Voyage, Jina and TEI, which have the same route or extend it.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `input`")]
#[schemars(transform = Alias("normalized", "normalize"))]
pub struct EmbeddingsRequest {
    /// A text, a list of texts or objects with a `text`, token ids, or a list of token id lists.
    #[schemars(with = "InputsOrObjects")]
    input: Content,
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// Number of leading values to keep per vector, which is normalized again; infinity's clients send 0 for all.
    dimensions: Option<usize>,
    /// Voyage's name for `dimensions`.
    #[schemars(range(min = 1))]
    output_dimension: Option<usize>,
    /// `float` by default: numbers, of the type in `output_dtype`.
    encoding_format: Option<EncodingFormat>,
    /// Jina's name for `encoding_format`, and the values' type beside it.
    embedding_type: Option<EncodingFormat>,
    /// The values' type, also in base64; `float` by default.
    output_dtype: Option<VectorType>,
    /// Prompt to put before each text, by name.
    prompt_name: Option<String>,
    /// A text to put before each text, instead of one of the model's prompts.
    prompt: Option<String>,
    /// Replaces the instruction in the model's prompt for queries, if it has one, or in the one that is named.
    instruction: Option<String>,
    /// The texts' role, for which the model may have a prompt, such as `query` or `document`.
    input_type: Option<String>,
    /// Jina's name for `input_type`; in a model with adapters for tasks, one of its tasks.
    task: Option<String>,
    /// The tokenizer for token ids; `cl100k_base` by default.
    token_encoding: Option<TokenEncoding>,
    /// Whether texts beyond the model's limit are truncated; otherwise they are rejected. NVIDIA's clients send `NONE`, or
    /// the end that is cut off, `START` or `END`.
    truncate: Option<BooleanOrTruncate>,
    /// Voyage's name for `truncate`.
    truncation: Option<bool>,
    /// vLLM's: -1, or at least the model's limit, truncates longer texts.
    #[schemars(range(min = -1))]
    truncate_prompt_tokens: Option<i64>,
    /// vLLM's: the text end that is cut off; the right one by default.
    truncation_side: Option<Side>,
    /// Whether vectors are scaled to length 1; true by default.
    #[serde(alias = "normalize")]
    normalized: Option<bool>,
    /// vLLM's name for `normalized`.
    use_activation: Option<bool>,
    /// `true`: the model reads the texts as one text, and each is a chunk with its own vector; `sentences`: the model
    /// reads a single text, whose sentences are the chunks.
    late_chunking: Option<LateChunking>,
}

impl RequestBody for EmbeddingsRequest {
    const FIELDS: &str = "body.embeddings";
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a boolean or `sentences`")]
#[schemars(inline)]
enum LateChunking {
    /// As in Jina's API: the texts are the chunks.
    Texts(bool),
    Sentences(Sentences),
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Sentences {
    Sentences,
}

impl LateChunking {
    /// Input chunks; `None` if each input has its own vector. The model takes `max_tokens`.
    async fn chunks(
        self,
        inputs: &[Input],
        max_tokens: usize,
        deadline: Deadline,
    ) -> Result<Option<Chunks>> {
        if let Self::Texts(false) = self {
            return Ok(None);
        }
        let text = |input: &Input| match input {
            Input::Text(text) => Ok(text.clone()),
            _ => Err(Error::invalid(
                "expected texts in `input` for `late_chunking`, but found token ids",
            )),
        };
        let mut texts = inputs.iter().map(text).collect::<Result<Vec<_>>>()?;
        match (self, texts.len()) {
            (Self::Texts(_), _) => Ok(Some(Chunks::joined(texts))),
            (Self::Sentences(_), 1) => {
                let text = texts.remove(0);
                let split = move || Chunks::sentences(text, max_tokens).map(Some);
                deadline
                    .run_sized(inputs[0].texts().map(str::len).sum(), split)
                    .await
            }
            (Self::Sentences(_), count) => Err(Error::invalid(format!(
                "expected one text in `input` for `late_chunking` by sentences, but found {count}"
            ))),
        }
    }
}

/// Tokenizer for a request's token ids.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TokenEncoding {
    /// The tokenizer of OpenAI's embedding models.
    #[default]
    #[serde(rename = "cl100k_base")]
    Cl100kBase,
    /// The model's own tokenizer, special tokens included.
    Model,
}

/// What a request's three fields say about the form of its vectors.
struct VectorFormat {
    vector_type: Option<VectorType>,
    encoding: Option<EncodingFormat>,
}

impl VectorFormat {
    fn of(body: &EmbeddingsRequest, headers: &HeaderMap) -> Result<Self> {
        let types = [
            ("output_dtype", body.output_dtype),
            (
                "embedding_type",
                body.embedding_type.and_then(EncodingFormat::vector_type),
            ),
            (
                "encoding_format",
                body.encoding_format.and_then(EncodingFormat::packed_type),
            ),
        ];
        let mut found = types
            .iter()
            .filter_map(|(name, vector_type)| vector_type.map(|it| (name, it)));
        let first = found.next();
        if let Some((name, vector_type)) = first
            && let Some((other, another)) = found.find(|(_, another)| *another != vector_type)
        {
            return Err(Error::invalid(format!(
                "expected the same type in `{name}` and `{other}`, but found `{vector_type}` and `{another}`"
            )));
        }
        let vector_type = first.map(|(_, vector_type)| vector_type);
        let encoding = match (body.encoding_format, body.embedding_type) {
            (None | Some(EncodingFormat::Base64), _) => {
                body.encoding_format.or(body.embedding_type)
            }
            (Some(format), Some(EncodingFormat::Base64)) => {
                return Err(Error::invalid(format!(
                    "expected the same form in `encoding_format` and `embedding_type`, but found `{}` and `base64`",
                    format.name()
                )));
            }
            (Some(format), _) => Some(format),
        };
        let is_bytes = vector_type.is_some_and(|vector_type| vector_type != VectorType::Float);
        if is_bytes
            && encoding == Some(EncodingFormat::Base64)
            && headers.contains_key(OPENAI_CLIENT)
        {
            return Err(Error::invalid(
                "expected `encoding_format` `float`, which means numbers of the requested type, but found `base64`, which \
                 OpenAI's client asks for by itself and reads as 32-bit floats",
            ));
        }
        Ok(Self {
            vector_type,
            encoding,
        })
    }
}

#[derive(Serialize, JsonSchema)]
struct Embedding {
    /// `embedding`.
    object: &'static str,
    /// Position among the vectors, from 0.
    index: usize,
    /// The vector.
    embedding: Vector,
    /// The sentence's start and end in the text, in characters; only with `late_chunking` by sentences.
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<[usize; 2]>,
}

#[derive(Serialize, JsonSchema)]
pub struct EmbeddingsResponse<'a> {
    /// `embd-` and a new UUID; only for Mistral's clients, which require it.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// `list`.
    object: &'static str,
    /// A vector per input, in order; per sentence with `late_chunking` by sentences.
    data: Vec<Embedding>,
    /// The name of the model that ran.
    model: &'a str,
    /// Tokens of all inputs.
    usage: TokenUsage,
    /// Positions of truncated inputs; absent if there are none.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    truncated: &'a [usize],
}

/// The prompt for the texts' role, which `prompt_name` must not contradict.
fn prompt_of_role(
    pipeline: &EmbeddingPipeline,
    prompt_name: Option<String>,
    roles: [(&'static str, Option<String>); 3],
) -> Result<Option<String>> {
    let [input_type, (field, task), of_name] = roles.clone();
    // The model's own task may have another prompt.
    let task = task.filter(|_| pipeline.settings().tasks.is_empty());
    inputs::one_role([
        ("prompt_name", prompt_name),
        input_type,
        (field, task),
        of_name,
    ])?;
    match inputs::one_role(roles)? {
        Some(role) => Ok(pipeline.prompt_name(&role)?.map(str::to_owned)),
        None => Ok(None),
    }
}

/// Embed texts
pub async fn embeddings(
    headers: HeaderMap,
    JsonRequest(context, body): JsonRequest<EmbeddingsRequest>,
) -> ApiResult {
    let format = VectorFormat::of(&body, &headers)?;
    let name = body.model.as_deref();
    let (model, pipeline) = context.embedding(name).await?;
    let inputs = inputs::read("input", texts_of_objects(body.input), &context.texts)?;
    let inputs = match body.token_encoding.unwrap_or_default() {
        TokenEncoding::Cl100kBase => {
            // Limits the decoded texts like those in a body.
            let mut left = context.app.limits.body_bytes;
            let inputs = inputs.into_iter();
            inputs
                .map(|input| text_of_ids(input, &mut left))
                .collect::<Result<_>>()?
        }
        TokenEncoding::Model => inputs,
    };
    pipeline.check_dimensions(body.output_dimension)?;
    let dimensions = [
        ("dimensions", body.dimensions.filter(|count| *count > 0)),
        ("output_dimension", body.output_dimension),
    ];
    let dimensions = inputs::one_value(dimensions)?;
    // Other spellings of a task are no roles.
    let task = match body.task {
        Some(task) if !pipeline.settings().tasks.is_empty() => {
            Some(pipeline.settings().task_name(&task)?.to_owned())
        }
        task => task,
    };
    let of_model = task
        .clone()
        .filter(|_| !pipeline.settings().tasks.is_empty());
    let roles = [
        ("input_type", body.input_type),
        ("task", task),
        ("model", context.models.named_prompt(name)),
    ];
    let of_role = prompt_of_role(pipeline, body.prompt_name.clone(), roles)?;
    let truncation = RequestedTruncation {
        truncate: body.truncate,
        truncation: body.truncation,
        truncate_prompt_tokens: body.truncate_prompt_tokens,
        truncation_side: body.truncation_side,
    };
    let truncation = truncation.parameters(pipeline.settings().max_tokens)?;
    let normalized = inputs::one_value([
        ("normalized", body.normalized),
        ("use_activation", body.use_activation),
    ])?;
    let parameters = EmbeddingParameters {
        truncation,
        prompt_name: body.prompt_name.or(of_role),
        prompt: body.prompt,
        instruction: body.instruction,
        task: of_model,
        normalize: Some(normalized.unwrap_or(true)),
        dimensions,
        output_dtype: format.vector_type,
        outputs: Some(vec![VectorKind::Dense]),
        ..EmbeddingParameters::default()
    };
    let embedder = parameters.prepare(pipeline, &context.scope())?;
    let (form, options) = (Form::new(&embedder, format.encoding), &embedder.options);
    let late_chunking = body.late_chunking.unwrap_or(LateChunking::Texts(false));
    let chunks = late_chunking
        .chunks(&inputs, pipeline.encoder().max_tokens(), context.deadline)
        .await?;
    let count = chunks.as_ref().map_or(inputs.len(), Chunks::count);
    context.check_response(count * form.min_bytes(pipeline.dimensions(dimensions)?))?;
    let embeddings = match &chunks {
        None => pipeline.embed(inputs, options, context.deadline).await?,
        Some(chunks) => {
            pipeline
                .embed_chunks(chunks, options, context.deadline)
                .await?
        }
    };
    let spans = match (late_chunking, chunks) {
        (LateChunking::Sentences(_), Some(chunks)) => chunks.spans(),
        _ => Vec::new(),
    };
    let data = embeddings
        .vectors
        .into_iter()
        .enumerate()
        .map(|(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: form.apply(vector),
            span: spans.get(index).copied(),
        });
    let id = || format!("embd-{}", uuid::Uuid::new_v4().simple());
    let answer = EmbeddingsResponse {
        id: is_mistrals(&headers).then(id),
        object: "list",
        data: data.collect(),
        model: &model.name,
        usage: TokenUsage::of(&embeddings.usage),
        truncated: &embeddings.usage.truncated,
    };
    Ok(by_model(&answer, &embeddings.usage))
}

/// OpenAI clients such as LangChain send ids from its tokenizer, without declaring which tokenizer it is. `left` are the bytes
/// that the request's texts may still have.
fn text_of_ids(input: Input, left: &mut usize) -> Result<Input> {
    let Input::Ids(ids) = input else {
        return Ok(input);
    };
    let text = cl100k::decode(&ids, *left).map_err(|error| match error {
        Error::Invalid { message } => Error::invalid(message).with_hint(
            "set `token_encoding` to `model` for the ids of the model's own tokenizer, or send texts \
             (`check_embedding_ctx_length=False` in LangChain)",
        ),
        other => other,
    })?;
    *left = left.saturating_sub(text.len());
    Ok(Input::Text(text))
}

/// Jina clients may send objects with a `text` instead of texts.
fn texts_of_objects(mut input: Content) -> Content {
    let has_text =
        |value: &&mut Content| matches!(value, Content::Object(texts) if texts[0].is_text());
    if let Content::List(values) = &mut input {
        values
            .rest
            .iter_mut()
            .filter(has_text)
            .for_each(|value| *value = mem::take(value).into_text());
    }
    input
}

#[derive(Serialize, JsonSchema)]
pub struct ModelList {
    /// The models, under their names and aliases.
    data: Vec<ModelEntry>,
    /// `list`.
    object: &'static str,
}

#[derive(Serialize, JsonSchema)]
pub struct ModelEntry {
    /// Always 0.
    created: u64,
    /// A name or alias in requests.
    id: String,
    /// `model`.
    object: &'static str,
    /// `kivu`.
    owned_by: &'static str,
    #[serde(flatten)]
    of_mistral: Option<MistralModel>,
}

impl ModelList {
    pub fn new(models: &CallerModels, headers: &HeaderMap) -> Self {
        let models = models.list();
        let names = models
            .iter()
            .flat_map(|model| [&model.name].into_iter().chain(&model.manifest.aliases));
        Self {
            data: names.map(|name| ModelEntry::new(name, headers)).collect(),
            object: "list",
        }
    }
}

/// What only Mistral's clients get, which require it.
#[derive(Serialize, JsonSchema)]
struct MistralModel {
    /// None of Mistral's.
    capabilities: BTreeMap<String, bool>,
    /// `base`.
    #[serde(rename = "type")]
    kind: &'static str,
}

impl ModelEntry {
    fn new(id: &str, headers: &HeaderMap) -> Self {
        let of_mistral = || MistralModel {
            capabilities: BTreeMap::new(),
            kind: "base",
        };
        Self {
            created: 0,
            id: id.to_owned(),
            object: "model",
            owned_by: "kivu",
            of_mistral: is_mistrals(headers).then(of_mistral),
        }
    }
}

/// List the models
pub async fn models(headers: HeaderMap, models: CallerModels) -> Json<ModelList> {
    Json(ModelList::new(&models, &headers))
}

/// Describe a model
pub async fn model(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    models: CallerModels,
    NameInPath(name): NameInPath,
) -> ApiResult<Json<ModelEntry>> {
    models
        .find_new(Some(&name), Deadline::within(app.limits.timeout()))
        .await?;
    Ok(Json(ModelEntry::new(&name, &headers)))
}

#[cfg(test)]
mod tests {
    use axum::{
        body::Body,
        http::{Request, request::Builder},
    };
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower_service::Service;

    use crate::{
        App, router,
        scripted::{ask, models},
    };

    #[tokio::test]
    async fn mistrals_clients_get_what_they_require() {
        let mut router = router(App::new(models().unwrap(), Default::default()));
        for (agent, has_id) in [
            ("mistral-client-python/2.0", true),
            ("speakeasy-sdk/typescript 1.0 @mistralai/mistralai", true),
            ("OpenAI/Python 2.0", false),
        ] {
            let mut ask = async |request: Builder, body: String| -> Value {
                let request = request
                    .header("content-type", "application/json")
                    .header("user-agent", agent);
                let response = router.call(request.body(Body::from(body)).unwrap()).await;
                let body = response.unwrap().into_body().collect().await.unwrap();
                serde_json::from_slice(&body.to_bytes()).unwrap()
            };
            let body = json!({ "input": "cat" }).to_string();
            let answer = ask(Request::post("/v1/embeddings"), body).await;
            assert_eq!(answer["id"].is_string(), has_id, "{agent} {answer}");
            let list = ask(Request::get("/v1/models"), String::new()).await;
            let one = ask(Request::get("/v1/models/embedding"), String::new()).await;
            assert_eq!(list["data"][0], one);
            // Without `/v1`, clients would see a list without models.
            let described = ask(Request::get("/models"), String::new()).await;
            for field in ["data", "object"] {
                assert_eq!(described[field], list[field], "{described}");
            }
            assert_eq!(one["type"] == "base", has_id, "{agent} {one}");
            assert_eq!(one["capabilities"].is_object(), has_id, "{agent} {one}");
        }
    }

    #[tokio::test]
    async fn a_prompt_and_another_role_in_the_models_name_are_refused() {
        let texts = json!([{ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["cat"] }]);
        for (path, body) in [
            ("/embed", json!({ "inputs": "cat" })),
            ("/embed_all", json!({ "inputs": "cat" })),
            ("/tokenize", json!({ "inputs": "cat" })),
            ("/v1/embeddings", json!({ "input": "cat" })),
            ("/models/embedding:query", json!({ "inputs": "cat" })),
            (
                "/models/embedding:query",
                json!({ "inputs": { "source_sentence": "cat", "sentences": ["dog"] } }),
            ),
            (
                "/v2/models/embedding:query/infer",
                json!({ "inputs": texts }),
            ),
        ] {
            for (prompt, is_refused) in [
                ("query", false),
                ("search_query", false),
                ("document", true),
            ] {
                let mut body = body.clone();
                if path.contains("embedding:query") {
                    body["parameters"] = json!({ "prompt_name": prompt });
                } else {
                    body["model"] = "embedding:query".into();
                    body["prompt_name"] = prompt.into();
                }
                let (status, answer) = ask(path, &body).await;
                let message = "`prompt_name` and `model` have different values";
                assert_eq!(status != 200, is_refused, "{path} {prompt}: {answer}");
                assert_eq!(answer.to_string().contains(message), is_refused, "{answer}");
            }
        }
    }

    /// Its package sends 0 where the caller gives no number.
    #[tokio::test]
    async fn infinitys_clients_get_all_dimensions() {
        let answer = async |more: Value| {
            let mut body = json!({ "input": "cat", "modality": "text" });
            let more = more.as_object().cloned().unwrap();
            body.as_object_mut().unwrap().extend(more);
            ask("/v1/embeddings", &body).await
        };
        let all = answer(json!({})).await;
        assert_eq!(all.0, 200, "{}", all.1);
        assert_eq!(answer(json!({ "dimensions": 0 })).await, all);
        assert_eq!(answer(json!({ "output_dimension": 0 })).await.0, 422);
    }

    /// Clients that do not encode a name's slash, and API Gateway, which decodes it.
    #[tokio::test]
    async fn names_have_a_slash_of_their_own() {
        let mut models = models().unwrap();
        models[0].manifest.aliases = vec!["org/name".to_owned()];
        let mut router = router(App::new(models, Default::default()));
        for (request, body, status) in [
            (Request::get("/v1/models/org%2Fname"), "", 200),
            (Request::get("/v1/models/org/name"), "", 200),
            (Request::get("/v1/models/org/other"), "", 404),
            (
                Request::post("/models/org/name"),
                r#"{"inputs": "cat"}"#,
                200,
            ),
            (
                Request::post("/models/org/name:query"),
                r#"{"inputs": "cat"}"#,
                200,
            ),
            (
                Request::post("/models/embedding/name"),
                r#"{"inputs": "cat"}"#,
                404,
            ),
        ] {
            let request = request.header("content-type", "application/json");
            let request = request.body(Body::from(body)).unwrap();
            let target = request.uri().clone();
            let found = router.call(request).await.unwrap().status();
            assert_eq!(found, status, "{target}");
        }
    }
}
