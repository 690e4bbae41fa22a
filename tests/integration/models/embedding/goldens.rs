//! Compares vectors with sentence-transformers, on tiny models of every kind and on all-MiniLM-L6-v2.

use std::{fs, path::PathBuf, time::Duration};

use kivu::{
    backend::{Backend, Deadline},
    model::{Model, Pipeline},
    pipeline::{
        Input, Task,
        embedding::{EmbeddingOptions, EmbeddingPipeline, similarity::cosine},
    },
    repository::manifest::Precision,
    tensor::Tensor,
    tokenizer::{Side, Truncation},
};
use serde::Deserialize;

use crate::models::{
    build_request, fixtures, open, options, request_without_floor, runtime, serve,
};

/// Tolerance for unit vectors relative to sentence-transformers in fp32: the same sums in a different order.
const TOLERANCE: f32 = 4e-6;

#[derive(Deserialize)]
struct Golden {
    max_length: usize,
    dimensions: usize,
    cases: Vec<Case>,
    token_embeddings: Vec<TokenCase>,
    prompts: Vec<PromptCase>,
    left: Vec<LeftCase>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct TokenCase {
    text: String,
    values: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct PromptCase {
    text: String,
    prompt_name: String,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct LeftCase {
    text: String,
    ids: Vec<u32>,
}

fn golden(name: &str) -> Golden {
    let path = fixtures().join(format!("goldens/{name}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) fn deadline() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

pub(crate) fn text(text: &str) -> Vec<Input> {
    vec![Input::Text(text.to_owned())]
}

pub(crate) fn pipeline(model: &Model) -> &EmbeddingPipeline {
    match &model.pipeline {
        Pipeline::Embedding(pipeline) => pipeline,
        other => panic!("expected an embedding pipeline, but found {other:?}"),
    }
}

/// Largest difference between two vectors, which must be equally long.
pub(crate) fn difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter()
        .zip(right)
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max)
}

/// A vector's length, at least 1.
fn length(vector: &[f32]) -> f32 {
    let sum: f32 = vector.iter().map(|value| value * value).sum();
    sum.sqrt().max(1.0)
}

/// Compares all results in the golden file `name` with results from `model`; all failures are reported.
async fn compare(name: &str, model: &Model, tolerance: f32) {
    let (golden, pipeline) = (golden(name), pipeline(model));
    assert_eq!(pipeline.settings().max_tokens, golden.max_length, "{name}");
    assert_eq!(
        pipeline.settings().dense().unwrap().dimensions,
        golden.dimensions,
        "{name}"
    );
    let mut failures = Vec::new();
    for case in &golden.cases {
        let encoding = pipeline
            .encoder()
            .tokenizer()
            .encode(&case.text, golden.max_length, Truncation::At(Side::Right))
            .unwrap();
        if encoding.ids != case.ids {
            failures.push(format!(
                "{:?}: ids {:?}, expected {:?}",
                case.text, encoding.ids, case.ids
            ));
        }
        if case.text.is_empty() {
            continue;
        }
        let found = pipeline
            .embed(text(&case.text), &options(), deadline())
            .await
            .unwrap();
        let difference = difference(&found.vectors[0], &case.embedding);
        if difference > tolerance * length(&case.embedding) {
            failures.push(format!("{:?}: vector off by {difference}", case.text));
        }
    }
    // Texts in one request have the same vectors as in separate requests.
    let together = golden
        .cases
        .iter()
        .map(|case| Input::Text(case.text.clone()))
        .collect();
    let together = pipeline
        .embed(together, &options(), deadline())
        .await
        .unwrap();
    for (case, found) in golden.cases.iter().zip(&together.vectors) {
        let difference = difference(found, &case.embedding);
        if difference > tolerance * length(&case.embedding) {
            failures.push(format!(
                "{:?}: vector in a batch off by {difference}",
                case.text
            ));
        }
    }
    for case in &golden.token_embeddings {
        let found = pipeline
            .embed_all(text(&case.text), &options(), deadline())
            .await
            .unwrap();
        assert_eq!(
            found.vectors[0].len(),
            case.values.len(),
            "{name}: {:?}",
            case.text
        );
        for (found, expected) in found.vectors[0].iter().zip(&case.values) {
            let difference = difference(found, expected);
            if difference > tolerance * length(expected) {
                failures.push(format!("{:?}: token vector off by {difference}", case.text));
            }
        }
    }
    for case in &golden.prompts {
        let options = EmbeddingOptions {
            prompt_name: Some(case.prompt_name.clone()),
            ..options()
        };
        let found = pipeline
            .embed(text(&case.text), &options, deadline())
            .await
            .unwrap();
        let difference = difference(&found.vectors[0], &case.embedding);
        if difference > tolerance {
            failures.push(format!(
                "{:?} with {}: off by {difference}",
                case.text, case.prompt_name
            ));
        }
    }
    for case in &golden.left {
        let encoding = pipeline
            .encoder()
            .tokenizer()
            .encode(&case.text, golden.max_length, Truncation::At(Side::Left))
            .unwrap();
        if encoding.ids != case.ids {
            failures.push(format!(
                "{:?} cut left: ids {:?}, expected {:?}",
                case.text, encoding.ids, case.ids
            ));
        }
    }
    assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
}

pub(crate) async fn tiny(name: &str) {
    tiny_in(fixtures().join("models").join(name), name).await;
}

pub(crate) async fn tiny_in(source: PathBuf, name: &str) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    compare(name, &model, TOLERANCE).await;
}

#[tokio::test]
async fn bert_with_mean_pooling_and_prompts() {
    tiny("tiny-bert").await;
}

#[tokio::test]
async fn roberta_with_cls_pooling() {
    tiny("tiny-roberta").await;
}

#[tokio::test]
async fn xlm_roberta_with_mean_pooling() {
    tiny("tiny-xlm-roberta").await;
}

#[tokio::test]
async fn distilbert_with_last_token_pooling() {
    tiny("tiny-distilbert").await;
}

#[tokio::test]
async fn bert_under_a_head_in_half_precision_with_tanh_gelu() {
    tiny("tiny-bert-tanh").await;
}

#[tokio::test]
async fn bert_in_shards_of_bfloat16_with_relu() {
    tiny("tiny-bert-sharded").await;
}

#[tokio::test]
async fn mpnet_with_buckets_of_distances() {
    tiny("tiny-mpnet").await;
}

#[tokio::test]
async fn electra_with_narrow_embeddings() {
    tiny("tiny-electra").await;
}

#[tokio::test]
async fn albert_with_one_layer_for_all_passes() {
    tiny("tiny-albert").await;
}

#[tokio::test]
async fn ernie_with_task_types() {
    tiny("tiny-ernie").await;
}

#[tokio::test]
async fn data2vec() {
    tiny("tiny-data2vec").await;
}

#[tokio::test]
async fn deberta_v1_with_positions_and_types() {
    tiny("tiny-deberta").await;
}

#[tokio::test]
async fn roformer_with_narrow_embeddings() {
    tiny("tiny-roformer").await;
}

#[tokio::test]
async fn neobert() {
    tiny("tiny-neobert").await;
}

#[tokio::test]
async fn mobilebert_with_neighbours_and_narrow_layers() {
    tiny("tiny-mobilebert").await;
}

#[tokio::test]
async fn megatron_bert() {
    tiny("tiny-megatron").await;
}

#[tokio::test]
async fn xlm_roberta_xl_without_a_normalization_of_embeddings() {
    tiny("tiny-xlm-roberta-xl").await;
}

#[tokio::test]
async fn roberta_prelayernorm() {
    tiny("tiny-roberta-prelayernorm").await;
}

#[tokio::test]
async fn modernbert_with_windows() {
    tiny("tiny-modernbert").await;
}

#[tokio::test]
async fn ultrabert_with_grouped_keys() {
    tiny("tiny-ultrabert").await;
}

#[tokio::test]
async fn embedding_gemma2_beside_a_tower_for_images() {
    tiny("tiny-embedding-gemma2").await;
}

#[tokio::test]
async fn embedding_gemma2_refuses_the_places_of_images() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-embedding-gemma2");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let inputs = ["a", "a <|image|>"].map(|text| Input::Text(text.to_owned()));
    let refusal = pipeline(&model)
        .embed(inputs.into(), &options(), deadline())
        .await
        .err()
        .unwrap();
    insta::assert_snapshot!(refusal.chain().to_string(), @"text 1: token 320 is the place of an image or a sound, which the model does not read; remove it from the text");
}

#[tokio::test]
async fn embedding_gemma2_for_texts() {
    tiny("tiny-embedding-gemma2-text").await;
}

#[tokio::test]
async fn nomic_bert_with_dynamic_scaling() {
    tiny("tiny-nomic").await;
}

#[tokio::test]
async fn nomic_bert_with_experts() {
    tiny("tiny-nomic-moe").await;
}

#[tokio::test]
async fn gte_with_scaling_and_without_types() {
    tiny("tiny-gte").await;
}

#[tokio::test]
async fn gte_with_one_type() {
    tiny("tiny-gte-types").await;
}

#[tokio::test]
async fn jina_bert_with_six_heads() {
    tiny("tiny-jina").await;
}

#[tokio::test]
async fn jina_v3_with_and_without_tasks() {
    tiny("tiny-jina-v3").await;
}

#[tokio::test]
async fn jina_bert_for_code() {
    tiny("tiny-jina-code").await;
}

/// Servers that pad a batch's texts return the same vectors.
#[tokio::test]
async fn padding_does_not_change_vectors() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    // NomicBERT's frequencies depend on the batch length, beyond 64 tokens.
    let families = [
        ("tiny-mpnet", [0, 3]),
        ("tiny-modernbert", [0, 3]),
        ("tiny-ultrabert", [0, 3]),
        ("tiny-embedding-gemma2", [0, 3]),
        ("tiny-nomic", [10, 0]),
        ("tiny-gte", [0, 3]),
        ("tiny-gte-types", [0, 3]),
        ("tiny-jina", [0, 3]),
        ("tiny-jina-code", [0, 3]),
    ];
    for (name, cases) in families {
        let source = fixtures().join("models").join(name);
        let request =
            crate::models::request(source, folder.path().join(name), Some(Precision::Fp32));
        let bundle = build_request(&request, runtime).unwrap();
        let backend = crate::models::backend(&bundle, runtime);
        let golden = golden(name);
        let [short, long] = cases.map(|case: usize| &golden.cases[case].ids);
        assert!(short.len() < long.len());
        let run = |texts: Vec<&Vec<u32>>| {
            let length = texts.iter().map(|ids| ids.len()).max().unwrap();
            let row = |ids: &[u32], kind: &str| -> Vec<i64> {
                let value = |id: &u32| match kind {
                    "input_ids" => i64::from(*id),
                    "attention_mask" => 1,
                    _ => 0,
                };
                ids.iter()
                    .map(value)
                    .chain(vec![i64::from(kind == "input_ids"); length - ids.len()])
                    .collect()
            };
            let inputs = backend.signature().inputs.iter().map(|input| {
                let values = texts.iter().flat_map(|ids| row(ids, &input.name)).collect();
                Tensor::integers(input.element_type, [texts.len(), length], values).unwrap()
            });
            backend.infer(inputs.collect(), deadline())
        };
        let alone = run(vec![short]).await.unwrap();
        let padded = run(vec![long, short]).await.unwrap();
        let values = short.len() * golden.dimensions;
        let start = long.len() * golden.dimensions;
        let padded = &padded[0].as_fp32().unwrap()[start..start + values];
        let difference = difference(alone[0].as_fp32().unwrap(), padded);
        assert!(difference <= TOLERANCE * 5.0, "{name}: off by {difference}");
    }
}

/// Exports have the same results as their source folders.
#[tokio::test]
async fn exports_match_their_originals() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let golden = golden("tiny-bert");
    for (export, precision, least) in [
        ("tiny-bert", Some(Precision::Fp32), 0.999_999),
        ("tiny-bert", None, 0.99),
        ("tiny-bert-st", Some(Precision::Fp32), 0.999_999),
        ("tiny-bert-quantized", None, 0.99),
    ] {
        let (source, out) = (
            fixtures().join("exports").join(export),
            folder.path().join(export),
        );
        let request =
            request_without_floor(Task::FeatureExtraction, &source, out.clone(), precision);
        build_request(&request, runtime).unwrap();
        let model = serve(&out).unwrap();
        let pipeline = pipeline(&model);
        for case in golden
            .cases
            .iter()
            .filter(|case| case.ids.len() < golden.max_length)
        {
            let found = pipeline
                .embed(text(&case.text), &options(), deadline())
                .await
                .unwrap();
            let cosine = cosine(&found.vectors[0], &case.embedding);
            assert!(
                cosine >= least,
                "{export} {precision:?}: {:?}: cosine {cosine}",
                case.text
            );
        }
    }
}

/// A graph that pools by itself returns an error for token vectors.
#[tokio::test]
async fn an_export_that_pools_has_no_token_vectors() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("exports/tiny-bert-st");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let error = pipeline(&model)
        .embed_all(text("a text"), &options(), deadline())
        .await
        .unwrap_err();
    insta::assert_snapshot!(error, @"expected a model with a vector for each token, but its output `sentence_embedding` has one for each text");
}

/// The real model, as `make test` builds it.
#[tokio::test]
async fn minilm_in_both_precisions() {
    let Some(runtime) = runtime() else { return };
    let root = fixtures().join("../..");
    let bundle = root.join(".kivu/bundles/minilm");
    if !bundle.is_dir() {
        crate::skips::missing("the bundle of all-MiniLM-L6-v2");
        return;
    }
    let int8 = serve(&bundle).unwrap();
    let golden = golden("minilm");
    for case in golden
        .cases
        .iter()
        .filter(|case| case.text.split_whitespace().count() > 2)
    {
        let found = pipeline(&int8)
            .embed(text(&case.text), &options(), deadline())
            .await
            .unwrap();
        let cosine = cosine(&found.vectors[0], &case.embedding);
        assert!(cosine >= 0.97, "{:?}: cosine {cosine}", case.text);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut request = crate::models::request(
        root.join("models/minilm.toml"),
        folder.path().join("fp32"),
        Some(Precision::Fp32),
    );
    request.cache = root.join(".kivu");
    build_request(&request, runtime).unwrap();
    let fp32 = serve(&folder.path().join("fp32")).unwrap();
    compare("minilm", &fp32, TOLERANCE).await;
}
