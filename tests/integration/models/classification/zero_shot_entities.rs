//! The same entities as the package `gliner`, on tiny models.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kivu::{
    model::Model,
    pipeline::Task,
    repository::manifest::{Precision, Quality},
};
use kivu_compiler::{build, quality::Samples};
use kivu_jobs::Parameters;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    classification::token_classifiers::{are_equal, batch, post},
    models::{
        fixtures, golden_entries, open, open_for, request, request_without_floor, runtime, serve,
    },
};

/// A call to `predict_entities`, and its result.
#[derive(Debug, Deserialize)]
struct Entry {
    inputs: String,
    labels: Vec<String>,
    parameters: Value,
    output: Vec<Value>,
}

async fn compare(name: &str) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::TokenClassification, name, folder.path(), runtime).unwrap();
    compare_with(name, &model).await;
}

async fn compare_with(name: &str, model: &Model) {
    let (mut failures, mut found) = (Vec::new(), 0);
    for Entry {
        inputs,
        labels,
        mut parameters,
        output,
    } in golden_entries(name)
    {
        let expected = output.iter().map(|entity| {
            json!({
                "entity_group": entity["label"], "score": entity["score"], "word": entity["text"],
                "start": entity["start"], "end": entity["end"],
            })
        });
        let expected: Value = expected.collect();
        parameters["labels"] = json!(labels);
        let body = json!({ "inputs": inputs, "parameters": parameters });
        let (status, answer) = post(model, &format!("/models/{}", model.name), &body).await;
        if status != 200 || !are_equal(&answer, &expected) {
            failures.push(format!(
                "{body}:\n  found    {answer}\n  expected {expected}"
            ));
        }
        found += output.len();
    }
    assert!(found >= 100, "{name} has {found} entities");
    assert!(
        failures.is_empty(),
        "{name}, {} calls:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[tokio::test]
async fn with_a_projection() {
    compare("tiny-gliner").await;
}

#[tokio::test]
async fn with_two_recurrent_layers() {
    compare("tiny-gliner-deep").await;
    compare("tiny-gliner-deberta").await;
}

/// Scores of words instead of spans.
#[tokio::test]
async fn with_word_scores() {
    compare("tiny-gliner-words").await;
    compare("tiny-gliner-plain-words").await;
}

/// Labels that a second encoder reads.
#[tokio::test]
async fn with_an_encoder_for_labels() {
    compare("tiny-gliner-bi").await;
    compare("tiny-gliner-bi-words").await;
}

/// A label's vector does not depend on other labels, nor on whether it was computed before.
#[tokio::test]
async fn labels_are_read_once() {
    let Some(runtime) = runtime() else { return };
    for precision in [Precision::Fp32, Precision::Int8, Precision::Int8Blocks] {
        let folder = tempfile::tempdir().unwrap();
        let source = fixtures().join("models/tiny-gliner-bi");
        let out = folder.path().join("built");
        let loose = request_without_floor(
            Task::TokenClassification,
            &source,
            out.clone(),
            Some(precision),
        );
        build(&loose, &|| Ok(runtime), &()).unwrap();
        let ask = async |model: &Model, labels: &[&str]| {
            let parameters =
                json!({ "labels": labels, "threshold": 0.2, "flat": false, "multi_label": true });
            let body = json!({ "inputs": [TEXT, "Ann met Bob"], "parameters": parameters });
            let (status, answer) = post(model, &format!("/models/{}", model.name), &body).await;
            assert_eq!(status, 200, "{answer}");
            answer
        };
        let labels = ["person", "city", "e-mail address"];
        let fresh = ask(&serve(&out).unwrap(), &labels).await;
        let model = serve(&out).unwrap();
        ask(&model, &["city"]).await;
        ask(&model, &["e-mail address", "x", "city"]).await;
        assert_eq!(ask(&model, &labels).await, fresh, "{precision}");
        assert_eq!(ask(&model, &labels).await, fresh, "{precision}");
        assert!(
            fresh[0]
                .as_array()
                .is_some_and(|entities| entities.len() > 2),
            "{fresh}"
        );
    }
}

#[tokio::test]
async fn labels_beyond_the_limits_of_their_encoder() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(
        Task::TokenClassification,
        "tiny-gliner-bi-words",
        folder.path(),
        runtime,
    )
    .unwrap();
    let path = format!("/models/{}", model.name);
    // Labels do not count towards the text's limit. A label above its own limit is truncated, as in the package.
    let long = "unaffordablenesses ".repeat(60);
    let cut = format!("{long} x");
    let (status, answer) = post(
        &model,
        &path,
        &asked(TEXT, &json!({ "candidate_labels": [long.trim()] })),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let (_, same) = post(
        &model,
        &path,
        &asked(TEXT, &json!({ "candidate_labels": [cut] })),
    )
    .await;
    let scores = |answer: &Value| -> Vec<Value> {
        answer
            .as_array()
            .unwrap()
            .iter()
            .map(|entity| entity["score"].clone())
            .collect()
    };
    assert_eq!(scores(&answer), scores(&same));
    let many: Vec<String> = (0..1024).map(|number| format!("label {number}")).collect();
    let (status, answer) = post(
        &model,
        &path,
        &asked(TEXT, &json!({ "candidate_labels": many })),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = post(
        &model,
        &path,
        &asked(TEXT, &json!({ "candidate_labels": [" "] })),
    )
    .await;
    assert_eq!(
        (status, answer["error"].as_str().unwrap()),
        (
            422,
            "expected a label in `labels[0]`, but found an empty one"
        )
    );
}

#[test]
fn models_without_the_files_of_the_label_encoder_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, fixture) = (
        folder.path().join("source"),
        fixtures().join("models/tiny-gliner-bi"),
    );
    fs::create_dir(&source).unwrap();
    for file in [
        "model.safetensors",
        "gliner_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(fixture.join(file), source.join(file)).unwrap();
    }
    let request = request(source, folder.path().join("bundle"), Some(Precision::Fp32));
    let refusal = build(&request, &|| Ok(runtime), &())
        .map(drop)
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(refusal, @"expected the tokenizer and the config of the encoder for labels in `labels_tokenizer`, next to `gliner_config.json`; copy `config.json`, `tokenizer.json` and `tokenizer_config.json` of `BAAI/bge-small-en-v1.5` there, or load the model with the Python package `gliner` and save it again with `save_pretrained`");
}

/// Published models lack the tokenizer and the encoder config, which come from DeBERTa v3.
#[tokio::test]
async fn with_the_files_of_the_encoder() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = without_encoder(folder.path());
    let fixture = fixtures().join("models/tiny-gliner");
    fs::copy(fixture.join("spm.model"), source.join("spm.model")).unwrap();
    fs::write(source.join("config.json"), encoder_config()).unwrap();
    fs::write(
        source.join("tokenizer_config.json"),
        r#"{"model_max_length": 512}"#,
    )
    .unwrap();
    let model = open(
        source,
        &folder.path().join("built"),
        Some(Precision::Fp32),
        runtime,
    )
    .unwrap();
    compare_with("tiny-gliner", &model).await;
}

/// A fixture's encoder config, as in the encoder's repository.
fn encoder_config() -> String {
    let file = fs::read(fixtures().join("models/tiny-gliner/gliner_config.json")).unwrap();
    let mut config: Value =
        serde_json::from_slice::<Value>(&file).unwrap()["encoder_config"].take();
    // Without GLiNER's tokens.
    config["vocab_size"] = 281.into();
    config.to_string()
}

/// A fixture copy without the tokenizer, whose config lacks the encoder and token ids.
fn without_encoder(folder: &Path) -> PathBuf {
    let (source, fixture) = (folder.join("source"), fixtures().join("models/tiny-gliner"));
    fs::create_dir(&source).unwrap();
    fs::copy(
        fixture.join("model.safetensors"),
        source.join("model.safetensors"),
    )
    .unwrap();
    let file = fs::read(fixture.join("gliner_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&file).unwrap();
    for field in ["encoder_config", "class_token_index", "vocab_size"] {
        config.as_object_mut().unwrap().remove(field);
    }
    fs::write(source.join("gliner_config.json"), config.to_string()).unwrap();
    source
}

fn gliner(folder: &Path) -> Option<Model> {
    Some(open_for(Task::TokenClassification, "tiny-gliner", folder, runtime()?).unwrap())
}

const PATH: &str = "/models/token-classification-tiny-gliner";
const TEXT: &str = "My name is Wolfgang and I live in Jose\u{301} Town 👩\u{200d}👧 now";

fn asked(text: &str, parameters: &Value) -> Value {
    let mut body = json!({ "inputs": text, "parameters": { "candidate_labels": "person, city, e-mail address" } });
    for (name, value) in parameters.as_object().unwrap() {
        body["parameters"][name] = value.clone();
    }
    body
}

#[tokio::test]
async fn entities_are_replaced_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = gliner(folder.path()) else {
        return;
    };
    let (status, plain) = post(&model, PATH, &asked(TEXT, &json!({ "threshold": 0.3 }))).await;
    assert_eq!(status, 200, "{plain}");
    // The first model is served at `/`.
    let body = asked(TEXT, &json!({ "threshold": 0.3, "redact": true }));
    let (_, redacted) = post(&model, "/", &body).await;
    assert_eq!(redacted["entities"], plain);
    let labels: Vec<&str> = plain
        .as_array()
        .unwrap()
        .iter()
        .map(|entity| entity["entity_group"].as_str().unwrap())
        .collect();
    let text = redacted["text"].as_str().unwrap();
    let replaced: Vec<&str> = text.split(['[', ']']).skip(1).step_by(2).collect();
    assert!(
        !labels.is_empty() && replaced.iter().all(|label| labels.contains(label)),
        "{text}, {labels:?}"
    );
    // Texts without words have no entities.
    let (_, answer) = post(
        &model,
        PATH,
        &json!({ "inputs": [" ", TEXT], "parameters": body["parameters"] }),
    )
    .await;
    assert_eq!(answer, json!([{ "text": " ", "entities": [] }, redacted]));
}

#[tokio::test]
async fn long_texts_are_read_in_windows() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = gliner(folder.path()) else {
        return;
    };
    let long = format!("{TEXT}. ").repeat(9);
    let (status, answer) = post(&model, PATH, &asked(&long, &json!({ "stride": 4 }))).await;
    assert_eq!(status, 200, "{answer}");
    let places: Vec<[u64; 2]> = answer
        .as_array()
        .unwrap()
        .iter()
        .map(|entity| ["start", "end"].map(|side| entity[side].as_u64().unwrap()))
        .collect();
    let characters: Vec<char> = long.chars().collect();
    for (entity, [start, end]) in answer.as_array().unwrap().iter().zip(&places) {
        let part: String = characters[*start as usize..*end as usize].iter().collect();
        assert_eq!(entity["word"], part);
    }
    assert!(
        places.is_sorted_by(|left, right| left[1] <= right[0]),
        "{places:?}"
    );
    assert!(
        places.last().is_some_and(|[start, _]| *start > 300),
        "{places:?}"
    );
    // A text that fits into the limit is one window.
    let plain = post(&model, PATH, &asked(TEXT, &json!({}))).await;
    assert_eq!(
        post(&model, PATH, &asked(TEXT, &json!({ "stride": 4 }))).await,
        plain
    );
    // Control characters have no tokens.
    let control = asked(&format!("{TEXT}\u{1}"), &json!({}));
    let (status, refusal) = post(&model, PATH, &control).await;
    assert_eq!(status, 422, "{refusal}");
    insta::assert_snapshot!(refusal["error"].as_str().unwrap(), @"the character at 52 has no tokens, as some control characters, so that entities would be misplaced; replace it by a space");
    // Only a text's last words.
    let left = json!({ "truncate": true, "truncation_direction": "left" });
    let (status, answer) = post(&model, PATH, &asked(&long, &left)).await;
    assert_eq!(status, 200, "{answer}");
    assert!(
        answer[0]["start"].as_u64().is_none_or(|start| start > 200),
        "{answer}"
    );
}

#[tokio::test]
async fn parameters_that_cannot_be_met_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = gliner(folder.path()) else {
        return;
    };
    let long = "a b ".repeat(30);
    let many: Vec<String> = (0..150).map(|number| format!("label {number}")).collect();
    let cases = [
        json!({ "inputs": "a" }),
        json!({ "inputs": "a", "parameters": {} }),
        asked("", &json!({})),
        asked("a", &json!({ "candidate_labels": [] })),
        asked("a", &json!({ "candidate_labels": "x, x" })),
        asked("a", &json!({ "candidate_labels": ["a <<ENT>> b"] })),
        asked("a", &json!({ "candidate_labels": many })),
        asked("a", &json!({ "threshold": 1.5 })),
        asked("a", &json!({ "stride": 40 })),
        asked(&long, &json!({ "truncate": false })),
        asked(&long, &json!({ "truncate": true, "redact": true })),
        asked(&long.repeat(800), &json!({ "stride": 39 })),
        asked(
            &"unaffordablenesses".repeat(60),
            &json!({ "truncate": false }),
        ),
    ];
    let mut refusals = String::new();
    for body in cases {
        let (status, answer) = post(&model, PATH, &body).await;
        refusals += &format!(
            "{status} {}\n",
            answer["error"].as_str().unwrap_or("no error")
        );
    }
    insta::assert_snapshot!(refusals, @r"
    422 expected the field `parameters.candidate_labels`, but found none
    422 expected the field `parameters.candidate_labels`, but found none
    422 expected a text in `inputs`, but found an empty one
    422 expected 1 to 1024 `labels`, but found 0
    422 expected each label once, but found `labels[1]` twice
    422 the label `a <<ENT>> b` contains `<<ENT>>`, which the model reads as its own; rename it
    413 the labels have 1232 tokens, but the model takes at most 512, text tokens included; send fewer or shorter labels
    422 expected a `threshold` from 0 to 1, but found 1.5
    422 expected a `stride` below 40, the words of a window, but found 40
    413 expected a text of at most 40 words and 486 tokens, without the labels' tokens, but found a longer one; set `stride` to read it in windows
    413 expected a text of at most 40 words and 486 tokens, without the labels' tokens, but found a longer one; set `stride` to read it in windows
    413 expected at most 1024 windows of 40 words and 486 tokens that share 39 words, but found more; send fewer or shorter texts, or a smaller `stride`
    413 a word of the text has 780 tokens, but the model takes at most 486 tokens, without the labels' tokens
    ");
}

#[tokio::test]
async fn kserve_takes_texts_and_labels() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = gliner(folder.path()) else {
        return;
    };
    let tensor = |name: &str, texts: &[&str]| json!({ "name": name, "datatype": "BYTES", "shape": [texts.len()], "data": texts });
    let inputs = json!([
        tensor("TEXT", &[TEXT, "x"]),
        tensor("LABELS", &["person", "city"])
    ]);
    let parameters = json!({ "threshold": 0.2, "flat_ner": false });
    let (status, answer) = post(
        &model,
        &format!("/v2{PATH}/infer"),
        &json!({ "inputs": inputs, "parameters": parameters }),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let output = &answer["outputs"][0];
    assert_eq!(
        (&output["name"], &output["shape"]),
        (&json!("entities"), &json!([2, 1]))
    );
    let parameters = json!({ "labels": ["person", "city"], "threshold": 0.2, "flat": false });
    let (_, hub) = post(
        &model,
        PATH,
        &json!({ "inputs": TEXT, "parameters": parameters }),
    )
    .await;
    let found: Value = serde_json::from_str(output["data"][0].as_str().unwrap()).unwrap();
    assert_eq!(found, hub);
}

#[tokio::test]
async fn batch_jobs_need_labels_and_write_entities() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = gliner(folder.path()) else {
        return;
    };
    let options = |options: &[(&str, &str)]| {
        let options = options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Parameters::of(&options.collect()).unwrap()
    };
    let labels = ("labels", "person, city");
    let asked = options(&[
        labels,
        ("threshold", "0.2"),
        ("flat", "false"),
        ("redact", "true"),
    ]);
    let found = batch(
        &model,
        "rows.jsonl",
        &json!({ "text": TEXT }).to_string(),
        &asked,
    )
    .await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let parameters =
        json!({ "labels": ["person", "city"], "threshold": 0.2, "flat": false, "redact": true });
    let (_, hub) = post(
        &model,
        PATH,
        &json!({ "inputs": TEXT, "parameters": parameters }),
    )
    .await;
    assert_eq!(
        (&found["redacted"], &found["entities"]),
        (&hub["text"], &hub["entities"])
    );
}

/// `truncate` has the same effect over HTTP, over KServe and in jobs.
#[tokio::test]
async fn long_texts_are_truncated_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = gliner(folder.path()) else {
        return;
    };
    let long = format!("{TEXT}. ").repeat(9);
    let hub = async |truncate: Value| {
        let parameters = json!({ "candidate_labels": ["person", "city"], "threshold": 0.2, "truncate": truncate });
        post(
            &model,
            PATH,
            &json!({ "inputs": long, "parameters": parameters }),
        )
        .await
    };
    let tensor = |name: &str, texts: &[&str]| json!({ "name": name, "datatype": "BYTES", "shape": [texts.len()], "data": texts });
    let kserve = async |truncate: Value| {
        let inputs = json!([
            tensor("TEXT", &[long.as_str()]),
            tensor("LABELS", &["person", "city"])
        ]);
        let parameters = json!({ "threshold": 0.2, "truncate": truncate });
        let body = json!({ "inputs": inputs, "parameters": parameters });
        post(&model, &format!("/v2{PATH}/infer"), &body).await
    };
    let job = async |truncate: Option<bool>| -> Value {
        let options = [("labels", "person,city"), ("threshold", "0.2")];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let parameters = Parameters {
            truncate,
            ..Parameters::of(&options.into()).unwrap()
        };
        let rows = json!({ "text": long }).to_string();
        serde_json::from_str(&batch(&model, "rows.jsonl", &rows, &parameters).await).unwrap()
    };
    let (status, found) = hub(json!(null)).await;
    assert_eq!(status, 200, "{found}");
    assert_eq!(hub(json!(true)).await, (status, found.clone()));
    let (status, answer) = kserve(json!(null)).await;
    assert_eq!(status, 200, "{answer}");
    let entities: Value =
        serde_json::from_str(answer["outputs"][0]["data"][0].as_str().unwrap()).unwrap();
    assert_eq!(entities, found);
    assert_eq!(job(None).await["entities"], found);
    // With `truncate` false, all refuse.
    let refusal = "expected a text of at most 40 words";
    let (status, answer) = hub(json!(false)).await;
    assert!(
        status == 413 && answer["error"].as_str().unwrap().starts_with(refusal),
        "{answer}"
    );
    let (status, answer) = kserve(json!(false)).await;
    assert!(
        status == 413 && answer["error"].as_str().unwrap().starts_with(refusal),
        "{answer}"
    );
    let row = job(Some(false)).await;
    assert!(row["error"].as_str().unwrap().starts_with(refusal), "{row}");
}

#[test]
fn the_quality_of_int8_is_measured_by_entities() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-gliner");
    let out = folder.path().join("built");
    let mut loose = request_without_floor(
        Task::TokenClassification,
        &source,
        out,
        Some(Precision::Int8),
    );
    loose.samples = Samples::default();
    let built = build(&loose, &|| Ok(runtime), &()).unwrap();
    let quality = built.bundle.manifest().weights.quality;
    let Some(Quality::ZeroShotEntities {
        texts,
        spans,
        agreement,
        mean_difference,
        worst_difference,
    }) = quality
    else {
        panic!("{quality:?}")
    };
    assert_eq!(texts, 300);
    assert!(
        spans > 10_000 && (0.5..1.0).contains(&agreement),
        "{quality:?}"
    );
    assert!(
        mean_difference > 0.0 && worst_difference > mean_difference && worst_difference < 1.0,
        "{quality:?}"
    );
    let strict = request(source, folder.path().join("strict"), Some(Precision::Int8));
    let refusal = build(&strict, &|| Ok(runtime), &())
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        refusal.starts_with("expected an entity agreement with fp32 of at least 0.9900"),
        "{refusal}"
    );
}

#[test]
fn models_without_the_files_of_the_encoder_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let request = request(
        without_encoder(folder.path()),
        folder.path().join("bundle"),
        Some(Precision::Fp32),
    );
    let refusal = build(&request, &|| Ok(runtime), &())
        .map(drop)
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(refusal, @"expected the tokenizer and the config of the encoder next to `gliner_config.json`; copy `config.json` and `tokenizer.json` or `spm.model` of `microsoft/deberta-v3-small` there, or load the model with the Python package `gliner` and save it again with `save_pretrained`");
}
