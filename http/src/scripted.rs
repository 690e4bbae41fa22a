//! A scripted model for every task, for tests and the fuzzer.

use std::sync::Arc;

#[cfg(test)]
use axum::{
    body::Body,
    http::{Request, StatusCode},
};
#[cfg(test)]
use tower_service::Service;

#[cfg(test)]
use crate::{App, router};
use kivu::{
    Error, Result,
    backend::{
        Engine, Signature, TensorSpec, routing,
        scripted::{ScriptedBackend, ScriptedSeq2Seq},
        tensors::TensorEncoder,
    },
    model::{Model, ModelSettings, Pipeline},
    pipeline::{
        Task,
        classification::{
            ClassificationPipeline, ClassificationSettings, ranking::RankingPipeline,
            scores::ScoreFunction, zero_shot::ZeroShotPipeline,
        },
        embedding::{
            DenseSettings, EmbeddingPipeline, EmbeddingSettings, pooling::Pooling,
            similarity::Similarity,
        },
        entities::token_classification::{
            TokenClassificationPipeline, TokenClassificationSettings,
        },
        generation::{GenerationOptions, GenerationSettings},
        seq2seq::{Decoder, Languages, Seq2SeqParts, Seq2SeqPipeline, Seq2SeqSettings},
    },
    repository::{
        Manifest, TaskSettings,
        manifest::{Origin, Precision, TensorNames, Weights},
    },
    tensor::{ElementType, Elements, Tensor},
    tokenizer::Tokenizer,
};

#[cfg(test)]
pub const TOKENIZER: &[u8] = include_bytes!("../../tests/fixtures/models/tiny-bert/tokenizer.json");
const MAX_TOKENS: usize = 16;

/// Sends JSON to a server with one model per task.
#[cfg(test)]
pub async fn ask(path: &str, body: &serde_json::Value) -> (StatusCode, serde_json::Value) {
    use http_body_util::BodyExt;
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap();
    let mut router = router(App::new(
        models(TOKENIZER).unwrap(),
        kivu::config::Limits::default(),
    ));
    let response = router.call(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// One model per task, with a BERT model's `tokenizer.json`.
pub fn models(tokenizer: &[u8]) -> Result<Vec<Model>> {
    let tokenizer = Arc::new(Tokenizer::from_json(tokenizer)?);
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
        default_task: None,
        placeholders: Vec::new(),
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
        let backend = TensorEncoder::shared(scripted(&[-1, labels.len() as i64]))?;
        let pipeline =
            ClassificationPipeline::new(Arc::clone(&tokenizer), backend, settings.clone())?;
        Ok::<_, Error>((TaskSettings::Classification(settings), pipeline))
    };
    let (classes, classifier) = scores(&["good", "bad", "ugly"])?;
    let (verdicts, entailment) = scores(&["contradiction", "entailment"])?;
    let (score, cross_encoder) = scores(&["score"])?;
    let vectors = TensorEncoder::shared(scripted(&[-1, -1, 2]))?;
    let vectors = EmbeddingPipeline::new(Arc::clone(&tokenizer), vectors, embedding.clone())?;
    let tokens = TokenClassificationSettings {
        output: "output".into(),
        labels: ["O", "B-PER", "I-PER"].map(str::to_owned).into(),
        max_tokens: MAX_TOKENS,
        unknown_token: None,
        context: None,
    };
    let labels = TensorEncoder::shared(scripted(&[-1, -1, 3]))?;
    let labels = TokenClassificationPipeline::new(Arc::clone(&tokenizer), labels, tokens.clone())?;
    let translator = translator(&tokenizer)?;
    Ok(vec![
        model(
            "embedding",
            Task::FeatureExtraction,
            TaskSettings::Embedding(embedding),
            Pipeline::Embedding(vectors),
        ),
        model(
            "classification",
            Task::TextClassification,
            classes,
            Pipeline::Classification(classifier),
        ),
        model(
            "token-classification",
            Task::TokenClassification,
            TaskSettings::TokenClassification(tokens),
            Pipeline::TokenClassification(labels),
        ),
        model(
            "zero-shot",
            Task::ZeroShotClassification,
            verdicts,
            Pipeline::ZeroShot(ZeroShotPipeline::entailment(entailment)?),
        ),
        model(
            "ranking",
            Task::TextRanking,
            score,
            Pipeline::Ranking(RankingPipeline::cross_encoder(cross_encoder)?),
        ),
        model(
            "translation",
            Task::Translation,
            TaskSettings::Seq2Seq(Box::new(translator.settings().clone())),
            Pipeline::Translation(translator),
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

fn model(name: &str, task: Task, settings: TaskSettings, pipeline: Pipeline) -> Model {
    let manifest = Manifest {
        format: Manifest::FORMAT,
        name: name.into(),
        aliases: Vec::new(),
        vectors: None,
        task,
        graph: "model.onnx".into(),
        engine: Engine::default(),
        source: Origin {
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
        settings,
        tensors: TensorNames::default(),
        allowed: Vec::new(),
        warnings: Vec::new(),
        signature: signature(&[-1, -1]),
        files: Vec::new(),
    };
    let (arithmetic, files) = (None, None);
    let (name, digest, max_input_memory) = (name.into(), String::new(), None);
    let max_tokens = pipeline.max_tokens();
    let settings = ModelSettings {
        max_tokens,
        truncate: true,
        engine: None,
        runtime: None,
        fleet: None,
        redact_key: None,
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
