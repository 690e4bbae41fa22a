//! Prompts and instructions of requests, with the results of sentence-transformers and of Qwen3-Reranker's authors.

use std::{fs, path::Path};

use kivu::{model::Model, pipeline::Task, repository::manifest::Precision};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    classification::token_classifiers::post,
    copies::copy,
    embedding::goldens::difference,
    models::{fixtures, open, open_for, request_without_floor, runtime, serve},
};

const TOLERANCE: f32 = 3e-5;

#[derive(Deserialize)]
struct Golden {
    instructed: Vec<Embedded>,
    prompted: Vec<Embedded>,
    unpooled: Vec<Embedded>,
    scores: Vec<Scored>,
    prompt_scores: Vec<Scored>,
}

#[derive(Deserialize)]
struct Embedded {
    text: String,
    prompt: String,
    instruction: Option<String>,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct Scored {
    query: String,
    document: String,
    instruction: Option<String>,
    prompt: Option<String>,
    logit: f32,
}

fn golden() -> Golden {
    serde_json::from_slice(&fs::read(fixtures().join("goldens/instructions.json")).unwrap())
        .unwrap()
}

fn vector(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

async fn embed(model: &Model, path: &str, body: &Value) -> Vec<f32> {
    let (status, answer) = post(model, path, body).await;
    assert_eq!(status, 200, "{body}: {answer}");
    vector(if path == "/embed" {
        &answer[0]
    } else {
        &answer["data"][0]["embedding"]
    })
}

#[tokio::test]
async fn embedders_read_the_prompts_of_requests() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-qwen3");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let Golden {
        instructed,
        prompted,
        ..
    } = golden();
    let mut failures = Vec::new();
    for Embedded {
        text,
        prompt,
        instruction,
        embedding,
    } in instructed.into_iter().chain(prompted)
    {
        // An empty text is refused on these routes.
        if text.is_empty() {
            continue;
        }
        let mut forms = vec![json!({ "prompt": prompt })];
        if let Some(instruction) = instruction {
            forms.push(json!({ "instruction": instruction }));
            forms.push(json!({ "instruction": instruction, "prompt_name": "query" }));
        }
        for form in forms {
            // The model reads these tokens, and no others.
            let mut body = form.clone();
            body["inputs"] = json!(text);
            let (_, tokens) = post(&model, "/tokenize", &body).await;
            let tokens = tokens[0].as_array().unwrap().iter();
            let read: String = tokens
                .filter_map(|token| token["text"].as_str().filter(|_| token["special"] == false))
                .collect();
            // Byte tokens of one character have its whole text.
            if text.is_ascii() && read != format!("{prompt}{text}") {
                failures.push(format!("/tokenize {body}: {read:?}"));
            }
            for (path, inputs) in [("/embed", "inputs"), ("/v1/embeddings", "input")] {
                let mut body = form.clone();
                body[inputs] = json!(text);
                let found = embed(&model, path, &body).await;
                let difference = difference(&found, &embedding);
                if difference > TOLERANCE {
                    failures.push(format!("{path} {body}: off by {difference}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn without_prompt(folder: &Path) {
    copy(&fixtures().join("models/tiny-bert"), folder);
    fs::remove_dir_all(folder.join("1_Pooling")).unwrap();
    copy(&fixtures().join("modules/without-prompt"), folder);
}

#[tokio::test]
async fn pooling_leaves_out_the_prompts_of_requests() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("without-prompt");
    without_prompt(&source);
    let model = open(
        source,
        &folder.path().join("built"),
        Some(Precision::Fp32),
        runtime,
    )
    .unwrap();
    for Embedded {
        text,
        prompt,
        embedding,
        ..
    } in golden().unpooled
    {
        if text.is_empty() {
            continue;
        }
        let found = embed(
            &model,
            "/embed",
            &json!({ "inputs": text, "prompt": prompt }),
        )
        .await;
        let difference = difference(&found, &embedding);
        assert!(difference <= TOLERANCE, "{text}: off by {difference}");
    }
}

#[tokio::test]
async fn rankers_read_the_instructions_of_requests() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Golden {
        scores,
        prompt_scores,
        ..
    } = golden();
    for (name, cases) in [
        ("tiny-qwen3-rank", scores),
        ("tiny-modernbert-rank", prompt_scores),
    ] {
        let model = open_for(Task::TextRanking, name, folder.path(), runtime).unwrap();
        for Scored {
            query,
            document,
            instruction,
            prompt,
            logit,
        } in cases
        {
            let body = json!({
                "query": query, "texts": [document], "instruction": instruction, "prompt": prompt, "raw_scores": true,
            });
            if document.is_empty() {
                continue;
            }
            let (status, answer) = post(&model, "/rerank", &body).await;
            let found = answer[0]["score"].as_f64().unwrap_or(f64::NAN) as f32;
            assert!(
                (found - logit).abs() <= TOLERANCE,
                "{status} {body}: {answer}, expected {logit}"
            );
            let hub = json!({
                "inputs": { "query": query, "texts": [document] }, "prompt": prompt,
                "parameters": { "instruction": instruction, "raw_scores": true },
            });
            let (_, from_hub) = post(&model, &format!("/models/{}", model.name), &hub).await;
            assert_eq!(from_hub, answer, "{hub}");
            let Some(instruction) = instruction else {
                continue;
            };
            let body =
                json!({ "query": query, "documents": [document], "instruction": instruction });
            for path in ["/v1/rerank", "/v2/rerank"] {
                let (_, answer) = post(&model, path, &body).await;
                let found = answer["results"][0]["relevance_score"].as_f64().unwrap() as f32;
                let expected = 1.0 / (1.0 + (-logit).exp());
                assert!(
                    (found - expected).abs() <= TOLERANCE,
                    "{path} {body}: {answer}, expected {expected}"
                );
            }
        }
    }
}

/// The same in int8, in the native engine.
#[tokio::test]
async fn an_instruction_changes_the_scores_of_quantized_models() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-qwen3-rank");
    let out = folder.path().join("built");
    let request = request_without_floor(
        Task::TextRanking,
        &source,
        out.clone(),
        Some(Precision::Int8Blocks),
    );
    kivu_compiler::build(&request, &|| Ok(runtime), &()).unwrap();
    let model = serve(&out).unwrap();
    let ask = async |instruction: Option<&str>| {
        let body = json!({ "query": "cat", "texts": ["a dog"], "instruction": instruction, "raw_scores": true });
        post(&model, "/rerank", &body).await.1[0]["score"].clone()
    };
    let own = "Given a web search query, retrieve relevant passages that answer the query";
    assert_eq!(ask(None).await, ask(Some(own)).await);
    assert_ne!(ask(None).await, ask(Some("Find dogs")).await);
}

#[tokio::test]
async fn instructions_that_a_model_does_not_take_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let embedder = |name: &str| {
        open(
            fixtures().join("models").join(name),
            folder.path(),
            Some(Precision::Fp32),
            runtime,
        )
    };
    let (qwen, bert) = (
        embedder("tiny-qwen3").unwrap(),
        embedder("tiny-bert").unwrap(),
    );
    let ranker = |name: &str| open_for(Task::TextRanking, name, folder.path(), runtime).unwrap();
    let (template, plain, vectors) = (
        ranker("tiny-qwen3-rank"),
        ranker("tiny-bert-rank"),
        ranker("tiny-bert"),
    );
    let refusal = async |model: &Model, path: &str, body: Value| {
        let (_, answer) = post(model, path, &body).await;
        let error = answer["error"]
            .as_str()
            .or_else(|| answer["error"]["message"].as_str());
        error
            .unwrap_or_else(|| panic!("{body}: {answer}"))
            .to_owned()
    };
    let ranked = |field: &str, value: &str| {
        let mut body = json!({ "query": "cat", "texts": ["a dog"] });
        body[field] = json!(value);
        body
    };
    let long = "x".repeat(20_000);
    let refusals = [
        refusal(
            &bert,
            "/embed",
            json!({ "inputs": "cat", "instruction": "find dogs" }),
        )
        .await,
        refusal(
            &qwen,
            "/embed",
            json!({ "inputs": "cat", "instruction": "x", "prompt_name": "document" }),
        )
        .await,
        refusal(
            &qwen,
            "/embed",
            json!({ "inputs": "cat", "instruction": " " }),
        )
        .await,
        refusal(
            &qwen,
            "/embed",
            json!({ "inputs": "cat", "prompt": "x", "prompt_name": "query" }),
        )
        .await,
        refusal(
            &qwen,
            "/v1/embeddings",
            json!({ "input": "cat", "prompt": "x", "input_type": "query" }),
        )
        .await,
        refusal(&qwen, "/embed", json!({ "inputs": "cat", "prompt": long })).await,
        refusal(&plain, "/rerank", ranked("instruction", "find dogs")).await,
        refusal(&vectors, "/rerank", ranked("instruction", "find dogs")).await,
        refusal(&vectors, "/rerank", ranked("prompt", "query: ")).await,
        refusal(&template, "/rerank", ranked("prompt", "query: ")).await,
        refusal(&template, "/rerank", ranked("instruction", "")).await,
        refusal(
            &plain,
            "/rerank",
            json!({ "query": "cat", "texts": ["a dog"], "instruction": "find dogs", "prompt": "query: " }),
        )
        .await,
        refusal(
            &qwen,
            "/tokenize",
            json!({ "inputs": "cat", "prompt": "x", "prompt_name": "query" }),
        )
        .await,
        refusal(
            &plain,
            "/tokenize",
            json!({ "inputs": "cat", "prompt": "x" }),
        )
        .await,
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    `instruction` is not supported: the model's prompt has none (`Instruct: …`); send the whole text before each text as `prompt`
    `instruction` is not supported: the model's prompt has none (`Instruct: …`); send the whole text before each text as `prompt`
    expected a text in `instruction`, but found an empty one; leave it out
    expected `prompt` without `prompt_name` (or a role) and `instruction`, but found several; leave out the others
    expected `prompt` without `prompt_name` (or a role) and `instruction`, but found several; leave out the others
    expected `prompt` of at most 16384 bytes, but found 20000
    `instruction` is not supported: the model's template has none; leave it out
    `instruction` is not supported: the model compares vectors; leave it out
    `prompt` is not supported: the model compares vectors; leave it out
    `prompt` is not supported: the model has a template; send an `instruction`
    expected a text in `instruction`, but found an empty one; leave it out
    expected `instruction` or `prompt`, which replaces the whole text before the query, but found both; leave one of them out
    expected `prompt` without `prompt_name` (or a role) and `instruction`, but found several; leave out the others
    expected an embedding model for `prompt`, but `text-ranking-tiny-bert-rank` is for `text-ranking`; leave it out
    ");
}
