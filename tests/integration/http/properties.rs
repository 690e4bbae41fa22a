//! Properties for all texts: results do not depend on other texts in the request, and limits are kept.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use axum::{body::Body, http::Request};
use base64::{Engine, prelude::BASE64_STANDARD};
use http_body_util::BodyExt;
use kivu::{
    backend::{
        Deadline, Schedule, Signature, TensorSpec, scripted::ScriptedBackend,
        tensors::TensorEncoder,
    },
    config::Limits,
    model::Pipeline,
    pipeline::{
        Input,
        classification::ranking::{RankingOptions, RankingPipeline},
        embedding::{
            DenseSettings, EmbeddingOptions, EmbeddingPipeline, EmbeddingSettings,
            pooling::Pooling, similarity::Similarity,
        },
    },
    tensor::{ElementType, Elements, Tensor},
    tokenizer::{Side, Tokenizer, Truncation},
};
use kivu_http::router;
use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    app::scripted,
    models::{fixtures, open, runtime},
};

/// Every tokenizer kind that has fixtures.
const TOKENIZERS: [&str; 4] = [
    "tiny-bert",
    "tiny-roberta",
    "tiny-xlm-roberta",
    "tiny-deberta-v2",
];

fn tokenizer(name: &str) -> Arc<Tokenizer> {
    let path = fixtures().join("models").join(name).join("tokenizer.json");
    Arc::new(Tokenizer::open(&path).unwrap())
}

/// Texts from words that the models have, from any characters, and from both.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => vec(prop_oneof!["the", "cat", "sat", "mat", "dog", "🐈", "ﬁ", "\u{301}"], 1..40).prop_map(|words| words.join(" ")),
        2 => "\\PC{1,60}",
        1 => any::<String>().prop_map(|text| text.chars().take(80).collect::<String>() + "."),
    ]
}

fn deadline() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work)
}

const OPTIONS: EmbeddingOptions = EmbeddingOptions {
    truncation: Truncation::At(Side::Right),
    normalize: None,
    prompt_name: None,
    prompt: None,
    task: None,
    dimensions: None,
    max_values: usize::MAX,
};

/// A model that returns the sum and count of a text's ids, without padding.
fn summing([rows, concurrency, tokens]: [usize; 3]) -> EmbeddingPipeline {
    let backend = ScriptedBackend::new(signature(), |inputs| {
        let (Elements::Int64(ids), Elements::Int64(mask)) =
            (inputs[0].elements(), inputs[1].elements())
        else {
            unreachable!("the signature says INT64")
        };
        let width = inputs[0].shape()[1];
        let rows = ids
            .chunks(width)
            .zip(mask.chunks(width))
            .flat_map(|(ids, mask)| {
                let kept: Vec<f32> = ids
                    .iter()
                    .zip(mask)
                    .filter(|(_, kept)| **kept == 1)
                    .map(|(id, _)| *id as f32)
                    .collect();
                [kept.iter().sum(), kept.len() as f32]
            });
        Ok(vec![Tensor::new(
            vec![inputs[0].shape()[0], 2],
            Elements::Fp32(rows.collect()),
        )?])
    });
    let number = |number| NonZeroUsize::new(number).unwrap();
    embedder(backend.with_schedule(Schedule {
        max_batch_size: number(rows),
        concurrency: number(concurrency),
        min_call_tokens: tokens,
    }))
}

fn signature() -> Signature {
    Signature {
        inputs: ["input_ids", "attention_mask"]
            .map(|name| TensorSpec::new(name, ElementType::Int64, [-1, -1]))
            .into(),
        outputs: vec![TensorSpec::new(
            "sentence_embedding",
            ElementType::Fp32,
            [-1, 2],
        )],
    }
}

fn embedder(backend: ScriptedBackend) -> EmbeddingPipeline {
    compared(backend, Similarity::Cosine)
}

fn compared(backend: ScriptedBackend, similarity: Similarity) -> EmbeddingPipeline {
    let backend = TensorEncoder::shared(backend).unwrap();
    let settings = EmbeddingSettings {
        dense: Some(DenseSettings {
            output: "sentence_embedding".into(),
            pooling: Pooling::Mean,
            normalize: false,
            dimensions: 2,
            similarity,
        }),
        sparse: None,
        multi_vector: None,
        max_tokens: 24,
        default_prompt: None,
        prompts: [].into(),
        unpooled: None,
        tasks: Vec::new(),
        default_task: None,
        placeholders: Vec::new(),
    };
    EmbeddingPipeline::new(tokenizer("tiny-bert"), backend, settings).unwrap()
}

fn embed(pipeline: &EmbeddingPipeline, texts: &[String]) -> Vec<Vec<f32>> {
    let inputs = texts.iter().cloned().map(Input::Text).collect();
    wait(pipeline.embed(inputs, &OPTIONS, deadline()))
        .unwrap()
        .vectors
}

/// A model each of whose tokens has a large value and its opposite.
fn scripted_values(value: f32) -> ScriptedBackend {
    ScriptedBackend::new(signature(), move |_| {
        Ok(vec![Tensor::new(
            vec![1, 2],
            Elements::Fp32(vec![value, -value]),
        )?])
    })
}

/// A row too many may mean that the output belongs to another request.
#[test]
fn outputs_have_a_row_for_each_text() {
    for (rows, is_right) in [(1, true), (2, false), (3, false)] {
        let pipeline = embedder(ScriptedBackend::new(signature(), move |_| {
            Ok(vec![Tensor::new(
                vec![rows, 2],
                Elements::Fp32(vec![1.0; 2 * rows]),
            )?])
        }));
        match wait(pipeline.embed(vec![Input::Text("cat".to_owned())], &OPTIONS, deadline())) {
            Ok(_) => assert!(is_right, "{rows}"),
            Err(error) => assert_eq!(
                error.to_string(),
                format!(
                    "expected values in `sentence_embedding`, but found shape [{rows}, 2] for 1 texts"
                )
            ),
        }
    }
}

/// Finite values of which no vector can be computed are no vector of zeros or nulls.
#[test]
fn vectors_beyond_the_range_of_floats_are_refused() {
    for (value, normalize, is_right) in
        [(1e18, true, true), (1e30, true, false), (1e30, false, true)]
    {
        let pipeline = embedder(scripted_values(value));
        let options = EmbeddingOptions {
            normalize: Some(normalize),
            ..OPTIONS
        };
        let found = wait(pipeline.embed(vec![Input::Text("cat".to_owned())], &options, deadline()));
        match found {
            Ok(found) => assert!(is_right && found.vectors[0][0] != 0.0, "{value}"),
            Err(error) => assert!(
                !is_right && error.to_string().contains("within the range of floats"),
                "{error}"
            ),
        }
    }
}

#[test]
fn scores_beyond_the_range_of_floats_are_refused() {
    for (value, is_right) in [(1e18, true), (1e30, false)] {
        let pipeline =
            RankingPipeline::Embedding(compared(scripted_values(value), Similarity::Dot));
        let options = RankingOptions {
            truncation: OPTIONS.truncation,
            raw_scores: true,
        };
        let (query, texts) = ("cat".to_owned(), vec!["dog".to_owned()]);
        match wait(pipeline.score(query, texts, options, deadline())) {
            Ok((scores, _)) => assert!(is_right && scores[0].is_finite(), "{scores:?}"),
            Err(error) => assert!(
                !is_right && error.to_string().contains("within the range of floats"),
                "{error}"
            ),
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 64, failure_persistence: None, ..Config::default() })]

    #[test]
    fn results_do_not_depend_on_batches(
        texts in vec(text(), 1..40), schedule in (1_usize..9, 1_usize..4, 0_usize..60),
    ) {
        let together = embed(&summing(schedule.into()), &texts);
        let model = tokenizer("tiny-bert");
        for (text, found) in texts.iter().zip(&together) {
            let ids = model.encode(text, 24, Truncation::At(Side::Right)).unwrap().ids;
            let sum: f32 = ids.iter().map(|id| *id as f32).sum();
            prop_assert_eq!(found, &vec![sum, ids.len() as f32], "{:?}", text);
        }
    }

    #[test]
    fn the_token_limit_is_kept(first in text(), second in text(), limit in 4_usize..40) {
        for name in TOKENIZERS {
            let tokenizer = tokenizer(name);
            for side in [Side::Left, Side::Right] {
                let found = tokenizer.encode(&first, limit, Truncation::At(side)).unwrap();
                prop_assert!(found.ids.len() <= limit, "{}: {} tokens of {}", name, found.ids.len(), limit);
                prop_assert!(found.truncated_from.is_none_or(|whole| whole > limit));
            }
            for truncation in [Truncation::At(Side::Left), Truncation::At(Side::Right), Truncation::OnlyFirst] {
                // If the second text alone is too long for `OnlyFirst`, there is nothing to cut.
                if let Ok(found) = tokenizer.encode_pair([&first, &second], limit, truncation) {
                    prop_assert!(found.ids.len() <= limit, "{}: {} tokens of {}", name, found.ids.len(), limit);
                }
            }
            if let Ok(found) = tokenizer.encode(&first, limit, Truncation::Off) {
                prop_assert!(found.ids.len() <= limit);
            }
        }
    }

    #[test]
    fn base64_holds_the_floats(texts in vec(text(), 1..4)) {
        let ask = |format: &str| {
            let body = json!({ "input": texts, "encoding_format": format }).to_string();
            let request = Request::post("/v1/embeddings").header("content-type", "application/json");
            wait(async {
                let router = router(scripted(Limits::default()));
                let answer = router.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                serde_json::from_slice::<Value>(&body).unwrap()
            })
        };
        let (floats, packed) = (ask("float"), ask("base64"));
        // Some words make the scripted model fail, in either format.
        prop_assert_eq!(floats.get("error"), packed.get("error"));
        prop_assert_eq!(&floats["usage"], &packed["usage"]);
        for (floats, packed) in floats["data"].as_array().into_iter().flatten().zip(packed["data"].as_array().into_iter().flatten()) {
            let bytes = BASE64_STANDARD.decode(packed["embedding"].as_str().unwrap()).unwrap();
            let unpacked: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let floats: Vec<f32> = serde_json::from_value(floats["embedding"].clone()).unwrap();
            prop_assert_eq!(unpacked, floats);
        }
    }
}

/// One row per run, as in `docs/design.md`, so that other texts make no difference at all.
#[test]
fn a_text_has_the_same_vector_alone_and_in_a_batch() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Quantized by default, with scales for the whole batch.
    let model = open(
        fixtures().join("models/tiny-bert"),
        folder.path(),
        None,
        runtime,
    )
    .unwrap();
    let Pipeline::Embedding(pipeline) = &model.pipeline else {
        panic!("it embeds")
    };
    let config = Config {
        cases: 16,
        failure_persistence: None,
        ..Config::default()
    };
    proptest!(config, |(texts in vec(text(), 2..12))| {
        let together = embed(pipeline, &texts);
        for (text, vector) in texts.iter().zip(together) {
            prop_assert_eq!(embed(pipeline, std::slice::from_ref(text)), vec![vector]);
        }
    });
}
