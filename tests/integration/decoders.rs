//! Decoders that embed and rank: Qwen3 and Gemma 3, compared with sentence-transformers and `transformers`.

use std::{fs, path::Path};

use kivu::{
    backend::Engine,
    model::{Model, Pipeline},
    pipeline::{
        Task,
        pooling::cosine,
        ranking::{RankingOptions, RankingPipeline},
    },
    repository::{Bundle, manifest::Precision},
    tokenizer::{Side, Truncation},
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    building::{copy, edit},
    goldens::{deadline, options, pipeline, text, tiny},
    models::{build_request, fixtures, open_for, request, request_without_floor, runtime, serve},
};

const RANKER: &str = "tiny-qwen3-rank";

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    query: String,
    document: String,
    ids: Vec<u32>,
    score: f32,
    logit: f32,
}

fn golden() -> Vec<Case> {
    let path = fixtures().join(format!("goldens/{RANKER}.json"));
    serde_json::from_slice::<Golden>(&fs::read(path).unwrap()).unwrap().cases
}

#[tokio::test]
async fn qwen3_with_last_token_pooling_and_an_instruction() {
    tiny("tiny-qwen3").await;
}

#[tokio::test]
async fn gemma3_with_windows_and_dense_modules() {
    tiny("tiny-gemma3").await;
}

async fn compare_scores(model: &Model) {
    let Pipeline::Ranking(pipeline) = &model.pipeline else { panic!("{:?}", model.pipeline) };
    let RankingPipeline::CrossEncoder(encoder) = pipeline else { panic!("{pipeline:?}") };
    let template = encoder.settings().template.as_ref().unwrap();
    let truncation = Truncation::At(Side::Right);
    for case in golden() {
        let body =
            [&template.first, &case.query, &template.second, &case.document].map(String::as_str).concat();
        let parts = [&template.prefix, &body, &template.suffix].map(String::as_str);
        let tokenizer = encoder.encoder().tokenizer();
        let encoding = tokenizer.encode_between(parts, encoder.settings().max_tokens, truncation).unwrap();
        assert_eq!(encoding.ids, case.ids, "{}", case.query);
        for (raw_scores, expected) in [(true, case.logit), (false, case.score)] {
            let options = RankingOptions { truncation, raw_scores };
            let texts = vec![case.document.clone()];
            let (scores, _) = pipeline.score(case.query.clone(), texts, options, deadline()).await.unwrap();
            assert!((scores[0] - expected).abs() < 3e-5, "{}: {} {expected}", case.query, scores[0]);
        }
        let options = RankingOptions { truncation: Truncation::Off, raw_scores: true };
        let scored = pipeline.score(case.query, vec![case.document], options, deadline()).await;
        assert_eq!(scored.is_err(), encoding.truncated_from.is_some());
    }
}

#[tokio::test]
async fn qwen3_ranks_by_the_logits_of_yes_and_no() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::TextRanking, RANKER, folder.path(), runtime).unwrap();
    compare_scores(&model).await;
}

#[test]
fn the_model_card_says_that_a_decoder_ranks() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("model");
    copy(&fixtures().join("models").join(RANKER), &from);
    fs::write(from.join("README.md"), "---\npipeline_tag: text-ranking\n---\n").unwrap();
    let request = request(from, folder.path().join("out"), Some(Precision::Fp32));
    assert_eq!(build_request(&request, runtime).unwrap().manifest().task, Task::TextRanking);
}

/// A CrossEncoder's files name the tokens, so that no task is needed; its template is compared.
#[tokio::test]
async fn qwen3_as_a_cross_encoder_of_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("model");
    copy(&fixtures().join("models").join(RANKER), &from);
    copy(&fixtures().join("logit-score"), &from);
    let build = |out: &str| {
        let request = request(from.clone(), folder.path().join(out), Some(Precision::Fp32));
        build_request(&request, runtime)
    };
    let bundle = build("a").unwrap();
    assert_eq!(bundle.manifest().task, Task::TextRanking);
    compare_scores(&serve(&bundle.path("")).unwrap()).await;

    let template = from.join("chat_template.jinja");
    edit(&template, "<Instruct>: ", "");
    insta::assert_snapshot!(
        build("b").unwrap_err().chain(),
        @"expected the template of Qwen3-Reranker in `chat_template.jinja`, but found one without `<Instruct>: `: templates are not run"
    );
    fs::remove_file(template).unwrap();
    insta::assert_snapshot!(
        build("c").unwrap_err().chain(),
        @"expected the template of Qwen3-Reranker in `chat_template.jinja`, but found no such file: without a template, sentence-transformers puts nothing around a pair"
    );
}

fn quantized(name: &str, folder: &Path, precision: Precision) -> Option<Bundle> {
    let source = fixtures().join("models").join(name);
    let out = folder.join(format!("{name}-{precision}"));
    let request = request_without_floor(Task::FeatureExtraction, &source, out, Some(precision));
    Some(build_request(&request, runtime()?).unwrap())
}

/// Builds a model in both int8 forms, and compares its vectors with fp32.
pub(crate) async fn quantized_is_close_to_fp32(name: &str, engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let golden = fs::read(fixtures().join(format!("goldens/{name}.json"))).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    for precision in [Precision::Int8, Precision::Int8Blocks] {
        let Some(bundle) = quantized(name, folder.path(), precision) else { return };
        assert_eq!(bundle.manifest().engine, engine);
        let model = serve(&bundle.path("")).unwrap();
        for case in golden["cases"].as_array().unwrap().iter().take(5) {
            let asked = case["text"].as_str().unwrap();
            let found = pipeline(&model).embed(text(asked), &options(), deadline()).await.unwrap();
            let expected: Vec<f32> = serde_json::from_value(case["embedding"].clone()).unwrap();
            let cosine = cosine(&found.vectors[0], &expected);
            assert!(cosine > 0.98, "{name}, {precision}: {asked:?}: {cosine}");
        }
    }
}

#[tokio::test]
async fn quantized_decoders_are_close_to_fp32() {
    for name in ["tiny-qwen3", "tiny-gemma3"] {
        quantized_is_close_to_fp32(name, Engine::Native).await;
    }
}

#[test]
fn unusable_decoders_are_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let refusal = |name: &str, file: &str, from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("model");
        copy(&fixtures().join("models").join(name), &source);
        edit(&source.join(file), from, to);
        let request = request(source, folder.path().join("out"), Some(Precision::Fp32));
        let error = build_request(&request, runtime).unwrap_err();
        error.chain().replace(&folder.path().display().to_string(), "[folder]")
    };
    let config = |name: &str, from: &str, to: &str| refusal(name, "config.json", from, to);
    let refusals = [
        config("tiny-qwen3", r#""use_sliding_window": false"#, r#""use_sliding_window": true"#),
        config(
            "tiny-qwen3",
            r#""rope_scaling": null"#,
            r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0}"#,
        ),
        config("tiny-qwen3", r#""num_key_value_heads": 2"#, r#""num_key_value_heads": 3"#),
        config("tiny-qwen3", r#""head_dim": 16"#, r#""head_dim": 8"#),
        config("tiny-qwen3", r#""vocab_size": 335"#, r#""vocab_size": 336"#),
        config(RANKER, "Qwen3ForCausalLM", "Qwen3ForCausalLM"),
        config("tiny-gemma3", r#""attn_logit_softcapping": null"#, r#""attn_logit_softcapping": 50.0"#),
        config("tiny-gemma3", r#""sliding_window": 16"#, r#""sliding_window": 0"#),
        config("tiny-gemma3", r#""query_pre_attn_scalar": 20"#, r#""query_pre_attn_scalar": 0"#),
        config("tiny-gemma3", r#""full_attention""#, r#""chunked_attention""#),
        config("tiny-gemma3", r#""num_hidden_layers": 3"#, r#""num_hidden_layers": 4"#),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    cannot build from `[folder]/model`: expected `use_sliding_window` false, but found true
    cannot build from `[folder]/model`: expected rotary positions without scaling (`default`), but found `yarn`
    cannot build from `[folder]/model`: expected `num_attention_heads` to be a multiple of `num_key_value_heads`, but found 4 and 3, of 16 values
    expected the weight `layers.0.self_attn.q_proj.weight` of shape [32, 32], but found [64, 32]
    expected the weight `embed_tokens.weight` of shape [336, 32], but found [335, 32]
    expected an embedding model with `modules.json`, or a model that ranks, but found `Qwen3ForCausalLM` without `modules.json`; if it is a Qwen3-Reranker, build it with `--task text-ranking`
    cannot build from `[folder]/model`: expected no `attn_logit_softcapping`, but found 50
    cannot build from `[folder]/model`: expected `sliding_window` of at least 2, but found 0
    cannot build from `[folder]/model`: expected `query_pre_attn_scalar` above 0, but found 0
    cannot build from `[folder]/model`: expected `layer_types` `full_attention` or `sliding_attention`, but found `chunked_attention`
    cannot build from `[folder]/model`: expected `layer_types` of 4 layers, but found 3
    ");
}
