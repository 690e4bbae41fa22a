//! Sparse vectors and multi-vectors: the same as those of sentence-transformers, PyLate and FlagEmbedding, in fp32 and in
//! the native engine, and the routes that return them.

use std::{collections::BTreeMap, fs, path::Path};

use kivu::{
    backend::{Engine, onnx::Runtime},
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

use crate::{
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
