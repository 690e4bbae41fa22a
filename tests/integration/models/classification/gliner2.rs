//! The same entities and label scores as the package `gliner2`, on tiny models.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use kivu::{
    backend::{Deadline, Engine},
    model::{Model, Pipeline},
    pipeline::{
        Task,
        classification::{label_scores::LabelScoresPipeline, zero_shot::ZeroShotPipeline},
    },
    repository::manifest::{Precision, Quality},
    tokenizer::{Side, Truncation, WindowOptions},
};
use kivu_compiler::build;
use kivu_jobs::{Job, Parameters, TextPredictor};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    classification::token_classifiers::{are_equal, post, post_text},
    jobs::{finished, job},
    models::{
        build_request, fixtures, golden_entries, open_for, request, request_without_floor, runtime,
        serve,
    },
};

const TOLERANCE: f32 = 3e-5;
/// Scores of values that rounding does not change: a logit of 1 or more.
const CLEAR: f64 = 0.7311;
/// Attention among labels, two layers on state and label, and experts.
const MODELS: [&str; 3] = ["tiny-gliner2", "tiny-gliner2-lstm", "tiny-gliner2-moe"];

/// A model whose scores are not near the threshold.
const TRAINED: &str = "tiny-gliner2-trained";

/// A call to `extract_entities`, its ids and its result, without the full stop that the package adds to texts.
#[derive(Debug, Deserialize)]
struct Found {
    inputs: String,
    labels: Vec<String>,
    parameters: Value,
    ids: Vec<u32>,
    output: Vec<FoundEntity>,
}

#[derive(Debug, Deserialize)]
struct FoundEntity {
    label: String,
    text: String,
    start: usize,
    end: usize,
    score: f64,
}

/// A classification, its ids and logits, and the package's scores.
#[derive(Debug, Deserialize)]
struct Scored {
    inputs: String,
    labels: Vec<String>,
    prompt: String,
    ids: Vec<u32>,
    logits: Vec<f32>,
    single_label: Vec<f32>,
    multi_label: Vec<f32>,
    /// The label that the package chooses, with its score.
    best: (String, f64),
}

/// A call to `extract` and its result.
#[derive(Debug, Deserialize)]
struct Extracted {
    text: String,
    /// In the order in which the model reads it.
    schema: String,
    parameters: Value,
    output: Value,
}

fn entities(
    model: &Model,
) -> &kivu::pipeline::entities::zero_shot_entities::ZeroShotEntitiesPipeline {
    match &model.pipeline {
        Pipeline::ZeroShotEntities(pipeline) => pipeline,
        other => panic!("expected a model that finds entities, but found {other:?}"),
    }
}

fn labels(model: &Model) -> &LabelScoresPipeline {
    match &model.pipeline {
        Pipeline::ZeroShot(ZeroShotPipeline::Labels(pipeline)) => pipeline,
        other => panic!("expected a model that reads labels, but found {other:?}"),
    }
}

/// Entities as the server returns them: by start, and at the same start by label.
fn sorted(mut entities: Vec<Value>, labels: &[String]) -> Value {
    let place = |entity: &Value| {
        labels
            .iter()
            .position(|label| entity["entity_group"] == **label)
    };
    entities.sort_by_key(|entity| (entity["start"].as_u64(), place(entity)));
    entities.into()
}

async fn ask_for_entities(model: &Model, call: &Found) -> Value {
    let mut parameters = call.parameters.clone();
    parameters["labels"] = json!(call.labels);
    let body = json!({ "inputs": call.inputs, "parameters": parameters });
    let (status, answer) = post(model, &format!("/models/{}", model.name), &body).await;
    assert_eq!(status, 200, "{body}: {answer}");
    sorted(answer.as_array().unwrap().clone(), &call.labels)
}

fn expected(call: &Found) -> Value {
    let entity = |entity: &FoundEntity| {
        json!({
            "entity_group": entity.label, "score": entity.score, "word": entity.text, "start": entity.start,
            "end": entity.end,
        })
    };
    sorted(call.output.iter().map(entity).collect(), &call.labels)
}

#[tokio::test]
async fn entities_are_those_of_the_package() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let model = open_for(Task::TokenClassification, name, folder.path(), runtime).unwrap();
        let own = entities(&model);
        let (tokenizer, settings) = (own.encoder().tokenizer(), own.settings());
        let (mut failures, mut found) = (Vec::new(), 0);
        let calls: Vec<Found> = golden_entries(name);
        for call in &calls {
            let prompt = settings.prompt(&call.labels, tokenizer).unwrap();
            let options = WindowOptions::whole(Truncation::At(Side::Right), 1);
            let windows = tokenizer
                .word_windows(&call.inputs, &prompt, settings.max_tokens, options)
                .unwrap();
            if windows[0].encoding.ids != call.ids {
                failures.push(format!("{call:?}:\n  ids {:?}", windows[0].encoding.ids));
            }
            let answer = ask_for_entities(&model, call).await;
            if !are_equal(&answer, &expected(call)) {
                failures.push(format!(
                    "{call:?}:\n  found    {answer}\n  expected {}",
                    expected(call)
                ));
            }
            found += call.output.len();
        }
        assert!(
            calls.len() >= 40 && found >= 100,
            "{name} has {found} entities in {} calls",
            calls.len()
        );
        assert!(
            failures.is_empty(),
            "{name}, {} failures:\n{}",
            failures.len(),
            failures.join("\n")
        );
    }
}

#[tokio::test]
async fn label_scores_are_those_of_the_package() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let deadline = Deadline::within(Duration::from_secs(600));
    for name in MODELS {
        let model = open_for(Task::ZeroShotClassification, name, folder.path(), runtime).unwrap();
        let (own, mut failures) = (labels(&model), Vec::new());
        let cases: Vec<Scored> = golden_entries(&format!("{name}-labels"));
        assert!(cases.len() >= 20, "{}", cases.len());
        for case in cases {
            let Scored {
                inputs,
                labels,
                prompt,
                ids,
                logits: expected,
                single_label,
                multi_label,
                best,
            } = &case;
            if prompt == "classification" {
                let tokenizer = own.encoder().tokenizer();
                let found = own
                    .settings()
                    .encode(tokenizer, inputs, labels, 512)
                    .unwrap();
                assert_eq!(&found.ids, ids, "{inputs:?}");
            }
            let found = own
                .logits(
                    std::slice::from_ref(inputs),
                    labels,
                    prompt,
                    Truncation::At(Side::Right),
                    deadline,
                )
                .await
                .unwrap()
                .rows
                .remove(0);
            let differences = found
                .iter()
                .zip(expected)
                .map(|(found, expected)| (found - expected).abs());
            let difference = differences.fold(0.0, f32::max);
            if found.len() != expected.len() || difference > TOLERANCE {
                failures.push(format!(
                    "{inputs:?} {labels:?}: {difference}, {found:?}, expected {expected:?}"
                ));
            }
            // Routes refuse empty texts.
            if inputs.is_empty() {
                continue;
            }
            for (is_multi, scores) in [(false, single_label), (true, multi_label)] {
                let parameters = json!({ "candidate_labels": labels, "multi_label": is_multi, "prompt": prompt });
                let body = json!({ "inputs": inputs, "parameters": parameters });
                let (status, answer) =
                    post(&model, &format!("/models/{}", model.name), &body).await;
                assert_eq!(status, 200, "{body}: {answer}");
                let score = |label: &String| {
                    let own = answer
                        .as_array()
                        .unwrap()
                        .iter()
                        .find(|own| own["label"] == **label)
                        .unwrap();
                    own["score"].as_f64().unwrap() as f32
                };
                let found: Vec<f32> = labels.iter().map(score).collect();
                let pairs = found
                    .iter()
                    .zip(scores)
                    .map(|(found, score)| (found - score).abs());
                if found.len() != scores.len() || pairs.fold(0.0, f32::max) > TOLERANCE {
                    failures.push(format!("{body}: {found:?}, expected {scores:?}"));
                }
                if !is_multi && !are_equal(&answer[0], &json!({ "label": best.0, "score": best.1 }))
                {
                    failures.push(format!("{body}: {}, expected {best:?}", answer[0]));
                }
            }
        }
        assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
    }
}

/// Sends a schema whose names keep their order.
async fn extract(model: &Model, call: &Extracted) -> (u16, Value) {
    let Value::Object(parameters) = &call.parameters else {
        panic!("{:?}", call.parameters)
    };
    let parameters = parameters
        .iter()
        .map(|(name, value)| format!(", {}: {value}", json!(name)));
    let body = format!(
        "{{\"text\": {}, \"schema\": {}{}}}",
        json!(call.text),
        call.schema,
        parameters.collect::<String>()
    );
    post_text(model, "/gliner-2", body).await
}

/// Whether two results are equal except for the tolerance of scores.
fn are_close(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found
                    .iter()
                    .zip(expected)
                    .all(|(found, expected)| are_close(found, expected))
        }
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && expected.iter().all(|(name, value)| {
                    found.get(name).is_some_and(|found| {
                        match (name.as_str(), found.as_f64(), value.as_f64()) {
                            ("confidence", Some(found), Some(value)) => {
                                (found - value).abs() <= f64::from(TOLERANCE)
                            }
                            _ => are_close(found, value),
                        }
                    })
                })
        }
        (found, expected) => found == expected,
    }
}

#[tokio::test]
async fn extractions_are_those_of_the_package() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let model = open_for(Task::TokenClassification, name, folder.path(), runtime).unwrap();
        let calls: Vec<Extracted> = golden_entries(&format!("{name}-extraction"));
        let (mut failures, mut values) = (Vec::new(), 0);
        for call in &calls {
            let (status, answer) = extract(&model, call).await;
            assert_eq!(status, 200, "{call:?}: {answer}");
            values += call.output.to_string().matches("\"text\"").count();
            if !are_close(&answer["result"], &call.output) {
                failures.push(format!("{call:?}:\n  found {}", answer["result"]));
            }
        }
        assert!(
            calls.len() >= 40 && values >= 50,
            "{name} has {values} values in {} calls",
            calls.len()
        );
        assert!(
            failures.is_empty(),
            "{name}, {} failures:\n{}",
            failures.len(),
            failures.join("\n")
        );
    }
}

/// Jobs and programs return what the route returns.
#[tokio::test]
async fn jobs_extract_the_same() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::TokenClassification, MODELS[0], folder.path(), runtime).unwrap();
    let calls: Vec<Extracted> = golden_entries(&format!("{}-extraction", MODELS[0]));
    let input = folder.path().join("texts.jsonl");
    let mut compared = 0;
    for call in calls.iter().filter(|call| !call.text.is_empty()) {
        let mut options: BTreeMap<String, String> =
            [("schema".to_owned(), call.schema.clone())].into();
        let names = [("task", "schema-form"), ("threshold", "threshold")];
        let flags = [
            ("include_confidence", "confidence"),
            ("include_spans", "spans"),
        ];
        for (parameter, option) in names.into_iter().chain(flags) {
            let value = &call.parameters[parameter];
            if !value.is_null() {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                options.insert(option.to_owned(), value);
            }
        }
        fs::write(&input, json!({ "text": call.text }).to_string() + "\n").unwrap();
        let output = folder.path().join(format!("{compared}.jsonl"));
        let parameters = Box::new(Parameters::of(&options).unwrap());
        let its_model = Box::new(model.clone());
        let (input, out) = (input.clone(), output.clone());
        tokio::task::spawn_blocking(move || {
            finished(Job {
                model: its_model,
                parameters,
                ..job(&input, &out)
            })
        })
        .await
        .unwrap();
        let line: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
        let (_, answer) = extract(&model, call).await;
        assert_eq!(line["extracted"], answer["result"], "{call:?}");
        compared += 1;
    }
    assert!(compared >= 40, "{compared}");
    let refused = |options: &[(&str, &str)]| {
        let options = options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let parameters = Parameters::of(&options.collect())?;
        TextPredictor::new(&model, &parameters).map(drop)
    };
    let refusals = [
        refused(&[("schema", "{")]),
        refused(&[("schema", "{\"entities\": [\"a\"]}"), ("labels", "a")]),
        refused(&[("schema", "{\"entities\": []}")]),
        refused(&[("schema", "{}"), ("schema-form", "tuples")]),
    ];
    let refusals = refusals
        .map(|refusal| refusal.unwrap_err().to_string())
        .join("\n");
    insta::assert_snapshot!(refusals, @r"
    expected a schema in JSON in the option `schema`, but found `{`
    expected `labels` or `schema`, but found both; omit one of them
    expected entries in `schema.entities`, but found none
    expected `schema`, `extract_entities`, `extract_json` or `classify_text` in the option `schema-form`, but found `tuples`
    ");
}

/// The native engine has the same structures, apart from values near the threshold.
#[tokio::test]
async fn the_native_engine_extracts_the_same() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let source = fixtures().join("models").join(name);
        let out = folder.path().join(name);
        let loose = request_without_floor(
            Task::TokenClassification,
            &source,
            out.clone(),
            Some(Precision::Int8Blocks),
        );
        build(&loose, &|| Ok(runtime), &()).unwrap();
        let model = serve(&out).unwrap();
        let (mut clear, mut kept) = (0, 0);
        for call in golden_entries::<Extracted>(&format!("{name}-extraction")) {
            let (status, answer) = extract(&model, &call).await;
            assert_eq!(status, 200, "{call:?}: {answer}");
            let found = values(&answer["result"]);
            for (path, score) in values(&call.output) {
                if score > CLEAR {
                    clear += 1;
                    kept += usize::from(found.iter().any(|(other, _)| *other == path));
                }
            }
        }
        assert!(
            clear > 10 && kept as f32 / clear as f32 >= 0.8,
            "{name}: {kept} of {clear} values"
        );
    }
}

/// Values with their scores, by their names and texts.
fn values(value: &Value) -> Vec<(String, f64)> {
    match value {
        Value::Array(values) => values.iter().flat_map(self::values).collect(),
        Value::Object(fields) => match fields.get("confidence").and_then(Value::as_f64) {
            Some(score) => {
                let text = fields.get("text").or(fields.get("label")).unwrap();
                vec![(text.to_string(), score)]
            }
            None => {
                let fields = fields.iter().flat_map(|(name, value)| {
                    values(value)
                        .into_iter()
                        .map(move |(path, score)| (format!("{name} {path}"), score))
                });
                fields.collect()
            }
        },
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn schemas_that_the_model_cannot_read_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::TokenClassification, MODELS[0], folder.path(), runtime).unwrap();
    let gliner = open_for(
        Task::TokenClassification,
        "tiny-gliner",
        folder.path(),
        runtime,
    )
    .unwrap();
    let many: Vec<String> = (0..300)
        .map(|number| format!("field number {number}"))
        .collect();
    let ask = async |model: &Model, fields: &str| {
        let (status, answer) = post_text(model, "/gliner-2", format!("{{{fields}}}")).await;
        format!("{status} {}", answer["detail"].as_str().unwrap_or_default())
    };
    let fields = format!(
        r#""text": "a", "schema": {{"structures": {{"a": {}}}}}"#,
        json!(many)
    );
    for (model, fields, expected) in [
        (&model, r#""text": "a""#, "422 "),
        (
            &model,
            r#""text": "a", "schema": {"entities": ["a [C] b"]}"#,
            "422 the label `a [C] b` contains one of `[P]`, `[E]`, `[C]`, `[R]`, `[L]`, which the model reads as its own",
        ),
        (
            &model,
            r#""text": "a", "schema": {"structures": {"a": ["b::[x|[P]]"]}}"#,
            "422 the choice `[P]` contains one of `[P]`, ",
        ),
        (
            &model,
            r#""text": "a", "schema": ["a"], "task": "extract_tables""#,
            "422 ",
        ),
        (
            &model,
            r#""text": "a", "schema": ["a"], "task": "extract_entities", "threshold": 2"#,
            "422 expected a `threshold`",
        ),
        (
            &model,
            r#""text": "a", "schema": ["a"], "task": "extract_entities", "format_results": false"#,
            "422 expected `format_results` true",
        ),
        (&model, &fields, "413 "),
        (
            &model,
            r#""text": "", "schema": ["a"], "task": "extract_entities""#,
            "422 ",
        ),
        (
            &model,
            r#""text": "a", "schema": {"entities": ["a"], "labels": ["b"]}"#,
            "422 unknown field in `schema`: `labels`",
        ),
        (
            &gliner,
            r#""text": "a", "schema": ["a"], "task": "extract_entities""#,
            "422 schemas are not supported",
        ),
    ] {
        let found = ask(model, fields).await;
        assert!(
            found.starts_with(expected) && found.len() > "422 ".len(),
            "{fields}: {found}"
        );
    }
    let answer = ask(
        &model,
        r#""text": ["a", "b"], "schema": ["a"], "task": "extract_entities""#,
    )
    .await;
    assert_eq!(answer, "200 ");
}

/// The native engine runs quantized models; clear entities and decisions remain.
#[tokio::test]
async fn quantized_models_have_clear_entities_and_labels() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let deadline = Deadline::within(Duration::from_secs(600));
    let open = |name: &str, task: Task, precision: Precision| {
        let (source, out) = (
            fixtures().join("models").join(name),
            folder.path().join(format!("{name}-{task}-{precision}")),
        );
        let loose = request_without_floor(task, &source, out.clone(), Some(precision));
        let bundle = build(&loose, &|| Ok(runtime), &()).unwrap().bundle;
        assert_eq!(bundle.manifest().engine, Engine::Native, "{name}");
        (serve(&out).unwrap(), bundle.manifest().weights.quality)
    };
    for (name, precision) in [
        (MODELS[0], Precision::Int8),
        (MODELS[0], Precision::Int8Blocks),
        (MODELS[1], Precision::Int8Blocks),
        (MODELS[2], Precision::Int8),
    ] {
        let (model, quality) = open(name, Task::TokenClassification, precision);
        let Some(Quality::ZeroShotEntities { texts, spans, .. }) = quality else {
            panic!("{quality:?}")
        };
        assert!(texts == 20 && spans > 1_000, "{texts} texts, {spans} spans");
        let (mut clear, mut kept) = (0, 0);
        for call in golden_entries::<Found>(name) {
            let answer = ask_for_entities(&model, &call).await;
            for entity in call.output.iter().filter(|entity| entity.score > CLEAR) {
                let is_found = |found: &&Value| {
                    let found = (
                        found["start"].as_u64(),
                        found["end"].as_u64(),
                        &found["entity_group"],
                    );
                    found
                        == (
                            Some(entity.start as u64),
                            Some(entity.end as u64),
                            &json!(entity.label),
                        )
                };
                clear += 1;
                kept += usize::from(answer.as_array().unwrap().iter().find(is_found).is_some());
            }
        }
        let share = kept as f32 / clear as f32;
        assert!(
            clear > 10 && share >= 0.9,
            "{name} in {precision}: {kept} of {clear} entities"
        );
    }
    for precision in [Precision::Int8, Precision::Int8Blocks] {
        let (model, _) = open(MODELS[0], Task::ZeroShotClassification, precision);
        let (mut clear, mut kept) = (0, 0);
        for case in golden_entries::<Scored>("tiny-gliner2-labels") {
            let texts = [case.inputs];
            let found = labels(&model).logits(
                &texts,
                &case.labels,
                &case.prompt,
                Truncation::At(Side::Right),
                deadline,
            );
            let found = found.await.unwrap().rows.remove(0);
            for (found, expected) in found
                .iter()
                .zip(&case.logits)
                .filter(|(_, logit)| logit.abs() > 1.0)
            {
                clear += 1;
                kept += usize::from((*found > 0.0) == (*expected > 0.0));
            }
        }
        assert!(
            kept as f32 / clear as f32 >= 0.95,
            "{precision}: {kept} of {clear} decisions"
        );
    }
}

/// A trained model's scores are far from the threshold, unlike a random one's: both quantized forms keep its entities.
#[tokio::test]
async fn a_trained_model_keeps_its_entities_in_int8() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let calls: Vec<Found> = golden_entries(TRAINED);
    let exact = open_for(Task::TokenClassification, TRAINED, folder.path(), runtime).unwrap();
    for call in &calls {
        let answer = ask_for_entities(&exact, call).await;
        assert!(are_equal(&answer, &expected(call)), "{call:?}: {answer}");
    }
    let source = fixtures().join("models").join(TRAINED);
    for precision in [Precision::Int8, Precision::Int8Blocks] {
        let out = folder.path().join(precision.to_string());
        let loose = request_without_floor(
            Task::TokenClassification,
            &source,
            out.clone(),
            Some(precision),
        );
        let bundle = build(&loose, &|| Ok(runtime), &()).unwrap().bundle;
        assert_eq!(bundle.manifest().engine, Engine::Native);
        let model = serve(&out).unwrap();
        let place = |entity: &Value| {
            format!(
                "{}",
                json!([entity["start"], entity["end"], entity["entity_group"]])
            )
        };
        let (mut all, mut common) = (0, 0);
        for call in &calls {
            let places = |entities: &Value| {
                entities
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(place)
                    .collect::<Vec<_>>()
            };
            let (found, expected) = (
                places(&ask_for_entities(&model, call).await),
                places(&expected(call)),
            );
            all += found.len() + expected.len();
            common += found
                .iter()
                .filter(|place| expected.contains(place))
                .count();
        }
        let share = 2.0 * common as f32 / all as f32;
        assert!(
            all > 300 && share >= 0.99,
            "{precision}: {common} of {all} / 2 entities"
        );
    }
}

/// Labels are independent, as in the package, unless a request asks for GLiNER's rules.
#[tokio::test]
async fn requests_choose_between_both_packages_rules() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::TokenClassification, MODELS[0], folder.path(), runtime).unwrap();
    let text = "My name is Wolfgang and I live in Berlin, and Ann met Bob in Paris and São Paulo";
    let ask = async |parameters: Value| {
        let mut parameters = parameters;
        parameters["labels"] = json!(["person", "city", "e-mail address"]);
        parameters["threshold"] = json!(0.1);
        let body = json!({ "inputs": text, "parameters": parameters });
        let (status, answer) = post(&model, &format!("/models/{}", model.name), &body).await;
        assert_eq!(status, 200, "{answer}");
        let places = answer.as_array().unwrap().iter();
        let places = places.map(|entity| {
            (
                entity["start"].as_u64().unwrap(),
                entity["end"].as_u64().unwrap(),
            )
        });
        places.collect::<Vec<_>>()
    };
    let overlap = |places: &[(u64, u64)]| places.windows(2).any(|pair| pair[1].0 < pair[0].1);
    let (own, flat) = (ask(json!({})).await, ask(json!({ "flat_ner": true })).await);
    assert!(overlap(&own) && !overlap(&flat), "{own:?} {flat:?}");
    assert_eq!(ask(json!({ "multi_label": false })).await, flat);
}

#[tokio::test]
async fn inputs_that_the_model_cannot_read_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let open = |task: Task| open_for(task, MODELS[0], folder.path(), runtime).unwrap();
    let (entities, classifier) = (
        open(Task::TokenClassification),
        open(Task::ZeroShotClassification),
    );
    let ask = async |model: &Model, text: &str, parameters: Value| {
        let body = json!({ "inputs": text, "parameters": parameters });
        let (status, answer) = post(model, &format!("/models/{}", model.name), &body).await;
        format!("{status} {}", answer["error"].as_str().unwrap_or_default())
    };
    let many: Vec<String> = (0..300)
        .map(|number| format!("label number {number}"))
        .collect();
    let long = "word ".repeat(600);
    let refusals = [
        ask(&entities, "a", json!({ "labels": ["a [E] b"] })).await,
        ask(&entities, "a", json!({ "labels": ["a [P]"] })).await,
        ask(&entities, "a", json!({ "labels": many })).await,
        ask(
            &entities,
            &long,
            json!({ "labels": ["x"], "truncate": false }),
        )
        .await,
        ask(
            &classifier,
            "a",
            json!({ "candidate_labels": ["a [L]", "b"] }),
        )
        .await,
        ask(
            &classifier,
            "a",
            json!({ "candidate_labels": ["a", "b"], "prompt": "[SEP_TEXT]" }),
        )
        .await,
        ask(&classifier, "a", json!({ "candidate_labels": many })).await,
        ask(&entities, "a \u{1}", json!({ "labels": ["x"] })).await,
    ];
    // Without numbers of tokens.
    let refusals = refusals
        .each_ref()
        .map(|refusal| refusal.split(" have ").next().unwrap());
    insta::assert_snapshot!(refusals.join("\n"), @r"
    422 the label `a [E] b` contains one of `[P]`, `[E]`, `[SEP_TEXT]`, which the model reads as its own; rename it
    422 the label `a [P]` contains one of `[P]`, `[E]`, `[SEP_TEXT]`, which the model reads as its own; rename it
    413 the labels
    413 expected a text of at most 512 words and 494 tokens, without the labels' tokens, but found a longer one; set `stride` to read it in windows
    422 the label `a [L]` contains one of `[P]`, `[L]`, `[SEP_TEXT]`, which the model reads as its own; rename it
    422 the name `[SEP_TEXT]` contains one of `[P]`, `[L]`, `[SEP_TEXT]`, which the model reads as its own; rename it
    413 the labels
    422 the character at 2 has no tokens, as some control characters, so that entities would be misplaced; replace it by a space
    ");
    // A classifier has no use for words without tokens, and truncates texts.
    let labels = json!({ "candidate_labels": ["a", "b"] });
    assert_eq!(ask(&classifier, "a \u{1}", labels).await, "200 ");
    let answer = ask(
        &classifier,
        &long,
        json!({ "candidate_labels": ["a", "b"] }),
    )
    .await;
    assert_eq!(answer, "200 ");
}

#[test]
fn other_files_are_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.join("encoder_config")).unwrap();
        for file in [
            "config.json",
            "encoder_config/config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
    };
    let refusal = |name: &str, file: &str, field: &str, value: Value| {
        let folder = scratch.path().join(name);
        copy(&fixtures().join("models/tiny-gliner2"), &folder);
        let path = folder.join(file);
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[field] = value;
        fs::write(path, config.to_string()).unwrap();
        let out = scratch.path().join(format!("{name}-built"));
        build_request(&request(folder, out, Some(Precision::Fp32)), runtime)
            .unwrap_err()
            .chain()
            .to_string()
    };
    let own = "config.json";
    for (name, file, field, value, expected) in [
        ("key", own, "new_option", json!(true), "`new_option` true"),
        (
            "nested",
            own,
            "span_head",
            json!({ "max_width": 4, "mode": 1 }),
            "`mode` 1",
        ),
        (
            "encoder",
            "encoder_config/config.json",
            "new_option",
            json!(7),
            "`new_option` 7",
        ),
        (
            "boundary",
            own,
            "architecture",
            json!("boundary"),
            "expected `architecture` \"span\"",
        ),
        (
            "version",
            own,
            "architecture_version",
            json!(2),
            "`architecture_version` 2",
        ),
        // The weights of another form are missing, or nobody reads them.
        (
            "form",
            own,
            "counting_layer",
            json!("count_lstm"),
            "expected the weight `count_embed.projector.0.weight`",
        ),
    ] {
        let found = refusal(name, file, field, value);
        assert!(found.contains(expected), "{name}: {found}");
    }
    let folder = scratch.path().join("tensor");
    copy(&fixtures().join("models/tiny-gliner2-lstm"), &folder);
    let file = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let bias = tensors.tensor("classifier.2.bias").unwrap();
    let mut all: Vec<(&str, _)> = tensors.iter().collect();
    all.push(("span_rep.gate.bias", bias));
    fs::write(
        folder.join("model.safetensors"),
        safetensors::serialize(all, None).unwrap(),
    )
    .unwrap();
    let built = build_request(
        &request(folder, scratch.path().join("other"), Some(Precision::Fp32)),
        runtime,
    );
    let found = built.unwrap_err().chain().to_string();
    assert!(found.contains("span_rep.gate.bias"), "{found}");
    let mut other = request(
        fixtures().join("models/tiny-gliner2"),
        scratch.path().join("task"),
        Some(Precision::Fp32),
    );
    other.task = Some(Task::TextClassification);
    let found = build_request(&other, runtime).unwrap_err().to_string();
    assert!(
        found.contains(
            "expected a model for `text-classification`, but found one that finds entities"
        ),
        "{found}"
    );
}
