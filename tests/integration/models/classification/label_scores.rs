//! The same scores as the package `gliclass`, on tiny models.

use std::{fs, path::Path, time::Duration};

use kivu::{
    backend::{Deadline, Engine},
    model::{Model, Pipeline},
    pipeline::{
        Task,
        classification::{label_scores::LabelScoresPipeline, zero_shot::ZeroShotPipeline},
    },
    repository::{
        Bundle,
        manifest::{Precision, Quality},
    },
    tokenizer::{Side, Truncation},
};
use kivu_compiler::build;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    classification::token_classifiers::{are_equal, post},
    models::{
        build_request, fixtures, golden_entries, open_for, request, request_without_floor, runtime,
        serve,
    },
};

const TOLERANCE: f32 = 3e-5;

/// A text and labels, the ids of both together, and the package's results.
#[derive(Debug, Deserialize)]
struct Entry {
    inputs: String,
    labels: Vec<String>,
    prompt: String,
    ids: Vec<u32>,
    logits: Vec<f32>,
    single_label: Vec<f32>,
    multi_label: Vec<f32>,
}

fn pipeline(model: &Model) -> &LabelScoresPipeline {
    match &model.pipeline {
        Pipeline::ZeroShot(ZeroShotPipeline::Labels(pipeline)) => pipeline,
        other => panic!("expected a model that reads labels, but found {other:?}"),
    }
}

async fn logits(model: &Model, text: &str, labels: &[String], prompt: &str) -> Vec<f32> {
    let deadline = Deadline::within(Duration::from_secs(60));
    pipeline(model)
        .logits(
            &[text.to_owned()],
            labels,
            prompt,
            Truncation::At(Side::Right),
            deadline,
        )
        .await
        .unwrap()
        .rows
        .remove(0)
}

/// Labels and scores as the server returns them.
fn ranked(labels: &[String], scores: &[f32]) -> Value {
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]));
    order
        .into_iter()
        .map(|label| json!({ "label": labels[label], "score": scores[label] }))
        .collect()
}

fn asked(text: &str, parameters: &Value) -> Value {
    json!({ "inputs": text, "parameters": parameters })
}

/// Compares ids, logits and responses; all failures are reported.
async fn compare(name: &str) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::ZeroShotClassification, name, folder.path(), runtime).unwrap();
    let path = format!("/models/{}", model.name);
    let (own, mut failures) = (pipeline(&model), Vec::new());
    for entry in golden_entries::<Entry>(name) {
        let Entry {
            inputs,
            labels,
            prompt,
            ids,
            logits: expected,
            single_label,
            multi_label,
        } = &entry;
        let tokenizer = own.encoder().tokenizer();
        let found = own
            .settings()
            .encode(tokenizer, inputs, labels, own.settings().max_tokens)
            .unwrap();
        if prompt.is_empty() && &found.ids != ids {
            failures.push(format!("{inputs:?}: ids {:?}, expected {ids:?}", found.ids));
        }
        let found = logits(&model, inputs, labels, prompt).await;
        let differences = found
            .iter()
            .zip(expected)
            .map(|(found, expected)| (found - expected).abs());
        let difference = differences.fold(0.0, f32::max);
        if found.len() != expected.len() || difference > TOLERANCE {
            failures.push(format!(
                "{inputs:?} {labels:?}: logits {found:?}, expected {expected:?}"
            ));
        }
        for (is_multi, scores) in [(false, single_label), (true, multi_label)] {
            // The package gives a single label the score 1.
            let scores = if labels.len() == 1 {
                multi_label
            } else {
                scores
            };
            let body = asked(
                inputs,
                &json!({ "candidate_labels": labels, "multi_label": is_multi, "prompt": prompt }),
            );
            let (status, answer) = post(&model, &path, &body).await;
            if status != 200 || !are_equal(&answer, &ranked(labels, scores)) {
                failures.push(format!(
                    "{body}: {answer}, expected {}",
                    ranked(labels, scores)
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
}

#[tokio::test]
async fn deberta_with_the_published_settings() {
    compare("tiny-gliclass").await;
}

#[tokio::test]
async fn modernbert_with_cosines_of_means() {
    compare("tiny-gliclass-mean").await;
}

#[tokio::test]
async fn sums_of_tokens() {
    compare("tiny-gliclass-sum").await;
}

#[tokio::test]
async fn the_last_token() {
    compare("tiny-gliclass-last").await;
}

#[tokio::test]
async fn labels_behind_the_text_and_weighted_products() {
    compare("tiny-gliclass-weighted").await;
}

#[tokio::test]
async fn texts_from_the_separator_on_and_layers() {
    compare("tiny-gliclass-mlp").await;
}

/// The native engine runs quantized models; clear decisions remain.
#[tokio::test]
async fn quantized_models_choose_the_same_labels() {
    let Some(runtime) = runtime() else { return };
    for name in [
        "tiny-gliclass",
        "tiny-gliclass-mean",
        "tiny-gliclass-weighted",
        "tiny-gliclass-mlp",
    ] {
        for precision in [Precision::Int8, Precision::Int8Blocks] {
            let folder = tempfile::tempdir().unwrap();
            let (source, out) = (
                fixtures().join("models").join(name),
                folder.path().join("built"),
            );
            let task = Task::ZeroShotClassification;
            let loose = request_without_floor(task, &source, out.clone(), Some(precision));
            let bundle = build(&loose, &|| Ok(runtime), &()).unwrap().bundle;
            assert_eq!(bundle.manifest().engine, Engine::Native, "{name}");
            let Some(Quality::Classification { texts, .. }) = bundle.manifest().weights.quality
            else {
                panic!("expected the quality of label scores");
            };
            assert_eq!(texts, 20);
            let model = serve(&out).unwrap();
            let (mut clear, mut kept) = (0, 0);
            for Entry {
                inputs,
                labels,
                prompt,
                logits: expected,
                ..
            } in golden_entries(name)
            {
                let found = logits(&model, &inputs, &labels, &prompt).await;
                for (found, expected) in found
                    .iter()
                    .zip(&expected)
                    .filter(|(_, logit)| logit.abs() > 1.0)
                {
                    clear += 1;
                    kept += usize::from((*found > 0.0) == (*expected > 0.0));
                }
            }
            let share = kept as f32 / clear as f32;
            assert!(
                share >= 0.95,
                "{name} in {precision}: {kept} of {clear} decisions"
            );
        }
    }
}

#[tokio::test]
async fn a_text_does_not_depend_on_others() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(
        Task::ZeroShotClassification,
        "tiny-gliclass",
        folder.path(),
        runtime,
    )
    .unwrap();
    let path = format!("/models/{}", model.name);
    let parameters = json!({ "candidate_labels": ["travel", "sport"], "multi_label": true });
    let (status, together) = post(
        &model,
        &path,
        &json!({ "inputs": ["a b c", "x"], "parameters": parameters }),
    )
    .await;
    assert_eq!(status, 200, "{together}");
    for (index, text) in ["a b c", "x"].into_iter().enumerate() {
        let (_, alone) = post(&model, &path, &asked(text, &parameters)).await;
        assert!(are_equal(&together[index], &alone), "{together} {alone}");
    }
}

/// The default template is for sentences.
#[tokio::test]
async fn a_template_replaces_the_label() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(
        Task::ZeroShotClassification,
        "tiny-gliclass",
        folder.path(),
        runtime,
    )
    .unwrap();
    let path = format!("/models/{}", model.name);
    let ask = async |parameters: Value| post(&model, &path, &asked("a train", &parameters)).await.1;
    let filled = ask(json!({ "candidate_labels": ["about travel", "about sport"] })).await;
    let template =
        ask(json!({ "candidate_labels": ["travel", "sport"], "hypothesis_template": "about {}" }))
            .await;
    for (filled, template) in filled
        .as_array()
        .unwrap()
        .iter()
        .zip(template.as_array().unwrap())
    {
        assert_eq!(filled["score"], template["score"]);
        assert_eq!(
            filled["label"],
            json!(format!("about {}", template["label"].as_str().unwrap()))
        );
    }
}

#[tokio::test]
async fn inputs_that_the_model_cannot_read_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let open =
        |name: &str| open_for(Task::ZeroShotClassification, name, folder.path(), runtime).unwrap();
    let (first, last) = (open("tiny-gliclass"), open("tiny-gliclass-weighted"));
    let ask = async |model: &Model, text: &str, labels: &[String]| {
        let body = asked(text, &json!({ "candidate_labels": labels }));
        let (status, answer) = post(model, &format!("/models/{}", model.name), &body).await;
        format!("{status} {}", answer["error"].as_str().unwrap_or_default())
    };
    let labels = |labels: &[&str]| {
        labels
            .iter()
            .map(|label| (*label).to_owned())
            .collect::<Vec<_>>()
    };
    let (two, marked) = (
        labels(&["travel", "sport"]),
        labels(&["travel", "a <<LABEL>> b"]),
    );
    let many: Vec<String> = (0..300)
        .map(|number| format!("label number {number}"))
        .collect();
    let long = "word ".repeat(500);
    let refusals = [
        ask(&first, "a <<LABEL>> b", &two).await,
        ask(&first, "a text", &marked).await,
        ask(&first, "a text", &many).await,
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    422 the text or the prompt contains `<<LABEL>>`, which the model reads as its own; remove it
    422 the label `a <<LABEL>> b` contains `<<LABEL>>` or `<<SEP>>`, which the model reads as its own; rename it
    413 the labels take all 256 tokens that the model reads, and leave none for the text; send fewer or shorter labels
    ");
    for refusal in [
        ask(&last, &long, &two).await,
        ask(&last, "a text", &many).await,
    ] {
        let expected =
            "413 expected at most 256 tokens of a text and the labels behind it, but found ";
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    assert_eq!(ask(&first, &long, &two).await, "200 ");
}

#[test]
fn other_files_are_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let refusal = |name: &str, change: &dyn Fn(&Path)| {
        let folder = scratch.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        for file in fs::read_dir(fixtures().join("models/tiny-gliclass")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        change(&folder);
        let out = scratch.path().join(format!("{name}-built"));
        let built: kivu::Result<Bundle> =
            build_request(&request(folder, out, Some(Precision::Fp32)), runtime);
        built.unwrap_err().chain().to_string()
    };
    let set = |folder: &Path, field: &str, value: Value| {
        let path = folder.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[field] = value;
        fs::write(path, config.to_string()).unwrap();
    };
    for (name, field, value, expected) in [
        ("key", "new_option", json!(true), "`new_option` true"),
        (
            "token",
            "class_token_index",
            json!(7),
            "expected the token 7 for `<<LABEL>>`, the `class_token_index`",
        ),
        (
            "scorer",
            "scorer_type",
            json!("cross-attn"),
            "is not supported; supported: `simple`,",
        ),
        (
            "weights",
            "scorer_type",
            json!("weighted-dot"),
            "expected the weight `model.scorer.proj_text.weight`",
        ),
        (
            "kind",
            "architecture_type",
            json!("encoder-decoder"),
            "expected `architecture_type` \"uni-encoder\"",
        ),
    ] {
        let found = refusal(name, &|folder| set(folder, field, value.clone()));
        assert!(found.contains(expected), "{name}: {found}");
    }
    let source = fixtures().join("models/tiny-gliclass");
    let mut other = request(source, scratch.path().join("other"), Some(Precision::Fp32));
    other.task = Some(Task::TextClassification);
    let refusal = build_request(&other, runtime).unwrap_err().to_string();
    let expected = "expected a model for `text-classification`, but found one that scores the labels in requests";
    assert!(refusal.contains(expected), "{refusal}");
}
