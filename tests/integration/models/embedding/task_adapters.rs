//! Adapters that a request's task selects, with the results of the authors' and of PEFT's arithmetic.

use std::{collections::BTreeMap, fs, path::Path};

use kivu::{
    backend::Engine,
    model::Model,
    pipeline::{
        Input,
        embedding::{EmbeddingOptions, EmbeddingPipeline, similarity::cosine},
    },
    repository::manifest::Precision,
};
use kivu_jobs::{Job, Parameters};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    classification::token_classifiers::post,
    copies::{copy, edit},
    embedding::goldens::{deadline, difference, pipeline, text},
    jobs::{finished, job},
    models::{
        build_request, fixtures, open, options, request, request_without_floor, runtime, serve,
    },
};

const TOLERANCE: f32 = 2e-5;
const AUTHORS: &str = "tiny-jina-v3";

#[derive(Deserialize)]
struct Golden {
    tasks: Vec<Case>,
    #[serde(default)]
    prompts: Vec<Prompted>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    task: String,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct Prompted {
    text: String,
    prompt_name: String,
    embedding: Vec<f32>,
}

fn golden(name: &str) -> Golden {
    let path = fixtures().join(format!("goldens/{name}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Options for a task without its prompt.
fn of_task(task: &str) -> EmbeddingOptions {
    EmbeddingOptions {
        task: Some(task.to_owned()),
        prompt: Some(String::new()),
        ..options()
    }
}

async fn vector(pipeline: &EmbeddingPipeline, text_: &str, options: &EmbeddingOptions) -> Vec<f32> {
    pipeline
        .embed(text(text_), options, deadline())
        .await
        .unwrap()
        .vectors
        .remove(0)
}

#[tokio::test]
async fn a_task_has_the_vectors_of_its_adapters() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in [AUTHORS, "tiny-jina-v3-hf"] {
        let source = fixtures().join("models").join(name);
        let model = open(
            source.clone(),
            &folder.path().join(name),
            Some(Precision::Fp32),
            runtime,
        )
        .unwrap();
        let pipeline = pipeline(&model);
        assert_eq!(pipeline.settings().tasks.len(), 5);
        let out = folder.path().join(format!("{name}-int8"));
        let request = request_without_floor(
            kivu::pipeline::Task::FeatureExtraction,
            &source,
            out.clone(),
            Some(Precision::Int8),
        );
        build_request(&request, runtime).unwrap();
        let quantized = serve(&out).unwrap();
        assert_eq!(quantized.manifest.engine, Engine::Native);
        let Golden { tasks, prompts } = golden(name);
        assert!(tasks.len() >= 15, "{name}");
        let mut of_texts = BTreeMap::<&str, Vec<&[f32]>>::new();
        for Case {
            text,
            task,
            embedding,
        } in &tasks
        {
            let off = difference(&vector(pipeline, text, &of_task(task)).await, embedding);
            assert!(off < TOLERANCE, "{name}: {task} {text:?}: off by {off}");
            let found = vector(self::pipeline(&quantized), text, &of_task(task)).await;
            let similar = cosine(&found, embedding);
            assert!(similar > 0.99, "{name} in int8: {task} {text:?}: {similar}");
            of_texts.entry(text).or_default().push(embedding);
        }
        // The tasks differ by more than any error above.
        for vectors in of_texts.values() {
            for (place, one) in vectors.iter().enumerate() {
                assert!(
                    vectors[..place]
                        .iter()
                        .all(|other| cosine(one, other) < 0.97)
                );
            }
        }
        for Prompted {
            text,
            prompt_name,
            embedding,
        } in &prompts
        {
            for options in [
                EmbeddingOptions {
                    prompt_name: Some(prompt_name.clone()),
                    ..options()
                },
                EmbeddingOptions {
                    prompt_name: Some(prompt_name.clone()),
                    task: Some(prompt_name.clone()),
                    ..options()
                },
            ] {
                let off = difference(&vector(pipeline, text, &options).await, embedding);
                assert!(
                    off < TOLERANCE,
                    "{name}: {prompt_name} {text:?}: off by {off}"
                );
            }
        }
    }
}

/// The routes' bodies for a text and a task.
async fn embed(model: &Model, path: &str, body: Value) -> Result<Vec<f32>, String> {
    let (status, answer) = post(model, path, &body).await;
    let found = match path {
        "/embed" => &answer[0],
        "/v2/embed" => &answer["embeddings"]["float"][0],
        "/api/embed" => &answer["embeddings"][0],
        path if path.starts_with("/v2/models") => &answer["outputs"][0]["data"],
        _ => &answer["data"][0]["embedding"],
    };
    match status == 200 {
        true => Ok(serde_json::from_value(found.clone()).unwrap()),
        false => Err(answer.to_string()),
    }
}

#[tokio::test]
async fn requests_choose_a_task_in_every_dialect() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models").join(AUTHORS);
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let name = &model.name;
    for Prompted {
        text,
        prompt_name: task,
        embedding,
    } in golden(AUTHORS).prompts
    {
        if text.is_empty() {
            continue;
        }
        let tensor = json!([{ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text] }]);
        let mut bodies = vec![
            ("/embed", json!({ "inputs": text, "task": task })),
            ("/embed", json!({ "inputs": text, "prompt_name": task })),
            ("/v1/embeddings", json!({ "input": text, "task": task })),
            (
                "/v1/embeddings",
                json!({ "input": text, "task": task.replace(['.', '-'], "_") }),
            ),
            (
                "/v1/embeddings",
                json!({ "input": text, "prompt_name": task }),
            ),
        ];
        let kserve = format!("/v2/models/{name}/infer");
        bodies.push((
            &kserve,
            json!({ "inputs": tensor, "parameters": { "task": task } }),
        ));
        let role = match task.as_str() {
            "retrieval.query" => Some("search_query"),
            "retrieval.passage" => Some("search_document"),
            _ => None,
        };
        if let Some(role) = role {
            let cohere = json!({
                "texts": [text], "input_type": role, "model": name, "embedding_types": ["float"]
            });
            bodies.push(("/v2/embed", cohere));
            bodies.push((
                "/v1/embeddings",
                json!({ "input": text, "input_type": role }),
            ));
        }
        for (path, body) in bodies {
            let shown = body.to_string();
            let off = difference(&embed(&model, path, body).await.unwrap(), &embedding);
            assert!(off < TOLERANCE, "{path} {shown}: off by {off}");
        }
        // Matryoshka dimensions, which are normalized again.
        let short = embed(
            &model,
            "/embed",
            json!({ "inputs": text, "task": task, "dimensions": 8 }),
        )
        .await;
        let length = embedding[..8]
            .iter()
            .map(|value| value * value)
            .sum::<f32>()
            .sqrt();
        let expected: Vec<f32> = embedding[..8].iter().map(|value| value / length).collect();
        assert!(difference(&short.unwrap(), &expected) < 1e-4);
    }
    // A request's own prompt goes with a task, and with none.
    let Case {
        text,
        task,
        embedding,
    } = &golden(AUTHORS).tasks[0];
    let body = json!({ "inputs": text, "task": task, "prompt": "" });
    assert!(difference(&embed(&model, "/embed", body).await.unwrap(), embedding) < TOLERANCE);
    let plain = embed(&model, "/embed", json!({ "inputs": text }))
        .await
        .unwrap();
    let prompted = embed(&model, "/embed", json!({ "inputs": text, "prompt": "" }))
        .await
        .unwrap();
    assert!(difference(&plain, &prompted) == 0.0 && cosine(&plain, embedding) < 0.97);
    let refusals = [
        embed(
            &model,
            "/embed",
            json!({ "inputs": "a", "task": "summaries" }),
        )
        .await,
        embed(
            &model,
            "/v1/embeddings",
            json!({ "input": "a", "task": "summaries" }),
        )
        .await,
        embed(
            &model,
            "/v1/embeddings",
            json!({ "input": "a", "task": "separation", "input_type": "query" }),
        )
        .await,
    ];
    let refusals = refusals.map(|refusal| refusal.unwrap_err()).join("\n");
    insta::assert_snapshot!(refusals, @r#"
    {"error":"expected a `task` among `retrieval.query`, `retrieval.passage`, `separation`, `classification`, `text-matching`, but found `summaries`","error_type":"Validation"}
    {"error":{"code":null,"message":"expected a `task` among `retrieval.query`, `retrieval.passage`, `separation`, `classification`, `text-matching`, but found `summaries`","param":null,"type":"invalid_request_error"}}
    {"error":{"code":null,"message":"`input_type` and `task` have different values; leave one of them out","param":null,"type":"invalid_request_error"}}
    "#);
}

#[derive(Deserialize)]
struct Prompted5 {
    text: String,
    task: String,
    prompt_name: String,
    embedding: Vec<f32>,
}

/// jina-embeddings-v5-text, on both of its encoders. Its prompts are those of roles, whatever the task.
#[tokio::test]
async fn tasks_of_jina_v5_go_with_prompts_of_roles() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-jina-v5-nano", "tiny-jina-v5-small"] {
        let source = fixtures().join("models").join(name);
        let out = folder.path().join(name);
        let model = open(source.clone(), &out, Some(Precision::Fp32), runtime).unwrap();
        let out = folder.path().join(format!("{name}-int8"));
        let request = request_without_floor(
            kivu::pipeline::Task::FeatureExtraction,
            &source,
            out.clone(),
            Some(Precision::Int8),
        );
        build_request(&request, runtime).unwrap();
        let quantized = serve(&out).unwrap();
        assert_eq!(quantized.manifest.engine, Engine::Native);
        let path = fixtures().join(format!("goldens/{name}.json"));
        let golden: BTreeMap<String, Vec<Prompted5>> =
            serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        for case in &golden["cases"] {
            let of_case = EmbeddingOptions {
                task: Some(case.task.clone()),
                prompt_name: Some(case.prompt_name.clone()),
                ..options()
            };
            let mut all = vec![of_case.clone()];
            // The defaults of the authors' code, and the first task.
            if case.prompt_name == "document" {
                all.push(EmbeddingOptions {
                    prompt_name: None,
                    ..of_case.clone()
                });
            }
            if case.task == "retrieval" {
                all.push(EmbeddingOptions {
                    task: None,
                    ..of_case.clone()
                });
            }
            for options in all {
                let found = vector(pipeline(&model), &case.text, &options).await;
                let off = difference(&found, &case.embedding);
                assert!(
                    off < 4e-6,
                    "{name}: {options:?} {:?}: off by {off}",
                    case.text
                );
            }
            let found = vector(pipeline(&quantized), &case.text, &of_case).await;
            let similar = cosine(&found, &case.embedding);
            assert!(similar > 0.95, "{name}: {:?}: {similar}", case.text);
        }
        let [case, ..] = &golden["cases"][..] else {
            panic!("{name} has no cases")
        };
        let text = &case.text;
        let of = |task: &str, prompt_name: &str| {
            let mut cases = golden["cases"].iter();
            let case = cases.find(|case| {
                case.text == *text && case.task == task && case.prompt_name == prompt_name
            });
            &case.unwrap().embedding
        };
        for (path, body, expected) in [
            (
                "/embed",
                json!({ "inputs": text, "task": "clustering", "prompt_name": "query" }),
                of("clustering", "query"),
            ),
            (
                "/embed",
                json!({ "inputs": text, "prompt_name": "query" }),
                of("retrieval", "query"),
            ),
            (
                "/v1/embeddings",
                json!({ "input": text, "task": "clustering", "prompt_name": "query" }),
                of("clustering", "query"),
            ),
            (
                "/v1/embeddings",
                json!({ "input": text, "task": "text_matching" }),
                of("text-matching", "document"),
            ),
            (
                "/v1/embeddings",
                json!({ "input": text, "input_type": "search_query" }),
                of("retrieval", "query"),
            ),
            (
                "/v2/embed",
                json!({
                    "texts": [text], "input_type": "classification", "model": model.name, "embedding_types": ["float"]
                }),
                of("classification", "document"),
            ),
        ] {
            let shown = body.to_string();
            let off = difference(&embed(&model, path, body).await.unwrap(), expected);
            assert!(off < 4e-6, "{name}: {shown}: off by {off}");
        }
    }
}

#[test]
fn unusable_files_of_jina_v5_are_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let refusal = |change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("model");
        copy(&fixtures().join("models/tiny-jina-v5-nano"), &source);
        change(&source);
        let out = folder.path().join("out");
        let refusal = build_request(&request(source, out, Some(Precision::Fp32)), runtime);
        let refusal = refusal.unwrap_err().chain();
        refusal.replace(&folder.path().display().to_string(), "[folder]")
    };
    let config =
        |from: &str, to: &str| refusal(&|source| edit(&source.join("config.json"), from, to));
    let of_adapter = refusal(&|source| {
        let adapter = source.join("adapters/clustering/adapter_config.json");
        edit(&adapter, "\"use_dora\": false", "\"use_dora\": true");
    });
    let (class, other) = ("\"JinaEmbeddingsV5Model\"", "\"JinaEmbeddingsV5OmniModel\"");
    let of_qwen3 = "\"use_sliding_window\": false, \"is_decoder\"";
    for (refusal, expected) in [
        (
            config("\"retrieval\",", "\"summaries\","),
            "adapters/summaries/adapter_config.json",
        ),
        (
            config("\"retrieval\",", "\"clustering\","),
            "expected from 1 to 100 different tasks in `task_names`, but found 3 in 4",
        ),
        (
            config(class, other),
            "expected the class `JinaEmbeddingsV5Model` for `jina_embeddings_v5`, but found `JinaEmbeddingsV5OmniModel`",
        ),
        (config("\"is_decoder\"", of_qwen3), "expected the weight `"),
        (
            of_adapter,
            "the adapter has `use_dora`, which is not supported",
        ),
    ] {
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[tokio::test]
async fn a_task_for_a_model_without_tasks_is_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-bert");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let refusal = embed(
        &model,
        "/embed",
        json!({ "inputs": "a", "task": "retrieval.query" }),
    )
    .await;
    insta::assert_snapshot!(
        refusal.unwrap_err(),
        @r#"{"error":"`task` is not supported: the model has no tasks, but found `retrieval.query`; its `prompt_name` may be a role, such as `query`","error_type":"Validation"}"#
    );
}

#[tokio::test]
async fn texts_for_several_tasks_share_a_run() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models").join(AUTHORS);
    let out = folder.path().join("int8");
    let task = kivu::pipeline::Task::FeatureExtraction;
    let request = request_without_floor(task, &source, out.clone(), Some(Precision::Int8));
    build_request(&request, runtime).unwrap();
    let model = serve(&out).unwrap();
    let pipeline = pipeline(&model);
    let cases = golden(AUTHORS).tasks;
    let alone: Vec<Vec<f32>> = {
        let mut found = Vec::new();
        for Case { text, task, .. } in &cases {
            found.push(vector(pipeline, text, &of_task(task)).await);
        }
        found
    };
    let together = cases.iter().map(|Case { text, task, .. }| {
        let (text, options) = (vec![Input::Text(text.clone())], of_task(task));
        async move {
            pipeline
                .embed(text, &options, deadline())
                .await
                .unwrap()
                .vectors
                .remove(0)
        }
    });
    let together: Vec<Vec<f32>> = futures::future::join_all(together).await;
    assert_eq!(alone, together);
}

#[test]
fn jobs_have_a_task() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models").join(AUTHORS);
    let model = open(
        source,
        &folder.path().join("model"),
        Some(Precision::Fp32),
        runtime,
    )
    .unwrap();
    let Prompted {
        text,
        prompt_name: task,
        embedding,
    } = &golden(AUTHORS).prompts[0];
    let input = folder.path().join("texts.jsonl");
    fs::write(&input, json!({ "text": text }).to_string() + "\n").unwrap();
    for option in ["embedding-task", "prompt"] {
        let parameters = Parameters::of(&[(option.to_owned(), task.clone())].into()).unwrap();
        let out = folder.path().join(format!("{option}.jsonl"));
        finished(Job {
            model: Box::new(model.clone()),
            parameters: Box::new(parameters),
            ..job(&input, &out)
        });
        let line: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        let found: Vec<f32> = serde_json::from_value(line["embedding"].clone()).unwrap();
        assert!(difference(&found, embedding) < TOLERANCE, "{option}");
    }
}

#[tokio::test]
async fn tokens_of_a_task_are_those_of_its_prompt() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [model, other] = [AUTHORS, "tiny-bert"].map(|name| {
        let source = fixtures().join("models").join(name);
        open(
            source,
            &folder.path().join(name),
            Some(Precision::Fp32),
            runtime,
        )
        .unwrap()
    });
    let tokenize = async |body: Value| post(&model, "/tokenize", &body).await;
    for Prompted {
        text,
        prompt_name: task,
        ..
    } in golden(AUTHORS).prompts
    {
        let prompt = pipeline(&model).settings().prompts[&task].clone();
        let (_, expected) = tokenize(json!({ "inputs": format!("{prompt}{text}") })).await;
        for body in [
            json!({ "inputs": text, "task": task }),
            json!({ "inputs": text, "task": task.replace(['.', '-'], "_") }),
            json!({ "inputs": text, "prompt_name": task }),
        ] {
            assert_eq!(
                tokenize(body).await,
                (200, expected.clone()),
                "{task} {text:?}"
            );
        }
        // A request's own prompt, and no prompt.
        let (_, bare) = tokenize(json!({ "inputs": text, "task": task, "prompt": "" })).await;
        let (_, plain) = tokenize(json!({ "inputs": text })).await;
        assert_eq!(bare, plain);
        assert_eq!(bare == expected, prompt.is_empty());
    }
    let refusals = [
        tokenize(json!({ "inputs": "a", "task": "summaries" })).await,
        post(
            &other,
            "/tokenize",
            &json!({ "inputs": "a", "task": "separation" }),
        )
        .await,
    ];
    let refusals =
        refusals.map(|(status, body)| format!("{status} {}", body["error"].as_str().unwrap()));
    insta::assert_snapshot!(refusals.join("\n"), @"
    422 expected a `task` among `retrieval.query`, `retrieval.passage`, `separation`, `classification`, `text-matching`, but found `summaries`
    422 `task` is not supported: the model has no tasks, but found `separation`; its `prompt_name` may be a role, such as `query`
    ");
}

/// A copy of a fixture with one edit in a file, and its refusal.
fn refusal(
    folder: &Path,
    (name, number): (&str, usize),
    file: &str,
    [from, to]: [&str; 2],
) -> String {
    let source = folder.join(number.to_string());
    copy(&fixtures().join("models").join(name), &source);
    edit(&source.join(file), from, to);
    let request = request(
        source,
        folder.join(format!("{number}-built")),
        Some(Precision::Fp32),
    );
    build_request(&request, runtime().unwrap())
        .unwrap_err()
        .chain()
        .to_string()
}

#[test]
fn adapters_that_mean_another_model_are_refused_by_name() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let edits = [
        ["\"separation\",", "\"classification\","],
        ["\"separation\",", ""],
        ["\"lora_rank\": 3", "\"lora_rank\": 4"],
        ["\"separation\": \"\"", "\"other\": \"\""],
        ["\"type_vocab_size\": 1", "\"type_vocab_size\": 2"],
        [
            "\"position_embedding_type\": \"rotary\"",
            "\"position_embedding_type\": \"alibi\"",
        ],
        ["\"truncate_dim\": null", "\"truncate_dim\": 8"],
        ["modeling_lora.XLMRobertaLoRA", "modeling_other.Other"],
    ];
    let refusals: Vec<String> = edits
        .into_iter()
        .enumerate()
        .map(|(number, edit)| refusal(folder.path(), (AUTHORS, number), "config.json", edit))
        .collect();
    let refusals = refusals
        .join("\n")
        .replace(&folder.path().display().to_string(), "[folder]");
    insta::assert_snapshot!(refusals, @r#"
    cannot build from `[folder]/0`: expected from 1 to 100 different tasks in `lora_adaptations`, but found 4 in 5
    cannot build from `[folder]/1`: expected `task_instructions` for tasks in `lora_adaptations`, but found `separation`
    expected adapters of shape [5, 1, 4] and [5, 4, 32] for 5 tasks in `roberta.embeddings.token_type_embeddings`, but found [5, 1, 3] and [5, 3, 32]
    cannot build from `[folder]/3`: expected `task_instructions` for tasks in `lora_adaptations`, but found `other`
    cannot build from `[folder]/4`: expected `type_vocab_size` 1, but found 2
    cannot build from `[folder]/5`: expected `position_embedding_type` `rotary` or `absolute`, but found `alibi`
    `truncate_dim` 8 in `config.json` is not supported; use `--allow truncate_dim` to build the model as if the key were missing, if you know that it has no effect on results
    expected `xlm-roberta` without code of its own in `config.json`, but found `auto_map` {"AutoConfig":"jinaai/xlm-roberta-flash-implementation--configuration_xlm_robert…; use `--allow auto_map` to build the model as if the key were missing, if you know that it has no effect on results
    "#);
}

#[test]
fn adapters_of_peft_in_an_unknown_form_are_refused_by_name() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let edits = [
        ["\"r\": 2", "\"r\": 3"],
        ["\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 4}"],
        [
            "\"alpha_pattern\": {}",
            "\"alpha_pattern\": {\"q_proj\": 4}",
        ],
        ["\"use_dora\": false", "\"use_dora\": true"],
        ["\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\""],
        ["    \"fc1\",\n", ""],
    ];
    let refusals: Vec<String> = edits
        .into_iter()
        .enumerate()
        .map(|(number, edit)| {
            refusal(
                folder.path(),
                ("tiny-jina-v3-hf", number),
                "separation/adapter_config.json",
                edit,
            )
        })
        .collect();
    insta::assert_snapshot!(refusals.join("\n"), @"
    expected an adapter of rank 3, which is `r` in `adapter_config.json`, for `embeddings.token_type_embeddings`, but found the shape [2, 1]
    the adapter has `rank_pattern`, which is not supported
    the adapter has `alpha_pattern`, which is not supported
    the adapter has `use_dora`, which is not supported
    expected an adapter of `peft_type` `LORA`, but found `IA3`
    expected low-rank matrices only for modules that `target_modules` in `adapter_config.json` selects, but found `base_model.model.layers.0.mlp.fc1.lora_A.weight`
    ");
}
