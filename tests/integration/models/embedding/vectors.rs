//! Vectors as integers and bits: sentence-transformers' arithmetic, and every way to request them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use axum::{Router, http::StatusCode};
use base64::{Engine, prelude::BASE64_STANDARD};
use kivu::{
    cloud::Cloud,
    config::{Config, Limits},
    model::{Model, Pipeline},
    pipeline::embedding::{
        EmbeddingPipeline,
        pooling::normalize,
        vectors::{Conversion, Ranges, StoredVector, VectorType},
    },
    repository::manifest::Precision,
};
use kivu_http::{App, router};
use kivu_jobs::{Ended, Job, JobInput, JobOutput, Parameters, Status};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    messages::ask,
    models::{build_request, fixtures, open, request, runtime},
};

#[derive(Deserialize)]
struct Case {
    vectors: Vec<Vec<f32>>,
    ranges: [Vec<f32>; 2],
    int8: Value,
    uint8: Value,
    binary: Value,
    ubinary: Value,
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[test]
fn integers_and_bits_are_those_of_sentence_transformers() {
    let golden = fs::read(fixtures().join("goldens/vectors.json")).unwrap();
    let Golden { cases } = serde_json::from_slice(&golden).unwrap();
    // The file has the ranges for fewer dimensions first.
    let file: Vec<f32> = cases
        .iter()
        .rev()
        .flat_map(|case| case.ranges.concat())
        .collect();
    let file: Vec<u8> = file.iter().flat_map(|value| value.to_le_bytes()).collect();
    let ranges = Ranges::from_bytes(&file, cases[0].ranges[0].len()).unwrap();
    assert_eq!(ranges.to_bytes(), file);
    for case in &cases {
        let types = [
            (VectorType::Int8, &case.int8),
            (VectorType::Uint8, &case.uint8),
            (VectorType::Binary, &case.binary),
            (VectorType::Ubinary, &case.ubinary),
        ];
        for (wanted, expected) in types {
            let size = case.ranges[0].len();
            let conversion = Conversion::new(wanted, size, Some(&ranges)).unwrap();
            let found: Vec<_> = case
                .vectors
                .iter()
                .map(|vector| conversion.convert(vector.clone()))
                .collect();
            assert_eq!(
                serde_json::to_value(found).unwrap(),
                *expected,
                "{wanted} of {size}"
            );
        }
    }
}

/// So that cosine similarities remain.
#[test]
fn integers_with_calibrated_ranges_are_proportional_to_values() {
    let mut random = fastrand::Rng::with_seed(5);
    let mut vector = || {
        let mut vector: Vec<f32> = (0..48)
            .map(|place| random.f32() - 0.4 + place as f32 / 100.0)
            .collect();
        normalize(&mut vector);
        vector
    };
    let samples: Vec<Vec<f32>> = (0..20).map(|_| vector()).collect();
    let ranges = Ranges::of(&samples);
    assert_eq!(Ranges::from_bytes(&ranges.to_bytes(), 48).unwrap(), ranges);
    for size in [32, 48] {
        let samples: Vec<Vec<f32>> = samples
            .iter()
            .map(|sample| {
                let mut sample = sample[..size].to_vec();
                normalize(&mut sample);
                sample
            })
            .collect();
        let largest = samples
            .iter()
            .flatten()
            .fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let conversion = Conversion::new(VectorType::Int8, size, Some(&ranges)).unwrap();
        for sample in &samples {
            let StoredVector::Int8(integers) = conversion.convert(sample.clone()) else {
                panic!("no int8")
            };
            for (value, integer) in sample.iter().zip(integers) {
                let steps = value * 127.0 / largest;
                assert!(
                    (steps - f32::from(integer)).abs() < 0.501,
                    "{size}: {steps} became {integer}"
                );
            }
        }
        // Beyond the samples' values.
        let far = conversion.convert([[9.0, -9.0]].repeat(size / 2).concat());
        assert_eq!(
            far,
            StoredVector::Int8([[127, -128]].repeat(size / 2).concat())
        );
    }
}

/// The fixture `tiny-bert`, which has prompts for queries and documents, and 32 dimensions.
fn tiny_bert(folder: &Path) -> Option<Model> {
    let source = fixtures().join("models/tiny-bert");
    Some(open(source, folder, Some(Precision::Fp32), runtime()?).unwrap())
}

fn pipeline(model: &Model) -> &EmbeddingPipeline {
    match &model.pipeline {
        Pipeline::Embedding(pipeline) => pipeline,
        other => panic!("expected an embedding pipeline, but found {other:?}"),
    }
}

async fn found(app: &Router, path: &str, body: Value) -> Value {
    let (status, answer) = ask(app, path, body).await;
    assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    answer
}

async fn refused(app: &Router, path: &str, body: Value) -> String {
    let (status, answer) = ask(app, path, body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {answer}");
    answer.to_string()
}

#[tokio::test]
async fn every_dialect_has_the_same_integers_and_bits() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = tiny_bert(folder.path()) else {
        return;
    };
    let quality = model.manifest.vectors.unwrap();
    assert!(
        quality.int8 > 0.5 && quality.int8 > quality.binary.unwrap(),
        "{quality:?}"
    );
    let conversion = |wanted, dimensions| pipeline(&model).conversion(wanted, dimensions).unwrap();
    let types = [
        VectorType::Int8,
        VectorType::Uint8,
        VectorType::Binary,
        VectorType::Ubinary,
    ];
    let conversions: Vec<_> = types
        .map(|wanted| (wanted, conversion(wanted, None)))
        .into();
    let app = router(App::new(vec![model.clone()], Limits::default()));
    let text = "What is deep learning?";
    let floats: Vec<Vec<f32>> =
        serde_json::from_value(found(&app, "/embed", json!({ "inputs": text })).await).unwrap();
    for (wanted, conversion) in conversions {
        let name = wanted.to_string();
        let stored = conversion.convert(floats[0].clone());
        let expected = serde_json::to_value(&stored).unwrap();
        let base64 = BASE64_STANDARD.encode(stored.bytes());
        let embed = found(
            &app,
            "/embed",
            json!({ "inputs": text, "output_dtype": name }),
        )
        .await;
        assert_eq!(embed, json!([expected]));
        let embed = found(
            &app,
            "/embed",
            json!({ "inputs": text, "encoding_format": name }),
        )
        .await;
        assert_eq!(embed, json!([expected]));
        let fields = [
            (json!({ "output_dtype": name }), expected.clone()),
            (json!({ "encoding_format": name }), expected.clone()),
            (json!({ "embedding_type": name }), expected.clone()),
            (
                json!({ "output_dtype": name, "encoding_format": "base64" }),
                base64.clone().into(),
            ),
            (
                json!({ "embedding_type": name, "encoding_format": "base64" }),
                base64.into(),
            ),
            (
                json!({ "output_dtype": name, "encoding_format": "float" }),
                expected.clone(),
            ),
            (
                json!({ "embedding_type": name, "encoding_format": "float" }),
                expected.clone(),
            ),
        ];
        for (mut body, expected) in fields {
            body["input"] = text.into();
            let embedding =
                found(&app, "/v1/embeddings", body).await["data"][0]["embedding"].take();
            assert_eq!(embedding, expected);
        }
    }
    let refusals = [
        json!({ "inputs": text, "output_dtype": "int8", "normalize": false }),
        json!({ "inputs": text, "output_dtype": "int8", "dimensions": 16 }),
        json!({ "inputs": text, "output_dtype": "binary", "dimensions": 12 }),
        json!({ "inputs": text, "output_dtype": "int4" }),
    ];
    let mut errors = Vec::new();
    for body in refusals {
        errors.push(refused(&app, "/embed", body).await);
    }
    for fields in [
        json!({ "output_dtype": "int8", "embedding_type": "binary" }),
        json!({ "output_dtype": "int8", "encoding_format": "uint8" }),
        json!({ "encoding_format": "float", "embedding_type": "base64" }),
    ] {
        let mut body = fields;
        body["input"] = text.into();
        errors.push(refused(&app, "/v1/embeddings", body).await);
    }
    insta::assert_snapshot!(errors.join("\n"), @r#"
    {"error":"expected normalized vectors for the type `int8`, whose ranges are those of normalized vectors, but found `normalize` false","error_type":"Validation"}
    {"error":"expected 32 dimensions or a multiple of 32 for vectors of type `int8`, but found 16","error_type":"Validation"}
    {"error":"expected a number of dimensions that 8 divides for vectors of type `binary`, but found 12","error_type":"Validation"}
    {"error":"expected `output_dtype` to be one of `float`, `int8`, `uint8`, `binary`, `ubinary`, but found another value","error_type":"Validation"}
    {"error":{"code":null,"message":"expected the same type in `output_dtype` and `embedding_type`, but found `int8` and `binary`","param":null,"type":"invalid_request_error"}}
    {"error":{"code":null,"message":"expected the same type in `output_dtype` and `encoding_format`, but found `int8` and `uint8`","param":null,"type":"invalid_request_error"}}
    {"error":{"code":null,"message":"expected the same form in `encoding_format` and `embedding_type`, but found `float` and `base64`","param":null,"type":"invalid_request_error"}}
    "#);
}

#[tokio::test]
async fn every_dialect_can_say_the_role_of_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut model) = tiny_bert(folder.path()) else {
        return;
    };
    model.name = "tiny".into();
    model.manifest.aliases = vec!["text-embedding-3-small".into()];
    let app = router(App::new(vec![model], Limits::default()));
    let embed = async |text: &str| found(&app, "/embed", json!({ "inputs": text })).await[0].take();
    let [plain, query, passage] = [
        embed("a cat").await,
        embed("query: a cat").await,
        embed("passage: a cat").await,
    ];
    assert_ne!(query, passage);
    let kserve = |parameters| {
        let text = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a cat"] });
        json!({ "inputs": [text], "parameters": parameters })
    };
    let roles = [
        ("/embed", json!({ "prompt_name": "query" }), &query),
        ("/embed", json!({ "prompt_name": "passage" }), &passage),
        ("/embed", json!({ "model": "tiny:query" }), &query),
        (
            "/embed",
            json!({ "model": "tiny:search_document" }),
            &passage,
        ),
        ("/embed", json!({ "model": "tiny:latest" }), &plain),
        ("/models/tiny:query", json!({}), &query),
        ("/v2/models/tiny:query/infer", kserve(json!({})), &query),
        (
            "/v2/models/tiny:query/infer",
            kserve(json!({ "prompt_name": null })),
            &query,
        ),
        (
            "/v2/models/tiny/infer",
            kserve(json!({ "prompt_name": "document" })),
            &passage,
        ),
        ("/v2/models/tiny/infer", kserve(json!({})), &plain),
        ("/v1/embeddings", json!({}), &plain),
        (
            "/v1/embeddings",
            json!({ "prompt_name": "document" }),
            &passage,
        ),
        ("/v1/embeddings", json!({ "input_type": "query" }), &query),
        (
            "/v1/embeddings",
            json!({ "input_type": "passage" }),
            &passage,
        ),
        (
            "/v1/embeddings",
            json!({ "task": "retrieval.query" }),
            &query,
        ),
        (
            "/v1/embeddings",
            json!({ "task": "classification" }),
            &plain,
        ),
        ("/v1/embeddings", json!({ "model": "tiny:query" }), &query),
        (
            "/v1/embeddings",
            json!({ "model": "text-embedding-3-small" }),
            &plain,
        ),
        (
            "/v1/embeddings",
            json!({ "model": "text-embedding-3-small:query" }),
            &query,
        ),
    ];
    for (path, mut body, expected) in roles {
        if !path.starts_with("/v2") {
            body[if path.starts_with("/v1") {
                "input"
            } else {
                "inputs"
            }] = "a cat".into();
        }
        let shown = body.to_string();
        let mut answer = found(&app, path, body).await;
        let vector = match &path[..3] {
            "/v1" => answer["data"][0]["embedding"].take(),
            "/v2" => answer["outputs"][0]["data"].take(),
            _ => answer[0].take(),
        };
        assert_eq!(vector, *expected, "{path} {shown}");
    }
    let error = refused(
        &app,
        "/v1/embeddings",
        json!({ "input": "a", "input_type": "questions" }),
    )
    .await;
    insta::assert_snapshot!(error, @r#"{"error":{"code":null,"message":"expected a role among `classification`, `clustering`, `document`, `query`, `similarity`, but found `questions`","param":null,"type":"invalid_request_error"}}"#);
    let (status, _) = ask(
        &app,
        "/v1/embeddings",
        json!({ "input": "a", "model": "tiny:questions" }),
    )
    .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn frameworks_get_the_vectors_of_embed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut model) = tiny_bert(folder.path()) else {
        return;
    };
    model.name = "tiny".into();
    let app = router(App::new(vec![model], Limits::default()));
    let embed = async |mut body: Value, text: &str| {
        body["inputs"] = text.into();
        found(&app, "/embed", body).await[0].take()
    };
    let texts = ["a cat", "a dog"];
    let plain = json!([
        embed(json!({}), texts[0]).await,
        embed(json!({}), texts[1]).await
    ]);
    let query = embed(json!({ "prompt_name": "query" }), texts[0]).await;
    let bits = embed(
        json!({ "prompt_name": "query", "output_dtype": "ubinary" }),
        texts[0],
    )
    .await;

    let cohere = json!({
        "model": "tiny", "texts": ["a cat"], "input_type": "search_query", "embedding_types": ["float", "ubinary"],
    });
    let answer = found(&app, "/v2/embed", cohere.clone()).await;
    assert_eq!(
        answer["embeddings"],
        json!({ "float": [query], "ubinary": [bits] })
    );
    assert_eq!(
        (&answer["response_type"], &answer["texts"]),
        (&json!("embeddings_by_type"), &json!(["a cat"]))
    );
    assert_eq!(
        found(&app, "/v1/embed", cohere).await["embeddings"]["float"],
        json!([query])
    );
    let answer = found(&app, "/v1/embed", json!({ "texts": texts })).await;
    assert_eq!(
        (&answer["response_type"], &answer["embeddings"]),
        (&json!("embeddings_floats"), &plain)
    );
    let contents = texts.map(|text| json!({ "content": [{ "type": "text", "text": text }] }));
    assert_eq!(
        found(&app, "/v2/embed", json!({ "inputs": contents })).await["embeddings"]["float"],
        plain
    );

    let answer = found(
        &app,
        "/api/embed",
        json!({ "model": "tiny:latest", "input": texts }),
    )
    .await;
    assert_eq!(answer["embeddings"], plain);
    assert!(
        answer["total_duration"].as_u64().unwrap() > 0 && answer["prompt_eval_count"] == 8,
        "{answer}"
    );
    let answer = found(
        &app,
        "/api/embed",
        json!({ "model": "tiny:query", "input": "a cat" }),
    )
    .await;
    assert_eq!(answer["embeddings"], json!([query]));
    let answer = found(
        &app,
        "/api/embeddings",
        json!({ "model": "tiny", "prompt": "a cat" }),
    )
    .await;
    assert_eq!(answer, json!({ "embedding": plain[0] }));
    for empty in [json!({}), json!({ "input": "" }), json!({ "input": [] })] {
        assert_eq!(
            found(&app, "/api/embed", empty).await["embeddings"],
            json!([])
        );
    }
    let shown = found(&app, "/api/show", json!({ "model": "tiny" })).await;
    assert_eq!(shown["model_info"]["bert.embedding_length"], 32);
    assert_eq!(
        (&shown["capabilities"], &shown["details"]["family"]),
        (&json!(["embedding"]), &json!("bert"))
    );

    let jina =
        json!({ "input": [{ "text": "a cat" }, { "text": "a dog" }], "task": "text-matching" });
    let answer = found(&app, "/v1/embeddings", jina).await;
    assert_eq!(
        (
            &answer["data"][0]["embedding"],
            &answer["data"][1]["embedding"]
        ),
        (&plain[0], &plain[1])
    );
    let raw = found(
        &app,
        "/v1/embeddings",
        json!({ "input": "a cat", "normalized": false }),
    )
    .await;
    let raw_embed = embed(json!({ "normalize": false }), "a cat").await;
    assert_eq!(raw["data"][0]["embedding"], raw_embed);

    let instances = json!({ "instances": [{ "inputs": "a cat" }, { "inputs": texts }] });
    let answer = found(&app, "/vertex", instances).await;
    assert_eq!(answer, json!({ "predictions": [[plain[0]], plain] }));
    assert_eq!(
        found(&app, "/invocations", json!({ "inputs": texts })).await,
        plain
    );
}

#[tokio::test]
async fn errors_name_the_fields_of_frameworks() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut model) = tiny_bert(folder.path()) else {
        return;
    };
    model.name = "tiny".into();
    let app = router(App::new(vec![model], Limits::default()));
    let mut errors = Vec::new();
    for (path, body) in [
        ("/v2/embed", json!({})),
        (
            "/v2/embed",
            json!({ "texts": ["a"], "embedding_types": ["int4"] }),
        ),
        (
            "/v2/embed",
            json!({ "texts": ["a"], "embedding_types": [] }),
        ),
        (
            "/v2/embed",
            json!({ "inputs": [{ "content": [{ "type": "image_url", "image_url": {} }] }] }),
        ),
        ("/api/embed", json!({ "input": [1, 2] })),
        ("/vertex", json!({ "instances": [] })),
        ("/vertex", json!({ "instances": [{ "inputs": "" }] })),
    ] {
        errors.push(format!("{path} {}", refused(&app, path, body).await));
    }
    insta::assert_snapshot!(errors.join("\n"), @r#"
    /v2/embed {"message":"expected either `texts` or `inputs`, but found both or neither"}
    /v2/embed {"message":"expected `embedding_types[0]` to be one of `float`, `base64`, `int8`, `uint8`, `binary`, `ubinary`, but found another value"}
    /v2/embed {"message":"expected 1 to 6 `embedding_types`, but found 0"}
    /v2/embed {"message":"expected `inputs[0].content[0].type` to be `text`, but found another value"}
    /api/embed {"error":"expected `input[0]` to be a string, but found a number","error_type":"Validation"}
    /vertex {"error":"expected 1 to 1024 `instances`, but found 0","error_type":"Validation"}
    /vertex {"error":"expected a text in `inputs`, but found an empty one","error_type":"Validation"}
    "#);
}

/// Runs a job with these options.
fn run_job(model: &Model, input: PathBuf, output: &Path, options: &[(&str, String)]) {
    let options = options
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    let parameters = Parameters::of(&options).unwrap();
    let job = Job {
        parquet: kivu_parquet::parquet(),
        ..Job::new(
            JobInput::File(input),
            JobOutput::File(output.to_owned()),
            model.clone(),
            parameters,
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match runtime.block_on(job.run()).unwrap() {
        Ended::Done(report) => assert_eq!(report.status, Status::Finished, "{:?}", report.error),
        other => panic!("expected a report, but found {other:?}"),
    }
}

#[test]
fn jobs_have_the_prompts_of_requests() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = tiny_bert(folder.path()) else {
        return;
    };
    let input = folder.path().join("in.jsonl");
    fs::write(&input, "{\"text\": \"a cat\"}\n").unwrap();
    let app = router(App::new(vec![model.clone()], Limits::default()));
    let vectors = [None, Some("document"), Some("query")].map(|prompt| {
        let output = folder.path().join(format!("{prompt:?}.jsonl"));
        let options: Vec<_> = prompt
            .map(|prompt| ("prompt", prompt.to_owned()))
            .into_iter()
            .collect();
        run_job(&model, input.clone(), &output, &options);
        let mut line: Value = serde_json::from_slice(&fs::read(output).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let body = json!({ "inputs": "a cat", "prompt_name": prompt });
        let expected = runtime.block_on(found(&app, "/embed", body))[0].take();
        let [found, expected] = [line["embedding"].take(), expected]
            .map(|vector| serde_json::from_value::<Vec<f32>>(vector).unwrap());
        assert_eq!(found, expected, "{prompt:?}");
        found
    });
    assert!(
        vectors[0] != vectors[1] && vectors[1] != vectors[2],
        "no prompt is the default"
    );
}

#[test]
fn files_of_batch_jobs_have_integers_and_bits() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = tiny_bert(folder.path()) else {
        return;
    };
    let path = |name: &str| folder.path().join(name);
    fs::write(path("in.jsonl"), "{\"text\": \"a cat\"}\n").unwrap();
    fs::write(path("in.csv"), "text\na cat\n").unwrap();
    let run = |input: PathBuf, output: &Path, wanted: VectorType| {
        let options = [
            ("vector-type", wanted.to_string()),
            ("prompt", "query".to_owned()),
        ];
        run_job(&model, input, output, &options);
    };
    let app = router(App::new(vec![model.clone()], Limits::default()));
    for wanted in [
        VectorType::Int8,
        VectorType::Uint8,
        VectorType::Binary,
        VectorType::Ubinary,
    ] {
        let body = json!({ "inputs": "a cat", "output_dtype": wanted, "prompt_name": "query" });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let expected = runtime.block_on(found(&app, "/embed", body))[0].take();
        run(path("in.jsonl"), &path(&format!("{wanted}.jsonl")), wanted);
        let line: Value =
            serde_json::from_slice(&fs::read(path(&format!("{wanted}.jsonl"))).unwrap()).unwrap();
        assert_eq!(line["embedding"], expected, "{wanted}");
        run(path("in.csv"), &path(&format!("{wanted}.csv")), wanted);
        let table = fs::read_to_string(path(&format!("{wanted}.csv"))).unwrap();
        assert!(table.contains(&format!("\"{expected}\"")), "{table}");
        {
            use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

            run(
                fixtures().join("parquet/snappy.parquet"),
                &path(&format!("{wanted}.parquet")),
                wanted,
            );
            let table = bytes::Bytes::from(fs::read(path(&format!("{wanted}.parquet"))).unwrap());
            let batch = ParquetRecordBatchReader::try_new(table, 8)
                .unwrap()
                .next()
                .unwrap()
                .unwrap();
            let found = format!(
                "{:?}",
                batch.column_by_name("embedding").unwrap().data_type()
            );
            let is_signed = matches!(wanted, VectorType::Int8 | VectorType::Binary);
            assert!(
                found.contains(if is_signed { " Int8" } else { "UInt8" }),
                "{wanted}: {found}"
            );
        }
    }
}

#[test]
fn recipes_and_the_configuration_name_prompts_and_aliases() {
    let folder = tempfile::tempdir().unwrap();
    let Some(runtime) = runtime() else { return };
    let recipe = folder.path().join("e5.toml");
    let source = fixtures().join("models/tiny-bert").canonicalize().unwrap();
    let text = format!(
        "name = 'e5'\ntask = 'feature-extraction'\nprecision = 'fp32'\naliases = ['small']\n[source]\nfolder = {source:?}\n\
         [prompts]\ndefault = 'query'\nquery = 'question: '\n"
    );
    fs::write(&recipe, &text).unwrap();
    let out = folder.path().join("e5");
    let bundle = build_request(&request(recipe.clone(), out.clone(), None), runtime).unwrap();
    let settings = bundle.manifest().settings.embedding().unwrap().clone();
    assert_eq!(settings.prompt(None).unwrap(), Some("question: "));
    assert_eq!(
        settings.prompt(Some("passage")).unwrap(),
        Some("passage: "),
        "of the model's own files"
    );
    assert_eq!(bundle.manifest().aliases, ["small"]);

    let open = |aliases: &[(&str, &str)]| {
        let aliases = aliases
            .iter()
            .map(|(alias, name)| ((*alias).to_owned(), (*name).to_owned()))
            .collect();
        Model::open_all(
            &Config {
                models: vec![out.clone().into()],
                aliases,
                ..crate::models::config()
            },
            &Cloud::default(),
        )
    };
    let models = open(&[("text-embedding-3-small", "e5")]).unwrap();
    assert_eq!(
        models[0].manifest.aliases,
        ["small", "text-embedding-3-small"]
    );
    let refused = |aliases: &[(&str, &str)]| open(aliases).unwrap_err().to_string();
    insta::assert_snapshot!(refused(&[("large", "e6")]), @"expected `aliases.large` to be the name of a served model, `e5`, but found `e6`");
    insta::assert_snapshot!(refused(&[("small", "e5")]), @"expected different aliases and names, but found `small` twice; change `aliases` in `kivu.toml` or in the recipe");
    for name in ["", "e5:query", "small:x"] {
        let expected = format!(
            "expected names and aliases other than \"\" and another name with a colon, but found `{name}`; change it in `kivu.toml` or in the recipe"
        );
        assert_eq!(refused(&[(name, "e5")]), expected);
    }
    insta::assert_snapshot!(refused(&[("e5", "e5")]), @"expected different aliases and names, but found `e5` twice; change `aliases` in `kivu.toml` or in the recipe");

    fs::write(
        &recipe,
        text.replace("default = 'query'", "default = 'question'"),
    )
    .unwrap();
    let error = build_request(&request(recipe, out, None), runtime).unwrap_err();
    insta::assert_snapshot!(error, @"unknown prompt `question`; the model's prompts: `document`, `query`");
}
