//! The same entities as the `token-classification` pipeline in `transformers`, on a tiny model from every family.

use std::{collections::BTreeSet, fs, path::Path};

use kivu::{
    backend::Engine,
    config::Limits,
    model::Model,
    pipeline::Task,
    repository::{
        Manifest,
        manifest::{Precision, Quality},
    },
    tokenizer::word_bounds,
};
use kivu_compiler::{Request, build};
use kivu_http::{App, router};
use kivu_jobs::{Job, JobInput, JobOutput, Parameters};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    messages::ask,
    models::{build_request, fixtures, open, open_for, request, runtime, serve},
};

/// Score tolerance relative to `transformers` in fp32.
const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    entries: Vec<Entry>,
}

/// A call to the `transformers` pipeline, and its result.
#[derive(Debug, Deserialize)]
struct Entry {
    inputs: Value,
    parameters: Value,
    output: Value,
}

pub(crate) async fn post(model: &Model, path: &str, body: &Value) -> (u16, Value) {
    post_text(model, path, body.to_string()).await
}

/// Like [`post`], with the body as a text.
pub(crate) async fn post_text(model: &Model, path: &str, body: String) -> (u16, Value) {
    let app = router(App::new(vec![model.clone()], Limits::default()));
    let (status, answer) = ask(&app, path, body).await;
    (status.as_u16(), answer)
}

/// Whether two outputs are equal except for the score tolerance.
pub(crate) fn are_equal(found: &Value, expected: &Value) -> bool {
    are_close(found, expected, TOLERANCE)
}

fn are_close(found: &Value, expected: &Value, tolerance: f64) -> bool {
    match (found, expected) {
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found
                    .iter()
                    .zip(expected)
                    .all(|(found, expected)| are_close(found, expected, tolerance))
        }
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && expected
                    .iter()
                    .all(|(name, expected)| match (name.as_str(), &found[name]) {
                        ("score", found) => {
                            (found.as_f64().unwrap() - expected.as_f64().unwrap()).abs()
                                <= tolerance
                        }
                        (_, found) => found == expected,
                    })
        }
        (found, expected) => found == expected,
    }
}

/// Compares a model's outputs with the golden file `name`; all failures are reported.
async fn compare_with(name: &str, model: &Model) {
    let path = format!("/models/{}", model.name);
    let golden = fs::read(fixtures().join(format!("goldens/{name}.json"))).unwrap();
    let Golden { entries } = serde_json::from_slice(&golden).unwrap();
    let mut failures = Vec::new();
    for Entry {
        inputs,
        parameters,
        output,
    } in &entries
    {
        let mut sent = parameters.clone();
        // Defaults in the `transformers` pipeline, which differ from the model hub's.
        sent["truncate"] = true.into();
        sent["aggregation_strategy"] = parameters
            .get("aggregation_strategy")
            .cloned()
            .unwrap_or_else(|| "none".into());
        let (status, answer) = post(
            model,
            &path,
            &json!({ "inputs": inputs, "parameters": sent }),
        )
        .await;
        if status != 200 || !are_equal(&answer, output) {
            failures.push(format!(
                "{inputs} {sent}:\n  found    {answer}\n  expected {output}"
            ));
        }
    }
    assert!(entries.len() >= 14, "{name} has {} calls", entries.len());
    assert!(
        failures.is_empty(),
        "{name}, {} calls:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

async fn compare(name: &str) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::TokenClassification, name, folder.path(), runtime).unwrap();
    compare_with(name, &model).await;
}

#[tokio::test]
async fn bert_with_bio_labels() {
    compare("tiny-bert-ner").await;
}

#[tokio::test]
async fn distilbert_with_labels_of_no_scheme() {
    compare("tiny-distilbert-ner").await;
}

#[tokio::test]
async fn roberta_with_bioes_labels() {
    compare("tiny-roberta-ner").await;
}

#[tokio::test]
async fn xlm_roberta() {
    compare("tiny-xlm-roberta-ner").await;
}

#[tokio::test]
async fn electra() {
    compare("tiny-electra-ner").await;
}

#[tokio::test]
async fn albert() {
    compare("tiny-albert-ner").await;
}

#[tokio::test]
async fn xlm_roberta_xl() {
    compare("tiny-xlm-roberta-xl-ner").await;
}

#[tokio::test]
async fn roberta_prelayernorm_with_bioes_labels() {
    compare("tiny-roberta-prelayernorm-ner").await;
}

#[tokio::test]
async fn camembert() {
    compare("tiny-camembert-ner").await;
}

#[tokio::test]
async fn deberta() {
    compare("tiny-deberta-ner").await;
}

#[tokio::test]
async fn mpnet() {
    compare("tiny-mpnet-ner").await;
}

#[tokio::test]
async fn ultrabert() {
    compare("tiny-ultrabert-ner").await;
}

#[tokio::test]
async fn mobilebert() {
    compare("tiny-mobilebert-ner").await;
}

#[tokio::test]
async fn roformer() {
    compare("tiny-roformer-ner").await;
}

#[tokio::test]
async fn modernbert() {
    compare("tiny-modernbert-ner").await;
}

#[tokio::test]
async fn qwen3() {
    compare("tiny-qwen3-ner").await;
}

/// Experts, attention sinks and windows; texts above the limit are divided.
#[tokio::test]
async fn privacy_filter_with_bioes_labels() {
    compare("tiny-privacy-filter").await;
}

/// Entities as their places and labels.
fn spans(entities: &Value) -> Vec<(u64, u64, String)> {
    let span = |entity: &Value| {
        let [start, end] = ["start", "end"].map(|name| entity[name].as_u64().unwrap());
        (
            start,
            end,
            entity["entity_group"].as_str().unwrap().to_owned(),
        )
    };
    entities.as_array().unwrap().iter().map(span).collect()
}

/// A token of this model depends on 8 tokens on either side, so texts are divided into windows of 64 tokens. A copy with a
/// higher limit reads them whole if a request asks for truncation.
#[tokio::test]
async fn a_division_of_a_text_changes_no_entity() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    fs::create_dir(&source).unwrap();
    for entry in fs::read_dir(fixtures().join("models/tiny-privacy-filter")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), source.join(entry.file_name())).unwrap();
    }
    for (file, key) in [
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ] {
        let path = source.join(file);
        let mut content: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        content[key] = 4096.into();
        fs::write(&path, content.to_string()).unwrap();
    }
    let bundles = folder.path().join("bundles");
    fs::create_dir(&bundles).unwrap();
    let model = open(source, &bundles, Some(Precision::Fp32), runtime).unwrap();
    let path = format!("/models/{}", model.name);
    let long = "Jose\u{301} met Ann Smith (ann.smith@example.org, +49 30 1234567) in Paris; they'll write to O'Neill. 👩\u{200d}👧 ".repeat(6);
    for strategy in ["none", "simple", "first"] {
        let ask = |parameters: Value| json!({ "inputs": long, "parameters": parameters });
        let whole = ask(json!({ "aggregation_strategy": strategy, "truncate": true }));
        let divided = ask(json!({ "aggregation_strategy": strategy }));
        let (status, whole) = post(&model, &path, &whole).await;
        assert_eq!(status, 200, "{whole}");
        assert!(whole.as_array().unwrap().len() > 30, "{whole}");
        let (status, divided) = post(&model, &path, &divided).await;
        assert_eq!(status, 200, "{divided}");
        // Positions differ, and with them the rounding of angles.
        assert!(
            are_close(&divided, &whole, 3e-5),
            "{strategy}: {divided}\n{whole}"
        );
    }
    // Two requests that share some text.
    let characters: Vec<char> = long.chars().collect();
    let (_, whole) = post(&model, &path, &json!({ "inputs": long })).await;
    let whole = spans(&whole);
    let shared = 80;
    for cut in (shared..characters.len() - shared).step_by(7) {
        let parts = [&characters[..cut + shared], &characters[cut - shared..]];
        let parts = parts.map(|part| part.iter().collect::<String>());
        let (_, found) = post(&model, &path, &json!({ "inputs": parts })).await;
        let later = (cut - shared) as u64;
        let cut = cut as u64;
        let first = spans(&found[0]).into_iter().filter(|span| span.1 <= cut);
        let second = spans(&found[1]).into_iter();
        let second = second.map(|(start, end, label)| (start + later, end + later, label));
        let joined: Vec<_> = first.chain(second.filter(|span| span.1 > cut)).collect();
        assert_eq!(joined, whole, "cut at {cut}");
    }
}

/// Biases change what is found; the likeliest single labels stay as they are.
#[tokio::test]
async fn biases_change_how_much_is_found() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let name = "tiny-privacy-filter";
    let model = open_for(Task::TokenClassification, name, folder.path(), runtime).unwrap();
    let path = format!("/models/{}", model.name);
    let ask = async |parameters: Value| {
        let body = json!({ "inputs": "Ann Smith writes to bob@example.org today", "parameters": parameters });
        post(&model, &path, &body).await
    };
    let covered = |(status, entities): (u16, Value)| {
        assert_eq!(status, 200, "{entities}");
        spans(&entities)
            .iter()
            .map(|span| span.1 - span.0)
            .sum::<u64>()
    };
    let plain = covered(ask(json!({})).await);
    let more = covered(ask(json!({ "transition_biases": { "background_stay": -20 } })).await);
    let rare = json!({ "background_to_start": -50, "end_to_start": -50 });
    let less = covered(ask(json!({ "transition_biases": rare })).await);
    assert!(less < plain && plain <= more, "{less}, {plain}, {more}");
    let mut refusals = Vec::new();
    for parameters in [
        json!({ "transition_biases": { "background_stay": 1e9 } }),
        json!({ "transition_biases": { "stay": 1 } }),
        json!({ "transition_biases": 1 }),
        json!({ "transition_biases": {}, "aggregation_strategy": "none" }),
    ] {
        let (status, body) = ask(parameters).await;
        assert!([400, 422].contains(&status), "{status}: {body}");
        refusals.push(body["error"].as_str().unwrap().to_owned());
    }
    insta::assert_snapshot!(refusals.join("\n"), @r"
    expected `transition_biases` from -1000 to 1000, but found 1000000000
    unknown field `parameters.transition_biases.stay`; known fields: `background_stay`, `background_to_start`, `inside_to_continue`, `inside_to_end`, `end_to_background`, `end_to_start`
    expected `parameters.transition_biases` to be an object, but found `1`
    `transition_biases` needs the aggregation strategy `simple`
    ");
}

fn bert(folder: &Path) -> Option<Model> {
    Some(
        open_for(
            Task::TokenClassification,
            "tiny-bert-ner",
            folder,
            runtime()?,
        )
        .unwrap(),
    )
}

/// The adapter contains the token head: its base has none.
#[tokio::test]
async fn an_adapter_adds_a_head_for_tokens() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let models = fixtures().join("models").canonicalize().unwrap();
    let recipe = folder.path().join("lora.toml");
    let (base, adapter) = (
        models.join("tiny-bert-tanh"),
        models.join("tiny-bert-ner-lora"),
    );
    let text = format!(
        "name = 'lora'\ntask = 'token-classification'\n[source]\nfolder = {base:?}\nadapter = {adapter:?}"
    );
    fs::write(&recipe, text).unwrap();
    let out = folder.path().join("lora");
    build_request(
        &request(recipe, out.clone(), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap();
    compare_with("tiny-bert-ner-lora", &serve(&out).unwrap()).await;
}

#[tokio::test]
async fn onnx_exports_label_tokens_too() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("exports/tiny-bert-ner");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    compare_with("tiny-bert-ner", &model).await;
}

const PATH: &str = "/models/token-classification-tiny-bert-ner";
const SARAH: &str = "My name is Sarah and I live in Jose\u{301} Town";

#[tokio::test]
async fn entities_are_grouped_by_default_and_replaced_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = bert(folder.path()) else {
        return;
    };
    let simple = json!({ "inputs": SARAH, "parameters": { "aggregation_strategy": "simple" } });
    let (_, simple) = post(&model, PATH, &simple).await;
    let (status, plain) = post(&model, PATH, &json!({ "inputs": SARAH })).await;
    assert_eq!((status, &plain), (200, &simple));
    // The first model is served at `/`, and for Vertex AI.
    assert_eq!(
        post(&model, "/", &json!({ "inputs": SARAH })).await.1,
        plain
    );
    let (_, vertex) = post(
        &model,
        "/vertex",
        &json!({ "instances": [{ "inputs": [SARAH] }] }),
    )
    .await;
    assert_eq!(vertex["predictions"][0][0], plain);

    let (_, redacted) = post(
        &model,
        PATH,
        &json!({ "inputs": [SARAH, "x"], "parameters": { "redact": true } }),
    )
    .await;
    assert_eq!(redacted[0]["entities"], plain);
    let text = redacted[0]["text"].as_str().unwrap();
    // Words that contain a part of an entity.
    let bounds: Vec<usize> = word_bounds(SARAH).into_iter().collect();
    let places = SARAH
        .char_indices()
        .map(|(byte, _)| byte)
        .chain([SARAH.len()])
        .collect::<Vec<_>>();
    let is_covered = |word: &&[usize]| {
        plain.as_array().unwrap().iter().any(|entity| {
            let [start, end] =
                ["start", "end"].map(|name| places[entity[name].as_u64().unwrap() as usize]);
            start < word[1] && word[0] < end
        })
    };
    let (covered, others): (Vec<_>, Vec<_>) = bounds.windows(2).partition(is_covered);
    assert!(!covered.is_empty(), "{plain}");
    let kept: String = text.split(['[', ']']).step_by(2).collect();
    assert_eq!(
        kept,
        others
            .into_iter()
            .map(|word| &SARAH[word[0]..word[1]])
            .collect::<String>()
    );
    let kinds = ["PER", "LOC"];
    assert!(
        text.split(['[', ']'])
            .skip(1)
            .step_by(2)
            .all(|label| kinds.contains(&label)),
        "{text}"
    );
}

#[tokio::test]
async fn parameters_that_cannot_be_met_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = bert(folder.path()) else {
        return;
    };
    let long = "a long text ".repeat(100);
    let cases = [
        json!({ "inputs": "" }),
        json!({ "inputs": [[1, 2]] }),
        json!({ "inputs": long, "parameters": { "truncate": false } }),
        json!({ "inputs": long, "parameters": { "truncate": true, "redact": true } }),
        json!({ "inputs": "a", "parameters": { "aggregation_strategy": "median" } }),
        json!({ "inputs": "a", "parameters": { "aggregation_strategy": "none", "stride": 4 } }),
        json!({ "inputs": "a", "parameters": { "aggregation_strategy": "none", "redact": true } }),
        json!({ "inputs": "a", "parameters": { "stride": 62 } }),
        json!({ "inputs": "a", "parameters": { "stride": -1 } }),
        json!({ "inputs": "a", "parameters": { "ignore_labels": 7 } }),
        json!({ "inputs": long.repeat(20), "parameters": { "stride": 61 } }),
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
    422 expected a text in `inputs`, but found an empty one
    422 expected `inputs[0]` to be a string, but found a list
    413 the text has 802 tokens, but the model takes at most 64; set `stride` to read it in windows
    413 the text has 802 tokens, but the model takes at most 64; set `stride` to read it in windows
    422 expected `parameters.aggregation_strategy` to be one of `none`, `simple`, `first`, `average`, `max`, but found another value
    422 expected an aggregation strategy among `simple`, `first`, `average`, `max` with `stride`, but found `none`
    422 expected an aggregation strategy among `simple`, `first`, `average`, `max` with `redact`, but found `none`
    422 expected a `stride` below 62, the tokens of a window, but found 62
    422 expected `parameters.stride` to be an integer from 0 on, but found `-1`
    422 expected `parameters.ignore_labels` to be a list of strings, or a string with commas, but found a number
    413 expected at most 1024 windows of 62 tokens that share 61, but found more; send fewer or shorter texts, or a smaller `stride`
    ");
    let (status, answer) = post(&model, "/predict", &json!({ "inputs": "a" })).await;
    insta::assert_snapshot!(format!("{status} {}", answer["error"]), @r#"422 "expected a served model for `text-classification`, but found none; `GET /models` lists the models""#);
}

#[tokio::test]
async fn kserve_takes_token_ids_and_texts() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = bert(folder.path()) else {
        return;
    };
    let path = format!("/v2{PATH}/infer");
    let text = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [2], "data": [SARAH, "x"] });
    let parameters =
        json!({ "aggregation_strategy": "first", "ignore_labels": "O, LOC", "stride": 3 });
    let (status, answer) = post(
        &model,
        &path,
        &json!({ "inputs": [text], "parameters": parameters }),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let output = &answer["outputs"][0];
    assert_eq!(
        (&output["name"], &output["shape"]),
        (&json!("entities"), &json!([2, 1]))
    );
    let parameters =
        json!({ "aggregation_strategy": "first", "ignore_labels": ["O", "LOC"], "stride": 3 });
    let (_, hub) = post(
        &model,
        PATH,
        &json!({ "inputs": SARAH, "parameters": parameters }),
    )
    .await;
    let found: Value = serde_json::from_str(output["data"][0].as_str().unwrap()).unwrap();
    assert_eq!(found, hub);

    let ids = json!({ "name": "input_ids", "datatype": "INT64", "shape": [2, 4], "data": [2, 9, 8, 3, 2, 9, 3, 0] });
    let mask = json!({ "name": "attention_mask", "datatype": "INT64", "shape": [2, 4], "data": [1, 1, 1, 1, 1, 1, 1, 0] });
    let (status, answer) = post(&model, &path, &json!({ "inputs": [ids, mask] })).await;
    assert_eq!(status, 200, "{answer}");
    let output = &answer["outputs"][0];
    assert_eq!(
        (&output["name"], &output["shape"]),
        (&json!("logits"), &json!([2, 4, 5]))
    );
    let values: Vec<f64> = output["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect();
    assert!(
        values[..35].iter().all(|value| *value != 0.0)
            && values[35..].iter().all(|value| *value == 0.0)
    );

    let mut errors = Vec::new();
    for data in [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 2, 0], [0, 0, 0, 0]] {
        let [ids, mask] = [("input_ids", [2, 9, 8, 3]), ("attention_mask", data)]
            .map(|(name, data)| json!({ "name": name, "datatype": "INT64", "shape": [1, 4], "data": data }));
        let (status, answer) = post(&model, &path, &json!({ "inputs": [ids, mask] })).await;
        errors.push(format!("{status} {}", answer["error"]));
    }
    insta::assert_snapshot!(errors.join("\n"), @r#"
    400 "expected ones and then zeros in row 0 of `attention_mask`, but found another order or other values; pad on the right (`padding_side=\"right\"` in transformers)"
    400 "expected ones and then zeros in row 0 of `attention_mask`, but found another order or other values; pad on the right (`padding_side=\"right\"` in transformers)"
    400 "expected ones and then zeros in row 0 of `attention_mask`, but found another order or other values; pad on the right (`padding_side=\"right\"` in transformers)"
    400 "expected tokens in row 0 of `input_ids`, but found none"
    "#);
}

#[tokio::test]
async fn chat_completions_have_the_entities_with_requested_labels_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = bert(folder.path()) else {
        return;
    };
    let ask = async |labels: Option<Value>| {
        let mut body =
            json!({ "messages": [{ "role": "user", "content": SARAH }], "threshold": 0.0 });
        if let Some(labels) = labels {
            body["labels"] = labels;
        }
        post(&model, "/v1/chat/completions", &body).await
    };
    let labels = async |labels| {
        let (status, answer) = ask(labels).await;
        assert_eq!(status, 200, "{answer}");
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let found: Value = serde_json::from_str(content).unwrap();
        let labels = found["entities"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| found["label"].to_string());
        labels
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let all = labels(None).await;
    let first = all.split(' ').next().unwrap().trim_matches('"').to_owned();
    assert_eq!(labels(Some(json!([&first]))).await, format!("\"{first}\""));
    let (status, answer) = ask(Some(json!([&first, "XYZ"]))).await;
    insta::assert_snapshot!(format!("{status} {}", answer["error"]["message"]), @r#"422 "expected `labels` of the model, among `LOC`, `PER`, but found `XYZ`""#);
}

/// Bundles a fixture copy with a different class in its `config.json`; returns the build's note.
fn built_as(
    architecture: &str,
    task: Option<Task>,
    folder: &Path,
) -> Option<Result<Option<String>, String>> {
    let runtime = runtime()?;
    let source = folder.join("source");
    fs::create_dir_all(&source).unwrap();
    for file in fs::read_dir(fixtures().join("models/tiny-bert-ner")).unwrap() {
        let path = file.unwrap().path();
        fs::copy(&path, source.join(path.file_name().unwrap())).unwrap();
    }
    let config = source.join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace("BertForTokenClassification", architecture),
    )
    .unwrap();
    let request = Request {
        task,
        ..request(source, folder.join("bundle"), Some(Precision::Fp32))
    };
    Some(
        build(&request, &|| Ok(runtime), &())
            .map(|built| built.note)
            .map_err(|error| error.to_string()),
    )
}

#[test]
fn heads_that_are_left_out_are_named_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let embeddings = Some(Task::FeatureExtraction);
    let Some(refusal) = built_as("BertForQuestionAnswering", None, folder.path()) else {
        return;
    };
    insta::assert_snapshot!(refusal.unwrap_err(), @"expected a model with a head that Kivu runs, or without one, but found `BertForQuestionAnswering`; use `--task feature-extraction` to leave out the head and compute embeddings");
    let note = built_as("BertForQuestionAnswering", embeddings, folder.path())
        .unwrap()
        .unwrap()
        .unwrap();
    insta::assert_snapshot!(note, @"the head of `BertForQuestionAnswering` is left out: the model computes embeddings");
    let note = built_as("BertForPreTraining", None, folder.path())
        .unwrap()
        .unwrap()
        .unwrap();
    insta::assert_snapshot!(note, @"the head of `BertForPreTraining` is left out: the model computes embeddings");
    // The weights have a head that the class does not name.
    let refusal = built_as("BertModel", None, folder.path())
        .unwrap()
        .unwrap_err();
    assert!(
        refusal.starts_with("the model has a label head (`classifier.weight`)"),
        "{refusal}"
    );
    let note = built_as("BertModel", embeddings, folder.path())
        .unwrap()
        .unwrap()
        .unwrap();
    insta::assert_snapshot!(note, @"the weights of `classifier` are left out: the model computes embeddings");
    let refusal = built_as("BertForTokenClassification", embeddings, folder.path())
        .unwrap()
        .unwrap_err();
    insta::assert_snapshot!(refusal, @"expected a model for `feature-extraction`, but found one with a token label head");
}

/// The fixture's weights are random, so there is no quality floor.
#[test]
fn the_quality_of_int8_is_measured_token_by_token() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-bert-ner");
    let recipe = |quality: &str| {
        let path = folder.path().join("recipe.toml");
        let text = format!(
            "name = 'ner'\ntask = 'token-classification'\n[source]\nfolder = {source:?}\n[quality]\n{quality}"
        );
        fs::write(&path, text).unwrap();
        request(path, folder.path().join("bundle"), Some(Precision::Int8))
    };
    let built = build(
        &recipe("agreement = 0.5\nmean_difference = 0.5\nentity_agreement = 0.5"),
        &|| Ok(runtime),
        &(),
    )
    .unwrap();
    let manifest = built.bundle.manifest();
    assert_eq!(manifest.engine, Engine::Native);
    let Some(Quality::TokenClassification {
        texts,
        tokens,
        agreement,
        entity_agreement: Some(entities),
        mean_difference,
        worst_difference,
    }) = manifest.weights.quality
    else {
        panic!(
            "expected the quality of labels of tokens, but found {:?}",
            manifest.weights.quality
        )
    };
    assert!(
        texts >= 200 && tokens > 10 * texts,
        "{texts} texts, {tokens} tokens"
    );
    assert!(
        entities <= 1.0
            && agreement < 1.0
            && mean_difference > 0.0
            && worst_difference > mean_difference
    );
    // The same manifest is read again.
    let text = manifest.to_text().unwrap();
    assert_eq!(
        Manifest::parse(&text).unwrap().weights.quality,
        manifest.weights.quality
    );
    for (floor, expected) in [
        ("agreement = 0.99999", "expected a token label agreement"),
        (
            "agreement = 0\nmean_difference = 1\nentity_agreement = 0.99999",
            "expected an entity agreement",
        ),
    ] {
        let refusal = build(&recipe(floor), &|| Ok(runtime), &()).map(drop);
        let refusal = refusal.unwrap_err().to_string();
        let expected = format!("{expected} with fp32 of at least 1.0000");
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
}

/// Output from a job on `rows`, called `name`.
pub(crate) async fn batch(
    model: &Model,
    name: &str,
    rows: &str,
    parameters: &Parameters,
) -> String {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in", "out"].map(|side| folder.path().join(format!("{side}-{name}")));
    fs::write(&input, rows).unwrap();
    let job = Job::new(
        JobInput::File(input),
        JobOutput::File(output.clone()),
        model.clone(),
        parameters.clone(),
    );
    job.run().await.unwrap();
    fs::read_to_string(output).unwrap()
}

#[tokio::test]
async fn batch_jobs_write_entities_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = bert(folder.path()) else {
        return;
    };
    let parameters = json!({ "aggregation_strategy": "first", "redact": true });
    let (_, hub) = post(
        &model,
        PATH,
        &json!({ "inputs": SARAH, "parameters": parameters }),
    )
    .await;
    let options = [("aggregation", "first"), ("redact", "true")];
    let options = Parameters::of(
        &options
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    );
    let options = options.unwrap();
    let line = json!({ "text": SARAH }).to_string();
    let found = batch(&model, "rows.jsonl", &line, &options).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        (&found["redacted"], &found["entities"]),
        (&hub["text"], &hub["entities"])
    );
    let found = batch(
        &model,
        "rows.csv",
        &format!("text\n{SARAH}\n"),
        &Parameters::default(),
    )
    .await;
    let (header, row) = found.split_once('\n').unwrap();
    assert_eq!(header.trim(), "text,entities,error");
    let (_, hub) = post(&model, PATH, &json!({ "inputs": SARAH })).await;
    let quoted = hub.to_string().replace('"', "\"\"");
    assert_eq!(
        row.matches("\"\"entity_group\"\"").count(),
        hub.as_array().unwrap().len(),
        "{row}, {quoted}"
    );
}
