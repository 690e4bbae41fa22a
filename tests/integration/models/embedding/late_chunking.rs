//! Late chunking: vectors computed in plain torch, and valid requests.

use std::fs;

use axum::http::StatusCode;
use kivu::{config::Limits, pipeline::encoder::chunks::Chunks, repository::manifest::Precision};
use kivu_http::{App, router};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    embedding::goldens::{deadline, difference, pipeline, text},
    messages::{answer, post},
    models::{fixtures, open, options, runtime},
};

const TOLERANCE: f32 = 2e-5;

#[derive(Deserialize)]
struct Case {
    model: String,
    chunks: Vec<String>,
    vectors: Vec<Vec<f32>>,
}

#[tokio::test]
async fn vectors_of_chunks_are_those_of_torch() {
    let Some(runtime) = runtime() else { return };
    let cases = fs::read(fixtures().join("goldens/late_chunking.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&cases).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.normalize = Some(true);
    for Case {
        model: name,
        chunks,
        vectors,
    } in &cases
    {
        let source = fixtures().join("models").join(name);
        let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
        let found = pipeline(&model)
            .embed_chunks(&Chunks::joined(chunks), &options, deadline())
            .await
            .unwrap();
        assert_eq!(found.vectors.len(), vectors.len());
        for (place, (found, expected)) in found.vectors.iter().zip(vectors).enumerate() {
            let difference = difference(found, expected);
            assert!(
                difference <= TOLERANCE,
                "{name}, chunk {place} of {}: off by {difference}",
                chunks.len()
            );
        }
        if let [chunk] = &chunks[..] {
            let alone = pipeline(&model)
                .embed(text(chunk), &options, deadline())
                .await
                .unwrap();
            assert_eq!(
                alone.vectors, found.vectors,
                "{name}: a single chunk is a text"
            );
        }
    }
}

#[tokio::test]
async fn chunks_are_texts_or_sentences() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let source = fixtures().join("models").join(name);
        open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap()
    };
    let models = vec![open("tiny-bert"), open("tiny-roberta")];
    let router = router(App::new(models, Limits::default()));
    let ask = async |body: Value| {
        let request = post("/v1/embeddings", body.to_string());
        answer(router.clone().oneshot(request).await.unwrap()).await
    };
    let sentences = ["The cat sits on the mat.", "É o Dr. Silva?"];
    let (status, of_texts) = ask(json!({ "input": sentences, "late_chunking": true })).await;
    assert_eq!(status, StatusCode::OK, "{of_texts}");
    let (status, of_sentences) =
        ask(json!({ "input": sentences.join(" "), "late_chunking": "sentences" })).await;
    assert_eq!(status, StatusCode::OK, "{of_sentences}");
    for (place, span) in [[0, 24], [25, 39]].into_iter().enumerate() {
        let (text, sentence) = (&of_texts["data"][place], &of_sentences["data"][place]);
        assert_eq!(text["embedding"], sentence["embedding"]);
        assert_eq!(
            (&text["span"], &sentence["span"]),
            (&Value::Null, &json!(span))
        );
    }
    assert_eq!(of_texts["data"].as_array().unwrap().len(), 2);
    let (_, apart) = ask(json!({ "input": sentences, "late_chunking": false })).await;
    assert_ne!(
        apart["data"][0]["embedding"],
        of_texts["data"][0]["embedding"]
    );
    assert!(of_texts["usage"]["total_tokens"].as_u64() < apart["usage"]["total_tokens"].as_u64());

    let refused = async |body: Value| {
        let (status, answer) = ask(body).await;
        format!(
            "{}: {}",
            status.as_u16(),
            answer["error"]["message"].as_str().unwrap()
        )
    };
    for blank in [json!(["a", " "]), json!([" ", "a"]), json!(["a", " ", "b"])] {
        let (status, error) = ask(json!({ "input": blank, "late_chunking": true })).await;
        assert_eq!(status, 422, "{blank}: {error}");
        assert!(
            error
                .to_string()
                .contains("at least one token in each chunk"),
            "{blank}: {error}"
        );
    }
    let ids = json!({ "input": [[1, 2]], "token_encoding": "model", "late_chunking": true });
    let refusals = [
        refused(json!({ "input": vec!["cat"; 60], "late_chunking": true })).await,
        refused(json!({ "input": sentences, "late_chunking": "sentences" })).await,
        refused(json!({ "input": "a", "late_chunking": "words" })).await,
        refused(json!({ "input": "a", "late_chunking": true, "model": "tiny-roberta" })).await,
        refused(ids).await,
        // Without a token, a chunk has no vector.
        refused(json!({ "input": ["The cat", "\u{1}", "sits"], "late_chunking": true })).await,
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    413: the texts have 62 tokens together, but the model takes at most 48 tokens; send fewer texts at once
    422: expected one text in `input` for `late_chunking` by sentences, but found 2
    422: wrong value in `late_chunking`: expected a boolean or `sentences`
    422: late chunking is not supported: the model pools the first token, not all tokens
    422: expected texts in `input` for `late_chunking`, but found token ids
    422: expected at least one token in each chunk for late chunking, but found none in chunk 1, counted from 0; leave it out
    ");
}
