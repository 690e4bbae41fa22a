//! llama.cpp's `/embedding`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bodies::{
    inputs,
    rejection::ApiResult,
    request::{JsonRequest, RequestBody},
    response::by_model,
    vectors::Form,
};
use kivu::{
    Error, Result, json::Content, json_schemas::Inputs, pipeline::embedding::VectorKind,
    task::embedding::EmbeddingParameters,
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `content`")]
pub struct ContentRequest {
    /// A text, a list of texts, token ids, or a list of token id lists.
    #[schemars(with = "Option<Inputs>")]
    content: Option<Content>,
    /// Another name for `content`.
    #[schemars(with = "Option<Inputs>")]
    input: Option<Content>,
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// 2, the default, scales vectors to length 1, and -1 does not; other norms are refused.
    #[schemars(extend("enum" = [2, -1, null]))]
    embd_normalize: Option<i64>,
}

impl RequestBody for ContentRequest {
    const FIELDS: &str = "llama.cpp.embedding";
}

/// A text's vector.
#[derive(Serialize, JsonSchema)]
pub struct ContentEmbedding {
    /// The text's position in the request.
    index: usize,
    /// A list with the vector.
    embedding: [Vec<f32>; 1],
}

/// Embed texts, as llama.cpp does
pub async fn embedding(JsonRequest(context, body): JsonRequest<ContentRequest>) -> ApiResult {
    let name = body.model.as_deref();
    let (_, pipeline) = context.embedding(name).await?;
    let (field, content) = match (body.content, body.input) {
        (Some(content), None) => ("content", content),
        (None, Some(input)) => ("input", input),
        _ => {
            return Err(Error::invalid(
                "expected either `content` or `input`, but found both or neither",
            )
            .into());
        }
    };
    let inputs = inputs::read(field, content, &context.texts)?;
    let parameters = EmbeddingParameters {
        normalize: Some(normalizes(body.embd_normalize)?),
        prompt_name: context.models.named_prompt(name),
        outputs: Some(vec![VectorKind::Dense]),
        ..EmbeddingParameters::default()
    };
    let options = parameters.options(pipeline, &context.scope())?;
    let dimensions = pipeline.dimensions(None)?;
    context.check_response(inputs.len() * Form::FLOATS.min_bytes(dimensions))?;
    let found = pipeline.embed(inputs, &options, context.deadline).await?;
    let vectors = found.vectors.into_iter().enumerate();
    let vectors = vectors.map(|(index, vector)| ContentEmbedding {
        index,
        embedding: [vector],
    });
    Ok(by_model(&vectors.collect::<Vec<_>>(), &found.usage))
}

/// Whether vectors are scaled to length 1.
fn normalizes(norm: Option<i64>) -> Result<bool> {
    match norm {
        None | Some(2) => Ok(true),
        Some(-1) => Ok(false),
        Some(other) => Err(Error::invalid(format!(
            "expected `embd_normalize` 2 or -1, but found {other}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::scripted::ask;

    #[tokio::test]
    async fn vectors_are_in_lists() {
        let (_, one) = ask("/embedding", &json!({ "content": "cat" })).await;
        insta::assert_snapshot!(one, @r#"[{"embedding":[[0.70710677,0.70710677]],"index":0}]"#);
        let body = json!({ "input": ["cat", [7]], "embd_normalize": -1 });
        let (_, raw) = ask("/embedding", &body).await;
        insta::assert_snapshot!(raw, @r#"[{"embedding":[[1.0,1.0]],"index":0},{"embedding":[[1.0,1.0]],"index":1}]"#);
        for body in [
            json!({ "content": "cat", "embd_normalize": 1 }),
            json!({}),
            json!({ "content": "a", "input": "a" }),
        ] {
            assert_eq!(ask("/embedding", &body).await.0, 422, "{body}");
        }
    }

    #[tokio::test]
    async fn ranking_is_that_of_rerank() {
        let documents =
            json!({ "model": "ranking", "query": "cat", "documents": ["dog", "fish"], "top_n": 1 });
        let texts = json!({ "model": "ranking", "query": "cat", "texts": ["dog", "fish"] });
        for body in [documents, texts] {
            let expected = ask("/rerank", &body).await;
            assert_eq!(expected.0, 200, "{}", expected.1);
            for path in ["/reranking", "/v1/reranking"] {
                assert_eq!(ask(path, &body).await, expected, "{path}");
            }
        }
    }
}
