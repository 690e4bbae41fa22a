//! Every route on a scripted model: responses, and errors for invalid requests.

use std::{io::Write, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use flate2::{Compression, write::GzEncoder};
use http_body_util::BodyExt;
use kivu::{backend::Deadline, config::Limits, model::Model, pipeline::Task};
use kivu_http::{App, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    app::scripted,
    messages::{self, answer, post},
    scripted::{FAILS, PANICS, model_with, scripted_model, scripted_model_of},
};

fn app_with(limits: Limits) -> Router {
    router(scripted(limits))
}

fn app() -> Router {
    app_with(Limits {
        texts: 4,
        body_bytes: 4096,
        ..Limits::default()
    })
}

async fn ask(path: &str, body: &Value) -> (StatusCode, Value) {
    messages::ask(&app(), path, body).await
}

/// A rejected request's status and message.
async fn refusal(path: &str, body: impl Into<Body>) -> String {
    let (status, body) = answer(app().oneshot(post(path, body)).await.unwrap()).await;
    let messages = [
        &body["error"]["message"],
        &body["error"],
        &body["message"],
        &body["detail"],
    ];
    let message = messages
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or("no message");
    format!("{}: {message}", status.as_u16())
}

#[tokio::test]
async fn originals_are_put_back() {
    let mapping = json!({ "[PER_1]": "Ann", "[PER_2]": "B".repeat(3000) });
    let body = |inputs: Value| json!({ "inputs": inputs, "redact_mapping": mapping });
    let (status, one) = ask("/restore", &body(json!("[PER_1], [PER_3]"))).await;
    let ann = json!({ "text": "Ann, [PER_3]", "restored": 1, "unknown": 1 });
    assert_eq!((status, &one), (StatusCode::OK, &ann));
    let (_, two) = ask("/restore", &body(json!(["[PER_1], [PER_3]", "a"]))).await;
    let a = json!({ "text": "a", "restored": 0, "unknown": 0 });
    assert_eq!(two, json!([ann, a]));
    let small = Limits {
        values: 1000,
        ..Limits::default()
    };
    let long = body(json!(["[PER_2] [PER_2]", "[PER_2] [PER_2]"])).to_string();
    let sent = app_with(small).oneshot(post("/restore", long)).await;
    let (status, refused) = answer(sent.unwrap()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    insta::assert_snapshot!(refused["error"].as_str().unwrap(), @"the texts would be too long with their originals; send fewer or shorter ones");
    let neither = json!({ "inputs": "a" }).to_string();
    insta::assert_snapshot!(refusal("/restore", neither).await, @"422: expected `redact_mapping` or `redact_key`, but found neither");
    let key = json!({ "inputs": "a", "redact_key": "0f" }).to_string();
    insta::assert_snapshot!(refusal("/restore", key).await, @"422: wrong value in `redact_key`: expected a key of 32 bytes, as 64 hexadecimal digits, but found 2 characters; make one with `openssl rand -hex 32`");
    let twice = r#"{"inputs": "a", "redact_mapping": {"[A_1]": "x", "[A_1]": "y"}}"#;
    insta::assert_snapshot!(refusal("/restore", twice.to_owned()).await, @"422: wrong value in `redact_mapping`: expected each placeholder once, but found an earlier one in place 2");
}

#[tokio::test]
async fn embed_returns_a_list_of_vectors_even_for_one_text() {
    let (status, one) = ask("/embed", &json!({ "inputs": "cat" })).await;
    assert_eq!(status, StatusCode::OK);
    let (_, two) = ask("/embed", &json!({ "inputs": ["cat", "dog and cat"] })).await;
    assert_eq!(
        (one.as_array().unwrap().len(), two.as_array().unwrap().len()),
        (1, 2)
    );
    assert_eq!(one[0], two[0], "independent of the other texts");
    let (_, raw) = ask("/embed", &json!({ "inputs": "cat", "normalize": false })).await;
    assert_eq!(raw[0][1], 1.0);
    let (_, prompted) = ask(
        "/embed",
        &json!({ "inputs": "cat", "prompt_name": "query" }),
    )
    .await;
    let (_, written) = ask("/embed", &json!({ "inputs": "cat cat" })).await;
    assert_eq!(prompted, written);
    let (_, short) = ask("/embed", &json!({ "inputs": "cat", "dimensions": 1 })).await;
    assert_eq!(short, json!([[1.0]]));
}

#[tokio::test]
async fn ids_from_tokenize_embed_like_their_text_and_decode_to_it() {
    let (_, tokens) = ask("/tokenize", &json!({ "inputs": "cat dog" })).await;
    let ids: Vec<u64> = tokens[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["id"].as_u64().unwrap())
        .collect();
    let (_, of_ids) = ask("/embed", &json!({ "inputs": ids })).await;
    let (_, of_text) = ask("/embed", &json!({ "inputs": "cat dog" })).await;
    assert_eq!(of_ids, of_text);
    let (_, decoded) = ask("/decode", &json!({ "ids": ids })).await;
    assert_eq!(decoded, json!(["cat dog"]));
    let (_, whole) = ask(
        "/decode",
        &json!({ "ids": ids, "skip_special_tokens": false }),
    )
    .await;
    assert_eq!(whole, json!(["[CLS] cat dog [SEP]"]));
    let (_, both) = ask("/decode", &json!({ "ids": [ids, ids] })).await;
    assert_eq!(both, json!(["cat dog", "cat dog"]));
    let first = &tokens[0][0];
    assert_eq!(
        (&first["special"], &first["start"]),
        (&json!(true), &Value::Null)
    );
    let spans: String = tokens[0]
        .as_array()
        .unwrap()
        .iter()
        .filter(|token| token["special"] == false)
        .map(|token| token["text"].as_str().unwrap())
        .collect();
    assert_eq!(spans, "catdog");
}

#[tokio::test]
async fn similarity_is_the_cosine_in_the_order_of_the_sentences() {
    let body =
        json!({ "inputs": { "source_sentence": "cat", "sentences": ["cat", "dog and bird"] } });
    let (status, similarities) = ask("/similarity", &body).await;
    assert_eq!(status, StatusCode::OK);
    assert!((similarities[0].as_f64().unwrap() - 1.0).abs() < 1e-6);
    assert!(similarities[1].as_f64().unwrap() < 1.0);
    let (_, at_root) = ask("/", &body).await;
    assert_eq!(at_root, similarities, "at the default route");
}

/// As `encode_query` and `encode_document` in sentence-transformers.
#[tokio::test]
async fn embedding_models_rank_with_their_prompts() {
    let vector = async |text: &str, role: Option<&str>| {
        let (_, vectors) = ask("/embed", &json!({ "inputs": text, "prompt_name": role })).await;
        [0, 1].map(|place| vectors[0][place].as_f64().unwrap())
    };
    let cosine = |left: [f64; 2], right: [f64; 2]| left[0] * right[0] + left[1] * right[1];
    let text = vector("dog and bird", None).await;
    let expected = cosine(vector("a", Some("query")).await, text);
    let body = json!({ "query": "a", "texts": ["dog and bird"], "raw_scores": true });
    let (_, ranks) = ask("/rerank", &body).await;
    let score = ranks[0]["score"].as_f64().unwrap();
    assert!(
        (score - expected).abs() < 1e-6,
        "{score} instead of {expected}"
    );
    assert!(
        (score - cosine(vector("a", None).await, text)).abs() > 1e-6,
        "the prompt counts"
    );
    let named = json!({ "query": "dog", "texts": ["dog"], "model": "tiny:query" }).to_string();
    insta::assert_snapshot!(refusal("/rerank", named).await, @"422: expected a model's name without a role, since ranking has a query and texts, but found `tiny:query`");
}

#[tokio::test]
async fn embed_all_returns_a_vector_per_token() {
    let (_, vectors) = ask("/embed_all", &json!({ "inputs": ["cat"] })).await;
    let (_, tokens) = ask("/tokenize", &json!({ "inputs": "cat" })).await;
    assert_eq!(
        vectors[0].as_array().unwrap().len(),
        tokens[0].as_array().unwrap().len()
    );
}

#[tokio::test]
async fn responses_report_usage_and_truncation() {
    let long = "cat ".repeat(20);
    let body = json!({ "inputs": ["cat", long] }).to_string();
    let response = app().oneshot(post("/embed", body)).await.unwrap();
    let headers = response.headers();
    assert_eq!(headers["x-truncated"], "1");
    assert_eq!(headers["x-compute-characters"], "83");
    assert!(
        headers["x-compute-tokens"]
            .to_str()
            .unwrap()
            .parse::<usize>()
            .unwrap()
            > 12
    );
    let (_, openai) = ask(
        "/v1/embeddings",
        &json!({ "model": "tiny", "input": ["cat", long] }),
    )
    .await;
    assert_eq!(openai["truncated"], json!([1]));
    let tensor =
        json!([{ "name": "TEXT", "shape": [2], "datatype": "BYTES", "data": ["cat", long] }]);
    for (path, body) in [
        ("/v1/embeddings", json!({ "input": ["cat", long] })),
        (
            "/v2/embed",
            json!({ "model": "tiny", "texts": ["cat", long], "input_type": "search_query" }),
        ),
        (
            "/api/embed",
            json!({ "model": "tiny", "input": ["cat", long] }),
        ),
        ("/v2/models/tiny/infer", json!({ "inputs": tensor })),
        (
            "/vertex",
            json!({ "instances": [{ "inputs": "cat" }, { "inputs": ["cat", long] }] }),
        ),
    ] {
        let response = app().oneshot(post(path, body.to_string())).await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["x-truncated"], "1", "{path}");
    }
    let (_, openai) = ask(
        "/v1/embeddings",
        &json!({ "model": "tiny", "input": "cat" }),
    )
    .await;
    assert_eq!(openai.get("truncated"), None);
    assert_eq!(
        ask("/embeddings", &json!({ "model": "tiny", "input": "cat" }))
            .await
            .1,
        openai
    );
}

#[tokio::test]
async fn texts_are_truncated_at_either_end() {
    let text = format!("dog {}bird", "cat ".repeat(20));
    let embed = |side: Value| {
        let body = json!({ "inputs": text, "truncation_direction": side, "normalize": false });
        async move { ask("/embed", &body).await.1 }
    };
    let (left, right) = (embed(json!("left")).await, embed(json!("Right")).await);
    assert_ne!(left, right);
    assert_eq!(embed(Value::Null).await, right, "the end by default");
}

#[tokio::test]
async fn openai_embeddings_come_as_floats_or_base64() {
    let (_, floats) = ask("/v1/embeddings", &json!({ "input": "cat" })).await;
    insta::assert_json_snapshot!(floats, { ".data[].embedding" => "[…]" }, @r#"
    {
      "data": [
        {
          "embedding": "[…]",
          "index": 0,
          "object": "embedding"
        }
      ],
      "model": "tiny",
      "object": "list",
      "usage": {
        "prompt_tokens": 3,
        "total_tokens": 3
      }
    }
    "#);
    let (_, base64) = ask(
        "/v1/embeddings",
        &json!({ "input": "cat", "encoding_format": "base64" }),
    )
    .await;
    use base64::{Engine, prelude::BASE64_STANDARD};
    let bytes = BASE64_STANDARD
        .decode(base64["data"][0]["embedding"].as_str().unwrap())
        .unwrap();
    let values: Vec<f32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    let expected: Vec<f32> =
        serde_json::from_value(floats["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(values, expected);
}

#[tokio::test]
async fn models_and_server_are_described() {
    let get = |path: &'static str| async move {
        answer(
            app()
                .oneshot(Request::get(path).body(Body::empty()).unwrap())
                .await
                .unwrap(),
        )
        .await
    };
    assert_eq!(get("/health").await.0, StatusCode::OK);
    assert_eq!(get("/v1/models").await.1["data"][0]["id"], "tiny");
    assert_eq!(get("/v1/models/tiny").await.1["object"], "model");
    let (status, unknown) = get("/v1/models/gpt").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    insta::assert_snapshot!(unknown, @r#"{"error":{"code":"model_not_found","message":"unknown model `gpt`; known models: `tiny`","param":null,"type":"invalid_request_error"}}"#);
    let (_, info) = get("/info").await;
    assert_eq!(
        info["model_type"],
        json!({ "embedding": { "pooling": "mean" } })
    );
    assert_eq!(
        (&info["max_input_length"], &info["max_client_batch_size"]),
        (&json!(12), &json!(4))
    );
}

#[tokio::test]
async fn wrong_values_are_named() {
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": ""}"#).await, @"422: expected a text in `inputs`, but found an empty one");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": []}"#).await, @"422: expected 1 to 4 `inputs`, but found 0");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": ["a", 7]}"#).await, @"422: expected `inputs[1]` to be a string, but found a number");
    insta::assert_snapshot!(refusal("/embed", r#"{}"#).await, @"422: expected an object with `inputs`, but found none");
    insta::assert_snapshot!(refusal("/embed", r#"[]"#).await, @"422: expected an object with `inputs`, but found none");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "truncate": "yes"}"#).await, @r#"422: expected `truncate` to be a boolean, but found a string"#);
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "dimensions": 3}"#).await, @"422: expected `dimensions` from 1 to 2, but found 3");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "dimensions": -1}"#).await, @"422: expected `dimensions` to be an integer from 0 on, but found `-1`");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "prompt_name": "x"}"#).await, @"422: unknown prompt `x`; the model's prompts: `query`");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": [[1, 99999]]}"#).await, @"422: expected token ids below 230, but found 99999");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "model": "b"}"#).await, @"404: unknown model `b`; known models: `tiny`");
    insta::assert_snapshot!(refusal("/similarity", r#"{"inputs": "a"}"#).await, @r#"422: expected `inputs` to be an object with `source_sentence` and `sentences`, but found a string"#);
    insta::assert_snapshot!(refusal("/similarity", r#"{"inputs": {"source_sentence": "a", "sentences": []}}"#).await, @"422: expected 1 to 3 `inputs.sentences`, but found 0");
    insta::assert_snapshot!(refusal("/decode", r#"{"ids": [99999]}"#).await, @"422: expected token ids below 230, but found 99999");
    insta::assert_snapshot!(refusal("/decode", r#"{"ids": "a"}"#).await, @"422: expected `ids` to be lists of token ids, but found a string");
    insta::assert_snapshot!(refusal("/v1/embeddings", r#"{"input": 7}"#).await, @"422: expected `input` to be a string, a list of strings or lists of token ids, but found a number");
    insta::assert_snapshot!(refusal("/v1/embeddings", r#"{"input": "a", "encoding_format": "hex"}"#).await, @"422: expected `encoding_format` to be one of `float`, `base64`, `int8`, `uint8`, `binary`, `ubinary`, but found another value");
}

#[tokio::test]
async fn oversized_requests_are_rejected_with_the_limit() {
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": ["a", "b", "c", "d", "e"]}"#).await, @"413: expected 1 to 4 `inputs`, but found 5");
    let long = json!({ "inputs": "cat ".repeat(20), "truncate": false }).to_string();
    insta::assert_snapshot!(refusal("/embed", long).await, @"413: the text has 22 tokens, but the model takes at most 12; set `truncate` to shorten it");
    let second = json!({ "inputs": ["a", "cat ".repeat(20)], "truncate": false }).to_string();
    insta::assert_snapshot!(refusal("/embed", second).await, @"413: text 1: the text has 22 tokens, but the model takes at most 12; set `truncate` to shorten it");
    let ids = json!({ "inputs": [vec![1; 20]], "truncate": false }).to_string();
    insta::assert_snapshot!(refusal("/embed", ids).await, @"413: the input has 20 tokens, but the model takes at most 12; set `truncate` to shorten it");
    let small = app_with(Limits {
        values: 5,
        ..Limits::default()
    });
    let inputs = [
        ("/embed", json!(["a", "b", "c"])),
        ("/embed_all", json!("a b c")),
        ("/tokenize", json!("a")),
    ];
    for (path, inputs) in inputs {
        let request = post(path, json!({ "inputs": inputs }).to_string());
        let (status, body) = answer(small.clone().oneshot(request).await.unwrap()).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}: {body}");
    }
    let body = json!({ "inputs": "x".repeat(5000) }).to_string();
    insta::assert_snapshot!(refusal("/embed", body).await, @"413: expected a body of at most 4096 bytes, but found more");
}

/// Their clients would misread the response.
#[tokio::test]
async fn requests_for_another_models_task_are_refused() {
    let hub = json!({ "inputs": "cat", "parameters": {} }).to_string();
    let labels =
        json!({ "inputs": "cat", "parameters": { "candidate_labels": ["a", "b"] } }).to_string();
    let beside = json!({ "inputs": "cat", "labels": "a,b" }).to_string();
    for path in ["/", "/models/tiny", "/invocations"] {
        for (name, body) in [("candidate_labels", &labels), ("labels", &beside)] {
            let expected = format!(
                "422: `{name}` is not supported: `tiny` is for `feature-extraction`; `model`, or \
                 `models/NAME` in the path, selects another one"
            );
            assert_eq!(refusal(path, body.clone()).await, expected, "{path}");
        }
    }
    assert_eq!(
        app()
            .oneshot(post("/", hub.clone()))
            .await
            .unwrap()
            .status(),
        StatusCode::OK,
        "a single model"
    );
    let rank = Model {
        name: "rank".into(),
        ..scripted_model_of(Task::TextRanking)
    };
    let several = router(App::new(vec![scripted_model(), rank], Limits::default()));
    let (status, body) = answer(
        several
            .clone()
            .oneshot(post("/", hub.clone()))
            .await
            .unwrap(),
    )
    .await;
    insta::assert_snapshot!(format!("{status} {}", body["error"]), @r#"422 Unprocessable Entity "`parameters` is not supported: `tiny`, the first model, is for `feature-extraction`; a client for another model needs its address, with the path `/models/NAME`""#);
    for (path, body) in [
        ("/models/tiny", hub),
        ("/", json!({ "inputs": "cat" }).to_string()),
    ] {
        assert_eq!(
            several
                .clone()
                .oneshot(post(path, body))
                .await
                .unwrap()
                .status(),
            StatusCode::OK,
            "{path}"
        );
    }
}

#[tokio::test]
async fn fields_that_are_given_twice_are_refused() {
    for (path, body) in [
        ("/embed", r#"{"inputs": "a", "inputs": "b"}"#),
        ("/", r#"{"inputs": "a", "inputs": "a"}"#),
        (
            "/models/tiny",
            r#"{"inputs": "a", "parameters": null, "inputs": "b"}"#,
        ),
        (
            "/similarity",
            r#"{"inputs": {"source_sentence": "a", "sentences": ["b"]}, "inputs": null}"#,
        ),
    ] {
        let expected = "422: expected each field once in the body, but found `inputs` twice";
        assert_eq!(refusal(path, body).await, expected, "{path}");
    }
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "truncate": true, "truncate": true}"#).await, @"422: expected each field once in the body, but found `truncate` twice");
    insta::assert_snapshot!(refusal("/vertex", r#"{"instances": [{"inputs": "a"}, {"inputs": "a", "inputs": "b"}]}"#).await, @"422: expected each field once in `instances[1]`, but found `inputs` twice");
}

#[tokio::test]
async fn fields_that_contradict_each_other_are_refused() {
    insta::assert_snapshot!(refusal("/v1/embeddings", r#"{"input": "a", "dimensions": 1, "output_dimension": 2}"#).await, @"422: `dimensions` and `output_dimension` have different values; leave one of them out");
    insta::assert_snapshot!(refusal("/v1/rerank", r#"{"query": "cat", "documents": ["a", "b"], "top_n": 1, "top_k": 2}"#).await, @"422: `top_n` and `top_k` have different values; leave one of them out");
    let pairs = [
        (
            "/v1/embeddings",
            json!({ "input": "a", "truncate": true, "truncation": false }),
            ["truncate", "truncation"],
        ),
        (
            "/v1/embeddings",
            json!({ "input": "a", "input_type": "query", "task": "retrieval.passage" }),
            ["input_type", "task"],
        ),
        (
            "/v1/embeddings",
            json!({ "input": "a", "model": "tiny:query", "input_type": "document" }),
            ["input_type", "model"],
        ),
        (
            "/v2/embed",
            json!({ "texts": ["a"], "model": "tiny:query", "input_type": "search_document" }),
            ["input_type", "model"],
        ),
        (
            "/v1/embeddings",
            json!({ "input": "a", "prompt_name": "query", "input_type": "document" }),
            ["prompt_name", "input_type"],
        ),
        (
            "/embed",
            json!({ "inputs": "a", "encoding_format": "int8", "output_dtype": "binary" }),
            ["output_dtype", "encoding_format"],
        ),
        (
            "/models/tiny",
            json!({ "inputs": "a", "encoding_format": "int8", "parameters": { "output_dtype": "float" } }),
            ["output_dtype", "encoding_format"],
        ),
        (
            "/models/tiny",
            json!({ "inputs": "a", "dimensions": 1, "parameters": { "dimensions": 2 } }),
            ["dimensions", "parameters.dimensions"],
        ),
        (
            "/models/tiny",
            json!({ "inputs": "a", "truncate": true, "parameters": { "truncation": false } }),
            ["truncate", "truncation"],
        ),
    ];
    for (path, body, [one, other]) in pairs {
        let found = refusal(path, body.to_string()).await;
        let expected = format!("422: `{one}` and `{other}` have different values;");
        assert!(found.starts_with(&expected), "{path} {body}: {found}");
    }
    for body in [
        json!({ "input": "a", "dimensions": 1, "output_dimension": 1, "truncate": true, "truncation": true }),
        json!({ "input": "a", "model": "tiny:query", "input_type": "search_query", "task": "retrieval.query" }),
    ] {
        assert_eq!(
            ask("/v1/embeddings", &body).await.0,
            StatusCode::OK,
            "{body}"
        );
    }
    for path in ["/v1/embed", "/v2/embed"] {
        let found = refusal(
            path,
            r#"{"texts": ["a"], "images": ["data:image/png;base64,"]}"#,
        )
        .await;
        assert_eq!(
            found, "422: `images` is not supported: models read texts",
            "{path}"
        );
    }
}

/// The model hub's clients put options into `parameters`, or beside `inputs`.
#[tokio::test]
async fn options_count_wherever_they_are() {
    let expected = ask("/embed", &json!({ "inputs": "cat", "dimensions": 1 })).await;
    assert_eq!(expected.0, StatusCode::OK);
    for path in ["/models/tiny", "/"] {
        for body in [
            json!({ "inputs": "cat", "parameters": { "dimensions": 1 } }),
            json!({ "inputs": "cat", "dimensions": 1, "parameters": { "dimensions": null } }),
            json!({ "inputs": "cat", "dimensions": 1, "parameters": null }),
        ] {
            assert_eq!(ask(path, &body).await, expected, "{path} {body}");
        }
    }
    insta::assert_snapshot!(refusal("/models/tiny", r#"{"inputs": "a", "parameters": "b"}"#).await, @"422: expected `parameters` to be an object, but found a string");
    insta::assert_snapshot!(refusal("/models/tiny", r#"{"inputs": "a", "truncation": "longest_first"}"#).await, @"422: expected `truncation` to be a boolean, but found a string");
    let similarity = |fields: Value| {
        let mut body =
            json!({ "inputs": { "source_sentence": "cat", "sentences": ["dog and bird"] } });
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        body
    };
    for path in ["/models/tiny", "/", "/similarity"] {
        for option in [json!({ "prompt": "dog " }), json!({ "dimensions": 1 })] {
            let beside = ask(path, &similarity(option.clone())).await;
            assert_eq!(
                beside,
                ask(path, &similarity(json!({ "parameters": option }))).await,
                "{path}"
            );
            assert_ne!(
                beside,
                ask(path, &similarity(json!({}))).await,
                "{path} {option}"
            );
        }
        let whole = json!({ "inputs": { "source_sentence": "cat ".repeat(20), "sentences": ["dog"] }, "truncation": false });
        assert_eq!(
            ask(path, &whole).await.0,
            StatusCode::PAYLOAD_TOO_LARGE,
            "{path}"
        );
    }
    let rerank = |path, documents: Value| {
        refusal(
            path,
            json!({ "query": "cat", "documents": documents, "prompt": "query: " }).to_string(),
        )
    };
    for path in ["/v1/rerank", "/v2/rerank"] {
        assert!(
            rerank(path, json!(["a"]))
                .await
                .starts_with("422: `prompt` is not supported"),
            "{path}"
        );
    }
    insta::assert_snapshot!(refusal("/vertex", r#"{"instances": [{"inputs": "a"}], "parameters": {"truncate": false}}"#).await, @"422: `parameters` is not supported: put them into each of the `instances`");
    for path in ["/v1/embed", "/v2/embed"] {
        let found = refusal(path, r#"{"texts": ["a"], "max_tokens": 11}"#).await;
        let expected = "422: expected `max_tokens` of at least 12, the model's limit, but found 11; leave it out";
        assert_eq!(found, expected, "{path}");
        assert_eq!(
            ask(path, &json!({ "texts": ["a"], "max_tokens": 4096 }))
                .await
                .0,
            StatusCode::OK,
            "{path}"
        );
    }
    let of_documents = r#"{"query": "a", "documents": ["b"], "max_tokens_per_doc": 3}"#;
    insta::assert_snapshot!(refusal("/v2/rerank", of_documents).await, @"422: expected `max_tokens_per_doc` of at least 12, the model's limit, but found 3; leave it out");
    insta::assert_snapshot!(rerank("/v2/rerank", json!(["a", { "title": "b" }])).await, @"422: expected a text in `documents[1].text`, but found none");
}

#[tokio::test]
async fn invalid_json_is_rejected_with_its_position() {
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a""#).await, @"400: expected JSON, but the body ends too early (line 1, column 14)");
    insta::assert_snapshot!(refusal("/embed", "").await, @"400: expected JSON, but found an empty body");
    insta::assert_snapshot!(refusal("/embed", "hello").await, @"400: the body is not JSON: expected value at line 1 column 1");
    insta::assert_snapshot!(refusal("/embed", "{'inputs': 'a'}").await, @"400: expected double quotes in JSON, but found a single quote (line 1, column 2)");
    insta::assert_snapshot!(refusal("/embed", "{\"inputs\":\n 'a'}").await, @"400: expected double quotes in JSON, but found a single quote (line 2, column 2)");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a"} {}"#).await, @"400: expected one JSON value, but found more at line 1, column 17");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": ["a",]}"#).await, @"400: the body is not JSON: trailing comma at line 1 column 17");
    insta::assert_snapshot!(refusal("/embed", "{\"inputs\": \"a\", \"dimensions\": NaN}").await, @"400: `NaN` is not JSON (line 1, column 31); write `null`");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "truncate": True}"#).await, @"400: `True` is not JSON (line 1, column 29); write `true`");
    insta::assert_snapshot!(refusal("/embed", "[".repeat(200)).await, @"400: the body is nested too deeply: lists and objects may have at most 127 levels (line 1, column 128)");
    insta::assert_snapshot!(refusal("/embed", "\u{feff}{\"inputs\": \"a\"}").await, @"400: expected JSON in UTF-8 without a byte order mark, but found a byte order mark");
    let utf_16: Vec<u8> = r#"{"inputs": "a"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    insta::assert_snapshot!(refusal("/embed", utf_16).await, @"400: expected JSON in UTF-8 without a byte order mark, but found UTF-16");
    insta::assert_snapshot!(refusal("/v1/embeddings", "{").await, @"400: expected JSON, but the body ends too early (line 1, column 1)");
    let (status, body) = answer(
        app()
            .oneshot(Request::post("/embed").body(Body::from("{}")).unwrap())
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    insta::assert_snapshot!(body, @r#"{"error":"expected the content type `application/json`, but found `none`","error_type":"Validation"}"#);
}

/// A batch has many texts, and a chat nested ones: an error names the one, and repeats none.
#[tokio::test]
async fn damaged_texts_are_named_in_every_dialect() {
    let half = r"secret \ud83d";
    for (path, body, field) in [
        ("/embed", r#"{"inputs": ["a", "HALF"]}"#, "inputs[1]"),
        ("/embed", r#"{"inputs": "HALF"}"#, "inputs"),
        ("/embed", r#"{"inputs": "a", "prompt": "HALF"}"#, "prompt"),
        ("/models/tiny", r#"{"inputs": ["a", "HALF"]}"#, "inputs[1]"),
        (
            "/similarity",
            r#"{"inputs": {"source_sentence": "a", "sentences": ["a", "b", "HALF"]}}"#,
            "inputs.sentences[2]",
        ),
        ("/v1/embeddings", r#"{"input": ["a", "HALF"]}"#, "input[1]"),
        ("/v2/embed", r#"{"texts": ["a", "HALF"]}"#, "texts[1]"),
        (
            "/v2/rerank",
            r#"{"query": "a", "documents": [{"text": "b"}, {"text": "HALF"}]}"#,
            "documents[1].text",
        ),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "HALF"}]}"#,
            "messages[0].content",
        ),
        ("/api/embed", r#"{"input": ["HALF"]}"#, "input[0]"),
        (
            "/v2/translate",
            r#"{"text": ["HALF"], "target_lang": "DE"}"#,
            "text[0]",
        ),
        (
            "/v2/models/tiny/infer",
            r#"{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["HALF"]}]}"#,
            "inputs[0].data[0]",
        ),
        (
            "/model/tiny/invoke",
            r#"{"inputText": "HALF"}"#,
            "inputText",
        ),
        (
            "/gliner-2",
            r#"{"task": "extract_entities", "text": "a", "schema": ["b", "HALF"]}"#,
            "schema[1]",
        ),
    ] {
        for (damage, expected) in [
            (
                half,
                "a lone surrogate, half of a character such as an emoji (",
            ),
            (
                r"\udc00 secret",
                "a lone surrogate, half of a character such as an emoji (",
            ),
            (
                "a secret\nline",
                "a control character, such as a line break, that is not escaped (",
            ),
        ] {
            let expected = format!("400: `{field}` contains {expected}");
            let found = refusal(path, body.replace("HALF", damage)).await;
            assert!(
                found.starts_with(&expected) && !found.contains("secret"),
                "{path} {body}: {found}"
            );
        }
        let bytes = body.as_bytes();
        let place = body.find("HALF").unwrap();
        let other = [&bytes[..place], b"\xff", &bytes[place + 4..]].concat();
        let found = refusal(path, other).await;
        let expected = format!("400: `{field}` contains bytes that are not UTF-8 (");
        assert!(found.starts_with(&expected), "{path} {body}: {found}");
    }
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": "a", "parameters": {"\ud83d": 1}}"#).await, @"400: the body contains a lone surrogate, half of a character such as an emoji (line 1, column 39)");
    insta::assert_snapshot!(refusal("/embed", r#"{"inputs": [{"text": "a", "text": "b"}]}"#).await, @"422: expected each field once in `inputs[0]`, but found `text` twice");
}

/// The values that a field may have are in its error, whatever its type and its place.
#[tokio::test]
async fn choices_of_another_type_are_named_in_every_dialect() {
    for (path, body, field) in [
        (
            "/v1/embeddings",
            r#"{"input": "a", "encoding_format": X}"#,
            "encoding_format",
        ),
        (
            "/v1/embeddings",
            r#"{"input": "a", "embedding_type": X}"#,
            "embedding_type",
        ),
        (
            "/v1/embeddings",
            r#"{"input": "a", "output_dtype": X}"#,
            "output_dtype",
        ),
        (
            "/v1/embeddings",
            r#"{"input": "a", "token_encoding": X}"#,
            "token_encoding",
        ),
        (
            "/embed",
            r#"{"inputs": "a", "encoding_format": X}"#,
            "encoding_format",
        ),
        (
            "/embed",
            r#"{"inputs": "a", "output_dtype": X}"#,
            "output_dtype",
        ),
        (
            "/models/tiny",
            r#"{"inputs": "a", "parameters": {"output_dtype": X}}"#,
            "output_dtype",
        ),
        (
            "/v2/embed",
            r#"{"texts": ["a"], "truncate": X}"#,
            "truncate",
        ),
        (
            "/v2/embed",
            r#"{"texts": ["a"], "embedding_types": ["float", X]}"#,
            "embedding_types[1]",
        ),
        (
            "/v2/embed",
            r#"{"inputs": [{"content": [{"type": X, "text": "a"}]}]}"#,
            "inputs[0].content[0].type",
        ),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": X, "content": "a"}]}"#,
            "messages[0].role",
        ),
        (
            "/gliner-2",
            r#"{"task": X, "text": "a", "schema": ["b"]}"#,
            "task",
        ),
        (
            "/model/tiny/invoke",
            r#"{"inputText": "a", "embeddingTypes": [X]}"#,
            "embeddingTypes[0]",
        ),
        (
            "/model/tiny/invoke",
            r#"{"texts": ["a"], "truncate": X}"#,
            "truncate",
        ),
    ] {
        for (value, found) in [
            (r#"["float", "binary"]"#, "a list"),
            ("[]", "a list"),
            ("{}", "an object"),
            (r#"{"float": null}"#, "an object"),
            ("5", "`5`"),
            ("1.5", "`1.5`"),
            ("true", "`true`"),
            (r#""a secret""#, "another value"),
        ] {
            let status = if path.starts_with("/model/") {
                400
            } else {
                422
            };
            let refused = refusal(path, body.replace('X', value)).await;
            let (start, end) = (
                format!("{status}: expected `{field}` to be "),
                format!(", but found {found}"),
            );
            assert!(
                refused.starts_with(&start)
                    && refused.ends_with(&end)
                    && refused.contains("be one of `") | refused.contains("be `"),
                "{path} {body} {value}: {refused}"
            );
        }
    }
    insta::assert_snapshot!(refusal("/v1/embeddings", r#"{"input": "a", "encoding_format": []}"#).await, @"422: expected `encoding_format` to be one of `float`, `base64`, `int8`, `uint8`, `binary`, `ubinary`, but found a list");
    insta::assert_snapshot!(refusal("/v1/embeddings", r#"{"input": "a", "late_chunking": []}"#).await, @"422: wrong value in `late_chunking`: expected a boolean or `sentences`");
    insta::assert_snapshot!(refusal("/v1/embeddings", r#"{"input": "a", "dimensions": 1e400}"#).await, @"400: `dimensions` contains a number that is out of range (line 1, column 34)");
    insta::assert_snapshot!(refusal("/v1/embeddings", r#"{"input": "a", "dimensions": 99999999999999999999}"#).await, @"422: expected `dimensions` to be an integer from 0 on, but found `1e+20`");
}

/// `/tokenize` returns the tokens that the model reads, also for tasks that use an embedding model with a default prompt.
#[tokio::test]
async fn tokens_include_the_default_prompt_of_every_task() {
    for task in [Task::FeatureExtraction, Task::TextRanking] {
        let model = model_with(task, Some("query"));
        let app = router(App::new(vec![model], Limits::default()));
        let request = post(
            "/tokenize",
            json!({ "inputs": "dog", "add_special_tokens": false }).to_string(),
        );
        let (_, tokens) = answer(app.oneshot(request).await.unwrap()).await;
        let texts: Vec<&Value> = tokens[0]
            .as_array()
            .unwrap()
            .iter()
            .map(|token| &token["text"])
            .collect();
        assert_eq!(texts, ["cat", "dog"], "{task}");
    }
}

#[tokio::test]
async fn compressed_bodies_are_read_completely() {
    let member = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let body = [member(r#"{"inputs": ["cat","#), member(r#" "dog"]}"#)].concat();
    let send = async |encoding: &'static str, body: Vec<u8>| {
        let mut request = post("/embed", body);
        request
            .headers_mut()
            .insert("content-encoding", encoding.parse().unwrap());
        answer(app().oneshot(request).await.unwrap()).await
    };
    let expected = ask("/embed", &json!({ "inputs": ["cat", "dog"] })).await;
    for encoding in ["gzip", "GZIP", "x-gzip"] {
        assert_eq!(send(encoding, body.clone()).await, expected, "{encoding}");
    }
    let (status, _) = send("gzip", [body, b"garbage".to_vec()].concat()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, _) = send("gzip", member(&" ".repeat(5000))).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn unknown_fields_are_ignored() {
    let body = json!({ "inputs": "cat", "user": "me", "x": { "y": 1 }, "stream": false });
    assert_eq!(
        ask("/embed", &body).await,
        ask("/embed", &json!({ "inputs": "cat" })).await
    );
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_in_their_dialect() {
    insta::assert_snapshot!(refusal("/nowhere", "{}").await, @"404: no route `/nowhere`; `/docs` lists the routes");
    insta::assert_snapshot!(refusal("/v1/completions", "{}").await, @"404: no route `/v1/completions`; `/docs` lists the routes");
    let (status, body) = answer(
        app()
            .oneshot(Request::get("/embed").body(Body::empty()).unwrap())
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    insta::assert_snapshot!(body, @r#"{"error":"`/embed` does not take GET","error_type":"Validation"}"#);
}

#[tokio::test]
async fn a_failing_model_fails_its_own_request_only() {
    let app = app();
    let send = |text: &str| {
        app.clone()
            .oneshot(post("/embed", json!({ "inputs": text }).to_string()))
    };
    let (status, body) = answer(send(FAILS).await.unwrap()).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    insta::assert_snapshot!(body, @r#"{"error":"the model failed to run","error_type":"Backend"}"#);
    let (status, body) = answer(send(PANICS).await.unwrap()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    insta::assert_snapshot!(body, @r#"{"error":"the request failed","error_type":"Backend"}"#);
    assert_eq!(send("cat").await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn requests_beyond_the_limit_are_rejected_at_once() {
    let app = app_with(Limits {
        requests: 1,
        ..Limits::default()
    });
    // A body that never ends keeps its request running.
    let endless = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let first = tokio::spawn(app.clone().oneshot(post("/embed", endless)));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = app
        .clone()
        .oneshot(post("/v1/embeddings", r#"{"input": "cat"}"#))
        .await
        .unwrap();
    assert_eq!(second.headers()["retry-after"], "1");
    let (status, body) = answer(second).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    insta::assert_snapshot!(body, @r#"{"error":{"code":"rate_limit_exceeded","message":"expected at most 1 requests at once, but found more; try again in a moment","param":null,"type":"rate_limit_error"}}"#);
    first.abort();
    let _ = first.await;
    let third = app
        .oneshot(post("/embed", r#"{"inputs": "cat"}"#))
        .await
        .unwrap();
    assert_eq!(third.status(), StatusCode::OK);
}

#[tokio::test]
async fn slow_requests_time_out() {
    let app = app_with(Limits {
        timeout_ms: 50,
        ..Limits::default()
    });
    let endless = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let (status, body) = answer(app.clone().oneshot(post("/embed", endless)).await.unwrap()).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    insta::assert_snapshot!(body, @r#"{"error":"no response within 50ms","error_type":"Backend"}"#);
    // The platform's deadline applies if it is earlier.
    let mut request = post("/embed", r#"{"inputs": "cat"}"#);
    request
        .extensions_mut()
        .insert(Deadline::within(Duration::ZERO));
    assert_eq!(
        app.oneshot(request).await.unwrap().status(),
        StatusCode::GATEWAY_TIMEOUT
    );
}

#[tokio::test]
async fn requests_have_ids() {
    let send = |id: Option<&'static str>| async move {
        let mut request = Request::get("/health");
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        let response = app()
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        response.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(send(Some("abc-1")).await, "abc-1");
    assert_eq!(send(None).await.len(), 36);
    assert_ne!(send(None).await, send(None).await);
    assert_eq!(
        send(Some("with space")).await.len(),
        36,
        "what would confuse a log is replaced"
    );
}

/// A message with `json` followed by tensor bytes, with the JSON length header.
fn binary(path: &str, json: &Value, bytes: &[u8], announced: Option<usize>) -> Request<Body> {
    let json = json.to_string();
    let length = announced.unwrap_or(json.len());
    let request = Request::post(path).header("inference-header-content-length", length);
    request
        .body(Body::from([json.as_bytes(), bytes].concat()))
        .unwrap()
}

#[tokio::test]
async fn kserve_reads_tokens_or_texts_and_responds_in_json_or_bytes() {
    let (_, embedded) = ask("/embed", &json!({ "inputs": ["cat", "dog and bird"] })).await;
    let expected: Vec<f32> = serde_json::from_value::<Vec<Vec<f32>>>(embedded)
        .unwrap()
        .into_iter()
        .flatten()
        .collect();

    let text = json!({ "id": "7", "inputs": [{ "name": "TEXT", "shape": [2, 1], "datatype": "BYTES", "data": ["cat", "dog and bird"] }] });
    let (status, answer_json) = ask("/v2/models/tiny/infer", &text).await;
    assert_eq!(status, StatusCode::OK, "{answer_json}");
    assert_eq!(
        (&answer_json["id"], &answer_json["model_version"]),
        (&json!("7"), &json!("1"))
    );
    assert_eq!(answer_json["outputs"][0]["shape"], json!([2, 2]));
    let found: Vec<f32> =
        serde_json::from_value(answer_json["outputs"][0]["data"].clone()).unwrap();
    assert_eq!(found, expected);

    // The same as binary data, in the request and in the response.
    let elements = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let bytes = [elements("cat"), elements("dog and bird")].concat();
    let message = json!({
        "inputs": [{ "name": "TEXT", "shape": [2], "datatype": "BYTES", "parameters": { "binary_data_size": bytes.len() } }],
        "outputs": [{ "name": "embedding", "parameters": { "binary_data": true } }],
    });
    let response = app()
        .oneshot(binary(
            "/v2/models/tiny/versions/1/infer",
            &message,
            &bytes,
            None,
        ))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let length: usize = response.headers()["inference-header-content-length"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let found: Vec<f32> = body[length..]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    assert_eq!(found, expected);

    // Token ids, padded, with a mask.
    let (_, tokens) = ask("/tokenize", &json!({ "inputs": ["cat", "dog and bird"] })).await;
    let ids: Vec<Vec<i64>> = tokens
        .as_array()
        .unwrap()
        .iter()
        .map(|text| {
            text.as_array()
                .unwrap()
                .iter()
                .map(|token| token["id"].as_i64().unwrap())
                .collect()
        })
        .collect();
    let longest = ids.iter().map(Vec::len).max().unwrap();
    let padded = |value: i64, one: bool| -> Vec<i64> {
        ids.iter()
            .flat_map(|row| {
                let row = row.iter().map(|id| if one { 1 } else { *id });
                row.chain(std::iter::repeat(value))
                    .take(longest)
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let tensor = |name: &str, data: Vec<i64>| json!({ "name": name, "shape": [2, longest], "datatype": "INT64", "data": data });
    let message = json!({ "inputs": [tensor("input_ids", padded(0, false)), tensor("attention_mask", padded(0, true))] });
    let (_, of_tokens) = ask("/v2/models/tiny/infer", &message).await;
    assert_eq!(of_tokens["outputs"], answer_json["outputs"]);
}

#[tokio::test]
async fn kserve_takes_the_parameters_of_embed() {
    let infer = async |text: &str, parameters: &Value| {
        let tensor =
            json!({ "name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text] });
        ask(
            "/v2/models/tiny/infer",
            &json!({ "inputs": [tensor], "parameters": parameters }),
        )
        .await
    };
    let cases = [
        json!({ "normalize": false }),
        json!({ "dimensions": 1 }),
        json!({ "prompt_name": "query" }),
    ];
    for parameters in cases {
        let mut body = parameters.clone();
        body["inputs"] = json!(["dog"]);
        let (_, expected) = ask("/embed", &body).await;
        let (status, found) = infer("dog", &parameters).await;
        assert_eq!(
            (status, &found["outputs"][0]["data"]),
            (StatusCode::OK, &expected[0]),
            "{parameters}"
        );
    }
    let long = "cat ".repeat(20);
    assert_eq!(infer(&long, &json!({})).await.0, StatusCode::OK);
    assert_eq!(
        infer(&long, &json!({ "truncate": false })).await.0,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    let (_, wrong) = infer("dog", &json!({ "normalize": 1 })).await;
    insta::assert_snapshot!(wrong["error"].as_str().unwrap(), @"expected `normalize` to be a boolean, but found `1`");
    let refused = async |parameters: Value, of_output: Value| {
        let tensor =
            json!({ "name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["dog"] });
        let output = json!({ "name": "embedding", "parameters": of_output });
        let body = json!({ "inputs": [tensor], "outputs": [output], "parameters": parameters });
        refusal("/v2/models/tiny/infer", body.to_string()).await
    };
    insta::assert_snapshot!(refused(json!({ "output_dtype": "int8" }), json!({})).await, @"400: `parameters.output_dtype` is not supported: vectors are tensors of `FP32`");
    insta::assert_snapshot!(refused(json!({ "outputs": ["dense"] }), json!({})).await, @"400: `parameters.outputs` is not supported: name outputs in the request's `outputs`");
    insta::assert_snapshot!(refused(json!({}), json!({ "classification": 2 })).await, @"400: `outputs[0].parameters.classification: 2` is not supported: `/predict` and `POST /models/MODEL` return labels");
    insta::assert_snapshot!(refused(json!({}), json!({ "binary_data": "yes" })).await, @"400: expected a boolean in the parameter `binary_data` of `embedding`, but found another value");
}

#[tokio::test]
async fn kserve_describes_models() {
    let get = |path: &'static str| async move {
        answer(
            app()
                .oneshot(Request::get(path).body(Body::empty()).unwrap())
                .await
                .unwrap(),
        )
        .await
    };
    assert_eq!(get("/v2/health/ready").await.0, StatusCode::OK);
    assert_eq!(get("/v2/models/tiny/ready").await.0, StatusCode::OK);
    assert_eq!(
        get("/v2/models/tiny/versions/1/config").await.1["input"][2]["data_type"],
        "TYPE_STRING"
    );
    insta::assert_snapshot!(get("/v2/models/tiny").await.1, @r#"{"inputs":[{"datatype":"INT64","name":"input_ids","shape":[-1,-1]},{"datatype":"INT64","name":"attention_mask","shape":[-1,-1]},{"datatype":"BYTES","name":"TEXT","shape":[-1,1]}],"name":"tiny","outputs":[{"datatype":"FP32","name":"embedding","shape":[-1,2]}],"platform":"kivu","versions":["1"]}"#);
    insta::assert_snapshot!(get("/v2/models/other/ready").await.1, @r#"{"error":"unknown model `other`; known models: `tiny`"}"#);
    insta::assert_snapshot!(get("/v2/models/tiny/versions/2").await.1, @r#"{"error":"expected version 1 of `tiny`, but found `2`"}"#);
    for body in [json!({}), json!({ "ready": true })] {
        assert_eq!(
            ask("/v2/repository/index", &body).await.1[0]["state"],
            "READY"
        );
    }
    let refusal = ask(
        "/v2/repository/models/tiny/load",
        &json!({ "parameters": { "config": "{}" } }),
    )
    .await
    .1;
    insta::assert_snapshot!(refusal["error"].as_str().unwrap(), @"parameters are not supported, since bundles are immutable, but found `config`; leave it out");
}

#[tokio::test]
async fn kserve_rejects_inconsistent_tensors() {
    let refusal = |input: Value, bytes: &'static [u8], announced: Option<usize>| async move {
        let message = json!({ "inputs": [input] });
        let request = binary("/v2/models/tiny/infer", &message, bytes, announced);
        let (status, body) = answer(app().oneshot(request).await.unwrap()).await;
        format!("{}: {}", status.as_u16(), body["error"].as_str().unwrap())
    };
    let ids = |shape: Value, more: Value| {
        let mut input = json!({ "name": "input_ids", "shape": shape, "datatype": "INT64" });
        input
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        input
    };
    let size = |size: u64| json!({ "parameters": { "binary_data_size": size } });
    insta::assert_snapshot!(refusal(ids(json!([1, 3]), json!({ "data": [1, 2] })), b"", None).await, @"400: expected `input_ids` of shape [1, 3] with 3 elements, but found 2");
    insta::assert_snapshot!(refusal(ids(json!([1, 2]), size(16)), b"1234567", None).await, @"400: expected `input_ids` with `binary_data_size` of at most the 7 remaining bytes, but found 16");
    insta::assert_snapshot!(refusal(ids(json!([1, 2]), size(15)), b"123456789012345", None).await, @"400: expected `input_ids` with whole elements of INT64, but found a part of one");
    insta::assert_snapshot!(refusal(ids(json!([1, 1]), size(8)), b"\x02\0\0\0\0\0\0\0!", None).await, @"400: expected no bytes after the last input, but found 1 more");
    insta::assert_snapshot!(refusal(ids(json!([1, 1]), json!({ "data": [5] })), b"", Some(9999)).await, @"400: expected 9999 bytes of JSON, as given by `inference-header-content-length`, but the body has 77");
    insta::assert_snapshot!(refusal(ids(json!([1, 1]), json!({})), b"", None).await, @"400: expected `input_ids` with `data` or with bytes, but found neither");
    insta::assert_snapshot!(refusal(ids(json!([u64::MAX, 2]), json!({ "data": [5] })), b"", None).await, @"400: expected `input_ids` of a representable size, but found shape [18446744073709551615, 2]");
    insta::assert_snapshot!(refusal(ids(json!([1, 1]), json!({ "data": [-5] })), b"", None).await, @"400: expected token ids in `input_ids`, but found other integers");
    insta::assert_snapshot!(refusal(ids(json!([1, 1]), json!({ "data": [0.5] })), b"", None).await, @"400: `input_ids` has elements that are not INT64");
    insta::assert_snapshot!(refusal(ids(json!([1, 1, 1]), json!({ "data": [5] })), b"", None).await, @"400: expected `input_ids` of shape [texts, tokens], but found [1, 1, 1]");
    let named = |name: &str, datatype: &str, data: Value| json!({ "name": name, "shape": [1], "datatype": datatype, "data": data });
    insta::assert_snapshot!(refusal(named("other", "BYTES", json!(["a"])), b"", None).await, @"400: expected inputs among `input_ids`, `attention_mask`, `TEXT`, but found `other`");
    insta::assert_snapshot!(refusal(named("TEXT", "FP16", json!([1])), b"", None).await, @"400: expected `TEXT` as INT32, INT64 or BYTES, but found `FP16`");
    insta::assert_snapshot!(refusal(named("TEXT", "BYTES", json!([1])), b"", None).await, @"400: `TEXT` has elements that are not BYTES");
    insta::assert_snapshot!(refusal(named("TEXT", "BYTES", json!([""])), b"", None).await, @"400: expected a text in `TEXT[0]`, but found an empty one");
    insta::assert_snapshot!(refusal(named("attention_mask", "INT64", json!([1])), b"", None).await, @"400: expected `TEXT` or `input_ids`, but found neither");
}
