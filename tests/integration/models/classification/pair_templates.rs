//! Rerankers whose template is in their authors' code, compared with it.

use std::{fs, path::Path};

use kivu::{
    backend::Engine,
    model::{Model, Pipeline},
    pipeline::classification::ranking::RankingOptions,
    repository::manifest::Precision,
    tokenizer::{Side, Truncation},
};
use serde::Deserialize;

use crate::{
    copies::{copy, edit},
    embedding::goldens::deadline,
    models::{build_request, fixtures, open, request, runtime, serve},
};

const MXBAI: &str = "tiny-mxbai-rerank-base-v2";
const GEMMA: &str = "tiny-bge-reranker-v2-gemma";
const QWEN3: &str = "tiny-qwen3-reranker-0.6b-seq-cls";

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
    #[serde(default)]
    instruction: String,
    #[serde(default)]
    instructed: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    query: String,
    document: String,
    logit: f32,
}

fn golden(name: &str) -> Golden {
    let path = fixtures().join(format!("goldens/{name}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A copy of a fixture below `folder` with its repository's name.
fn published(fixture: &str, folder: &Path) -> std::path::PathBuf {
    let source = folder.join(fixture.trim_start_matches("tiny-"));
    copy(&fixtures().join("models").join(fixture), &source);
    source
}

/// Compares a model's logits and their sigmoids; its instruction is the request's.
async fn compare(model: &Model, instruction: Option<&str>, cases: &[Case]) {
    let Pipeline::Ranking(pipeline) = &model.pipeline else {
        panic!("{:?}", model.pipeline)
    };
    let pipeline = match instruction {
        Some(instruction) => &pipeline.with_instruction(instruction).unwrap(),
        None => pipeline,
    };
    for case in cases {
        let sigmoid = 1.0 / (1.0 + (-case.logit).exp());
        for (raw_scores, expected) in [(true, case.logit), (false, sigmoid)] {
            let options = RankingOptions {
                truncation: Truncation::At(Side::Right),
                raw_scores,
            };
            let texts = vec![case.document.clone()];
            let (scores, _) = pipeline
                .score(case.query.clone(), texts, options, deadline())
                .await
                .unwrap();
            let off = (scores[0] - expected).abs();
            assert!(off < 3e-5, "{}: {:?}: {off}", model.name, case.query);
        }
    }
}

#[tokio::test]
async fn rankers_have_the_scores_of_their_authors_code() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for fixture in [MXBAI, GEMMA, QWEN3] {
        let source = published(fixture, folder.path());
        let out = folder.path().join("built");
        let model = open(source.clone(), &out, Some(Precision::Fp32), runtime).unwrap();
        let golden = golden(fixture);
        assert!(golden.cases.len() >= 8, "{fixture}");
        compare(&model, None, &golden.cases).await;
        if !golden.instructed.is_empty() {
            compare(&model, Some(&golden.instruction), &golden.instructed).await;
        }
        let out = folder.path().join("quantized");
        let request = request(source, out.clone(), Some(Precision::Int8));
        let bundle = build_request(
            &kivu_compiler::Request {
                is_for_comparison: true,
                ..request
            },
            runtime,
        );
        assert_eq!(bundle.unwrap().manifest().engine, Engine::Native);
    }
}

/// Without truncation, a query that would be cut is refused even if the pair fits.
#[tokio::test]
async fn pairs_beyond_the_limit_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = published(MXBAI, folder.path());
    let out = folder.path().join("built");
    let model = open(source, &out, Some(Precision::Fp32), runtime).unwrap();
    let Pipeline::Ranking(pipeline) = &model.pipeline else {
        panic!("{:?}", model.pipeline)
    };
    let refusal = async |query: &str, document: &str| {
        let options = RankingOptions {
            truncation: Truncation::Off,
            raw_scores: true,
        };
        let texts = vec![document.to_owned()];
        let scored = pipeline
            .score(query.to_owned(), texts, options, deadline())
            .await;
        scored.unwrap_err().to_string()
    };
    let refusals = [
        refusal(&"1".repeat(150), "a").await,
        refusal("a", &"1".repeat(300)).await,
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    the first text of a pair has 155 tokens, but the model takes at most 121; set `truncate` to shorten it
    the pair of texts has 599 tokens, but the model takes at most 448; set `truncate` to shorten it
    ");
}

/// FlagEmbedding's code begins with the tokenizer's first token, unless it is the one for padding.
#[test]
fn tokenizers_with_another_first_token_are_refused() {
    let Some(runtime) = runtime() else { return };
    for (from, to) in [
        ("\"bos_token\": \"<bos>\"", "\"bos_token\": \"<eos>\""),
        ("\"bos_token\": \"<bos>\"", "\"bos_token\": null"),
        ("\"pad_token\": \"<pad>\"", "\"pad_token\": \"<bos>\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = published(GEMMA, folder.path());
        edit(&source.join("tokenizer_config.json"), from, to);
        let request = request(source, folder.path().join("out"), Some(Precision::Fp32));
        let refusal = build_request(&request, runtime).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "expected `<bos>` as `bos_token`, and another `pad_token`, for the template `bge-reranker-v2-gemma`, but found others"
        );
    }
}

/// A label head reads the whole pair as one text, which Kivu tokenizes in parts.
#[test]
fn tokenizers_that_join_the_parts_of_a_template_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = published(QWEN3, folder.path());
    let path = source.join("tokenizer.json");
    let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["normalizer"] = serde_json::json!({"type": "Prepend", "prepend": "x"});
    fs::write(&path, file.to_string()).unwrap();
    let request = request(source, folder.path().join("out"), Some(Precision::Fp32));
    assert_eq!(
        build_request(&request, runtime).unwrap_err().to_string(),
        "expected a tokenizer that splits texts between the parts of the template `qwen3-reranker`, but found another"
    );
}

/// The recipe or the model card says what the folder's name does not.
#[tokio::test]
async fn recipes_and_model_cards_name_a_template() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [mine, converted] = ["mine", "converted"].map(|name| folder.path().join(name));
    copy(&fixtures().join("models").join(MXBAI), &mine);
    copy(&fixtures().join("models").join(QWEN3), &converted);
    let card = "---\nbase_model:\n- Qwen/Qwen3-Reranker-0.6B\npipeline_tag: text-ranking\n---\n";
    fs::write(converted.join("README.md"), card).unwrap();
    let recipe = folder.path().join("mine.toml");
    let text = "name = \"mine\"\ntask = \"text-ranking\"\ntemplate = \"mxbai-rerank-v2\"\n[source]\nfolder = \"mine\"\n";
    fs::write(&recipe, text).unwrap();
    for (source, fixture) in [(&recipe, MXBAI), (&converted, QWEN3)] {
        let out = folder.path().join(fixture);
        let request = request(source.clone(), out.clone(), Some(Precision::Fp32));
        build_request(&request, runtime).unwrap();
        compare(&serve(&out).unwrap(), None, &golden(fixture).cases).await;
    }
    let refusal = |source: &Path| {
        let out = folder.path().join("refused");
        let request = request(source.to_owned(), out, Some(Precision::Fp32));
        build_request(&request, runtime).unwrap_err().to_string()
    };
    let mut refusals = vec![refusal(&mine)];
    fs::write(
        mine.join("README.md"),
        "---\npipeline_tag: text-ranking\n---\n",
    )
    .unwrap();
    refusals.push(refusal(&mine));
    for (from, to) in [
        ("mxbai-rerank-v2", "qwen3-reranker"),
        ("qwen3-reranker", "monot5"),
    ] {
        edit(&recipe, from, to);
        refusals.push(refusal(&recipe));
    }
    edit(&recipe, "monot5", "mxbai-rerank-v2");
    edit(
        &recipe,
        "folder = \"mine\"",
        &format!("folder = {:?}", fixtures().join("models/tiny-bert-rank")),
    );
    refusals.push(refusal(&recipe));
    insta::assert_snapshot!(refusals.join("\n"), @"
    expected an embedding model with `modules.json`, or a model that ranks, but found `Qwen2ForCausalLM` without `modules.json`; if it is a ranker with one of these templates, name it as `template` in a recipe: `qwen3-reranker`, `mxbai-rerank-v2`, `bge-reranker-v2-gemma`; a Qwen3-Reranker needs only `--task text-ranking`
    expected a ranker with a known template, or a CrossEncoder of sentence-transformers with a `LogitScore` module, but found `Qwen2ForCausalLM` alone: its files do not contain the text around a query and a document, nor which tokens are compared; if it was trained with one of these, name it as `template` in a recipe: `qwen3-reranker`, `mxbai-rerank-v2`, `bge-reranker-v2-gemma`
    the template `qwen3-reranker` is for `qwen3`, but the model is `qwen2`
    expected a `template` among `qwen3-reranker`, `mxbai-rerank-v2`, `bge-reranker-v2-gemma`, but found `monot5`
    the template `mxbai-rerank-v2` is for `qwen2`, but the model is `bert`
    ");
}
