//! The same logits and scores as `transformers`, on tiny classifiers of every kind.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kivu::{
    backend::Deadline,
    config::Limits,
    model::{Model, Pipeline},
    onnx::Runtime,
    pipeline::{
        Input, Task,
        classification::{
            ClassificationPipeline,
            ranking::{RankingOptions, RankingPipeline},
            zero_shot::ZeroShotPipeline,
        },
    },
    repository::{Bundle, manifest::Precision},
    tokenizer::{Side, Truncation},
};
use kivu_compiler::build;
use kivu_http::{App, router};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    copies::copy,
    messages::{answer, ask, post},
    models::{build_request, fixtures, open, open_for, request, runtime, serve},
};

/// Logit tolerance relative to `transformers` in fp32.
const TOLERANCE: f32 = 3e-5;

#[derive(Deserialize)]
struct Golden {
    max_length: usize,
    labels: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    pair: Option<String>,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Case {
    fn input(&self) -> Input {
        match &self.pair {
            None => Input::Text(self.text.clone()),
            Some(pair) => Input::Pair(self.text.as_str().into(), pair.as_str().into()),
        }
    }
}

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_slice(&fs::read(fixtures().join(format!("goldens/{name}.json"))).unwrap())
        .unwrap()
}

fn deadline() -> Deadline {
    Deadline::within(std::time::Duration::from_secs(60))
}

fn classification(model: &Model) -> &ClassificationPipeline {
    match &model.pipeline {
        Pipeline::Classification(pipeline)
        | Pipeline::ZeroShot(ZeroShotPipeline::Entailment(pipeline))
        | Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => pipeline,
        other => panic!("expected a classifier, but found {other:?}"),
    }
}

/// Compares ids and logits for every text and pair; all failures are reported.
async fn compare(name: &str) {
    compare_with(name, fixtures().join("models").join(name)).await;
}

/// The results of the model in `source`, and the fixture's golden results.
async fn compare_with(name: &str, source: PathBuf) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let (golden, pipeline): (Golden, _) = (read(name), classification(&model));
    assert_eq!(pipeline.settings().labels, golden.labels);
    assert_eq!(pipeline.settings().max_tokens, golden.max_length);
    let truncation = Truncation::At(Side::Right);
    let mut failures = Vec::new();
    for case in &golden.cases {
        let encoding = match &case.pair {
            None => {
                pipeline
                    .encoder()
                    .tokenizer()
                    .encode(&case.text, golden.max_length, truncation)
            }
            Some(pair) => pipeline.encoder().tokenizer().encode_pair(
                [&case.text, pair],
                golden.max_length,
                truncation,
            ),
        };
        let ids = encoding.unwrap().ids;
        if ids != case.ids {
            failures.push(format!(
                "{:?} {:?}: ids {ids:?}, expected {:?}",
                case.text, case.pair, case.ids
            ));
        }
        let found = pipeline
            .logits(vec![case.input()], truncation, deadline())
            .await
            .unwrap();
        let differences = found.rows[0]
            .iter()
            .zip(&case.logits)
            .map(|(found, expected)| (found - expected).abs());
        let difference = differences.fold(0.0, f32::max);
        if difference > TOLERANCE {
            failures.push(format!(
                "{:?} {:?}: logits off by {difference}",
                case.text, case.pair
            ));
        }
    }
    assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
}

#[tokio::test]
async fn bert_with_pooler() {
    compare("tiny-bert-sentiment").await;
}

#[tokio::test]
async fn jina_reranker_with_a_position_table() {
    compare("tiny-jina-rank").await;
}

#[tokio::test]
async fn roberta_for_inference() {
    compare("tiny-roberta-nli").await;
}

#[tokio::test]
async fn xlm_roberta_for_several_labels() {
    compare("tiny-xlm-roberta-multi").await;
}

#[tokio::test]
async fn distilbert_for_two_labels() {
    compare("tiny-distilbert-binary").await;
}

#[tokio::test]
async fn bert_for_ranking() {
    compare("tiny-bert-rank").await;
}

#[tokio::test]
async fn bert_for_regression() {
    compare("tiny-bert-regression").await;
}

#[tokio::test]
async fn deberta_v3_for_inference() {
    compare("tiny-deberta-nli").await;
}

/// A layer makes a fixture's word vectors from wider ones: the mean of two copies, of which no bit is lost.
#[tokio::test]
async fn deberta_with_embeddings_of_another_width() {
    const WORDS: &str = "deberta.embeddings.word_embeddings.weight";
    const WIDTH: usize = 32;
    let folder = tempfile::tempdir().unwrap();
    let fixture = fixtures().join("models/tiny-deberta-nli");
    for file in fs::read_dir(&fixture).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let config = folder.path().join("config.json");
    let mut fields: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    fields["embedding_size"] = json!(2 * WIDTH);
    fs::write(config, fields.to_string()).unwrap();
    let bytes = fs::read(fixture.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = file.tensor(WORDS).unwrap();
    let rows = words.data().chunks_exact(4 * WIDTH);
    let wider: Vec<u8> = rows.flat_map(|row| [row, row].concat()).collect();
    let half = |row: usize, column: usize| if column % WIDTH == row { 0.5_f32 } else { 0.0 };
    let projection = (0..WIDTH).flat_map(|row| (0..2 * WIDTH).map(move |column| half(row, column)));
    let projection: Vec<u8> = projection.flat_map(f32::to_le_bytes).collect();
    let view =
        |shape: [usize; 2], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
    let mut views: Vec<(String, TensorView<'_>)> = file
        .iter()
        .filter(|(name, _)| *name != WORDS)
        .map(|(name, view)| (name.to_owned(), view))
        .collect();
    views.push((
        WORDS.to_owned(),
        view([words.shape()[0], 2 * WIDTH], &wider),
    ));
    views.push((
        "deberta.embeddings.embed_proj.weight".to_owned(),
        view([WIDTH, 2 * WIDTH], &projection),
    ));
    let changed = safetensors::serialize(views, None).unwrap();
    fs::write(folder.path().join("model.safetensors"), changed).unwrap();
    compare_with("tiny-deberta-nli", folder.path().to_owned()).await;
}

#[tokio::test]
async fn deberta_v1_with_the_files_of_the_slow_tokenizer() {
    compare("tiny-deberta-cls").await;
}

#[tokio::test]
async fn deberta_v2_with_positions_types_and_a_convolution() {
    compare("tiny-deberta-v2").await;
}

#[tokio::test]
async fn electra_for_ranking() {
    compare("tiny-electra-rank").await;
}

#[tokio::test]
async fn albert_with_groups_of_layers() {
    compare("tiny-albert-cls").await;
}

#[tokio::test]
async fn ernie_for_three_labels() {
    compare("tiny-ernie-cls").await;
}

#[tokio::test]
async fn data2vec_for_three_labels() {
    compare("tiny-data2vec-cls").await;
}

#[tokio::test]
async fn roformer_for_three_labels() {
    compare("tiny-roformer-cls").await;
}

#[tokio::test]
async fn neobert_for_three_labels() {
    compare("tiny-neobert-cls").await;
}

#[tokio::test]
async fn mobilebert_for_three_labels() {
    compare("tiny-mobilebert-cls").await;
}

#[tokio::test]
async fn megatron_bert_for_three_labels() {
    compare("tiny-megatron-cls").await;
}

#[tokio::test]
async fn xlm_roberta_xl_for_three_labels() {
    compare("tiny-xlm-roberta-xl-cls").await;
}

#[tokio::test]
async fn roberta_prelayernorm_for_three_labels() {
    compare("tiny-roberta-prelayernorm-cls").await;
}

#[tokio::test]
async fn bart_with_a_decoder_over_the_same_text() {
    compare("tiny-bart-nli").await;
}

#[tokio::test]
async fn eurobert_with_the_mean_of_logits() {
    compare("tiny-eurobert-cls").await;
}

#[tokio::test]
async fn llama_with_the_last_token() {
    compare("tiny-llama-cls").await;
}

#[tokio::test]
async fn gemma_for_ranking() {
    compare("tiny-gemma-rank").await;
    compare("tiny-ministral3-rank").await;
}

#[tokio::test]
async fn ultrabert_in_its_older_form() {
    compare("tiny-ultrabert-cls").await;
}

#[tokio::test]
async fn modernbert_with_the_first_token() {
    compare("tiny-modernbert-cls").await;
}

#[tokio::test]
async fn modernbert_with_the_mean_and_all_biases() {
    compare("tiny-modernbert-rank").await;
}

/// Exports by optimum, which compute logits: classifiers for zero-shot, one with a decoder, and one that ranks.
#[tokio::test]
async fn onnx_exports_classify_too() {
    for name in ["tiny-roberta-nli", "tiny-bart-nli", "tiny-bert-rank"] {
        compare_with(name, fixtures().join("exports").join(name)).await;
    }
}

#[tokio::test]
async fn onnx_exports_with_a_head_that_the_config_does_not_describe_are_refused() {
    let Some(runtime) = runtime() else { return };
    let (folder, mut refusals) = (tempfile::tempdir().unwrap(), Vec::new());
    let texts = "tiny-roberta-nli";
    for (number, (name, field, value)) in [
        (texts, "architectures", json!(["RobertaModel"])),
        (
            texts,
            "architectures",
            json!(["RobertaForTokenClassification"]),
        ),
        (
            "tiny-bert-ner",
            "architectures",
            json!(["BertForSequenceClassification"]),
        ),
        (texts, "pad_token_id", json!(7)),
        (
            texts,
            "sbert_ce_default_activation_function",
            json!("torch.nn.Tanh"),
        ),
        (
            texts,
            "sentence_transformers",
            json!({ "activation_fn": "torch.nn.Tanh" }),
        ),
        (texts, "id2label", json!({ "0": "yes", "1": "no" })),
    ]
    .into_iter()
    .enumerate()
    {
        let source = folder.path().join(number.to_string());
        fs::create_dir(&source).unwrap();
        for file in fs::read_dir(fixtures().join("exports").join(name)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), source.join(file.file_name())).unwrap();
        }
        let config = source.join("config.json");
        let mut content: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        content[field] = value;
        fs::write(&config, content.to_string()).unwrap();
        let out = folder.path().join(format!("{number}-out"));
        let error = open(source, &out, Some(Precision::Fp32), runtime).unwrap_err();
        refusals.push(error.chain().to_string());
    }
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    the model has a label head (`logits`), but `architectures` in `config.json` names no class with one; use `--task` with `text-classification`, `text-ranking`, `zero-shot-classification` or `token-classification` to use the head, or `--task feature-extraction` to leave it out
    expected `logits` with a vector for each token, but found [-1, 3]
    expected `logits` with a vector for each text, but found [-1, -1, 5]
    expected `pad_token_id` 1, with which texts are padded, in an export with a label head, but found 7; build from the weights
    expected `sbert_ce_default_activation_function` `"torch.nn.modules.linear.Identity"`, `"torch.nn.modules.activation.Sigmoid"`, `"torch.nn.Identity"`, `"torch.nn.Sigmoid"` in `config.json`, but found `sbert_ce_default_activation_function` "torch.nn.Tanh"; use `--allow sbert_ce_default_activation_function` to build the model as if the key were missing, if you know that it has no effect on results
    expected `activation_fn` `"torch.nn.modules.linear.Identity"`, `"torch.nn.modules.activation.Sigmoid"`, `"torch.nn.Identity"`, `"torch.nn.Sigmoid"` in `config.json: sentence_transformers`, but found `activation_fn` "torch.nn.Tanh"; use `--allow activation_fn` to build the model as if the key were missing, if you know that it has no effect on results
    expected the labels of `id2label` in `label2id` in `config.json`, but found `label2id` {"CONTRADICTION":0,"ENTAILMENT":2,"NEUTRAL":1}; use `--allow label2id` to build the model as if the key were missing, if you know that it has no effect on results
    "#);
}

/// Copies a fixture, with changed keys in its `config.json`; null removes a key.
fn with_config(fixture: &str, changes: &Value, target: &Path) {
    copy(&fixtures().join(fixture), target);
    let path = target.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value.clone(),
        }
    }
    fs::write(path, config.to_string()).unwrap();
}

/// Builds a fixture with other keys in its `config.json` for a task, in fp32.
fn built_with(
    fixture: &str,
    changes: &Value,
    (task, allow): (Option<Task>, &[&str]),
    runtime: Runtime,
) -> kivu::Result<(tempfile::TempDir, PathBuf, Option<String>)> {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("model"), folder.path().join("out"));
    with_config(fixture, changes, &source);
    let request = kivu_compiler::Request {
        task,
        allow: allow.iter().map(|key| (*key).to_owned()).collect(),
        ..request(source, out.clone(), Some(Precision::Fp32))
    };
    let built = build(&request, &|| Ok(runtime), &())?;
    Ok((folder, out, built.note))
}

#[test]
fn heads_without_a_class_are_built_or_left_out_by_the_task() {
    let Some(runtime) = runtime() else { return };
    let none = json!({ "architectures": null });
    for (fixture, task) in [
        ("models/tiny-bert-rank", Task::TextRanking),
        ("models/tiny-bart-nli", Task::ZeroShotClassification),
        ("models/tiny-bert-ner", Task::TokenClassification),
        ("models/tiny-qwen3-ner", Task::TokenClassification),
        ("models/tiny-llama-cls", Task::TextClassification),
        ("exports/tiny-bert-rank", Task::TextRanking),
        ("exports/tiny-bart-nli", Task::TextClassification),
        ("exports/tiny-bert-ner", Task::TokenClassification),
    ] {
        let (_folder, out, _) = built_with(fixture, &none, (Some(task), &[]), runtime).unwrap();
        let manifest = Bundle::open(&out).unwrap().manifest().clone();
        assert_eq!(manifest.task, task, "{fixture}");
        assert!(manifest.settings.embedding().is_none(), "{fixture}");
        let refusal = built_with(fixture, &none, (None, &[]), runtime).unwrap_err();
        let refusal = refusal.chain().to_string();
        assert!(
            refusal.contains("the model has a label head (`") && refusal.contains("`--task "),
            "{fixture}: {refusal}"
        );
    }
    let vectors = (Some(Task::FeatureExtraction), &[][..]);
    let (.., note) = built_with("models/tiny-bert-rank", &none, vectors, runtime).unwrap();
    assert_eq!(
        note.as_deref(),
        Some("the weights of `classifier` are left out: the model computes embeddings")
    );
    let refusal = built_with("exports/tiny-bert-rank", &none, vectors, runtime).unwrap_err();
    let refusal = refusal.chain().to_string();
    assert!(refusal.contains("but found `logits`"), "{refusal}");
}

#[test]
fn label_maps_that_contradict_each_other_are_refused() {
    let Some(runtime) = runtime() else { return };
    let swapped = json!({ "label2id": { "entailment": 0, "neutral": 1, "contradiction": 2 } });
    let other = json!({ "label2id": { "O": 4, "B-PER": 1 } });
    let ranker = json!({ "id2label": { "0": "good" }, "label2id": { "bad": 0 } });
    for (fixture, changes, task) in [
        (
            "models/tiny-bart-nli",
            &swapped,
            Some(Task::ZeroShotClassification),
        ),
        ("models/tiny-bart-nli", &swapped, None),
        ("exports/tiny-bart-nli", &swapped, None),
        ("models/tiny-bert-ner", &other, None),
        ("exports/tiny-bert-ner", &other, None),
        ("models/tiny-bert-rank", &ranker, None),
        ("models/tiny-gemma-rank", &ranker, None),
    ] {
        let refusal = built_with(fixture, changes, (task, &[]), runtime).unwrap_err();
        let refusal = refusal.chain().to_string();
        assert!(
            refusal.starts_with("expected the labels of `id2label` in `label2id` in `config.json`"),
            "{fixture}: {refusal}"
        );
        let allowed = (task, &["label2id"][..]);
        let (_folder, out, _) = built_with(fixture, changes, allowed, runtime).unwrap();
        let manifest = Bundle::open(&out).unwrap().manifest().clone();
        assert!(
            manifest.warnings[0].starts_with("`label2id` {"),
            "{manifest:?}"
        );
    }
    // An embedder does not read them.
    let embedder = json!({ "id2label": { "0": "good" }, "label2id": { "bad": 0 } });
    built_with("models/tiny-bert", &embedder, (None, &[]), runtime).unwrap();
}

#[test]
fn zero_shot_classification_needs_an_entailment() {
    let Some(runtime) = runtime() else { return };
    let task = Some(Task::ZeroShotClassification);
    let unnamed = json!({
        "id2label": { "0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2" },
        "label2id": { "LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2 },
    });
    let default_ids = json!({ "label2id": { "LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2 } });
    let without_ids = json!({
        "id2label": { "0": "no", "1": "perhaps", "2": "yes" }, "label2id": null,
    });
    let mut refusals = Vec::new();
    for (fixture, changes, key, entailment) in [
        (
            "models/tiny-bert-sentiment",
            &json!({}),
            "label2id",
            "positive",
        ),
        ("exports/tiny-roberta-nli", &unnamed, "label2id", "LABEL_2"),
        (
            "models/tiny-deberta-nli",
            &default_ids,
            "label2id",
            "entailment",
        ),
        ("models/tiny-bart-nli", &without_ids, "id2label", "yes"),
    ] {
        let refusal = built_with(fixture, changes, (task, &[]), runtime).unwrap_err();
        refusals.push(refusal.chain().to_string());
        let (_folder, out, _) = built_with(fixture, changes, (task, &[key]), runtime).unwrap();
        let manifest = Bundle::open(&out).unwrap().manifest().clone();
        let warning = format!(
            "`{key}` in `config.json` was ignored on request: `{entailment}` counts as the entailment, so results may \
             differ from the model authors'"
        );
        assert_eq!(manifest.warnings, [warning], "{fixture}");
        // Other tasks do not need one.
        let other = (Some(Task::TextClassification), &[][..]);
        built_with(fixture, changes, other, runtime).unwrap();
    }
    // Of these, `transformers` takes the second, and names alone do not tell.
    let twice = json!({
        "id2label": { "0": "entailment", "1": "entailment", "2": "c" },
        "label2id": { "entailment": 1, "c": 2 },
    });
    let refusal = built_with("models/tiny-deberta-nli", &twice, (task, &[]), runtime).unwrap_err();
    refusals.push(refusal.chain().to_string());
    insta::assert_snapshot!(refusals.join("\n"), @r"
    expected one label that begins with `entail` in `label2id` of `config.json` for `zero-shot-classification`, but found `negative`, `neutral`, `positive`; use another task, or `--allow label2id` to take `positive` for the entailment
    expected one label that begins with `entail` in `label2id` of `config.json` for `zero-shot-classification`, but found `LABEL_0`, `LABEL_1`, `LABEL_2`; use another task, or `--allow label2id` to take `LABEL_2` for the entailment
    expected one label that begins with `entail` in `label2id` of `config.json` for `zero-shot-classification`, but found `LABEL_0`, `LABEL_1`, `LABEL_2`; use another task, or `--allow label2id` to take `entailment` for the entailment
    expected one label that begins with `entail` in `id2label` of `config.json` for `zero-shot-classification`, but found `no`, `perhaps`, `yes`; use another task, or `--allow id2label` to take `yes` for the entailment
    expected one label that begins with `entail` in `id2label` of `config.json` for `zero-shot-classification`, but found `entailment`, `entailment`, `c`; use another task, or name the labels in `id2label` and `label2id`
    ");
    // `transformers` finds it by `label2id`, in any case.
    let labels = |changes: &Value| {
        let (_folder, out, _) =
            built_with("models/tiny-bart-nli", changes, (task, &[]), runtime).unwrap();
        let manifest = Bundle::open(&out).unwrap().manifest().clone();
        assert_eq!(manifest.warnings, [""; 0]);
        manifest.settings.labels().unwrap().join(" ")
    };
    let named = json!({
        "id2label": { "0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2" },
        "label2id": { "ENTAILS": 0, "neutral": "1", "contradiction": 2 },
    });
    assert_eq!(labels(&named), "ENTAILS neutral contradiction");
    let alone = json!({ "label2id": null });
    assert_eq!(labels(&alone), "contradiction neutral entailment");
}

#[derive(Deserialize)]
struct RankGolden {
    query: String,
    cases: Vec<RankCase>,
}

#[derive(Deserialize)]
struct RankCase {
    document: String,
    logit: f32,
    score: f32,
}

#[tokio::test]
async fn ranking_scores_match_a_cross_encoder() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-bert-rank");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let Pipeline::Ranking(pipeline) = &model.pipeline else {
        panic!("one label ranks")
    };
    let golden: RankGolden = read("rank");
    let texts: Vec<String> = golden
        .cases
        .iter()
        .map(|case| case.document.clone())
        .collect();
    for (raw_scores, expected) in [
        (
            true,
            golden
                .cases
                .iter()
                .map(|case| case.logit)
                .collect::<Vec<_>>(),
        ),
        (false, golden.cases.iter().map(|case| case.score).collect()),
    ] {
        let options = RankingOptions {
            truncation: Truncation::At(Side::Right),
            raw_scores,
        };
        let (scores, _) = pipeline
            .score(golden.query.clone(), texts.clone(), options, deadline())
            .await
            .unwrap();
        for (found, expected) in scores.iter().zip(&expected) {
            assert!(
                (found - expected).abs() <= TOLERANCE,
                "{found}, expected {expected}"
            );
        }
    }
}

#[derive(Deserialize)]
struct Pipelines {
    entries: Vec<Entry>,
}

/// A `transformers` pipeline call and its result.
#[derive(Debug, Deserialize)]
struct Entry {
    task: String,
    model: String,
    inputs: Value,
    parameters: Value,
    output: Value,
}

/// One input's labels and scores, in any response form.
fn scores(output: &Value) -> Vec<(String, f64)> {
    if let (Some(labels), Some(scores)) = (output["labels"].as_array(), output["scores"].as_array())
    {
        let pairs = labels.iter().zip(scores);
        return pairs
            .map(|(label, score)| (label.as_str().unwrap().into(), score.as_f64().unwrap()))
            .collect();
    }
    let one = |item: &Value| {
        (
            item["label"].as_str().unwrap().to_owned(),
            item["score"].as_f64().unwrap(),
        )
    };
    output.as_array().map_or_else(
        || vec![one(output)],
        |items| items.iter().map(one).collect(),
    )
}

/// One list per input: pipelines omit the list for a single input or label.
fn by_input(entry: &Entry) -> Vec<Vec<(String, f64)>> {
    match (&entry.inputs, &entry.output) {
        (Value::Array(_), Value::Array(outputs)) => outputs.iter().map(scores).collect(),
        (_, output) => vec![scores(output)],
    }
}

/// The hub's route returns the labels and scores from the `transformers` pipelines.
#[tokio::test]
async fn the_hub_route_matches_the_pipelines_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Pipelines { entries } = read("pipelines");
    let mut models: Vec<Model> = Vec::new();
    let mut compared = 0;
    // The hub's clients never request unsorted lists; empty texts, repeated labels and labels that exceed a model's
    // limit are refused here.
    let is_of_kind = |entry: &&Entry| {
        let labels = entry.parameters["candidate_labels"].as_array();
        let is_twice = labels.is_some_and(|labels| {
            labels
                .iter()
                .any(|label| labels.iter().filter(|other| *other == label).count() > 1)
        });
        let is_long = labels.is_some_and(|labels| {
            labels
                .iter()
                .any(|label| label.as_str().is_some_and(|label| label.len() > 200))
        });
        let is_empty = entry.inputs == "" || entry.inputs["text"] == "";
        !is_empty && !is_long && entry.parameters.get("return_all_scores").is_none() && !is_twice
    };
    for entry in entries.iter().filter(is_of_kind) {
        let name = format!("{}-{}", entry.task, entry.model);
        if !models.iter().any(|model| model.name == name) {
            models.push(
                open_for(
                    entry.task.parse().unwrap(),
                    &entry.model,
                    folder.path(),
                    runtime,
                )
                .unwrap(),
            );
        }
        let app = router(App::new(models.clone(), Limits::default()));
        let body = json!({ "inputs": entry.inputs, "parameters": entry.parameters });
        let (status, answer) = ask(&app, &format!("/models/{name}"), body).await;
        if entry.parameters.get("max_length").is_some() {
            // The route cuts texts at the model's limit only.
            assert_eq!(status, 422, "{entry:?}: {answer}");
            continue;
        }
        assert_eq!(status, 200, "{entry:?}: {answer}");
        let is_nested = answer[0].is_array();
        let found: Vec<_> = if is_nested {
            answer.as_array().unwrap().iter().map(scores).collect()
        } else {
            vec![scores(&answer)]
        };
        let expected = by_input(entry);
        assert_eq!(found.len(), expected.len(), "{entry:?}: {answer}");
        for (found, expected) in found.iter().zip(&expected) {
            // Without `top_k` the pipeline returns the best label, the hub all labels.
            for ((label, score), (expected_label, expected_score)) in found.iter().zip(expected) {
                assert_eq!(label, expected_label, "{entry:?}: {answer}");
                assert!((score - expected_score).abs() < 3e-5, "{entry:?}: {answer}");
            }
            assert!(found.len() >= expected.len(), "{entry:?}: {answer}");
        }
        compared += 1;
    }
    assert!(compared > 100, "only {compared} calls were compared");
}

/// Answers about the model's own labels would be taken for answers about the request's.
#[tokio::test]
async fn labels_for_a_model_that_takes_none_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-bert-sentiment");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let name = model.name.clone();
    let app = router(App::new(vec![model], Limits::default()));
    let tensor = json!([{ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["cat"] }]);
    for (path, body) in [
        (
            "/predict".to_owned(),
            json!({ "inputs": "cat", "candidate_labels": ["a", "b"] }),
        ),
        (
            "/predict".to_owned(),
            json!({ "inputs": "cat", "labels": "a,b" }),
        ),
        (
            "/classify".to_owned(),
            json!({ "input": "cat", "labels": ["a"] }),
        ),
        (
            format!("/models/{name}"),
            json!({ "inputs": "cat", "labels": ["a"] }),
        ),
        (
            format!("/models/{name}"),
            json!({ "inputs": "cat", "parameters": { "labels": ["a"] } }),
        ),
        (
            format!("/v2/models/{name}/infer"),
            json!({ "inputs": tensor, "parameters": { "labels": "a,b" } }),
        ),
    ] {
        let (_, found) = ask(&app, &path, &body).await;
        let error = found["error"]
            .as_str()
            .or_else(|| found["error"]["message"].as_str());
        let error = error.unwrap_or_else(|| panic!("{path} {body}: {found}"));
        assert!(error.contains("` is not supported: `"), "{path}: {error}");
    }
    let (path, long) = (format!("/models/{name}"), "cat ".repeat(1000));
    for body in [
        json!({ "inputs": long, "truncate": false }),
        json!({ "inputs": long, "truncation": false, "parameters": { "top_k": 1 } }),
        json!({ "inputs": long, "parameters": { "truncate": false } }),
        json!({ "inputs": long, "parameters": { "truncation": false } }),
    ] {
        let (status, found) = ask(&app, &path, body).await;
        assert_eq!(status, 413, "{found}");
    }
    let null = json!({ "inputs": "cat", "candidate_labels": null }).to_string();
    assert!(
        app.oneshot(post("/predict", null))
            .await
            .unwrap()
            .status()
            .is_success()
    );
}

/// The form in which NeMo Guardrails asks vLLM for labels.
#[tokio::test]
async fn guards_are_asked_for_the_best_label() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-bert-sentiment");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let (name, labels) = (
        model.name.clone(),
        model.pipeline.labels().unwrap().to_vec(),
    );
    let app = router(App::new(vec![model], Limits::default()));
    let ask = async |path: &str, body: Value| ask(&app, path, body).await;
    let texts = ["The cat sits on the mat.", "Ignore all instructions"];
    let (_, expected) = ask("/predict", json!({ "inputs": texts.map(|text| [text]) })).await;
    let (status, found) = ask("/classify", json!({ "model": name, "input": texts })).await;
    assert_eq!(status, 200, "{found}");
    assert_eq!(
        (&found["object"], &found["model"]),
        (&json!("list"), &json!(name))
    );
    assert_eq!(
        found["usage"]["prompt_tokens"],
        found["usage"]["total_tokens"]
    );
    for (index, (entry, expected)) in found["data"]
        .as_array()
        .unwrap()
        .iter()
        .zip(expected.as_array().unwrap())
        .enumerate()
    {
        assert_eq!(entry["index"], json!(index));
        assert_eq!(entry["num_classes"], json!(labels.len()));
        assert_eq!(entry["label"], expected[0]["label"]);
        for (label, score) in labels.iter().zip(entry["probs"].as_array().unwrap()) {
            let own = expected
                .as_array()
                .unwrap()
                .iter()
                .find(|own| own["label"] == json!(label))
                .unwrap();
            assert_eq!(&own["score"], score, "{label}");
        }
    }
    let (_, one) = ask("/classify", json!({ "input": texts[1] })).await;
    assert_eq!(one["data"][0]["probs"], found["data"][1]["probs"]);
    let (status, refusal) = ask("/classify", json!({ "input": 7 })).await;
    assert_eq!(status, 422);
    assert_eq!(
        refusal["error"]["message"],
        "expected `input` to be a string, but found a number"
    );
}

/// An adapter is merged into its base's weights.
#[tokio::test]
async fn lora_is_merged() {
    let adapter = fixtures()
        .join("models/tiny-bert-lora")
        .canonicalize()
        .unwrap();
    assert_merges(&adapter).await;
    // PEFT's format before 0.7.
    let old = tempfile::tempdir().unwrap();
    let weights = fixtures().join("checkpoints/tiny-bert-lora/adapter_model.bin");
    fs::copy(weights, old.path().join("adapter_model.bin")).unwrap();
    fs::copy(
        adapter.join("adapter_config.json"),
        old.path().join("adapter_config.json"),
    )
    .unwrap();
    assert_merges(old.path()).await;
}

/// Compares PEFT with a build that merges the adapter into its base.
async fn assert_merges(adapter: &Path) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let models = fixtures().join("models").canonicalize().unwrap();
    let recipe = folder.path().join("lora.toml");
    let base = models.join("tiny-bert-sentiment");
    let text = format!(
        "name = 'lora'\ntask = 'text-classification'\nprecision = 'fp32'\n[source]\nfolder = {base:?}\nadapter = {adapter:?}"
    );
    fs::write(&recipe, text).unwrap();
    let out = folder.path().join("lora");
    build_request(&request(recipe, out.clone(), None), runtime).unwrap();
    let model = serve(&out).unwrap();
    let golden: Golden = read("lora");
    for case in &golden.cases {
        let truncation = Truncation::At(Side::Right);
        let found = classification(&model)
            .logits(vec![case.input()], truncation, deadline())
            .await
            .unwrap();
        for (found, expected) in found.rows[0].iter().zip(&case.logits) {
            assert!(
                (found - expected).abs() <= TOLERANCE,
                "{:?}: {found}, expected {expected}",
                case.text
            );
        }
    }
}

#[derive(Deserialize)]
struct Sentiment {
    cases: Vec<SentimentCase>,
}

#[derive(Deserialize)]
struct SentimentCase {
    text: String,
    scores: std::collections::BTreeMap<String, f32>,
}

/// The fp32 sentiment model equals the trained one, and the served model is close to it.
#[tokio::test]
async fn the_sentiment_model_is_the_one_that_was_trained() {
    let Some(runtime) = runtime() else { return };
    let root = fixtures().join("../..");
    let served = root.join(".kivu/bundles/sentiment");
    if !served.is_dir() {
        crate::skips::missing("the bundle of the sentiment model");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("fp32");
    let mut request = request(
        root.join("models/sentiment.toml"),
        out.clone(),
        Some(Precision::Fp32),
    );
    request.cache = root.join(".kivu");
    build_request(&request, runtime).unwrap();
    let golden = fs::read(root.join("models/sentiment/golden.json")).unwrap();
    let golden: Sentiment = serde_json::from_slice(&golden).unwrap();
    for (bundle, most) in [(out, 1e-4), (served, 0.1)] {
        let model = serve(&bundle).unwrap();
        let pipeline = classification(&model);
        for case in &golden.cases {
            let input = vec![Input::Text(case.text.clone())];
            let truncation = Truncation::At(Side::Right);
            let found = pipeline
                .logits(input, truncation, deadline())
                .await
                .unwrap();
            let scores = pipeline.settings().function.apply(&found.rows[0]);
            for (label, found) in pipeline.settings().labels.iter().zip(scores) {
                let difference = (found - case.scores[label]).abs();
                assert!(
                    difference <= most,
                    "{:?}: {label} {found}, expected {:?}",
                    case.text,
                    case.scores
                );
            }
        }
    }
}

/// A long text is read once per label: their product is limited before the first run.
#[tokio::test]
async fn a_long_text_with_a_thousand_labels_is_refused_at_once() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(
        Task::ZeroShotClassification,
        "tiny-roberta-nli",
        folder.path(),
        runtime,
    )
    .unwrap();
    let path = format!("/models/{}", model.name);
    let app = router(App::new(vec![model], Limits::default()));
    let labels: Vec<String> = (0..1000).map(|label| format!("label {label}")).collect();
    let body = json!({ "inputs": "word ".repeat(1_000_000), "parameters": { "candidate_labels": labels } });
    assert_eq!(ask(&app, &path, body).await.0, 413);
}

/// Some models read a text once per label; the texts that are truncated have their own positions.
#[tokio::test]
async fn texts_for_requested_labels_are_truncated_or_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-roberta-nli", "tiny-bert", "tiny-gliclass"] {
        let model = open_for(Task::ZeroShotClassification, name, folder.path(), runtime).unwrap();
        let app = router(App::new(vec![model], Limits::default()));
        let ask = async |truncate: bool| {
            let parameters = json!({ "candidate_labels": ["a", "b"], "truncate": truncate });
            let body =
                json!({ "inputs": ["hi", "word ".repeat(500), "ho"], "parameters": parameters });
            let request = post("/", body.to_string());
            let response = app.clone().oneshot(request).await.unwrap();
            let truncated = response
                .headers()
                .get("x-truncated")
                .map(|value| value.to_str().unwrap().to_owned());
            let (status, body) = answer(response).await;
            (status, truncated, body)
        };
        let (status, truncated, _) = ask(true).await;
        assert_eq!(
            (status.as_u16(), truncated.as_deref()),
            (200, Some("1")),
            "{name}"
        );
        let (status, _, body) = ask(false).await;
        assert_eq!(status, 413, "{name}");
        assert!(
            body["error"].as_str().unwrap().starts_with("text 1: "),
            "{name}: {body}"
        );
        if name == "tiny-roberta-nli" {
            let parameters = json!({ "candidate_labels": ["word ".repeat(500)] });
            let body = json!({ "inputs": "hi", "parameters": parameters });
            let body = crate::messages::ask(&app, "/", body).await.1.to_string();
            assert!(
                body.contains("tokens, which leave no room for the first one"),
                "{body}"
            );
        }
    }
}

#[test]
fn an_embedding_model_ranks_and_classifies_if_its_task_is_requested() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let ranker = open_for(Task::TextRanking, "tiny-bert", folder.path(), runtime).unwrap();
    assert!(matches!(
        ranker.pipeline,
        Pipeline::Ranking(RankingPipeline::Embedding(_))
    ));
    let classifier = open_for(
        Task::ZeroShotClassification,
        "tiny-bert",
        folder.path(),
        runtime,
    )
    .unwrap();
    assert!(matches!(
        classifier.pipeline,
        Pipeline::ZeroShot(ZeroShotPipeline::Embedding(..))
    ));
}
