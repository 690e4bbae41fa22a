//! Amazon Bedrock's `invoke` on a scripted model; `tests/frameworks` sends the same requests with boto3.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use kivu::{
    backend::Deadline,
    cloud::Cloud,
    config::{AuthConfig, Limits},
};
use kivu_http::{App, BindScope, Guard, make_key, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    app::scripted,
    messages::{answer, ask, post},
    scripted::scripted_model,
};

const TITAN: &str = "amazon.titan-embed-text-v2:0";
const PROFILE: &str =
    "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/a1b2c3d4e5f6";

fn app() -> App {
    app_within(Limits {
        texts: 4,
        body_bytes: 4096,
        ..Limits::default()
    })
}

/// A model with the ids of a Bedrock model and of an inference profile.
fn app_within(limits: Limits) -> App {
    let mut model = scripted_model();
    model.manifest.aliases = vec![TITAN.into(), PROFILE.into()];
    App::new(vec![model], limits)
}

async fn invoke(id: &str, body: &Value) -> (StatusCode, Value) {
    let path = format!("/model/{id}/invoke");
    ask(&router(app()), &path, body).await
}

async fn tei(body: Value) -> Value {
    let (status, vectors) = ask(&router(app()), "/embed", body).await;
    assert_eq!(status, StatusCode::OK, "{vectors}");
    vectors
}

#[tokio::test]
async fn titan_bodies_embed_a_text() {
    let vector = tei(json!({ "inputs": "cat" })).await[0].clone();
    let (status, body) = invoke("tiny", &json!({ "inputText": "cat" })).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        body,
        json!({ "embedding": vector, "embeddingsByType": { "float": vector }, "inputTextTokenCount": 3 })
    );
    let options = json!({ "inputText": "cat", "normalize": false, "embeddingTypes": ["binary"], "dimensions": null });
    let (_, raw) = invoke("tiny", &options).await;
    assert_eq!(
        (&raw["embedding"][1], &raw["embeddingsByType"]),
        (&json!(1.0), &json!({ "binary": [1, 1] }))
    );
    let (_, short) = invoke("tiny", &json!({ "inputText": "cat", "dimensions": 1 })).await;
    assert_eq!(short["embedding"], json!([1.0]));
}

#[tokio::test]
async fn cohere_bodies_embed_texts() {
    let vectors = tei(json!({ "inputs": ["cat", "dog"] })).await;
    let body =
        json!({ "texts": ["cat", "dog"], "input_type": "search_document", "truncate": "RIGHT" });
    let (status, mut list) = invoke("tiny", &body).await;
    assert_eq!(status, StatusCode::OK, "{list}");
    assert!(list["id"].take().is_string());
    assert_eq!(
        list,
        json!({ "id": null, "texts": ["cat", "dog"], "embeddings": vectors, "response_type": "embeddings_floats" })
    );
    let inputs = json!([{ "content": [{ "type": "text", "text": "cat" }] }, { "content": [{ "type": "text", "text": "dog" }] }]);
    let body = json!({ "inputs": inputs, "embedding_types": ["float"], "max_tokens": 128_000 });
    let (_, by_type) = invoke("tiny", &body).await;
    assert_eq!(
        (&by_type["embeddings"], &by_type["response_type"]),
        (&json!({ "float": vectors }), &json!("embeddings_by_type"))
    );
    let query = json!({ "texts": ["cat"], "input_type": "search_query" });
    let (_, query) = invoke("tiny", &query).await;
    assert_eq!(
        query["embeddings"],
        tei(json!({ "inputs": "cat", "prompt_name": "query" })).await
    );
}

#[tokio::test]
async fn rank_bodies_rank_documents() {
    let body =
        json!({ "query": "cat", "documents": ["a", "dog and dog"], "top_n": 1, "api_version": 2 });
    let (status, ranks) = invoke("tiny", &body).await;
    assert_eq!(status, StatusCode::OK, "{ranks}");
    let results = ranks["results"].as_array().unwrap();
    assert_eq!((results.len(), ranks.as_object().unwrap().len()), (1, 1));
    assert_eq!(results[0]["index"], 1);
    assert!(results[0]["relevance_score"].is_number());
}

/// SDKs encode ids in the path, which API Gateway decodes.
#[tokio::test]
async fn models_are_found_by_encoded_ids_and_arns() {
    let arn = "arn:aws:bedrock:eu-west-1::foundation-model/";
    let ids = [
        TITAN.to_owned(),
        TITAN.replace(':', "%3A"),
        PROFILE.to_owned(),
        PROFILE.replace(':', "%3A").replace('/', "%2F"),
        format!("{arn}{TITAN}"),
        format!("{arn}{TITAN}")
            .replace(':', "%3A")
            .replace('/', "%2F"),
        "tiny:query".to_owned(),
        format!("us.{TITAN}"),
        format!("apac.{TITAN}").replace(':', "%3A"),
        format!("global.{TITAN}"),
        format!("arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.{TITAN}"),
    ];
    for id in ids {
        let (status, body) = invoke(&id, &json!({ "inputText": "cat" })).await;
        assert_eq!(status, StatusCode::OK, "{id}: {body}");
    }
    let (status, _) = invoke(&format!("{arn}unknown"), &json!({ "inputText": "cat" })).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    for unknown in [
        "us.unknown",
        "mars.amazon.titan-embed-text-v2:0",
        "us.eu.amazon.titan-embed-text-v2:0",
    ] {
        let (status, _) = invoke(unknown, &json!({ "inputText": "cat" })).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{unknown}");
    }
}

/// boto3 sends `application/octet-stream` unless the caller names a type.
#[tokio::test]
async fn bodies_need_no_content_type() {
    let send = async |content_type: Option<&str>| {
        let mut request = Request::post("/model/tiny/invoke")
            .body(Body::from(r#"{"inputText": "cat"}"#))
            .unwrap();
        if let Some(content_type) = content_type {
            request
                .headers_mut()
                .insert("content-type", content_type.parse().unwrap());
        }
        router(app()).oneshot(request).await.unwrap()
    };
    for content_type in [
        None,
        Some("application/octet-stream"),
        Some("application/json; charset=utf-8"),
    ] {
        let response = send(content_type).await;
        assert_eq!(response.status(), StatusCode::OK, "{content_type:?}");
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["x-amzn-bedrock-input-token-count"], "3");
    }
    assert_eq!(
        send(Some("text/plain")).await.status(),
        StatusCode::BAD_REQUEST
    );
}

async fn refusal(router: Router, request: Request<Body>) -> String {
    let response = router.oneshot(request).await.unwrap();
    let kind = response.headers()["x-amzn-errortype"]
        .to_str()
        .unwrap()
        .to_owned();
    let (status, body) = answer(response).await;
    assert_eq!(body.as_object().unwrap().len(), 1);
    format!(
        "{} {kind}: {}",
        status.as_u16(),
        body["message"].as_str().unwrap()
    )
}

async fn refused(body: &Value) -> String {
    refusal(router(app()), post("/model/tiny/invoke", body.to_string())).await
}

#[tokio::test]
async fn bodies_have_the_fields_of_one_format() {
    insta::assert_snapshot!(refused(&json!({})).await, @"400 ValidationException: expected the fields of one format, `inputText` (Titan), `texts` or `inputs` (Cohere Embed), or `query` and `documents` (ranking), but found none");
    insta::assert_snapshot!(refused(&json!({ "inputText": "cat", "texts": ["cat"] })).await, @"400 ValidationException: expected the fields of one format, `inputText` (Titan), `texts` or `inputs` (Cohere Embed), or `query` and `documents` (ranking), but found several");
    insta::assert_snapshot!(refused(&json!({ "inputText": "cat", "textGenerationConfig": {} })).await, @"400 ValidationException: unknown field `textGenerationConfig`; known fields: `inputText`, `dimensions`, `normalize`, `embeddingTypes`");
    insta::assert_snapshot!(refused(&json!({ "texts": ["cat"], "images": ["data:"] })).await, @"400 ValidationException: `images` is not supported: models read texts");
    insta::assert_snapshot!(refused(&json!({ "texts": ["cat"], "max_tokens": 11 })).await, @"400 ValidationException: expected `max_tokens` of at least 12, the model's limit, but found 11; leave it out");
    insta::assert_snapshot!(refused(&json!({ "query": "cat" })).await, @"400 ValidationException: expected the field `documents`, but found none");
    insta::assert_snapshot!(refused(&json!({ "query": "cat", "documents": ["dog"], "api_version": 3 })).await, @"400 ValidationException: expected `api_version` 1 or 2, but found 3");
    insta::assert_snapshot!(refused(&json!({ "inputText": "" })).await, @"400 ValidationException: expected a text in `inputText`, but found an empty one");
    insta::assert_snapshot!(refused(&json!({ "inputText": "cat", "embeddingTypes": [] })).await, @"400 ValidationException: expected 1 to 2 `embeddingTypes`, but found 0");
}

#[tokio::test]
async fn errors_are_those_of_the_service_model() {
    let cat = || json!({ "inputText": "cat" }).to_string();
    let of = async |app: App, path: &str, body: String| {
        let refusal = refusal(router(app), post(path, body)).await;
        refusal.split(':').next().unwrap().to_owned()
    };
    let mut found = BTreeMap::new();
    let fish = json!({ "inputText": "fish" }).to_string();
    found.insert("failing model", of(app(), "/model/tiny/invoke", fish).await);
    found.insert(
        "unknown model",
        of(app(), "/model/unknown/invoke", cat()).await,
    );
    found.insert(
        "unknown operation",
        of(app(), "/model/tiny/converse", cat()).await,
    );
    found.insert(
        "not JSON",
        of(app(), "/model/tiny/invoke", "{".into()).await,
    );
    found.insert(
        "too long",
        of(app(), "/model/tiny/invoke", " ".repeat(5000)).await,
    );
    let busy = app_within(Limits {
        requests: 0,
        ..Limits::default()
    });
    found.insert(
        "too many requests",
        of(busy, "/model/tiny/invoke", cat()).await,
    );
    let mut late = post("/model/tiny/invoke", cat());
    late.extensions_mut()
        .insert(Deadline::within(Duration::ZERO));
    let late = refusal(router(app()), late).await;
    found.insert("timeout", late.split(':').next().unwrap().to_owned());
    let get = Request::get("/model/tiny/invoke")
        .body(Body::empty())
        .unwrap();
    found.insert("wrong method", refusal(router(app()), get).await);
    insta::assert_debug_snapshot!(found, @r#"
    {
        "failing model": "424 ModelErrorException",
        "not JSON": "400 ValidationException",
        "timeout": "408 ModelTimeoutException",
        "too long": "400 ValidationException",
        "too many requests": "429 ThrottlingException",
        "unknown model": "404 ResourceNotFoundException",
        "unknown operation": "404 UnknownOperationException",
        "wrong method": "405 UnknownOperationException: `/model/tiny/invoke` does not take GET",
    }
    "#);
}

/// Signatures are made for AWS and cannot be checked; they pass where no keys are configured.
#[tokio::test]
async fn signed_requests_need_a_key_only_if_there_are_keys() {
    let signature = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261123/eu-west-1/bedrock/aws4_request, SignedHeaders=host;x-amz-date, Signature=0";
    let signed = |value: &str| {
        let mut request = post(
            "/model/tiny/invoke",
            json!({ "inputText": "cat" }).to_string(),
        );
        request
            .headers_mut()
            .insert("authorization", value.parse().unwrap());
        request
    };
    let open = router(app()).oneshot(signed(signature)).await.unwrap();
    assert_eq!(open.status(), StatusCode::OK);
    let (key, line) = make_key("alice").unwrap();
    let config = AuthConfig {
        keys: vec![line],
        ..AuthConfig::default()
    };
    let guard = || Guard::new(&config, BindScope::ApiGateway, &Cloud::default()).unwrap();
    let locked = || {
        router(App {
            guard: guard(),
            ..scripted(Limits::default())
        })
    };
    insta::assert_snapshot!(refusal(locked(), signed(signature)).await, @"403 AccessDeniedException: expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found another header or form");
    let bearer = locked()
        .oneshot(signed(&format!("Bearer {key}")))
        .await
        .unwrap();
    assert_eq!(bearer.status(), StatusCode::OK);
}
