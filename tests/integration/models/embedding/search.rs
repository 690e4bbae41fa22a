//! Sparse vectors and multi-vectors: the same as in sentence-transformers, PyLate and FlagEmbedding, in fp32 and in the
//! native engine, and the routes that return them.

use std::{collections::BTreeMap, fs, path::Path};

use axum::http::StatusCode;
use kivu::{
    backend::Engine,
    config::Limits,
    model::Model,
    onnx::Runtime,
    pipeline::{
        classification::ranking::{RankingOptions, RankingPipeline},
        embedding::{
            EmbeddingOptions, EmbeddingPipeline, RequestedVectors, TextVectors, VectorKind,
            similarity::cosine,
        },
    },
    repository::manifest::Precision,
    tokenizer::{Side, Truncation},
};
use kivu_http::{App, router};
use kivu_jobs::{Job, Parameters};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    copies::{copy, edit},
    embedding::goldens::{deadline, difference, pipeline, text},
    engines::native::recipe,
    jobs::{finished, job},
    messages::ask,
    models::{build_request, fixtures, options, request, runtime, serve},
};

/// Tolerance for fp32 relative to the libraries.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Sparse {
    text: String,
    ids: Vec<u32>,
    sparse: Vec<(u32, f32)>,
}

#[derive(Deserialize)]
struct Routed {
    text: String,
    role: String,
    ids: Vec<u32>,
    sparse: Vec<(u32, f32)>,
    /// For a query, with all documents.
    #[serde(default)]
    scores: Vec<f32>,
}

#[derive(Deserialize)]
struct MultiVector {
    text: String,
    role: String,
    ids: Vec<u32>,
    vectors: Vec<Vec<f32>>,
    /// For a query, with all documents.
    #[serde(default)]
    scores: Vec<f32>,
}

#[derive(Deserialize)]
struct Three {
    text: String,
    dense: Vec<f32>,
    sparse: Vec<(u32, f32)>,
    vectors: Vec<Vec<f32>>,
    /// Scores of the first text with all others.
    #[serde(default)]
    scores: Vec<f32>,
}

fn goldens<C: DeserializeOwned>(name: &str) -> BTreeMap<String, Vec<C>> {
    let path = fixtures().join(format!("goldens/{name}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A fixture in a precision. Its weights are random, so there is no quality floor.
fn build(name: &str, precision: Precision, folder: &Path, runtime: Runtime) -> Model {
    let mut request = recipe(name, folder);
    request.precision = Some(precision);
    request.out = folder.join(format!("{name}-{precision}"));
    build_request(&request, runtime).unwrap();
    serve(&request.out).unwrap()
}

/// A fixture in int8 with the quality gate's floor, or with `floor`, but fewer neighbours: vectors from random weights
/// are almost equally near to each other.
fn build_above_floor(
    name: &str,
    floor: &str,
    folder: &Path,
    runtime: Runtime,
) -> kivu::Result<Model> {
    let source = fixtures().join("models").join(name);
    let recipe = folder.join(format!("{name}.toml"));
    let text = format!(
        "name = \"{name}\"\ntask = \"feature-extraction\"\n[source]\nfolder = {source:?}\n[quality]\nneighbours = 0.85\n\
         {floor}"
    );
    fs::write(&recipe, text).unwrap();
    let out = folder.join(format!("{name}-gated"));
    build_request(
        &request(recipe, out.clone(), Some(Precision::Int8)),
        runtime,
    )?;
    serve(&out)
}

async fn vectors(
    pipeline: &EmbeddingPipeline,
    input: &str,
    kinds: &[VectorKind],
    options: &EmbeddingOptions,
) -> TextVectors {
    let requested = RequestedVectors {
        kinds: kinds.into(),
        max_active_dims: None,
    };
    let found = pipeline
        .embed_kinds(text(input), &requested, options, deadline())
        .await
        .unwrap();
    found.vectors.into_iter().next().unwrap()
}

fn of_role(role: &str) -> EmbeddingOptions {
    EmbeddingOptions {
        prompt_name: Some(role.to_owned()),
        ..options()
    }
}

/// A sparse vector as a dense one, to compare it.
fn scattered(entries: &[(u32, f32)]) -> Vec<f32> {
    let mut dense = vec![0.0; 400];
    entries
        .iter()
        .for_each(|(index, value)| dense[*index as usize] = *value);
    dense
}

/// Largest weight difference; tokens above the tolerance must be equal.
fn sparse_difference(found: &[(u32, f32)], expected: &[(u32, f32)]) -> f32 {
    let ids = |entries: &[(u32, f32)]| -> Vec<u32> {
        entries
            .iter()
            .filter(|(_, value)| *value > TOLERANCE)
            .map(|(id, _)| *id)
            .collect()
    };
    assert_eq!(ids(found), ids(expected));
    difference(&scattered(found), &scattered(expected))
}

#[tokio::test]
async fn sparse_vectors_are_those_of_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let made = ["splade", "splade_newer"].map(goldens::<Sparse>);
    for (name, cases) in made.into_iter().flatten() {
        let model = build(&name, Precision::Fp32, folder.path(), runtime);
        let native = build(&name, Precision::Int8, folder.path(), runtime);
        assert_eq!(native.manifest.engine, Engine::Native, "{name}");
        for case in cases {
            let tokenizer = pipeline(&model).encoder().tokenizer();
            let encoding = tokenizer
                .encode(&case.text, 40, Truncation::At(Side::Right))
                .unwrap();
            assert_eq!(encoding.ids, case.ids, "{name}: {:?}", case.text);
            let [exact, quantized] = [&model, &native].map(pipeline);
            let exact = vectors(exact, &case.text, &[VectorKind::Sparse], &options())
                .await
                .sparse
                .unwrap();
            let difference = sparse_difference(&exact.0, &case.sparse);
            assert!(
                difference < TOLERANCE,
                "{name}: {:?}: off by {difference}",
                case.text
            );
            let quantized = vectors(quantized, &case.text, &[VectorKind::Sparse], &options())
                .await
                .sparse
                .unwrap();
            let cosine = cosine(&scattered(&quantized.0), &scattered(&case.sparse));
            assert!(cosine > 0.98, "{name}: {:?}: {cosine}", case.text);
        }
    }
}

#[tokio::test]
async fn the_settings_of_a_model_limit_its_weights() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("model"), folder.path().join("bundle"));
    copy(&fixtures().join("models/tiny-splade-bert"), &source);
    edit(
        &source.join("config_sentence_transformers.json"),
        r#""default_prompt_name""#,
        r#""max_active_dims": 3, "default_prompt_name""#,
    );
    build_request(
        &request(source, out.clone(), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap();
    let model = serve(&out).unwrap();
    let case = &goldens::<Sparse>("splade")["tiny-splade-bert"][0];
    let mut largest = case.sparse.clone();
    largest.sort_by(|left, right| right.1.total_cmp(&left.1));
    for (requested, expected) in [(None, 3), (Some(5), 5)] {
        let requested = RequestedVectors {
            kinds: vec![VectorKind::Sparse],
            max_active_dims: requested,
        };
        let found = pipeline(&model)
            .embed_kinds(text(&case.text), &requested, &options(), deadline())
            .await
            .unwrap();
        let mut expected = largest[..expected].to_vec();
        expected.sort_by_key(|(id, _)| *id);
        let found = found.vectors[0].sparse.as_ref().unwrap();
        assert!(sparse_difference(&found.0, &expected) < TOLERANCE);
    }
}

/// Vectors and scores for a model with query token weights.
async fn compare_routed(model: &Model, cases: &[Routed]) {
    let pipeline = pipeline(model);
    let mut documents = Vec::new();
    for case in cases.iter().rev() {
        let found = vectors(
            pipeline,
            &case.text,
            &[VectorKind::Sparse],
            &of_role(&case.role),
        )
        .await;
        let found = found.sparse.unwrap();
        let off = sparse_difference(&found.0, &case.sparse);
        assert!(
            off < TOLERANCE,
            "{} {:?}: off by {off}",
            case.role,
            case.text
        );
        if case.role == "document" {
            documents.insert(0, found);
            continue;
        }
        let scores: Vec<f32> = documents
            .iter()
            .map(|document| found.dot(document))
            .collect();
        let off = difference(&scores, &case.scores);
        // Scores are sums up to 100.
        assert!(
            off < 100.0 * TOLERANCE,
            "{:?}: {scores:?}, but {:?}",
            case.text,
            case.scores
        );
    }
}

#[tokio::test]
async fn queries_of_a_router_are_those_of_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (name, cases) = goldens::<Routed>("router").pop_first().unwrap();
    let model = build(&name, Precision::Fp32, folder.path(), runtime);
    compare_routed(&model, &cases).await;
    let tokens = cases
        .iter()
        .filter(|case| case.role == "query")
        .map(|case| case.ids.len());
    let queries = cases
        .iter()
        .filter(|case| case.role == "query")
        .map(|case| text(&case.text).remove(0));
    let requested = RequestedVectors {
        kinds: vec![VectorKind::Sparse],
        max_active_dims: Some(3),
    };
    let found = pipeline(&model)
        .embed_kinds(queries.collect(), &requested, &of_role("query"), deadline())
        .await
        .unwrap();
    assert_eq!(found.usage.tokens, tokens.sum::<usize>());
    assert!(
        found
            .vectors
            .iter()
            .all(|text| text.sparse.as_ref().unwrap().0.len() <= 3)
    );

    let body = json!({ "inputs": &cases[0].text, "prompt_name": "search_query" });
    let (_, found) = send(std::slice::from_ref(&model), "/embed_sparse", body).await;
    let ids: Vec<u64> = found[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["index"].as_u64().unwrap())
        .collect();
    assert_eq!(
        ids,
        cases[0]
            .sparse
            .iter()
            .map(|(id, _)| u64::from(*id))
            .collect::<Vec<_>>()
    );

    // On the hub, the encoder's files are often next to `modules.json`.
    let moved = folder.path().join("moved");
    copy(&fixtures().join("models").join(&name), &moved);
    let encoder = moved.join("document_0_Transformer");
    for file in fs::read_dir(&encoder).unwrap().map(Result::unwrap) {
        fs::rename(file.path(), moved.join(file.file_name())).unwrap();
    }
    let router = moved.join("router_config.json");
    edit(&router, "document_0_Transformer", "");
    let out = folder.path().join("bundle");
    let build = || {
        build_request(
            &request(moved.clone(), out.clone(), Some(Precision::Fp32)),
            runtime,
        )
    };
    build().unwrap();
    compare_routed(&serve(&out).unwrap(), &cases).await;

    // A router with document modules for queries reads queries like documents.
    let alike = folder.path().join("alike");
    copy(&fixtures().join("models").join(&name), &alike);
    let modules = |names: &str| format!("\"query\": [\n            {names}\n        ]");
    edit(
        &alike.join("router_config.json"),
        &modules("\"query_0_SparseStaticEmbedding\""),
        &modules("\"document_0_Transformer\",\n            \"document_1_SpladePooling\""),
    );
    build_request(&request(alike, out.clone(), Some(Precision::Fp32)), runtime).unwrap();
    let model = serve(&out).unwrap();
    assert_eq!(pipeline(&model).settings().static_queries(), None);
    let document = cases.last().unwrap();
    let found = vectors(
        pipeline(&model),
        &document.text,
        &[VectorKind::Sparse],
        &options(),
    )
    .await;
    assert!(sparse_difference(&found.sparse.unwrap().0, &document.sparse) < TOLERANCE);

    let mut refusals = Vec::new();
    edit(
        &moved.join("query_0_SparseStaticEmbedding/tokenizer.json"),
        "\"clean_text\": true",
        "\"clean_text\": false",
    );
    refusals.push(build().unwrap_err().chain());
    edit(
        &router,
        "sparse_static_embedding.SparseStaticEmbedding\"",
        "transformer.Transformer\"",
    );
    refusals.push(build().unwrap_err().chain());
    edit(&router, "\"document\"", "\"passage\"");
    edit(
        &router,
        "\"default_route\": \"passage\"",
        "\"default_route\": null",
    );
    refusals.push(build().unwrap_err().chain());
    let refusals = refusals
        .join("\n")
        .replace(&folder.path().display().to_string(), "[folder]");
    insta::assert_snapshot!(refusals, @r"
    queries have a tokenizer of their own in `[folder]/moved/query_0_SparseStaticEmbedding`, which is not supported
    expected a `Router` with one encoder, for documents with sparse vectors and queries with token weights (`SparseStaticEmbedding`), or for both alike, but found `Transformer` for queries and `Transformer`, `SpladePooling` for documents; build the models of both on their own
    expected a route `document` in `router_config.json`, but found `passage`, `query`
    ");
}

/// Vectors and scores for a late-interaction model.
async fn compare_multi_vectors(name: &str, model: &Model, cases: &[MultiVector], tolerance: f32) {
    let pipeline = pipeline(model);
    for case in cases {
        let found = vectors(
            pipeline,
            &case.text,
            &[VectorKind::MultiVector],
            &of_role(&case.role),
        )
        .await;
        let (found, expected) = (found.multi_vector.unwrap(), &case.vectors);
        assert_eq!(
            found.len(),
            expected.len(),
            "{name}: {:?} of {:?}",
            case.text,
            case.ids
        );
        let difference = difference(&found.concat(), &expected.concat());
        assert!(
            difference < tolerance,
            "{name}: {} {:?}: off by {difference}",
            case.role,
            case.text
        );
    }
    let documents: Vec<String> = cases
        .iter()
        .filter(|case| case.role == "document")
        .map(|case| case.text.clone())
        .collect();
    let ranking = RankingPipeline::Embedding(pipeline.clone());
    let options = RankingOptions {
        truncation: Truncation::At(Side::Right),
        raw_scores: true,
    };
    for case in cases.iter().filter(|case| case.role == "query") {
        let found = ranking
            .score(case.text.clone(), documents.clone(), options, deadline())
            .await
            .unwrap()
            .0;
        // A sum of up to 12 products.
        let difference = difference(&found, &case.scores);
        assert!(
            difference < 12.0 * tolerance,
            "{name}: {:?}: scores off by {difference}",
            case.text
        );
    }
}

#[tokio::test]
async fn multi_vectors_by_known_code_are_those_of_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, cases) in goldens::<MultiVector>("described_multi_vectors") {
        let model = build(&name, Precision::Fp32, folder.path(), runtime);
        compare_multi_vectors(&name, &model, &cases, TOLERANCE).await;
    }
}

#[tokio::test]
async fn multi_vectors_are_those_of_pylate_and_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let goldens = ["colbert", "multi_vector_encoder", "jina_colbert"].map(goldens::<MultiVector>);
    for (name, cases) in goldens.iter().flatten() {
        let model = build(name, Precision::Fp32, folder.path(), runtime);
        compare_multi_vectors(name, &model, cases, TOLERANCE).await;
        let quantized = build_above_floor(name, "", folder.path(), runtime).unwrap();
        compare_multi_vectors(name, &quantized, cases, 0.1).await;
    }
    // Stanford's settings for training name the projection's width.
    let source = folder.path().join("wider");
    copy(&fixtures().join("models/tiny-jina-colbert"), &source);
    edit(
        &source.join("artifact.metadata"),
        "\"dim\": 16",
        "\"dim\": 128",
    );
    let refused =
        build_request(&request(source, folder.path().join("wide"), None), runtime).unwrap_err();
    insta::assert_snapshot!(refused, @"expected `dim` 16 in `artifact.metadata`, the rows of `linear.weight`, but found 128");
    let name = "tiny-colbert-stanford";
    let refused = build_above_floor(name, "score_difference = 1e-6", folder.path(), runtime)
        .unwrap_err()
        .chain();
    // The measured value depends on the processor.
    assert!(
        refused.starts_with(
            "expected a mean score difference to fp32 of at most 0.0000 over 300 texts"
        ),
        "{refused}"
    );
    assert!(
        refused.ends_with("another `score_difference` in `[quality]`"),
        "{refused}"
    );
}

#[tokio::test]
async fn three_kinds_of_vectors_are_those_of_flag_embedding() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let kinds = [
        VectorKind::Dense,
        VectorKind::Sparse,
        VectorKind::MultiVector,
    ];
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
                difference(
                    &found.multi_vector.clone().unwrap().concat(),
                    &case.vectors.concat(),
                ),
            ];
            assert!(
                off.iter().all(|off| *off < TOLERANCE),
                "{:?}: {off:?}",
                case.text
            );
            all.push(found.multi_vector.unwrap());
            let found = vectors(pipeline(&quantized), &case.text, &kinds, &options()).await;
            let cosines = [
                cosine(&found.dense.unwrap(), &case.dense),
                cosine(
                    &scattered(&found.sparse.unwrap().0),
                    &scattered(&case.sparse),
                ),
                cosine(
                    &found.multi_vector.unwrap().concat(),
                    &case.vectors.concat(),
                ),
            ];
            assert!(
                cosines.iter().all(|cosine| *cosine > 0.98),
                "{:?}: {cosines:?}",
                case.text
            );
        }
        let (query, documents) = (
            cases[0].text.clone(),
            cases.iter().map(|case| case.text.clone()),
        );
        let ranking = RankingPipeline::Embedding(pipeline(&model).clone());
        let options = RankingOptions {
            truncation: Truncation::At(Side::Right),
            raw_scores: true,
        };
        let found = ranking
            .score(query, documents.collect(), options, deadline())
            .await
            .unwrap()
            .0;
        assert!(
            difference(&found, &cases[0].scores) < TOLERANCE,
            "{found:?}"
        );
        // A single requested kind has the same values as all kinds together.
        let sparse = vectors(
            pipeline(&model),
            &cases[0].text,
            &[VectorKind::Sparse],
            &of_role("query"),
        )
        .await;
        assert_eq!(sparse.dense, None);
        assert_eq!(
            sparse_difference(&sparse.sparse.unwrap().0, &cases[0].sparse).max(TOLERANCE),
            TOLERANCE
        );
    }
}

/// A fixture in fp32, over HTTP.
async fn send(models: &[Model], path: &str, body: Value) -> (StatusCode, Value) {
    let app = router(App::new(models.to_vec(), Limits::default()));
    ask(&app, path, body).await
}

#[tokio::test]
async fn every_kind_of_vectors_is_served() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = ["tiny-bge-m3", "tiny-splade-bert", "tiny-colbert-stanford"];
    let models = names.map(|name| build(name, Precision::Fp32, folder.path(), runtime));
    let text = "The cat sits on the mat.";

    let sparse = &goldens::<Sparse>("splade")["tiny-splade-bert"][0];
    let body =
        json!({ "inputs": text, "model": "tiny-splade-bert", "max_active_dims": 2, "words": true });
    let (status, found) = send(&models, "/embed_sparse", body).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    let mut largest = sparse.sparse.clone();
    largest.sort_by(|left, right| right.1.total_cmp(&left.1));
    let mut expected = [largest[0].0, largest[1].0];
    expected.sort_unstable();
    let list = found[0].as_array().unwrap();
    assert_eq!(
        list.iter()
            .map(|it| it["index"].as_u64().unwrap() as u32)
            .collect::<Vec<_>>(),
        expected
    );
    assert!(list.iter().all(|it| it["word"].is_string()), "{found}");
    // The route for the model's first vector kind.
    let (_, by_default) = send(
        &models,
        "/models/tiny-splade-bert",
        json!({ "inputs": text }),
    )
    .await;
    assert_eq!(by_default[0].as_array().unwrap().len(), sparse.sparse.len());

    let three = &goldens::<Three>("bge_m3")["tiny-bge-m3"][0];
    let outputs = json!(["multi_vector", "dense", "sparse"]);
    let (_, found) = send(
        &models,
        "/embed",
        json!({ "inputs": [text], "outputs": outputs }),
    )
    .await;
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    let dense: Vec<f32> = found[0]["dense"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .collect();
    assert!(difference(&dense, &three.dense) < TOLERANCE);
    assert_eq!(
        found[0]["sparse"].as_array().unwrap().len(),
        three.sparse.len()
    );
    assert_eq!(
        found[0]["multi_vector"].as_array().unwrap().len(),
        three.vectors.len()
    );
    let (_, only) = send(
        &models,
        "/embed",
        json!({ "inputs": text, "outputs": ["sparse"] }),
    )
    .await;
    assert_eq!(only[0], json!({ "sparse": found[0]["sparse"] }));

    let cases = &goldens::<MultiVector>("colbert")["tiny-colbert-stanford"];
    let texts: Vec<&str> = cases
        .iter()
        .filter(|case| case.role == "document")
        .map(|case| case.text.as_str())
        .collect();
    let body = json!({
        "model": "tiny-colbert-stanford", "query": cases[0].text, "texts": texts, "raw_scores": true, "truncate": true
    });
    let (status, ranks) = send(&models, "/rerank", body).await;
    assert_eq!(status, StatusCode::OK, "{ranks}");
    for rank in ranks.as_array().unwrap() {
        let expected = cases[0].scores[rank["index"].as_u64().unwrap() as usize];
        assert!(
            (number(&rank["score"]) - expected).abs() < 12.0 * TOLERANCE,
            "{rank}"
        );
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
    // The first vector kind, whether it is named or not.
    for outputs in [json!([]), json!([{ "name": "embedding" }])] {
        let body = json!({ "inputs": inputs, "outputs": outputs });
        let (_, found) = send(&models, "/v2/models/tiny-bge-m3/infer", body).await;
        assert_eq!(found["outputs"][0]["name"], "embedding", "{found}");
        let dense: Vec<f32> = serde_json::from_value(found["outputs"][0]["data"].clone()).unwrap();
        assert!(difference(&dense, &three.dense) < TOLERANCE);
    }
}

/// Vectors in a batch job's row.
fn compare_row(columns: [Value; 3], case: &Three, form: &str) {
    let [dense, sparse, multi_vector] = columns;
    let dense: Vec<f32> = serde_json::from_value(dense).unwrap();
    let mut sparse: Vec<(u32, f32)> = serde_json::from_value::<BTreeMap<String, f32>>(sparse)
        .unwrap()
        .into_iter()
        .map(|(id, weight)| (id.parse().unwrap(), weight))
        .collect();
    sparse.sort_by_key(|(id, _)| *id);
    let vectors: Vec<Vec<f32>> = serde_json::from_value(multi_vector).unwrap();
    assert_eq!(vectors.len(), case.vectors.len(), "{form}");
    let off = [
        difference(&dense, &case.dense),
        sparse_difference(&sparse, &case.sparse),
        difference(&vectors.concat(), &case.vectors.concat()),
    ];
    assert!(
        off.iter().all(|off| *off < TOLERANCE),
        "{form}: {:?}: {off:?}",
        case.text
    );
}

#[test]
fn every_kind_of_vectors_is_a_column_of_batch_jobs() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = build("tiny-bge-m3", Precision::Fp32, folder.path(), runtime);
    let cases = &goldens::<Three>("bge_m3")["tiny-bge-m3"];
    // The last row has no vectors.
    let texts: Vec<&str> = cases
        .iter()
        .map(|case| case.text.as_str())
        .chain([""])
        .collect();
    let run = |input: &Path, parameters: Parameters| {
        let output = input.with_file_name(format!("out-{}", input.file_name().unwrap().display()));
        let report = finished(Job {
            model: Box::new(model.clone()),
            parameters: Box::new(parameters),
            ..job(input, &output)
        });
        assert_eq!(
            (
                report.progress.rows,
                report.progress.errors.values().sum::<u64>()
            ),
            (texts.len() as u64, 1)
        );
        fs::read(output).unwrap()
    };
    let options = |pairs: &[(&str, &str)]| {
        Parameters::of(
            &pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
        )
        .unwrap()
    };
    let parameters = || options(&[("outputs", "dense,sparse,multi_vector")]);
    let names = ["embedding", "sparse", "multi_vector"];

    let lines = folder.path().join("in.jsonl");
    let rows: String = texts
        .iter()
        .map(|text| format!("{}\n", json!({ "text": text })))
        .collect();
    fs::write(&lines, rows).unwrap();
    let read = |output: Vec<u8>| -> Vec<Value> {
        let output = String::from_utf8(output).unwrap();
        output
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let found = read(run(&lines, parameters()));
    for (row, case) in found.iter().zip(cases) {
        compare_row(names.map(|name| row[name].clone()), case, "JSON lines");
    }
    assert!(found[cases.len()]["error"].is_string() && found[cases.len()].get("sparse").is_none());

    let words = options(&[
        ("outputs", "sparse"),
        ("words", "true"),
        ("max-active-dims", "2"),
    ]);
    let scaled = options(&[("outputs", "sparse"), ("normalize", "true")]);
    let unused = scaled.options.without_effect(&model.pipeline);
    assert_eq!(unused, Some("normalize"));
    let tokenizer = pipeline(&model).encoder().tokenizer();
    for (row, case) in read(run(&lines, words)).iter().zip(cases) {
        let mut largest = case.sparse.clone();
        largest.sort_by(|left, right| right.1.total_cmp(&left.1));
        let expected = largest
            .iter()
            .take(2)
            .map(|(id, _)| tokenizer.token(*id).unwrap());
        let found: Vec<&String> = row["sparse"].as_object().unwrap().keys().collect();
        assert!(
            expected.clone().all(|word| found.contains(&&word)) && found.len() <= 2,
            "{found:?}"
        );
        assert!(row.get("embedding").is_none(), "{row}");
    }

    let table = folder.path().join("in.csv");
    let mut writer = csv::Writer::from_path(&table).unwrap();
    writer.write_record(["id", "text"]).unwrap();
    texts.iter().enumerate().for_each(|(id, text)| {
        writer
            .write_record([id.to_string().as_str(), text])
            .unwrap()
    });
    drop(writer);
    let output = run(&table, parameters());
    let mut reader = csv::Reader::from_reader(&output[..]);
    assert_eq!(
        reader.headers().unwrap(),
        &vec!["id", "text", "embedding", "sparse", "multi_vector", "error"]
    );
    let found: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    for (row, case) in found.iter().zip(cases) {
        compare_row(
            [2, 3, 4].map(|place| serde_json::from_str(&row[place]).unwrap()),
            case,
            "CSV",
        );
    }
    assert_eq!(
        (&found[cases.len()][3], found[cases.len()][5].is_empty()),
        ("", false)
    );

    compare_parquet(folder.path(), &texts, cases, |input| {
        run(input, parameters())
    });
}

fn compare_parquet(folder: &Path, texts: &[&str], cases: &[Three], run: impl Fn(&Path) -> Vec<u8>) {
    use arrow_array::{Array, RecordBatch, StringArray, cast::AsArray, types::Float32Type};
    use parquet::arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReader};

    let column = std::sync::Arc::new(StringArray::from(texts.to_vec()));
    let table = RecordBatch::try_from_iter([("text", column as _)]).unwrap();
    let input = folder.join("in.parquet");
    let mut writer =
        ArrowWriter::try_new(fs::File::create(&input).unwrap(), table.schema(), None).unwrap();
    writer.write(&table).unwrap();
    writer.close().unwrap();
    let output = bytes::Bytes::from(run(&input));
    let found = ParquetRecordBatchReader::try_new(output, 64)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let [dense, sparse, multi_vector] =
        ["embedding", "sparse", "multi_vector"].map(|name| found.column_by_name(name).unwrap());
    let (dense, sparse) = (dense.as_list::<i32>(), sparse.as_string::<i32>());
    let multi_vector = multi_vector.as_string::<i32>();
    for (row, case) in cases.iter().enumerate() {
        let dense = json!(
            dense
                .value(row)
                .as_primitive::<Float32Type>()
                .values()
                .to_vec()
        );
        let [sparse, multi_vector] =
            [sparse, multi_vector].map(|column| serde_json::from_str(column.value(row)).unwrap());
        compare_row([dense, sparse, multi_vector], case, "Parquet");
    }
    assert!(
        dense.is_null(cases.len())
            && sparse.is_null(cases.len())
            && multi_vector.is_null(cases.len())
    );
}

#[tokio::test]
async fn vectors_that_a_model_does_not_have_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = ["tiny-splade-bert", "tiny-colbert-stanford"];
    let models = names.map(|name| build(name, Precision::Fp32, folder.path(), runtime));
    let refusal = async |path: &str, body: Value| {
        let (status, body) = send(&models, path, body).await;
        format!(
            "{} {}",
            status.as_u16(),
            body["error"].as_str().unwrap_or_default()
        )
    };
    let refusals = [
        refusal("/embed", json!({ "inputs": "a" })).await,
        refusal(
            "/embed_sparse",
            json!({ "inputs": "a", "max_active_dims": 1000 }),
        )
        .await,
        refusal(
            "/embed_sparse",
            json!({ "inputs": "a", "model": "tiny-colbert-stanford" }),
        )
        .await,
        refusal(
            "/embed_all",
            json!({ "inputs": "a", "model": "tiny-splade-bert" }),
        )
        .await,
        refusal(
            "/embed_sparse",
            json!({ "inputs": "a", "outputs": ["dense", "sparse"] }),
        )
        .await,
        refusal(
            "/embed_all",
            json!({ "inputs": "a", "model": "tiny-colbert-stanford", "outputs": ["dense"] }),
        )
        .await,
        refusal("/embed", json!({ "inputs": "a", "outputs": [] })).await,
        refusal("/embed", json!({ "inputs": "a", "outputs": ["colbert"] })).await,
        refusal(
            "/embed_all",
            json!({ "inputs": "a", "model": "tiny-colbert-stanford", "prompt_name": "x" }),
        )
        .await,
        refusal(
            "/rerank",
            json!({ "query": "a", "texts": ["b"], "model": "tiny-splade-bert" }),
        )
        .await,
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    422 expected a model with `dense` vectors, but found one with `sparse`; `GET /models` lists the `outputs` of each model
    422 expected `max_active_dims` from 1 to 232, the size of the vocabulary, but found 1000
    422 expected a model with `sparse` vectors, but found one with `multi_vector`; `GET /models` lists the `outputs` of each model
    422 expected a model with `multi_vector` vectors, but found one with `sparse`; `GET /models` lists the `outputs` of each model
    422 expected `sparse` alone in `outputs` on this route, but found others; `/embed` takes several
    422 expected `multi_vector` alone in `outputs` on this route, but found others; `/embed` takes several
    422 expected `outputs` among `dense`, `sparse`, `multi_vector`, but found an empty list
    422 expected `outputs[0]` to be one of `dense`, `sparse`, `multi_vector`, but found another value
    422 unknown prompt `x`; the model's prompts: none
    422 expected a model for `text-ranking`, but `tiny-splade-bert` is for `feature-extraction`
    ");
}
