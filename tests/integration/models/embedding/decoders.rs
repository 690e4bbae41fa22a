//! Decoders that embed, rank and classify, compared with sentence-transformers and `transformers`.

use std::{collections::BTreeMap, fs, path::Path};

use kivu::{
    backend::Engine,
    model::{Model, Pipeline},
    pipeline::{
        Task,
        classification::ranking::{RankingOptions, RankingPipeline},
        embedding::similarity::cosine,
    },
    repository::{Bundle, manifest::Precision},
    tokenizer::{Side, Truncation},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    copies::{copy, edit},
    embedding::goldens::{deadline, difference, pipeline, text, tiny},
    models::{
        build_request, fixtures, open_for, options, request, request_without_floor, runtime, serve,
    },
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
    serde_json::from_slice::<Golden>(&fs::read(path).unwrap())
        .unwrap()
        .cases
}

#[tokio::test]
async fn qwen3_with_last_token_pooling_and_an_instruction() {
    tiny("tiny-qwen3").await;
}

#[tokio::test]
async fn gemma3_with_windows_and_dense_modules() {
    tiny("tiny-gemma3").await;
}

#[tokio::test]
async fn llama_with_scaled_positions_and_all_biases() {
    tiny("tiny-llama").await;
}

#[tokio::test]
async fn mistral_with_windows() {
    tiny("tiny-mistral").await;
}

#[tokio::test]
async fn qwen2_with_biases_and_a_window_in_some_layers() {
    tiny("tiny-qwen2").await;
}

#[tokio::test]
async fn gemma2_with_limited_scores() {
    tiny("tiny-gemma2").await;
}

#[tokio::test]
async fn eurobert_without_a_causal_mask() {
    tiny("tiny-eurobert").await;
}

#[tokio::test]
async fn ministral3_with_queries_that_grow() {
    tiny("tiny-ministral3").await;
}

#[tokio::test]
async fn lfm2_with_gated_convolutions() {
    tiny("tiny-lfm2").await;
}

#[tokio::test]
async fn lfm2_with_convolutions_to_both_sides_by_its_known_code() {
    tiny("tiny-lfm2-encoder").await;
}

#[tokio::test]
async fn qwen3_without_a_causal_mask_and_rounded_vectors_by_its_known_code() {
    tiny("tiny-pplx").await;
}

#[tokio::test]
async fn qwen3_with_a_projection_by_its_known_code() {
    tiny("tiny-voyage").await;
}

/// Results for fixtures with changed files.
#[derive(Deserialize)]
struct Families {
    changes: Vec<Change>,
    poolings: Vec<Change>,
}

#[derive(Deserialize)]
struct Change {
    name: String,
    model: String,
    patches: BTreeMap<String, Map<String, Value>>,
    max_length: Option<usize>,
    texts: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    text: String,
    #[serde(alias = "logits")]
    embedding: Vec<f32>,
}

fn families() -> Families {
    serde_json::from_slice(&fs::read(fixtures().join("goldens/decoder_families.json")).unwrap())
        .unwrap()
}

impl Change {
    /// Builds the changed model in `folder`.
    fn build(&self, folder: &Path, precision: Precision) -> Option<Bundle> {
        let [source, out] = ["model", "out"].map(|part| folder.join(part));
        for path in [&source, &out] {
            fs::remove_dir_all(path).ok();
        }
        copy(&fixtures().join("models").join(&self.model), &source);
        for (file, values) in &self.patches {
            let path = source.join(file);
            let mut content: Map<String, Value> =
                fs::read(&path).map_or(Map::new(), |json| serde_json::from_slice(&json).unwrap());
            content.extend(values.clone());
            fs::write(path, Value::Object(content).to_string()).unwrap();
        }
        let task = if self.max_length.is_some() {
            Task::FeatureExtraction
        } else {
            Task::TextClassification
        };
        let request = request_without_floor(task, &source, out, Some(precision));
        Some(build_request(&request, runtime()?).unwrap())
    }
}

/// Rotary scaling below and above the original length, windows by layer, and attention without a causal mask.
#[tokio::test]
async fn changed_decoders_have_the_vectors_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    for change in families().changes {
        let Some(bundle) = change.build(folder.path(), Precision::Fp32) else {
            return;
        };
        let model = serve(&bundle.path("")).unwrap();
        assert_eq!(
            Some(pipeline(&model).settings().max_tokens),
            change.max_length,
            "{}",
            change.name
        );
        for Expected {
            text: asked,
            embedding,
        } in change.texts
        {
            let found = pipeline(&model)
                .embed(text(&asked), &options(), deadline())
                .await
                .unwrap();
            let difference = difference(&found.vectors[0], &embedding);
            if difference > 4e-6 {
                failures.push(format!(
                    "{}, {} letters: off by {difference}",
                    change.name,
                    asked.len()
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The native engine has every scaling, window and limit, too.
#[tokio::test]
async fn changed_decoders_run_in_the_native_engine() {
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    for change in families().changes {
        let Some(bundle) = change.build(folder.path(), Precision::Int8Blocks) else {
            return;
        };
        assert_eq!(bundle.manifest().engine, Engine::Native, "{}", change.name);
        let model = serve(&bundle.path("")).unwrap();
        for Expected {
            text: asked,
            embedding,
        } in change.texts
        {
            let found = pipeline(&model)
                .embed(text(&asked), &options(), deadline())
                .await
                .unwrap();
            let cosine = cosine(&found.vectors[0], &embedding);
            if cosine < 0.99 {
                failures.push(format!(
                    "{}, {} letters: {cosine}",
                    change.name,
                    asked.len()
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test]
async fn eurobert_classifies_with_any_pooling() {
    let folder = tempfile::tempdir().unwrap();
    for change in families().poolings {
        let Some(bundle) = change.build(folder.path(), Precision::Fp32) else {
            return;
        };
        let model = serve(&bundle.path("")).unwrap();
        let Pipeline::Classification(pipeline) = &model.pipeline else {
            panic!("{:?}", model.pipeline)
        };
        for Expected {
            text: asked,
            embedding,
        } in change.texts
        {
            let inputs = text(&asked);
            let found = pipeline
                .logits(inputs, Truncation::Off, deadline())
                .await
                .unwrap();
            let difference = difference(&found.rows[0], &embedding);
            assert!(
                difference <= 3e-5,
                "{}, {asked}: off by {difference}",
                change.name
            );
        }
    }
}

async fn compare_scores(model: &Model) {
    let Pipeline::Ranking(pipeline) = &model.pipeline else {
        panic!("{:?}", model.pipeline)
    };
    let RankingPipeline::CrossEncoder(encoder) = pipeline else {
        panic!("{pipeline:?}")
    };
    let template = encoder.settings().template.as_ref().unwrap();
    let truncation = Truncation::At(Side::Right);
    for case in golden() {
        let body = [
            &template.first,
            &case.query,
            &template.second,
            &case.document,
        ]
        .map(String::as_str)
        .concat();
        let parts = [&template.prefix, &body, &template.suffix].map(String::as_str);
        let tokenizer = encoder.encoder().tokenizer();
        let encoding = tokenizer
            .encode_between(parts, encoder.settings().max_tokens, truncation)
            .unwrap();
        assert_eq!(encoding.ids, case.ids, "{}", case.query);
        for (raw_scores, expected) in [(true, case.logit), (false, case.score)] {
            let options = RankingOptions {
                truncation,
                raw_scores,
            };
            let texts = vec![case.document.clone()];
            let (scores, _) = pipeline
                .score(case.query.clone(), texts, options, deadline())
                .await
                .unwrap();
            assert!(
                (scores[0] - expected).abs() < 3e-5,
                "{}: {} {expected}",
                case.query,
                scores[0]
            );
        }
        let options = RankingOptions {
            truncation: Truncation::Off,
            raw_scores: true,
        };
        let scored = pipeline
            .score(case.query, vec![case.document], options, deadline())
            .await;
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
    fs::write(
        from.join("README.md"),
        "---\npipeline_tag: text-ranking\n---\n",
    )
    .unwrap();
    let request = request(from, folder.path().join("out"), Some(Precision::Fp32));
    assert_eq!(
        build_request(&request, runtime).unwrap().manifest().task,
        Task::TextRanking
    );
    // Other decoders that rank have other texts around a pair.
    edit(
        &request.source.join("config.json"),
        "Qwen3ForCausalLM",
        "GemmaForCausalLM",
    );
    let refusal = build_request(&request, runtime).unwrap_err().chain();
    assert!(
        refusal.contains("a `LogitScore` module, but found `GemmaForCausalLM` alone"),
        "{refusal}"
    );
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
    // A limit that Gemma 2's class has by default.
    let from = folder.path().join("gemma2");
    for source in ["models/tiny-gemma2", "logit-score"] {
        copy(&fixtures().join(source), &from);
    }
    let build = |out: &str| {
        build_request(
            &request(from.clone(), folder.path().join(out), None),
            runtime,
        )
    };
    let limited = build("d").unwrap_err().chain();
    insta::assert_snapshot!(limited, @"`final_logit_softcapping` 30 is not supported in a model that ranks by two tokens' logits");
    edit(
        &from.join("config.json"),
        r#"  "final_logit_softcapping": 30.0,"#,
        "",
    );
    assert_eq!(build("e").unwrap_err().chain(), limited);
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
        let Some(bundle) = quantized(name, folder.path(), precision) else {
            return;
        };
        assert_eq!(bundle.manifest().engine, engine);
        let model = serve(&bundle.path("")).unwrap();
        for case in golden["cases"].as_array().unwrap().iter().take(5) {
            let asked = case["text"].as_str().unwrap();
            let found = pipeline(&model)
                .embed(text(asked), &options(), deadline())
                .await
                .unwrap();
            let expected: Vec<f32> = serde_json::from_value(case["embedding"].clone()).unwrap();
            let cosine = cosine(&found.vectors[0], &expected);
            assert!(cosine > 0.98, "{name}, {precision}: {asked:?}: {cosine}");
        }
    }
}

#[tokio::test]
async fn quantized_decoders_are_close_to_fp32() {
    for name in [
        "tiny-qwen3",
        "tiny-gemma3",
        "tiny-llama",
        "tiny-mistral",
        "tiny-qwen2",
        "tiny-gemma2",
        "tiny-eurobert",
        "tiny-ministral3",
        "tiny-lfm2",
    ] {
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
        error
            .chain()
            .replace(&folder.path().display().to_string(), "[folder]")
    };
    let config = |name: &str, from: &str, to: &str| refusal(name, "config.json", from, to);
    let refusals = [
        config(
            "tiny-qwen3",
            r#""full_attention""#,
            r#""sliding_attention""#,
        ),
        config(
            "tiny-qwen3",
            r#""rope_scaling": null"#,
            r#""rope_scaling": {"rope_type": "ntk", "factor": 4.0}"#,
        ),
        config(
            "tiny-llama",
            r#""low_freq_factor": 1.0"#,
            r#""low_freq_factor": 4.0"#,
        ),
        config(
            "tiny-llama",
            r#""rope_type": "llama3""#,
            r#""rope_type": "longrope", "short_factor": [1.0]"#,
        ),
        config("tiny-llama", r#""factor": 8.0"#, r#""factor": 0.5"#),
        config(
            "tiny-llama",
            r#""rope_type": "llama3""#,
            r#""rope_type": "llama3", "partial_rotary_factor": 0.5"#,
        ),
        config("tiny-llama", r#""head_dim": 16"#, r#""head_dim": 0"#),
        config(
            "tiny-mistral",
            r#""sliding_window": 8"#,
            r#""sliding_window": 0"#,
        ),
        config(
            "tiny-gemma2",
            r#""attn_logit_softcapping": 5.0"#,
            r#""attn_logit_softcapping": 0.0"#,
        ),
        config(
            "tiny-gemma2",
            r#""sliding_window": 8"#,
            r#""use_bidirectional_attention": true"#,
        ),
        config("tiny-eurobert-cls", r#""late""#, r#""last""#),
        config(
            "tiny-qwen3",
            r#""num_key_value_heads": 2"#,
            r#""num_key_value_heads": 3"#,
        ),
        config("tiny-qwen3", r#""head_dim": 16"#, r#""head_dim": 8"#),
        config("tiny-qwen3", r#""vocab_size": 335"#, r#""vocab_size": 336"#),
        config(RANKER, "Qwen3ForCausalLM", "Qwen3ForCausalLM"),
        config(
            "tiny-gemma3",
            r#""attn_logit_softcapping": null"#,
            r#""attn_logit_softcapping": 50.0"#,
        ),
        config(
            "tiny-gemma3",
            r#""sliding_window": 16"#,
            r#""sliding_window": 0"#,
        ),
        config(
            "tiny-gemma3",
            r#""query_pre_attn_scalar": 20"#,
            r#""query_pre_attn_scalar": 0"#,
        ),
        config(
            "tiny-gemma3",
            r#""full_attention""#,
            r#""chunked_attention""#,
        ),
        config(
            "tiny-gemma3",
            r#""num_hidden_layers": 3"#,
            r#""num_hidden_layers": 4"#,
        ),
        config(
            "tiny-ministral3-rank",
            r#""sliding_window": 16"#,
            r#""is_causal": false"#,
        ),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    cannot build from `[folder]/model`: expected `use_sliding_window` true and a `sliding_window` for the `layer_types` `sliding_attention`, but found no window
    cannot build from `[folder]/model`: expected rotary positions without scaling (`default`), `linear`, `dynamic`, `llama3`, `yarn`, `longrope`, `proportional`, but found `ntk`
    cannot build from `[folder]/model`: expected a `low_freq_factor` above 0, and a greater `high_freq_factor`, but found 4 and 4
    cannot build from `[folder]/model`: expected a `short_factor` of 8 numbers above 0 for `longrope` scaling, but found 1
    cannot build from `[folder]/model`: expected a `factor` of at least 1 for `llama3` scaling, but found 0.5
    cannot build from `[folder]/model`: expected rotary positions without `partial_rotary_factor`, but found 0.5
    cannot build from `[folder]/model`: expected `head_dim` from 1 to 2097152, but found 0
    cannot build from `[folder]/model`: expected `sliding_window` from 1 to 2097152, but found 0
    cannot build from `[folder]/model`: expected `attn_logit_softcapping` above 0, but found 0
    expected `use_bidirectional_attention` `false` in `config.json`, but found `use_bidirectional_attention` true; use `--allow use_bidirectional_attention` to build the model as if the key were missing, if you know that it has no effect on results
    cannot build from `[folder]/model`: expected `classifier_pooling` `late`, `mean` or `bos`, but found `last`
    cannot build from `[folder]/model`: expected `num_attention_heads` to be a multiple of `num_key_value_heads`, but found 4 and 3, of 16 values
    expected the weight `layers.0.self_attn.q_proj.weight` of shape [32, 32], but found [64, 32]
    expected the weight `embed_tokens.weight` of shape [336, 32], but found [335, 32]
    expected an embedding model with `modules.json`, or a model that ranks, but found `Qwen3ForCausalLM` without `modules.json`; if it is a ranker with one of these templates, name it as `template` in a recipe: `qwen3-reranker`, `mxbai-rerank-v2`, `bge-reranker-v2-gemma`; a Qwen3-Reranker needs only `--task text-ranking`
    cannot build from `[folder]/model`: expected no `attn_logit_softcapping`, but found 50
    cannot build from `[folder]/model`: expected `sliding_window` of at least 2, but found 0
    cannot build from `[folder]/model`: expected `query_pre_attn_scalar` above 0, but found 0
    cannot build from `[folder]/model`: expected `layer_types` `full_attention` or `sliding_attention`, but found `chunked_attention`
    cannot build from `[folder]/model`: expected `layer_types` of 4 layers, but found 3
    expected a `pad_token_id` other than 330, with which all texts end, in a model that attends to later tokens
    ");
}
