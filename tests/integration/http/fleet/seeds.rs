//! Fleets from five published articles about transformers on Triton, with tiny weights. All routes' responses equal
//! responses from the same weights in this process.

use std::{fs, path::Path};

use kivu::{
    config::{ModelConfig, Policy},
    onnx::Runtime,
    pipeline::Task,
};
use serde_json::{Value, json};

use super::{
    agree, app_of, model, post,
    server::{Served, Triton, bundle, packages, parameters},
    translation::{TRANSLATOR, write_translator},
};
use crate::models::runtime;

const TEXTS: [&str; 6] = [
    "I love you so much!",
    "I hate this movie",
    "Ok, let's see tomorrow.",
    "Jupiter’s Biggest Moons Started as Tiny Grains of Hail 🪐",
    "x",
    "a long text that runs on and on and on, far beyond what the model reads of it, so that most of it is cut \
     away, here and on the fleet alike, at the very same word, whatever comes after it: and on and on and on \
     and on and on and on and on and on and on and on and on and on and on and on and on and on and on and on",
];

/// A fleet and the requests to it.
struct Case {
    what: &'static str,
    remote: &'static str,
    bundle: std::path::PathBuf,
    requests: Vec<(&'static str, Value)>,
}

/// Writes all fleets' models into a repository.
fn write(repository: &Path, [sentiment, inference, embedding]: [&Path; 3]) {
    let of_texts = [("max_tokens", "64"), ("padding_id", "0")];
    let fixed = [&of_texts[..], &[("padding", "max_length")]].concat();
    let models = [
        (
            "sentiment_classifier",
            Some("graph.py"),
            Some(sentiment),
            String::new(),
        ),
        ("zst", Some("graph.py"), Some(inference), String::new()),
        (
            "tokenizer",
            Some("tokenizer.py"),
            Some(embedding),
            parameters(&of_texts),
        ),
        (
            "embedding_model",
            Some("graph.py"),
            Some(embedding),
            parameters(&[("pooling", "mean")]),
        ),
        ("ensemble_model", None, Some(embedding), String::new()),
        (
            "preprocessing",
            Some("tokenizer.py"),
            Some(sentiment),
            parameters(&fixed),
        ),
        (
            "classifier",
            Some("graph.py"),
            Some(sentiment),
            String::new(),
        ),
        (
            "postprocessing",
            Some("labels.py"),
            None,
            parameters(&[("labels", "negative,neutral,positive")]),
        ),
        ("classification_ensemble", None, None, String::new()),
    ];
    for (name, program, bundle, more) in models {
        Served {
            name,
            program,
            bundle,
            more: &more,
        }
        .write(repository);
    }
}

/// Article 001: translation into one language, which the server forces.
fn translation_case(folder: &Path, repository: &Path, runtime: Runtime) -> Case {
    let translation = bundle(Task::Translation, "tiny-m2m100", folder, runtime);
    write_translator(repository, &translation, "fr");
    let languages = json!({ "src_lang": "en", "tgt_lang": "fr" });
    let ids = [[411, 7, 42, 13, 2], [411, 9, 2, 1, 1]];
    let mask = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]];
    let integers = |name: &str, data: [[i64; 5]; 2]| json!({ "name": name, "datatype": "INT64", "shape": [2, 5], "data": data });
    Case {
        what: "001: token ids in, those of the translation out, declared FP32",
        remote: TRANSLATOR,
        bundle: translation,
        requests: vec![
            (
                "/models/translation",
                json!({ "inputs": TEXTS, "parameters": languages }),
            ),
            (
                "/models/translation",
                json!({ "inputs": TEXTS[5].repeat(3), "parameters": languages }),
            ),
            (
                "/v2/models/translation/infer",
                json!({
                    "inputs": [integers("input_ids", ids), integers("attention_mask", mask)],
                    "parameters": { "tgt_lang": "fr" },
                }),
            ),
            (
                "/v2/models/translation/infer",
                json!({
                    "inputs": [{ "name": "TEXT", "datatype": "BYTES", "shape": [6], "data": TEXTS }],
                    "parameters": languages,
                }),
            ),
        ],
    }
}

fn cases(folder: &Path, repository: &Path, runtime: Runtime) -> Vec<Case> {
    let sentiment = bundle(
        Task::TextClassification,
        "tiny-bert-sentiment",
        folder,
        runtime,
    );
    let inference = bundle(
        Task::ZeroShotClassification,
        "tiny-roberta-nli",
        folder,
        runtime,
    );
    let embedding = bundle(Task::FeatureExtraction, "tiny-bert", folder, runtime);
    write(repository, [&sentiment, &inference, &embedding]);
    let texts: Vec<Value> = TEXTS.iter().map(|text| json!([text])).collect();
    let labels =
        json!({ "candidate_labels": ["space & cosmos", "cooking", "sport"], "multi_label": true });
    vec![
        translation_case(folder, repository, runtime),
        Case {
            what: "000: rows of one, int64, by TorchScript's names",
            remote: "sentiment_classifier",
            bundle: sentiment.clone(),
            requests: vec![
                ("/predict", json!({ "inputs": texts })),
                (
                    "/models/text-classification",
                    json!({ "inputs": TEXTS, "parameters": { "top_k": 2 } }),
                ),
            ],
        },
        Case {
            what: "002: int32 of a fixed length, no batching",
            remote: "zst",
            bundle: inference,
            requests: vec![
                (
                    "/models/zero-shot-classification",
                    json!({ "inputs": TEXTS, "parameters": labels }),
                ),
                (
                    "/models/zero-shot-classification",
                    json!({ "inputs": TEXTS[3], "parameters": { "candidate_labels": "space,cooking" } }),
                ),
            ],
        },
        Case {
            what: "003: texts in, labels out",
            remote: "classification_ensemble",
            bundle: sentiment,
            requests: vec![
                ("/predict", json!({ "inputs": texts })),
                ("/models/text-classification", json!({ "inputs": TEXTS })),
            ],
        },
        Case {
            what: "004: texts in, vectors out",
            remote: "ensemble_model",
            bundle: embedding.clone(),
            requests: vec![
                ("/embed", json!({ "inputs": TEXTS })),
                (
                    "/embed",
                    json!({ "inputs": TEXTS[5], "truncation_direction": "left" }),
                ),
                (
                    "/embed",
                    json!({ "inputs": TEXTS[0], "prompt_name": "query", "dimensions": 8 }),
                ),
                ("/v1/embeddings", json!({ "input": TEXTS })),
            ],
        },
        Case {
            what: "004: its model, without its tokenizer",
            remote: "embedding_model",
            bundle: embedding,
            requests: vec![
                ("/embed", json!({ "inputs": TEXTS })),
                ("/embed", json!({ "inputs": [2, 5, 6, 3] })),
                (
                    "/similarity",
                    json!({ "inputs": { "source_sentence": TEXTS[0], "sentences": &TEXTS[1..] } }),
                ),
            ],
        },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fleet_responds_like_a_local_model() {
    let (Some(packages), Some(runtime)) = (packages(), runtime()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    fs::create_dir(&repository).unwrap();
    let cases = cases(folder.path(), &repository, runtime);
    let triton = Triton::start(&packages, &repository);
    let mut failures = Vec::new();
    for Case {
        what,
        remote,
        bundle,
        requests,
    } in cases
    {
        let here = app_of(ModelConfig::from(bundle.clone()));
        let manifest = fs::read_to_string(bundle.join("manifest.toml")).unwrap();
        let engine = match manifest.contains("\nengine = \"native\"") {
            true => "native",
            false => "onnx",
        };
        if remote == "sentiment_classifier" {
            refuses_pairs(&bundle, &triton).await;
        }
        for url in triton.urls() {
            let there = app_of(model(&bundle, Policy::Fleet, remote, &[&url]));
            for (path, body) in &requests {
                let (expected, found) = (
                    post(&here, path, body).await,
                    post(&there, path, body).await,
                );
                assert_eq!(
                    (expected.status, expected.backend()),
                    (200, engine),
                    "{what}: {}",
                    expected.body
                );
                let fits = (found.status, found.backend()) == (200, "triton")
                    && agree(&expected.body, &found.body)
                    && expected.headers.get("x-truncated") == found.headers.get("x-truncated");
                if !fits {
                    failures.push(format!(
                        "{what} at {url}{path}: {} {}, expected {}",
                        found.status, found.body, expected.body
                    ));
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{}\n{}",
        failures.join("\n"),
        triton.log()
    );
}

/// The weights distinguish a pair's texts, but the model on this fleet has no token types: pairs are refused.
async fn refuses_pairs(bundle: &Path, triton: &Triton) {
    let [url, _] = triton.urls();
    let pair = json!({ "inputs": ["a text", "and another one"] });
    let there = app_of(model(
        bundle,
        Policy::Fleet,
        "sentiment_classifier",
        &[&url],
    ));
    let refused = post(&there, "/predict", &pair).await;
    assert_eq!(refused.status, 422);
    insta::assert_snapshot!(refused.body["error"], @r#""pairs are not supported: the model on the fleet has no input `token_type_ids`""#);
    let either = app_of(model(bundle, Policy::Auto, "sentiment_classifier", &[&url]));
    let answer = post(&either, "/predict", &pair).await;
    assert_eq!((answer.status, answer.backend()), (200, "native"));
}
