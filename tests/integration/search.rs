//! Sparse vectors and multi-vectors: the same as those of sentence-transformers, PyLate and FlagEmbedding, in fp32 and in
//! the native engine, and the routes that return them.

use std::{collections::BTreeMap, fs, path::Path};

use axum::http::StatusCode;
use kivu::{
    api::{App, router},
    backend::{Engine, onnx::Runtime},
    config::Limits,
    model::Model,
    pipeline::{
        embedding::{EmbeddingOptions, EmbeddingPipeline, RequestedVectors, TextVectors, VectorKind},
        pooling::cosine,
        ranking::{RankingOptions, RankingPipeline},
    },
    repository::manifest::Precision,
    tokenizer::{Side, Truncation},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    api::{answer, post},
    goldens::{deadline, difference, options, pipeline, text},
    models::{build_request, fixtures, runtime, serve},
    native::recipe,
};

/// The tolerance of fp32 relative to the libraries.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Sparse {
    text: String,
    ids: Vec<u32>,
    sparse: Vec<(u32, f32)>,
}

#[derive(Deserialize)]
struct MultiVector {
    text: String,
    role: String,
    ids: Vec<u32>,
    vectors: Vec<Vec<f32>>,
    /// Of a query, with all documents.
    #[serde(default)]
    scores: Vec<f32>,
}

#[derive(Deserialize)]
struct Three {
    text: String,
    dense: Vec<f32>,
    sparse: Vec<(u32, f32)>,
    vectors: Vec<Vec<f32>>,
    /// Of the first text, with all others.
    #[serde(default)]
    scores: Vec<f32>,
}

fn goldens<C: DeserializeOwned>(name: &str) -> BTreeMap<String, Vec<C>> {
    let path = fixtures().join(format!("goldens/{name}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A fixture in a precision. Its weights are random, so there is no floor of its quality.
fn build(name: &str, precision: Precision, folder: &Path, runtime: Runtime) -> Model {
    let mut request = recipe(name, folder);
    request.precision = Some(precision);
    request.out = folder.join(format!("{name}-{precision}"));
    build_request(&request, runtime).unwrap();
    serve(&request.out).unwrap()
}

async fn vectors(
    pipeline: &EmbeddingPipeline,
    input: &str,
    kinds: &[VectorKind],
    options: &EmbeddingOptions,
) -> TextVectors {
    let requested = RequestedVectors { kinds: kinds.into(), max_active_dims: None };
    let found = pipeline.embed_kinds(text(input), &requested, options, deadline()).await.unwrap();
    found.vectors.into_iter().next().unwrap()
}

fn of_role(role: &str) -> EmbeddingOptions {
    EmbeddingOptions { prompt_name: Some(role.to_owned()), ..options() }
}

/// A sparse vector as a dense one, to compare it.
fn scattered(entries: &[(u32, f32)]) -> Vec<f32> {
    let mut dense = vec![0.0; 400];
    entries.iter().for_each(|(index, value)| dense[*index as usize] = *value);
    dense
}

/// The largest difference of weights, and the tokens of both above the tolerance.
fn sparse_difference(found: &[(u32, f32)], expected: &[(u32, f32)]) -> f32 {
    let ids = |entries: &[(u32, f32)]| -> Vec<u32> {
        entries.iter().filter(|(_, value)| *value > TOLERANCE).map(|(id, _)| *id).collect()
    };
    assert_eq!(ids(found), ids(expected));
    difference(&scattered(found), &scattered(expected))
}

#[tokio::test]
async fn sparse_vectors_are_those_of_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, cases) in goldens::<Sparse>("splade") {
        let model = build(&name, Precision::Fp32, folder.path(), runtime);
        let native = build(&name, Precision::Int8, folder.path(), runtime);
        assert_eq!(native.manifest.engine, Engine::Native, "{name}");
        for case in cases {
            let tokenizer = pipeline(&model).encoder().tokenizer();
            let encoding = tokenizer.encode(&case.text, 40, Truncation::At(Side::Right)).unwrap();
            assert_eq!(encoding.ids, case.ids, "{name}: {:?}", case.text);
            let [exact, quantized] = [&model, &native].map(pipeline);
            let exact = vectors(exact, &case.text, &[VectorKind::Sparse], &options()).await.sparse.unwrap();
            let difference = sparse_difference(&exact.0, &case.sparse);
            assert!(difference < TOLERANCE, "{name}: {:?}: off by {difference}", case.text);
            let quantized =
                vectors(quantized, &case.text, &[VectorKind::Sparse], &options()).await.sparse.unwrap();
            let cosine = cosine(&scattered(&quantized.0), &scattered(&case.sparse));
            assert!(cosine > 0.98, "{name}: {:?}: {cosine}", case.text);
        }
    }
}

/// The vectors and scores of a model for late interaction.
async fn compare_multi_vectors(name: &str, model: &Model, cases: &[MultiVector], tolerance: f32) {
    let pipeline = pipeline(model);
    for case in cases {
        let found = vectors(pipeline, &case.text, &[VectorKind::MultiVector], &of_role(&case.role)).await;
        let (found, expected) = (found.multi_vector.unwrap(), &case.vectors);
        assert_eq!(found.len(), expected.len(), "{name}: {:?} of {:?}", case.text, case.ids);
        let difference = difference(&found.concat(), &expected.concat());
        assert!(difference < tolerance, "{name}: {} {:?}: off by {difference}", case.role, case.text);
    }
    let documents: Vec<String> =
        cases.iter().filter(|case| case.role == "document").map(|case| case.text.clone()).collect();
    let ranking = RankingPipeline::Embedding(pipeline.clone());
    let options = RankingOptions { truncation: Truncation::At(Side::Right), raw_scores: true };
    for case in cases.iter().filter(|case| case.role == "query") {
        let found = ranking.score(case.text.clone(), documents.clone(), options, deadline()).await.unwrap().0;
        // A sum of up to 12 products.
        let difference = difference(&found, &case.scores);
        assert!(difference < 12.0 * tolerance, "{name}: {:?}: scores off by {difference}", case.text);
    }
}

#[tokio::test]
async fn multi_vectors_are_those_of_pylate_and_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let goldens = [goldens::<MultiVector>("colbert"), goldens("multi_vector_encoder")];
    for (name, cases) in goldens.iter().flatten() {
        let model = build(name, Precision::Fp32, folder.path(), runtime);
        compare_multi_vectors(name, &model, cases, TOLERANCE).await;
        let quantized = build(name, Precision::Int8, folder.path(), runtime);
        compare_multi_vectors(name, &quantized, cases, 0.1).await;
    }
}

#[tokio::test]
async fn three_kinds_of_vectors_are_those_of_flag_embedding() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let kinds = [VectorKind::Dense, VectorKind::Sparse, VectorKind::MultiVector];
    for (name, cases) in goldens::<Three>("bge_m3") {
        let model = build(&name, Precision::Fp32, folder.path(), runtime);
        let quantized = build(&name, Precision::Int8, folder.path(), runtime);
        assert_eq!(quantized.manifest.engine, Engine::Native);
        let mut all = Vec::new();
        for case in &cases {
            let found = vectors(pipeline(&model), &case.text, &kinds, &options()).await;
            let off = [
                difference(&found.dense.unwrap(), &case.dense),
                sparse_difference(&found.sparse.unwrap().0, &case.sparse),
                difference(&found.multi_vector.clone().unwrap().concat(), &case.vectors.concat()),
            ];
            assert!(off.iter().all(|off| *off < TOLERANCE), "{:?}: {off:?}", case.text);
            all.push(found.multi_vector.unwrap());
            let found = vectors(pipeline(&quantized), &case.text, &kinds, &options()).await;
            let cosines = [
                cosine(&found.dense.unwrap(), &case.dense),
                cosine(&scattered(&found.sparse.unwrap().0), &scattered(&case.sparse)),
                cosine(&found.multi_vector.unwrap().concat(), &case.vectors.concat()),
            ];
            assert!(cosines.iter().all(|cosine| *cosine > 0.98), "{:?}: {cosines:?}", case.text);
        }
        let (query, documents) = (cases[0].text.clone(), cases.iter().map(|case| case.text.clone()));
        let ranking = RankingPipeline::Embedding(pipeline(&model).clone());
        let options = RankingOptions { truncation: Truncation::At(Side::Right), raw_scores: true };
        let found = ranking.score(query, documents.collect(), options, deadline()).await.unwrap().0;
        assert!(difference(&found, &cases[0].scores) < TOLERANCE, "{found:?}");
        // One kind of a request has the same values as all of them.
        let sparse =
            vectors(pipeline(&model), &cases[0].text, &[VectorKind::Sparse], &of_role("query")).await;
        assert_eq!(sparse.dense, None);
        assert_eq!(sparse_difference(&sparse.sparse.unwrap().0, &cases[0].sparse).max(TOLERANCE), TOLERANCE);
    }
}

/// A fixture in fp32, over HTTP.
async fn send(models: &[Model], path: &str, body: Value) -> (StatusCode, Value) {
    let app = router(App::new(models.to_vec(), Limits::default()));
    answer(app.oneshot(post(path, body.to_string())).await.unwrap()).await
}

#[tokio::test]
async fn every_kind_of_vectors_is_served() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = ["tiny-bge-m3", "tiny-splade-bert", "tiny-colbert-stanford"];
    let models = names.map(|name| build(name, Precision::Fp32, folder.path(), runtime));
    let text = "The cat sits on the mat.";

    let sparse = &goldens::<Sparse>("splade")["tiny-splade-bert"][0];
    let body = json!({ "inputs": text, "model": "tiny-splade-bert", "max_active_dims": 2, "words": true });
    let (status, found) = send(&models, "/embed_sparse", body).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    let mut largest = sparse.sparse.clone();
    largest.sort_by(|left, right| right.1.total_cmp(&left.1));
    let mut expected = [largest[0].0, largest[1].0];
    expected.sort_unstable();
    let list = found[0].as_array().unwrap();
    assert_eq!(list.iter().map(|it| it["index"].as_u64().unwrap() as u32).collect::<Vec<_>>(), expected);
    assert!(list.iter().all(|it| it["word"].is_string()), "{found}");
    // The route of the model's first kind of vectors.
    let (_, by_default) = send(&models, "/models/tiny-splade-bert", json!({ "inputs": text })).await;
    assert_eq!(by_default[0].as_array().unwrap().len(), sparse.sparse.len());

    let three = &goldens::<Three>("bge_m3")["tiny-bge-m3"][0];
    let outputs = json!(["multi_vector", "dense", "sparse"]);
    let (_, found) = send(&models, "/embed", json!({ "inputs": [text], "outputs": outputs })).await;
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    let dense: Vec<f32> = found[0]["dense"].as_array().unwrap().iter().map(number).collect();
    assert!(difference(&dense, &three.dense) < TOLERANCE);
    assert_eq!(found[0]["sparse"].as_array().unwrap().len(), three.sparse.len());
    assert_eq!(found[0]["multi_vector"].as_array().unwrap().len(), three.vectors.len());
    let (_, only) = send(&models, "/embed", json!({ "inputs": text, "outputs": ["sparse"] })).await;
    assert_eq!(only[0], json!({ "sparse": found[0]["sparse"] }));

    let cases = &goldens::<MultiVector>("colbert")["tiny-colbert-stanford"];
    let texts: Vec<&str> =
        cases.iter().filter(|case| case.role == "document").map(|case| case.text.as_str()).collect();
    let body = json!({
        "model": "tiny-colbert-stanford", "query": cases[0].text, "texts": texts, "raw_scores": true, "truncate": true
    });
    let (status, ranks) = send(&models, "/rerank", body).await;
    assert_eq!(status, StatusCode::OK, "{ranks}");
    for rank in ranks.as_array().unwrap() {
        let expected = cases[0].scores[rank["index"].as_u64().unwrap() as usize];
        assert!((number(&rank["score"]) - expected).abs() < 12.0 * TOLERANCE, "{rank}");
    }
    let body = json!({ "model": "tiny-colbert-stanford", "inputs": cases[1].text, "prompt_name": "query" });
    let (_, found) = send(&models, "/embed_all", body).await;
    assert_eq!(found[0].as_array().unwrap().len(), cases[1].vectors.len());

    let inputs = json!([{ "name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text] }]);
    let requested = json!([{ "name": "sparse_indices" }, { "name": "multi_vector_lengths" }]);
    let body = json!({ "inputs": inputs, "outputs": requested });
    let (_, found) = send(&models, "/v2/models/tiny-bge-m3/infer", body).await;
    let ids: Vec<u32> = three.sparse.iter().map(|(id, _)| *id).collect();
    assert_eq!(found["outputs"][0]["data"], json!(ids), "{found}");
    assert_eq!(found["outputs"][1]["data"], json!([three.vectors.len()]));
}

#[tokio::test]
async fn vectors_that_a_model_does_not_have_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = ["tiny-splade-bert", "tiny-colbert-stanford"];
    let models = names.map(|name| build(name, Precision::Fp32, folder.path(), runtime));
    let refusal = async |path: &str, body: Value| {
        let (status, body) = send(&models, path, body).await;
        format!("{} {}", status.as_u16(), body["error"].as_str().unwrap_or_default())
    };
    let refusals = [
        refusal("/embed", json!({ "inputs": "a" })).await,
        refusal("/embed_sparse", json!({ "inputs": "a", "max_active_dims": 1000 })).await,
        refusal("/embed_sparse", json!({ "inputs": "a", "model": "tiny-colbert-stanford" })).await,
        refusal("/embed_all", json!({ "inputs": "a", "model": "tiny-splade-bert" })).await,
        refusal("/embed", json!({ "inputs": "a", "outputs": [] })).await,
        refusal("/embed", json!({ "inputs": "a", "outputs": ["colbert"] })).await,
        refusal("/embed_all", json!({ "inputs": "a", "model": "tiny-colbert-stanford", "prompt_name": "x" }))
            .await,
        refusal("/rerank", json!({ "query": "a", "texts": ["b"], "model": "tiny-splade-bert" })).await,
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    422 expected a model with `dense` vectors, but found one with `sparse`; `GET /models` lists the `outputs` of each model
    422 expected `max_active_dims` from 1 to 232, the size of the vocabulary, but found 1000
    422 expected a model with `sparse` vectors, but found one with `multi_vector`; `GET /models` lists the `outputs` of each model
    422 expected a model with `multi_vector` vectors, but found one with `sparse`; `GET /models` lists the `outputs` of each model
    422 expected `outputs` among `dense`, `sparse`, `multi_vector`, but found an empty list
    422 wrong value in `outputs[0]`: unknown value, expected one of `dense`, `sparse`, `multi_vector`
    422 unknown prompt `x`; the model's prompts: none
    422 expected a model for `text-ranking`, but `tiny-splade-bert` is for `feature-extraction`
    ");
}
