//! Request readers: every route, with a scripted model for every task.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
};
use tower_service::Service;

use super::{
    App, BindScope, Guard,
    route::{Route, RouteMethod},
    router, routes,
};
use crate::{
    backend::{
        Backend, Engine, Signature, TensorSpec, routing,
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
        similarity::Similarity,
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

/// The models for all tasks.
const MODELS: [&str; 6] = [
    "embedding",
    "classification",
    "token-classification",
    "zero-shot",
    "ranking",
    "translation",
];

/// A line with a path, and a body.
pub fn request(bytes: &[u8]) {
    if let Some((path, body)) = split_path(bytes) {
        post(path, "identity", body);
    }
}

/// A byte that selects the content encoding, a line with a path, and a body.
pub fn packed_request(bytes: &[u8]) {
    let Some((encoding, rest)) = bytes.split_first() else {
        return;
    };
    let encoding = ["gzip", "deflate", "identity", "gzip, gzip"][usize::from(*encoding) % 4];
    if let Some((path, body)) = split_path(rest) {
        post(path, encoding, body);
    }
}

fn post(path: &str, encoding: &str, body: &[u8]) {
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

/// The path in an input's first line, and the rest. A line that is no path selects a route by its bytes, so that
/// mutated lines reach handlers, too.
fn split_path(bytes: &[u8]) -> Option<(&'static str, &[u8])> {
    let place = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, body) = (&bytes[..place], &bytes[place + 1..]);
    let known = paths().iter().find(|path| path.as_bytes() == line);
    let by_bytes =
        || &paths()[line.iter().map(|byte| usize::from(*byte)).sum::<usize>() % paths().len()];
    Some((known.unwrap_or_else(by_bytes).as_str(), body))
}

/// A path in which the model has two segments, as in an ARN, if the route has such a path.
fn arn_path(route: &Route, model: &str) -> String {
    route
        .path
        .replace("{model}/{resource}", &format!("arn:/{model}"))
}

/// Paths for POST, of each model where they name one.
fn paths() -> &'static [String] {
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    let of_models = |route: &Route| {
        MODELS.map(|model| {
            arn_path(route, model)
                .replace("{model}", model)
                .replace("{version}", "1")
        })
    };
    PATHS.get_or_init(|| {
        let all: BTreeSet<String> = routes::with_method(RouteMethod::Post)
            .flat_map(of_models)
            .collect();
        all.into_iter().collect()
    })
}

/// Two bytes with the JSON length, and a message with binary tensors.
pub fn tensors(bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk() else {
        return;
    };
    let length = match u16::from_le_bytes(*length) {
        u16::MAX => usize::MAX,
        length => length.into(),
    };
    for model in [
        "embedding",
        "zero-shot",
        "ranking",
        "translation",
        "token-classification",
    ] {
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
pub fn keys(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // An error is a valid outcome.
    let _ = Guard::new(
        &AuthConfig {
            keys: vec![text.to_string()],
            ..AuthConfig::default()
        },
        BindScope::ApiGateway,
    );
    let (name, value) = text.split_once('\n').unwrap_or(("authorization", &text));
    let request = Request::builder()
        .method(Method::POST)
        .uri("/embed")
        .header(name, value);
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
    let limits = Limits {
        requests: 4,
        ..Limits::default()
    };
    let router =
        ROUTER.get_or_init(|| models().ok().map(|models| router(App::new(models, limits))));
    let Some(mut router) = router.clone() else {
        return;
    };
    RUNTIME.with(|runtime| {
        let answer = runtime
            .as_ref()
            .map(|runtime| runtime.block_on(router.call(request)));
        if let Some(Ok(answer)) = answer {
            assert_ne!(
                answer.status(),
                StatusCode::INTERNAL_SERVER_ERROR,
                "the server failed"
            );
        }
    });
}

/// Sends JSON to a server with one model per task.
#[cfg(test)]
pub async fn ask(path: &str, body: &serde_json::Value) -> (StatusCode, serde_json::Value) {
    use http_body_util::BodyExt;
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap();
    let mut router = router(App::new(models().unwrap(), Limits::default()));
    let response = router.call(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// One model per task.
pub fn models() -> Result<Vec<Model>> {
    let tokenizer = Arc::new(Tokenizer::from_json(TOKENIZER)?);
    let embedding = EmbeddingSettings {
        dense: Some(DenseSettings {
            output: "output".into(),
            pooling: Pooling::Mean,
            normalize: true,
            dimensions: 2,
            similarity: Similarity::Cosine,
        }),
        sparse: None,
        multi_vector: None,
        max_tokens: MAX_TOKENS,
        default_prompt: None,
        prompts: [("query".to_owned(), "cat ".to_owned())].into(),
        unpooled: None,
        tasks: Vec::new(),
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
            identifies_languages: true,
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
        unknown_token: None,
    };
    let labels: Arc<dyn Backend> = Arc::new(scripted(&[-1, -1, 3]));
    let tokens = TokenClassificationPipeline::new(Arc::clone(&tokenizer), labels, tokens)?;
    Ok(vec![
        model(
            "embedding",
            Task::FeatureExtraction,
            Pipeline::Embedding(vectors),
        ),
        model(
            "classification",
            Task::TextClassification,
            Pipeline::Classification(scores(&["good", "bad", "ugly"])?),
        ),
        model(
            "token-classification",
            Task::TokenClassification,
            Pipeline::TokenClassification(tokens),
        ),
        model(
            "zero-shot",
            Task::ZeroShotClassification,
            Pipeline::ZeroShot(ZeroShotPipeline::entailment(scores(&[
                "contradiction",
                "entailment",
            ])?)?),
        ),
        model(
            "ranking",
            Task::TextRanking,
            Pipeline::Ranking(RankingPipeline::cross_encoder(scores(&["score"])?)?),
        ),
        model(
            "translation",
            Task::Translation,
            Pipeline::Translation(translator(&tokenizer)?),
        ),
    ])
}

fn signature(output: &[i64]) -> Signature {
    Signature {
        inputs: ["input_ids", "attention_mask", "token_type_ids"]
            .map(|name| TensorSpec::new(name, ElementType::Int64, [-1, -1]))
            .into(),
        outputs: vec![TensorSpec::new(
            "output",
            ElementType::Fp32,
            output.to_vec(),
        )],
    }
}

/// A backend whose output is all ones.
fn scripted(output: &[i64]) -> ScriptedBackend {
    let output = output.to_vec();
    ScriptedBackend::new(signature(&output), move |inputs| {
        let sides = inputs[0].shape().iter().copied().chain([1]);
        let sides = sides
            .zip(&output)
            .map(|(free, side)| usize::try_from(*side).unwrap_or(free));
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
        (0..vocabulary)
            .map(|token| if token == likely { 1.0 } else { 0.0 })
            .collect()
    });
    let settings = Seq2SeqSettings {
        max_tokens: MAX_TOKENS,
        max_positions: 2 * MAX_TOKENS,
        prefix: String::new(),
        source_end_token_id: None,
        unknown_tokens: None,
        target_tokenizer: None,
        shortlist: None,
        decoder: Decoder {
            graph: "decoder.onnx".into(),
            signature: signature(&[-1, -1]),
        },
        languages: Languages::Pair {
            source: "en".into(),
            target: "pt".into(),
        },
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
        route: routing::Route::seq2seq(Some(Arc::new(sequences)), None),
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
        source: Source {
            architecture: "Any".into(),
            from: "nowhere".into(),
            sha256: String::new(),
        },
        weights: Weights {
            precision: Precision::Fp32,
            plan: "none".into(),
            quality: None,
            other_vectors: [].into(),
        },
        embedding: pipeline
            .embedding()
            .map(|pipeline| pipeline.settings().clone()),
        classification: classification(&pipeline).map(|pipeline| pipeline.settings().clone()),
        token_classification: match &pipeline {
            Pipeline::TokenClassification(pipeline) => Some(pipeline.settings().clone()),
            _ => None,
        },
        label_scores: None,
        zero_shot_entities: None,
        seq2seq: pipeline
            .generator()
            .map(|pipeline| pipeline.settings().clone()),
        tensors: TensorNames::default(),
        allowed: Vec::new(),
        warnings: Vec::new(),
        signature: signature(&[-1, -1]),
        files: Vec::new(),
    };
    let (arithmetic, files) = (None, Arc::default());
    let (name, digest, max_input_memory) = (name.into(), String::new(), None);
    let max_tokens = pipeline.max_tokens();
    let settings = ModelSettings {
        max_tokens,
        truncate: true,
        engine: None,
        runtime: None,
        fleet: None,
    };
    Model {
        name,
        digest,
        arithmetic,
        manifest,
        settings,
        pipeline,
        max_input_memory,
        files,
    }
}

fn classification(pipeline: &Pipeline) -> Option<&ClassificationPipeline> {
    match pipeline {
        Pipeline::Classification(pipeline)
        | Pipeline::ZeroShot(ZeroShotPipeline::Entailment(pipeline))
        | Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => Some(pipeline),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn each_route_has_an_input() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/request");
        let inputs: Vec<Vec<u8>> = fs::read_dir(folder)
            .unwrap()
            .map(|file| fs::read(file.unwrap().path()).unwrap())
            .collect();
        let has_input = |route: &Route| {
            inputs
                .iter()
                .filter_map(|input| split_path(input))
                .any(|(path, _)| route.matches(path))
        };
        let without: Vec<_> = routes::with_method(RouteMethod::Post)
            .filter(|route| !has_input(route))
            .map(|route| route.path)
            .collect();
        assert!(without.is_empty(), "`fuzz/seeds.py` lacks {without:?}");
    }
}
