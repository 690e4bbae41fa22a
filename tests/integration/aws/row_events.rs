//! Rows from data warehouses and streams on a scripted model. `tests/s3/test_rows.py` sends the same events to the
//! function, with a real S3 server.

use std::{fs, io::Write, time::Instant};

use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};
use kivu::{cloud::Cloud, config::Config, pipeline::Task};
use kivu_jobs::{Handler, Sinks};
use serde_json::{Value, json};

use crate::{
    models::{open_for, runtime},
    scripted::{scripted_model, scripted_model_of},
    tools::root,
};

/// A recorded event.
fn recorded(name: &str) -> Value {
    let text = fs::read_to_string(root().join(format!("tests/lambda/rows_{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn config(rules: &Value) -> Config {
    serde_json::from_value(json!({ "batch": { "rules": rules } })).unwrap()
}

async fn answer_with(rules: Value, event: Value) -> kivu::Result<Value> {
    Handler::new(
        vec![scripted_model()],
        &config(&rules),
        Cloud::default(),
        Sinks::default(),
    )?
    .handle(event, None, None)
    .await
}

async fn answer(event: Value) -> Value {
    answer_with(json!([]), event).await.unwrap()
}

/// The vector of a text, as text.
async fn vector(text: &str) -> Value {
    let answer =
        answer(json!({ "external_function": "f", "num_records": 1, "arguments": [[text]] })).await;
    answer["results"][0].clone()
}

#[tokio::test]
async fn redshift_gets_results_in_order() {
    let [cat, dog] = [vector("cat").await, vector("dog").await];
    assert_eq!(
        serde_json::from_str::<Vec<f32>>(cat.as_str().unwrap())
            .unwrap()
            .len(),
        2
    );
    assert_ne!(cat, dog);
    let expected = json!({ "success": true, "num_records": 3, "results": [cat, null, dog] });
    assert_eq!(answer(recorded("redshift")).await, expected);
    let none = json!({ "external_function": "f", "num_records": 0, "arguments": [] });
    assert_eq!(
        answer(none).await,
        json!({ "success": true, "num_records": 0, "results": [] })
    );
}

#[tokio::test]
async fn a_second_argument_is_compared_or_ranked() {
    let pairs = json!([["cat", "cat"], ["cat", "dog"], [null, "cat"], ["cat", null]]);
    let call =
        |pairs: &Value| json!({ "external_function": "f", "num_records": 4, "arguments": pairs });
    let compared = answer(call(&pairs)).await;
    let results = compared["results"].as_array().unwrap();
    assert!(
        (results[0].as_f64().unwrap() - 1.0).abs() < 1e-6,
        "{compared}"
    );
    assert!(results[1].as_f64().unwrap() < 1.0);
    assert_eq!(results[2..], [Value::Null, Value::Null]);
    let ranked = async |rules: Value, arguments: Value| {
        let handler = Handler::new(
            vec![scripted_model_of(Task::TextRanking)],
            &config(&rules),
            Cloud::default(),
            Sinks::default(),
        )
        .unwrap();
        let call = json!({ "external_function": "f", "num_records": 2, "arguments": arguments });
        handler.handle(call, None, None).await.unwrap()["results"].take()
    };
    let pairs = ranked(
        json!([]),
        json!([["cat", "dog"], ["dog", "cat"], ["cat", "cat"]]),
    )
    .await;
    let rules = json!([{ "input": "redshift:F", "ask": { "query": "cat" } }]);
    let texts = ranked(rules, json!([["dog"], ["cat"]])).await;
    assert!(texts[0].is_f64());
    assert_eq!([&pairs[0], &pairs[2]], [&texts[0], &texts[1]]);
}

#[tokio::test]
async fn errors_end_a_query_of_redshift() {
    let refused = async |arguments: Value| {
        let answer =
            answer(json!({ "external_function": "f", "num_records": 2, "arguments": arguments }))
                .await;
        assert_eq!(
            (&answer["success"], answer.get("results")),
            (&json!(false), None)
        );
        answer["error_msg"].as_str().unwrap().to_owned()
    };
    insta::assert_snapshot!(refused(json!([["cat"], [7]])).await, @"expected texts in row 1, but found a number; cast the argument");
    insta::assert_snapshot!(refused(json!([["cat"], [""]])).await, @"expected a text, but found an empty one (row 1)");
    insta::assert_snapshot!(refused(json!([["cat", "a", "b"], []])).await, @"expected 1 or 2 arguments in row 0, but found 3");
    insta::assert_snapshot!(refused(json!([["cat"], ["fish"]])).await, @"the model failed to run (row 1)");
    let rules = json!([{ "input": "redshift:public.embed", "ask": { "prompt": "none" } }]);
    let answer = answer_with(rules, recorded("redshift")).await.unwrap();
    insta::assert_snapshot!(answer["error_msg"], @r#""unknown prompt `none`; the model's prompts: `query`""#);
}

#[tokio::test]
async fn callers_that_wait_are_answered_in_time() {
    let handler = Handler::new(
        vec![scripted_model()],
        &config(&json!([])),
        Cloud::default(),
        Sinks::default(),
    )
    .unwrap();
    let late = async |event| handler.handle(event, Some(Instant::now()), None).await;
    let answer = late(recorded("redshift")).await.unwrap();
    assert_eq!(answer["success"], false);
    let message = answer["error_msg"].as_str().unwrap();
    assert!(message.starts_with("no response within"), "{message}");
    let pairs =
        json!({ "external_function": "f", "num_records": 1, "arguments": [["cat", "dog"]] });
    assert_eq!(late(pairs).await.unwrap()["success"], false);
    assert_eq!(
        late(recorded("snowflake")).await.unwrap()["statusCode"],
        503
    );
    assert!(matches!(
        late(recorded("firehose")).await,
        Err(kivu::Error::DeadlineExceeded { .. })
    ));
}

#[tokio::test]
async fn answers_that_must_become_too_long_are_refused_before_the_model_runs() {
    let (Some(runtime), folder) = (runtime(), tempfile::tempdir().unwrap()) else {
        return;
    };
    let task = Task::ZeroShotClassification;
    let model = open_for(task, "tiny-deberta-nli", folder.path(), runtime).unwrap();
    let labels: Vec<String> = (0..1000).map(|label| format!("{label:0100}")).collect();
    let labels = labels.join(",");
    let rules = json!([{ "input": "redshift:public.embed", "ask": { "labels": labels, "all-scores": "true" } }]);
    let handler = Handler::new(
        vec![model],
        &config(&rules),
        Cloud::default(),
        Sinks::default(),
    )
    .unwrap();
    // The first text would be refused when it is read.
    let rows = |count: usize| (0..count).map(|row| if row == 0 { "" } else { "cat" });
    let mut redshift = recorded("redshift");
    redshift["arguments"] = rows(60).map(|text| json!([text])).collect();
    let answer = handler.handle(redshift.clone(), None, None).await.unwrap();
    insta::assert_snapshot!(answer["error_msg"], @r#""expected results of at most 6000000 bytes, but found at least 6300060; set a smaller `MAX_BATCH_ROWS`""#);
    redshift["arguments"] = rows(1).map(|text| json!([text])).collect();
    let answer = handler.handle(redshift, None, None).await.unwrap();
    insta::assert_snapshot!(answer["error_msg"], @r#""expected a text, but found an empty one (row 0)""#);
    let mut snowflake = recorded("snowflake");
    let numbered: Vec<_> = rows(60).map(|text| json!([0, text])).collect();
    snowflake["body"] = json!({ "data": numbered }).to_string().into();
    let headers = snowflake["headers"].as_object_mut().unwrap();
    headers.remove("sf-custom-normalize");
    headers.insert("sf-custom-labels".into(), labels.into());
    headers.insert("sf-custom-all-scores".into(), "true".into());
    let answer = handler.handle(snowflake, None, None).await.unwrap();
    assert_eq!(answer["statusCode"], 413, "{answer}");
}

#[tokio::test]
async fn snowflake_gets_rows_by_number() {
    let answer = answer(recorded("snowflake")).await;
    assert_eq!(
        (&answer["statusCode"], &answer["isBase64Encoded"]),
        (&json!(200), &json!(false))
    );
    let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    let rows = body["data"].as_array().unwrap();
    let numbers: Vec<_> = rows.iter().map(|row| row[0].as_u64().unwrap()).collect();
    assert_eq!((numbers, &rows[1][1]), (vec![0, 1, 2], &Value::Null));
    // `sf-custom-normalize` is false.
    assert_eq!((&rows[0][1][1], &rows[2][1][1]), (&json!(1.0), &json!(1.0)));

    let mut packed = recorded("snowflake");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(packed["body"].as_str().unwrap().as_bytes())
        .unwrap();
    packed["body"] = BASE64_STANDARD.encode(encoder.finish().unwrap()).into();
    packed["isBase64Encoded"] = true.into();
    assert_eq!(self::answer(packed).await, answer);
}

#[tokio::test]
async fn errors_of_snowflake_have_a_status() {
    let refused = async |name: &str, value: Value| {
        let mut event = recorded("snowflake");
        *event.pointer_mut(name).unwrap() = value;
        let answer = answer(event).await;
        format!(
            "{} {}",
            answer["statusCode"],
            answer["body"].as_str().unwrap()
        )
    };
    insta::assert_snapshot!(refused("/body", "{}".into()).await, @r#"400 {"error":"expected rows in `data`, but the body is different (line 1)"}"#);
    insta::assert_snapshot!(refused("/body", r#"{"data": [["cat"]]}"#.into()).await, @r#"400 {"error":"expected a row number before the arguments, but found none"}"#);
    insta::assert_snapshot!(refused("/body", r#"{"data": [[0, "fish"]]}"#.into()).await, @r#"500 {"error":"the model failed to run"}"#);
    insta::assert_snapshot!(refused("/headers/sf-external-function-format", "xml".into()).await, @r#"400 {"error":"expected the format `json`, but found `xml`"}"#);
    insta::assert_snapshot!(refused("/headers/sf-custom-normalize", "maybe".into()).await, @r#"400 {"error":"expected `true` or `false` in the option `normalize`, but found `maybe`"}"#);
}

#[tokio::test]
async fn firehose_gets_each_record_with_its_outcome() {
    let event = recorded("firehose");
    let rules = json!([{ "input": "firehose:reviews", "ask": { "normalize": "false" } }]);
    let answer = answer_with(rules, event.clone()).await.unwrap();
    let records = answer["records"].as_array().unwrap();
    let given = event["records"].as_array().unwrap();
    let outcomes: Vec<_> = records
        .iter()
        .map(|record| record["result"].as_str().unwrap())
        .collect();
    assert_eq!(
        outcomes,
        [
            "Ok",
            "Dropped",
            "Ok",
            "ProcessingFailed",
            "ProcessingFailed",
            "ProcessingFailed"
        ]
    );
    for (record, given) in records.iter().zip(given) {
        assert_eq!(record["recordId"], given["recordId"]);
        if record["result"] != "Ok" {
            assert_eq!(record["data"], given["data"], "it is delivered unchanged");
        }
    }
    let row = |place: usize| {
        let line = BASE64_STANDARD
            .decode(records[place]["data"].as_str().unwrap())
            .unwrap();
        assert_eq!(line.last(), Some(&b'\n'));
        serde_json::from_slice::<Value>(&line).unwrap()
    };
    assert_eq!(
        (&row(0)["id"], &row(0)["embedding"][1]),
        (&json!(1), &json!(1.0))
    );
    assert_eq!((&row(2)["id"], &row(2)["text"]), (&json!(2), &json!("dog")));
}

/// A reader of files drops a mark at the start, and then the line if it is empty.
#[tokio::test]
async fn byte_order_marks_do_not_move_answers_to_other_records() {
    let mut event = recorded("firehose");
    let texts = [
        "\u{feff}\u{feff}",
        "\u{feff}\u{feff}{\"id\": 1, \"text\": \"cat\"}",
        "{\"id\": 2, \"text\": \"dog\"}",
    ];
    let record = |text: &&str| json!({ "recordId": text, "data": BASE64_STANDARD.encode(text) });
    event["records"] = texts.iter().map(record).collect();
    let answer = answer(event).await;
    let outcome = |place: usize| {
        let record = &answer["records"][place];
        let line = BASE64_STANDARD
            .decode(record["data"].as_str().unwrap())
            .unwrap();
        let id = serde_json::from_slice::<Value>(&line)
            .map(|row| row["id"].clone())
            .unwrap_or_default();
        (record["result"].as_str().unwrap().to_owned(), id)
    };
    assert_eq!(outcome(0), ("Dropped".into(), Value::Null));
    assert_eq!(outcome(1), ("Ok".into(), json!(1)));
    assert_eq!(outcome(2), ("Ok".into(), json!(2)));
}

#[tokio::test]
async fn firehose_gets_no_more_than_its_limit() {
    let data =
        BASE64_STANDARD.encode(json!({ "text": "cat", "other": "x".repeat(970) }).to_string());
    let record = |id: usize| json!({ "recordId": id.to_string(), "data": data });
    let mut event = recorded("firehose");
    event["records"] = (0..4200).map(record).collect();
    let answer = answer(event).await;
    let records = answer["records"].as_array().unwrap();
    let count = |result: &str| {
        records
            .iter()
            .filter(|record| record["result"] == result)
            .count()
    };
    assert_eq!(
        (records.len(), count("Ok") + count("ProcessingFailed")),
        (4200, 4200)
    );
    assert!(count("Ok") > 0 && count("ProcessingFailed") > 0);
    assert!(answer.to_string().len() < 6 * 1024 * 1024);
}

/// A transient failure is an error, after which Firehose sends the records again.
#[tokio::test]
async fn firehose_repeats_records_if_the_model_fails_for_all() {
    let data = BASE64_STANDARD.encode(r#"{"text": "fish"}"#);
    let mut event = recorded("firehose");
    event["records"] =
        json!([{ "recordId": "1", "data": data }, { "recordId": "2", "data": data }]);
    assert!(answer_with(json!([]), event).await.is_err());
}

/// Nothing is written before the first record that must be repeated.
#[tokio::test]
async fn streams_name_the_first_record_to_repeat() {
    let rules = json!([{ "input": "kinesis:reviews", "output": "s3://files/out/", "ask": { "column": "text" } }]);
    let mut event = recorded("kinesis");
    event["Records"][0]["kinesis"]["data"] = BASE64_STANDARD.encode(r#"{"text": "fish"}"#).into();
    let first = event["Records"][0]["kinesis"]["sequenceNumber"].clone();
    let answer = answer_with(rules.clone(), event).await.unwrap();
    assert_eq!(
        answer,
        json!({ "batchItemFailures": [{ "itemIdentifier": first }] })
    );
    let mut blank = recorded("kinesis");
    blank["Records"] = json!([blank["Records"][0]]);
    blank["Records"][0]["kinesis"]["data"] = "Cg==".into();
    assert_eq!(
        answer_with(rules, blank).await.unwrap(),
        json!({ "batchItemFailures": [] })
    );
}

#[tokio::test]
async fn streams_need_an_output() {
    let refused = async |rules: Value, name: &str| {
        answer_with(rules, recorded(name))
            .await
            .unwrap_err()
            .to_string()
    };
    insta::assert_snapshot!(refused(json!([]), "kinesis").await, @"expected a rule with the input `kinesis:reviews` and an output in S3, but found none; add it to `batch.rules`");
    insta::assert_snapshot!(refused(json!([{ "input": "dynamodb:reviews" }]), "dynamodb").await, @"expected `s3://BUCKET/PREFIX` as output in the rule for `dynamodb:reviews`, but found ``");
    insta::assert_snapshot!(refused(json!([{ "input": "redshift:f", "output": "s3://files/out/" }]), "redshift").await, @"expected no output in the rule for `redshift:f`, but found `s3://files/out/`");
    insta::assert_snapshot!(refused(json!([{ "input": "kinesis:reviews", "output": "s3://files/in/a/" }]), "kinesis").await, @"expected an output outside the input prefix `in/`, but found `in/a/`; outputs would be processed as inputs");
    let mut keys_only = recorded("dynamodb");
    keys_only["Records"][0]["dynamodb"]
        .as_object_mut()
        .unwrap()
        .remove("NewImage");
    let rules = json!([{ "input": "dynamodb:reviews", "output": "s3://files/out/" }]);
    insta::assert_snapshot!(answer_with(rules, keys_only).await.unwrap_err(), @"expected `NewImage` in the records, but found none; choose the view type `NEW_IMAGE` or `NEW_AND_OLD_IMAGES`");
}

#[tokio::test]
async fn unknown_events_are_refused() {
    for event in [
        json!({ "arguments": 7 }),
        json!({ "deliveryStreamArn": "a" }),
        json!(7),
        json!({ "body": "{}" }),
    ] {
        assert!(
            answer_with(json!([]), event.clone()).await.is_err(),
            "{event}"
        );
    }
}
