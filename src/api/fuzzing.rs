//! Request readers: every route, with a scripted model for every task.

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
};
use tower_service::Service;

use super::{App, BindScope, Guard, router};
use crate::{
    backend::{
        Backend, Engine, Signature, TensorSpec,
        routing::Route,
        scripted::{ScriptedBackend, ScriptedSeq2Seq},
    },
    config::{AuthConfig, Limits},
    error::Result,
    model::{Model, ModelSettings, Pipeline},
    pipeline::{
        Task,
        classification::{ClassificationPipeline, ClassificationSettings},
        embedding::{DenseSettings, EmbeddingPipeline, EmbeddingSettings},
        generation::{GenerationOptions, GenerationSettings},
        pooling::Pooling,
        ranking::RankingPipeline,
        scores::ScoreFunction,
        seq2seq::{Decoder, Languages, Seq2SeqParts, Seq2SeqPipeline, Seq2SeqSettings},
        token_classification::{TokenClassificationPipeline, TokenClassificationSettings},
        zero_shot::ZeroShotPipeline,
    },
    repository::{
        Manifest,
        manifest::{Precision, Source, TensorNames, Weights},
    },
    tensor::{ElementType, Elements, Tensor},
    tokenizer::Tokenizer,
};

const TOKENIZER: &[u8] = include_bytes!("../../tests/fixtures/models/tiny-bert/tokenizer.json");
const MAX_TOKENS: usize = 16;

/// Routes with a request body; an input's first byte selects one.
const ROUTES: [&str; 31] = [
    "/",
    "/embed",
    "/embed_all",
    "/similarity",
    "/predict",
    "/rerank",
    "/translate",
    "/tokenize",
    "/decode",
    "/models/embedding",
    "/models/classification",
    "/models/zero-shot",
    "/models/ranking",
    "/models/translation",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/embeddings",
    "/v2/repository/index",
    "/v2/models/embedding/infer",
    "/v2/models/zero-shot/infer",
    "/v2/models/translation/versions/1/infer",
    "/v1/embed",
    "/v2/embed",
    "/v2/translate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/vertex",
    "/models/token-classification",
    "/model/embedding/invoke",
    "/model/ranking/invoke",
];

/// A byte that selects the route, and a body.
pub(crate) fn request(bytes: &[u8]) {
    let Some((route, body)) = bytes.split_first() else { return };
    let path = ROUTES[usize::from(*route) % ROUTES.len()];
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_vec()));
    if let Ok(request) = request {
        send(request);
    }
}

/// A byte that selects the route, one that selects the content encoding, and a body.
pub(crate) fn packed_request(bytes: &[u8]) {
    let Some(([route, encoding], body)) = bytes.split_first_chunk() else { return };
    let path = ROUTES[usize::from(*route) % ROUTES.len()];
    let encoding = ["gzip", "deflate", "identity", "gzip, gzip"][usize::from(*encoding) % 4];
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .header("content-encoding", encoding)
        .body(Body::from(body.to_vec()));
    if let Ok(request) = request {
        send(request);
    }
}

/// Two bytes with the JSON length, and a message with binary tensors.
pub(crate) fn tensors(bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk() else { return };
    let length = match u16::from_le_bytes(*length) {
        u16::MAX => usize::MAX,
        length => length.into(),
    };
    for model in ["embedding", "zero-shot", "ranking", "translation", "token-classification"] {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("/v2/models/{model}/infer"))
            .header("inference-header-content-length", length)
            .body(Body::from(body.to_vec()));
        if let Ok(request) = request {
            send(request);
        }
    }
}

/// Keys as in a file or a secret, and headers.
pub(crate) fn keys(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // An error is a valid outcome.
    let _ = Guard::new(
        &AuthConfig { keys: vec![text.to_string()], ..AuthConfig::default() },
        BindScope::ApiGateway,
    );
    let (name, value) = text.split_once('\n').unwrap_or(("authorization", &text));
    let request = Request::builder().method(Method::POST).uri("/embed").header(name, value);
    if let Ok(request) = request.body(Body::empty()) {
        send(request);
    }
}

/// Sends a request and checks that the response does not report a panic.
fn send(request: Request<Body>) {
    static ROUTER: OnceLock<Option<Router>> = OnceLock::new();
    thread_local! {
        static RUNTIME: Option<tokio::runtime::Runtime> =
            tokio::runtime::Builder::new_current_thread().enable_all().build().ok();
    }
    let limits = Limits { requests: 4, ..Limits::default() };
    let router = ROUTER.get_or_init(|| models().ok().map(|models| router(App::new(models, limits))));
    let Some(mut router) = router.clone() else { return };
    RUNTIME.with(|runtime| {
        let answer = runtime.as_ref().map(|runtime| runtime.block_on(router.call(request)));
        if let Some(Ok(answer)) = answer {
            assert_ne!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "the server failed");
        }
    });
}

/// One model per task.
pub(super) fn models() -> Result<Vec<Model>> {
    let tokenizer = Arc::new(Tokenizer::from_json(TOKENIZER)?);
    let embedding = EmbeddingSettings {
        dense: Some(DenseSettings {
            output: "output".into(),
            pooling: Pooling::Mean,
            normalize: true,
            dimensions: 2,
        }),
        sparse: None,
        multi_vector: None,
        max_tokens: MAX_TOKENS,
        default_prompt: None,
        prompts: [("query".to_owned(), "cat ".to_owned())].into(),
        unpooled: None,
    };
    let scores = |labels: &[&str]| {
        let settings = ClassificationSettings {
            output: "output".into(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            function: ScoreFunction::Softmax,
            max_tokens: MAX_TOKENS,
            template: None,
            query_prompt: None,
            padding: None,
        };
        let backend: Arc<dyn Backend> = Arc::new(scripted(&[-1, labels.len() as i64]));
        ClassificationPipeline::new(Arc::clone(&tokenizer), backend, settings)
    };
    let vectors: Arc<dyn Backend> = Arc::new(scripted(&[-1, -1, 2]));
    let vectors = EmbeddingPipeline::new(Arc::clone(&tokenizer), vectors, embedding)?;
    let tokens = TokenClassificationSettings {
        output: "output".into(),
        labels: ["O", "B-PER", "I-PER"].map(str::to_owned).into(),
        max_tokens: MAX_TOKENS,
    };
    let labels: Arc<dyn Backend> = Arc::new(scripted(&[-1, -1, 3]));
    let tokens = TokenClassificationPipeline::new(Arc::clone(&tokenizer), labels, tokens)?;
    Ok(vec![
        model("embedding", Task::FeatureExtraction, Pipeline::Embedding(vectors)),
        model(
            "classification",
            Task::TextClassification,
            Pipeline::Classification(scores(&["good", "bad", "ugly"])?),
        ),
        model("token-classification", Task::TokenClassification, Pipeline::TokenClassification(tokens)),
        model(
            "zero-shot",
            Task::ZeroShotClassification,
            Pipeline::ZeroShot(ZeroShotPipeline::entailment(scores(&["contradiction", "entailment"])?)?),
        ),
        model(
            "ranking",
            Task::TextRanking,
            Pipeline::Ranking(RankingPipeline::cross_encoder(scores(&["score"])?)?),
        ),
        model("translation", Task::Translation, Pipeline::Translation(translator(&tokenizer)?)),
    ])
}

fn signature(output: &[i64]) -> Signature {
    Signature {
        inputs: ["input_ids", "attention_mask", "token_type_ids"]
            .map(|name| TensorSpec::new(name, ElementType::Int64, [-1, -1]))
            .into(),
        outputs: vec![TensorSpec::new("output", ElementType::Fp32, output.to_vec())],
    }
}

/// A backend whose output is all ones.
fn scripted(output: &[i64]) -> ScriptedBackend {
    let output = output.to_vec();
    ScriptedBackend::new(signature(&output), move |inputs| {
        let sides = inputs[0].shape().iter().copied().chain([1]);
        let sides = sides.zip(&output).map(|(free, side)| usize::try_from(*side).unwrap_or(free));
        let shape: Vec<usize> = sides.collect();
        let count = shape.iter().product();
        Ok(vec![Tensor::new(shape, Elements::Fp32(vec![1.0; count]))?])
    })
}

/// A translator that generates one token.
fn translator(tokenizer: &Arc<Tokenizer>) -> Result<Seq2SeqPipeline> {
    let vocabulary = tokenizer.vocabulary_size();
    let sequences = ScriptedSeq2Seq::new(vocabulary, move |_, target| {
        let likely = if target.len() > 2 { 3 } else { 7 };
        (0..vocabulary).map(|token| if token == likely { 1.0 } else { 0.0 }).collect()
    });
    let settings = Seq2SeqSettings {
        max_tokens: MAX_TOKENS,
        max_positions: 2 * MAX_TOKENS,
        prefix: String::new(),
        source_end_token_id: None,
        unknown_tokens: None,
        target_tokenizer: None,
        shortlist: None,
        decoder: Decoder { graph: "decoder.onnx".into(), signature: signature(&[-1, -1]) },
        languages: Languages::Pair { source: "en".into(), target: "pt".into() },
        generation: GenerationSettings {
            decoder_start_token_id: 0,
            eos_token_ids: vec![3],
            pad_token_id: 0,
            length_factor: None,
            defaults: GenerationOptions::default(),
        },
    };
    let parts = Seq2SeqParts {
        tokenizer: Arc::clone(tokenizer),
        target: Arc::clone(tokenizer),
        shortlist: None,
        route: Route::seq2seq(Some(Arc::new(sequences)), None),
    };
    Seq2SeqPipeline::new(parts, settings)
}

fn model(name: &str, task: Task, pipeline: Pipeline) -> Model {
    let manifest = Manifest {
        format: Manifest::FORMAT,
        name: name.into(),
        aliases: Vec::new(),
        vectors: None,
        task,
        graph: "model.onnx".into(),
        engine: Engine::default(),
        source: Source { architecture: "Any".into(), from: "nowhere".into(), sha256: String::new() },
        weights: Weights {
            precision: Precision::Fp32,
            plan: "none".into(),
            quality: None,
            other_vectors: [].into(),
        },
        embedding: None,
        classification: None,
        token_classification: None,
        zero_shot_entities: None,
        seq2seq: None,
        tensors: TensorNames::default(),
        allowed: Vec::new(),
        warnings: Vec::new(),
        signature: signature(&[-1, -1]),
        files: Vec::new(),
    };
    let (arithmetic, files) = (None, Arc::default());
    let (name, digest, max_input_memory) = (name.into(), String::new(), None);
    let max_tokens = pipeline.max_tokens();
    let settings = ModelSettings { max_tokens, truncate: true, engine: None, runtime: None, fleet: None };
    Model { name, digest, arithmetic, manifest, settings, pipeline, max_input_memory, files }
}
