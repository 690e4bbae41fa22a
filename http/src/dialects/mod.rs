//! Error bodies, by API.

pub mod batch_requests;
pub mod bedrock;
pub mod chat;
pub mod cohere;
pub mod kserve;
pub mod llama_cpp;
pub mod ollama;
pub mod openai;
pub mod score;
pub mod translators;
pub mod vllm;

use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use super::bodies::rejection::Rejection;

/// Bedrock's header with the error type.
const ERROR_TYPE: &str = "x-amzn-errortype";

/// The format of error bodies, which several APIs may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// TEI, the model hub, Ollama and LibreTranslate.
    Tei,
    OpenAi,
    Jina,
    /// Cohere and DeepL.
    Cohere,
    KServe,
    Bedrock,
}

/// An error in the TEI, model hub, Ollama and LibreTranslate APIs.
#[derive(Serialize, JsonSchema)]
pub struct TeiError {
    /// What is wrong, and what to do.
    error: String,
    /// `Validation`, `Overloaded` or `Backend`.
    error_type: &'static str,
}

/// An error in the OpenAI API.
#[derive(Serialize, JsonSchema)]
pub struct OpenAiError {
    /// What is wrong, and where.
    error: OpenAiErrorDetails,
}

#[derive(Serialize, JsonSchema)]
struct OpenAiErrorDetails {
    /// `model_not_found`, `invalid_api_key`, `rate_limit_exceeded` or `null`.
    code: Option<&'static str>,
    /// What is wrong, and what to do.
    message: String,
    /// The path of the field that the error is about, such as `input[2]`; `null` if it is about none or several.
    param: Option<String>,
    /// `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    kind: &'static str,
}

/// An error in the Jina and Voyage APIs.
#[derive(Serialize, JsonSchema)]
pub struct JinaError {
    /// What is wrong, and what to do.
    detail: String,
}

/// An error in the Cohere and DeepL APIs.
#[derive(Serialize, JsonSchema)]
pub struct CohereError {
    /// What is wrong, and what to do.
    message: String,
}

/// An error in the KServe v2 API.
#[derive(Serialize, JsonSchema)]
pub struct KServeError {
    /// What is wrong, and what to do.
    error: String,
}

/// An error in the Bedrock API; its type is in the header `x-amzn-errortype`.
#[derive(Serialize, JsonSchema)]
pub struct BedrockError {
    /// What is wrong, and what to do.
    message: String,
}

/// An error body, and its schema.
pub struct ErrorBody {
    pub json: Value,
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

impl ErrorBody {
    fn new<T: Serialize + JsonSchema>(error: T) -> Self {
        Self {
            json: json!(error),
            schema: SchemaGenerator::subschema_for::<T>,
        }
    }
}

impl Dialect {
    /// The status that a dialect uses: KServe has no 422, and Bedrock only those in its service model.
    pub fn status(self, status: StatusCode) -> StatusCode {
        match (self, status) {
            (Self::KServe, StatusCode::UNPROCESSABLE_ENTITY) => StatusCode::BAD_REQUEST,
            (Self::Bedrock, StatusCode::UNAUTHORIZED) => StatusCode::FORBIDDEN,
            (Self::Bedrock, StatusCode::BAD_GATEWAY) => StatusCode::FAILED_DEPENDENCY,
            (Self::Bedrock, StatusCode::GATEWAY_TIMEOUT) => StatusCode::REQUEST_TIMEOUT,
            (
                Self::Bedrock,
                StatusCode::UNPROCESSABLE_ENTITY
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ) => StatusCode::BAD_REQUEST,
            (_, status) => status,
        }
    }

    /// A rejection's error body.
    pub fn body(self, rejection: &Rejection) -> ErrorBody {
        let (status, message) = (rejection.status, rejection.message.clone());
        match self {
            // TEI itself sends no body, so its clients read none.
            Self::Tei if status == StatusCode::UNAUTHORIZED => {
                ErrorBody::new(KServeError { error: message })
            }
            Self::Tei => {
                let error_type = match status {
                    StatusCode::TOO_MANY_REQUESTS => "Overloaded",
                    status if status.is_server_error() => "Backend",
                    _ => "Validation",
                };
                ErrorBody::new(TeiError {
                    error: message,
                    error_type,
                })
            }
            Self::OpenAi => {
                let (kind, code) = match status {
                    StatusCode::NOT_FOUND if rejection.is_unknown_model() => {
                        ("invalid_request_error", Some("model_not_found"))
                    }
                    StatusCode::UNAUTHORIZED => ("invalid_request_error", Some("invalid_api_key")),
                    StatusCode::TOO_MANY_REQUESTS => {
                        ("rate_limit_error", Some("rate_limit_exceeded"))
                    }
                    status if status.is_server_error() => ("server_error", None),
                    _ => ("invalid_request_error", None),
                };
                let error = OpenAiErrorDetails {
                    code,
                    message,
                    param: rejection.field().map(str::to_owned),
                    kind,
                };
                ErrorBody::new(OpenAiError { error })
            }
            Self::Jina => ErrorBody::new(JinaError { detail: message }),
            Self::Cohere => ErrorBody::new(CohereError { message }),
            Self::KServe => ErrorBody::new(KServeError { error: message }),
            Self::Bedrock => ErrorBody::new(BedrockError { message }),
        }
    }

    /// Completes a rejected request's response: status, headers and body.
    pub fn complete(self, rejection: &Rejection, response: &mut Response) {
        let status = self.status(rejection.status);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if self == Self::Bedrock {
            headers.insert(
                ERROR_TYPE,
                HeaderValue::from_static(bedrock_type(status, rejection)),
            );
        }
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from(rejection.retry_after_s));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *response.body_mut() = Json(self.body(rejection).json).into_response().into_body();
    }
}

/// The exception in Bedrock's service model for a status.
fn bedrock_type(status: StatusCode, rejection: &Rejection) -> &'static str {
    match status {
        StatusCode::FORBIDDEN => "AccessDeniedException",
        StatusCode::NOT_FOUND if rejection.is_unknown_model() => "ResourceNotFoundException",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => "UnknownOperationException",
        StatusCode::REQUEST_TIMEOUT => "ModelTimeoutException",
        StatusCode::FAILED_DEPENDENCY => "ModelErrorException",
        StatusCode::TOO_MANY_REQUESTS => "ThrottlingException",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableException",
        status if status.is_server_error() => "InternalServerException",
        _ => "ValidationException",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::scripted::ask;

    #[tokio::test]
    async fn errors_in_openais_form_name_the_field() {
        let many = vec!["a"; 1025];
        let requests = [
            ("/v1/embeddings", json!({ "input": 7 })),
            ("/v1/embeddings", json!({ "input": ["a", ""] })),
            (
                "/v1/embeddings",
                json!({ "input": "a", "dimensions": "two" }),
            ),
            ("/v1/embeddings", json!({ "input": "a", "dimension": 2 })),
            ("/v1/embeddings", json!({ "input": many })),
            ("/v1/embeddings", json!({ "input": "a", "dimensions": 3 })),
            ("/v1/embeddings", json!({ "model": "embedding" })),
            (
                "/v1/embeddings",
                json!({ "input": "a", "dimensions": 1, "output_dimension": 2 }),
            ),
            ("/v1/embeddings", json!([])),
            (
                "/v1/embeddings",
                json!({ "input": "a", "model": "another" }),
            ),
            ("/v1/chat/completions", json!({ "messages": [{}] })),
            ("/v1/chat/completions", json!({ "messages": "a" })),
        ];
        let mut found = String::new();
        for (path, body) in requests {
            let (status, answer) = ask(path, &body).await;
            let error = &answer["error"];
            assert!(status.is_client_error() && error.is_object(), "{answer}");
            let (param, message) = (&error["param"], error["message"].as_str().unwrap());
            if let Value::String(field) = param {
                assert!(message.contains(field), "{answer}");
            }
            found += &format!("{param} {message}\n");
        }
        insta::assert_snapshot!(found, @r#"
        "input" expected `input` to be a string, a list of strings or lists of token ids, but found a number
        "input[1]" expected a text in `input[1]`, but found an empty one
        "dimensions" expected `dimensions` to be an integer from 0 on, but found a string
        "dimension" `dimension` is not a field of this API; use `dimensions`
        "input" expected 1 to 1024 `input`, but found 1025
        "dimensions" expected `dimensions` from 1 to 2, but found 3
        "input" expected the field `input`, but found none
        null `dimensions` and `output_dimension` have different values; leave one of them out
        null expected the body to be an object with `input`, but found a list
        null unknown model `another`; known models: `embedding`, `classification`, `token-classification`, `zero-shot`, `ranking`, `translation`
        "messages[0].role" expected the field `messages[0].role`, but found none
        "messages" expected `messages` to be a list, but found a string
        "#);
    }

    #[tokio::test]
    async fn rankings_look_the_model_up_before_they_read_texts() {
        let body = json!({ "model": "another", "query": "", "documents": [7] });
        for path in ["/v1/rerank", "/v2/rerank"] {
            let (status, answer) = ask(path, &body).await;
            assert_eq!(status, 404, "{path}: {answer}");
        }
    }

    #[tokio::test]
    async fn other_forms_have_no_place_for_the_field() {
        let (_, tei) = ask("/embed", &json!({ "inputs": 7 })).await;
        let fields: Vec<&String> = tei.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["error", "error_type"]);
    }
}
