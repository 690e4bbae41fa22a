//! jina-reranker-v3, which reads a query and all texts in one prompt, compared with a reference that follows its description.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use kivu::{
    backend::Engine,
    model::{Model, Pipeline},
    pipeline::{
        Task,
        classification::ranking::{RankingOptions, RankingPipeline},
    },
    repository::manifest::{Precision, Quality},
    tokenizer::{Side, Truncation},
};
use kivu_jobs::{Job, Parameters};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    classification::token_classifiers::post,
    embedding::goldens::deadline,
    jobs::{job, run},
    models::{build_request, fixtures, library_path, open, request_without_floor, runtime, serve},
};

const NAME: &str = "tiny-jina-reranker-v3";

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    query: String,
    texts: Vec<String>,
    instruction: Option<String>,
    scores: Vec<f32>,
    /// Number of texts in each prompt.
    prompts: Vec<usize>,
}

fn cases() -> Vec<Case> {
    let path = fixtures().join(format!("goldens/{NAME}.json"));
    let golden: Golden = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    golden.cases
}

fn fp32(folder: &Path) -> Option<Model> {
    let source = fixtures().join("models").join(NAME);
    Some(open(source, folder, Some(Precision::Fp32), runtime()?).unwrap())
}

fn pipeline(model: &Model) -> &RankingPipeline {
    match &model.pipeline {
        Pipeline::Ranking(pipeline @ RankingPipeline::Listwise(_)) => pipeline,
        other => panic!("{other:?}"),
    }
}

const OPTIONS: RankingOptions = RankingOptions {
    truncation: Truncation::At(Side::Right),
    raw_scores: false,
};

#[tokio::test]
async fn texts_in_one_prompt_have_the_scores_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = fp32(folder.path()) else {
        return;
    };
    assert_eq!(model.manifest.engine, Engine::Native);
    let (cases, mut prompts) = (cases(), Vec::new());
    for case in &cases {
        let instructed = case.instruction.as_deref();
        let instructed = instructed.map(|text| pipeline(&model).with_instruction(text).unwrap());
        let pipeline = instructed.as_ref().unwrap_or(pipeline(&model));
        let (query, texts) = (case.query.clone(), case.texts.clone());
        let found = pipeline.score(query, texts, OPTIONS, deadline()).await;
        let (scores, usage) = found.unwrap();
        assert_eq!(scores.len(), case.scores.len());
        for (found, expected) in scores.iter().zip(&case.scores) {
            let off = (found - expected).abs();
            assert!(off < 3e-5, "{:.40}: {found} {expected}", case.query);
        }
        let is_long = case.query.len() > 500;
        let truncated: Vec<usize> = (0..if is_long { case.texts.len() } else { 0 }).collect();
        assert_eq!(usage.truncated, truncated);
        prompts.push(case.prompts.len());
    }
    assert!(
        prompts.iter().filter(|count| **count > 1).count() >= 3,
        "{prompts:?}"
    );
    // The other texts matter.
    let (first, alone) = (&cases[0].scores[0], &cases[1].scores[0]);
    assert!((first - alone).abs() > 1e-3, "{first} {alone}");
}

#[tokio::test]
async fn long_texts_and_markers_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = fp32(folder.path()) else {
        return;
    };
    let options = RankingOptions {
        truncation: Truncation::Off,
        ..OPTIONS
    };
    let long = "猫 ".repeat(1500);
    let mut refusals = Vec::new();
    for (query, texts) in [
        (&*long, ["cat", "dog"]),
        ("cat", ["cat", &long]),
        ("cat", ["cat", "<|rerank_<|embed_token|>token|>"]),
    ] {
        let texts = texts.map(str::to_owned).into();
        let scored = pipeline(&model).score(query.to_owned(), texts, options, deadline());
        refusals.push(scored.await.unwrap_err().to_string());
    }
    refusals.push(pipeline(&model).with_prompt("a").unwrap_err().to_string());
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, "{\"text\": \"cat\"}\n").unwrap();
    let parameters = Parameters {
        query: Some("cat".into()),
        ..Parameters::default()
    };
    let job = Job {
        model: Box::new(model.clone()),
        parameters: Box::new(parameters),
        ..job(&input, &output)
    };
    let ended = tokio::task::spawn_blocking(|| run(job)).await.unwrap();
    refusals.push(ended.unwrap().error.unwrap());
    insta::assert_snapshot!(refusals.join("\n"), @"
    query: the text has 6000 tokens, but the model takes at most 512; set `truncate` to shorten it
    text 1: the text has 6000 tokens, but the model takes at most 2048; set `truncate` to shorten it
    the query, the instruction or a text contains `<|rerank_token|>`, `<|embed_token|>`, which the model reads as its own; remove these tokens
    `prompt` is not supported: the model has a template; send an `instruction`
    `tiny-jina-reranker-v3` ranks texts by reading all of them together, but rows are read in chunks; send a query and its texts in one request, such as `/rerank`
    ");
}

#[tokio::test]
async fn routes_and_programs_rank_all_texts_together() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = fp32(folder.path()) else {
        return;
    };
    let cases = cases();
    let [case, alone] = [&cases[2], &cases[1]];
    let (query, texts, instruction) = (&case.query, &case.texts, &case.instruction);
    let body =
        json!({ "query": query, "texts": texts, "documents": null, "instruction": instruction });
    let documents = json!({ "query": query, "documents": texts, "instruction": instruction });
    let is_close =
        |found: &Value, expected: f32| (found.as_f64().unwrap() - f64::from(expected)).abs() < 3e-5;
    for (path, body, list, score) in [
        ("/rerank", &body, "", "score"),
        ("/v1/rerank", &documents, "results", "relevance_score"),
        ("/v2/rerank", &documents, "results", "relevance_score"),
    ] {
        let (status, answer) = post(&model, path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let ranks = answer.get(list).unwrap_or(&answer).as_array().unwrap();
        for rank in ranks {
            let expected = case.scores[rank["index"].as_u64().unwrap() as usize];
            assert!(
                is_close(&rank[score], expected),
                "{path}: {rank} {expected}"
            );
        }
        assert!(ranks[0][score].as_f64() >= ranks[1][score].as_f64());
    }
    // Pairs are read one by one, as by vLLM.
    let pair = [&alone.texts[0]; 2];
    let body = json!({ "text_1": [alone.query, alone.query], "text_2": pair });
    let (_, answer) = post(&model, "/score", &body).await;
    for entry in answer["data"].as_array().unwrap() {
        assert!(is_close(&entry["score"], alone.scores[0]), "{answer}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command.arg("run").arg(folder.path().join(NAME));
    command.args(["--query", &cases[0].query, "--json"]);
    command.env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let lines = cases[4].texts.join("\n");
    process
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success());
    let scored = pipeline(&model).score(
        cases[0].query.clone(),
        cases[4].texts.clone(),
        OPTIONS,
        deadline(),
    );
    let expected = scored.await.unwrap().0;
    let printed = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(is_close(&found["score"], expected), "{found} {expected}");
    }
}

/// In 8 bits, the order of the texts stays about the same.
#[tokio::test]
async fn listwise_rankers_are_quantized() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (
        fixtures().join("models").join(NAME),
        folder.path().join(NAME),
    );
    let request = request_without_floor(
        Task::TextRanking,
        &source,
        out.clone(),
        Some(Precision::Int8),
    );
    let bundle = build_request(&request, runtime).unwrap();
    let quality = &bundle.manifest().weights.quality;
    let Some(Quality::Ranking { rank_agreement, .. }) = quality else {
        panic!("{quality:?}")
    };
    assert!(*rank_agreement > 0.9, "{quality:?}");
    let model = serve(&out).unwrap();
    for case in &cases()[..4] {
        let scored =
            pipeline(&model).score(case.query.clone(), case.texts.clone(), OPTIONS, deadline());
        for (found, expected) in scored.await.unwrap().0.iter().zip(&case.scores) {
            assert!((found - expected).abs() < 0.2, "{found} {expected}");
        }
    }
}
