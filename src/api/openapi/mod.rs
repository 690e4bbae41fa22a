//! The OpenAPI document at `/openapi.json`: the file `openapi.json`, completed with what all operations share: errors,
//! headers and security schemes.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::IntoResponse,
};
use serde_json::{Map, Value, json};

use super::{
    app::App,
    auth::{Access, NO_KEY, NOT_PROXIED, OPEN_PATHS},
    dialect::Dialect,
    rejection::{Rejection, Reply},
};
use crate::error::{Error, Result};

/// The operations with their requests and responses, and the schemas of both.
const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn openapi(State(app): State<Arc<App>>) -> Reply {
    app.require_page("/openapi.json")?;
    let json = match app.document.get() {
        Some(json) => json,
        None => {
            let json = complete(app.guard.access())?.to_string();
            app.document.get_or_init(|| json.into())
        }
    };
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, json.clone()).into_response())
}

/// The document of a server with this access control.
fn complete(access: &Access) -> Result<Value> {
    let mut document: Value = serde_json::from_str(DOCUMENT)
        .map_err(|error| Error::model_because("cannot read the OpenAPI document", error))?;
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let headers = document["components"]["headers"].as_object().cloned().unwrap_or_default();
    let schemes = security_schemes(access);
    let requirements: Vec<Value> = schemes.iter().map(|(name, _)| json!({ *name: [] })).collect();
    for (path, item) in members(&mut document["paths"]) {
        for (method, operation) in members(item) {
            let is_post = method == "post";
            let is_open = !is_post && OPEN_PATHS.contains(&path.as_str());
            if !is_open && !requirements.is_empty() {
                operation["security"] = requirements.clone().into();
            }
            add_errors(path, is_post, is_open, &mut operation["responses"]);
            add_headers(path, is_post, &headers, &mut operation["responses"]);
        }
    }
    for (name, scheme) in schemes {
        document["components"]["securitySchemes"][name] = scheme;
    }
    Ok(document)
}

/// The members of an object.
fn members(object: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    object.as_object_mut().into_iter().flatten()
}

fn security_schemes(access: &Access) -> Vec<(&'static str, Value)> {
    let header = |name, text| json!({ "type": "apiKey", "in": "header", "name": name, "description": text });
    let bearer = "A key from `kivu key`, as `authorization: Bearer KEY`.";
    match access {
        Access::Open => Vec::new(),
        Access::Keys(_) => vec![
            ("key", json!({ "type": "http", "scheme": "bearer", "description": bearer })),
            ("key-in-a-header", header("x-api-key", "The key alone.")),
        ],
        Access::GatewayVerified => {
            vec![("gateway", header("authorization", "A signature or token, which API Gateway checks."))]
        }
    }
}

fn add_errors(path: &str, is_post: bool, is_open: bool, responses: &mut Value) {
    let dialect = Dialect::of(path);
    for (meaning, rejection) in rejections(path, is_post, is_open) {
        let response = &mut responses[dialect.status(rejection.status).as_str()];
        // KServe has one status for unreadable and for invalid bodies.
        match response["description"].as_str() {
            Some(known) => response["description"] = format!("{known} {meaning}").into(),
            None => *response = error_response(dialect, meaning, &rejection),
        }
    }
}

/// The possible rejections of an operation: their meaning and an example.
fn rejections(path: &str, is_post: bool, is_open: bool) -> Vec<(&'static str, Rejection)> {
    let new = |status, message: &str| Rejection::new(status, message);
    let has_body = is_post && path != "/v2/repository/index";
    let has_content_type = has_body && Dialect::of(path) != Dialect::KServe;
    let is_optional = matches!(path, "/metrics" | "/docs" | "/openapi.json");
    let path_error = Error::malformed("expected UTF-8 in the path, but found other bytes");
    let fleet_error = Error::unavailable("the fleet of `minilm` cannot be reached");
    let json_error = Error::malformed("the body is not JSON: expected value at line 1 column 1");
    let unknown_model = Error::UnknownModel { name: "bert".into(), known: vec!["minilm".into()] };
    let too_large = Error::too_large("expected 1 to 1024 `inputs`, but found 2000");
    let invalid = Error::invalid("expected a text in `inputs[1]`, but found an empty one");
    let failed = Error::inference("the model failed to run");
    let timeout = Error::DeadlineExceeded { after: Duration::from_secs(30) };
    let wrong_type = "expected the content type `application/json`, but found `text/plain`";
    [
        (true, "Internal error; see the log.", new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed")),
        (!is_open, "Missing or unknown key.", new(StatusCode::UNAUTHORIZED, NO_KEY)),
        (
            !is_open,
            "Not through the trusted proxy, if one is configured.",
            new(StatusCode::FORBIDDEN, NOT_PROXIED),
        ),
        (!is_open, "The fleet or the source of keys is unavailable.", fleet_error.into()),
        (path.contains('{'), "Invalid path parameter.", path_error.into()),
        (is_post, "Too many concurrent requests.", Error::Overloaded { limit: 512, unit: "requests" }.into()),
        (has_body, "The body is incomplete or not JSON.", json_error.into()),
        (has_body || path.contains("{model}"), "Unknown model.", unknown_model.into()),
        (has_body, "Too many texts, tokens or bytes.", too_large.into()),
        (has_body || path == "/v2/languages", "Invalid value.", invalid.into()),
        (has_body, "The model failed.", failed.into()),
        (has_body, "Timeout.", timeout.into()),
        (has_content_type, "Wrong content type.", new(StatusCode::UNSUPPORTED_MEDIA_TYPE, wrong_type)),
        (
            is_optional,
            "Turned off on this server.",
            new(StatusCode::NOT_FOUND, &format!("no route `{path}`")),
        ),
    ]
    .into_iter()
    .filter_map(|(applies, meaning, rejection)| applies.then_some((meaning, rejection)))
    .collect()
}

fn error_response(dialect: Dialect, meaning: &str, rejection: &Rejection) -> Value {
    let mut response = json!({ "description": meaning });
    if let Some((schema, body)) = dialect.body(rejection) {
        let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
        response["content"]["application/json"] = json!({ "schema": schema, "example": body });
    }
    response
}

fn add_headers(path: &str, is_post: bool, headers: &Map<String, Value>, responses: &mut Value) {
    let runs_model =
        is_post && !matches!(path, "/tokenize" | "/decode" | "/v2/repository/index" | "/api/show");
    let has_usage = matches!(Dialect::of(path), Dialect::Tei | Dialect::Hub)
        && !path.starts_with("/api/")
        && path != "/vertex";
    for (status, response) in members(responses) {
        for (name, header) in headers {
            let is_sent = match name.as_str() {
                "x-request-id" => true,
                "retry-after" => status == "429" || status == "503",
                "www-authenticate" => status == "401",
                "x-backend" => status == "200" && runs_model,
                _ => status == "200" && runs_model && has_usage,
            };
            if is_sent {
                response["headers"][name] = header.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::{
        Deserialize, Deserializer,
        de::{Visitor, value::Error as AnyError},
        forward_to_deserialize_any,
    };

    use super::*;
    use crate::{
        api::{
            classification::{ClassifyRequest, PredictRequest, ZeroShotRequest},
            cohere::CohereEmbedRequest,
            embedding::{EmbedOptions, SimilarityRequest},
            generation::{HubGenerationRequest, HubParameters},
            ollama::{OllamaEmbedRequest, OllamaEmbeddingsRequest, OllamaShowRequest},
            openai::EmbeddingsRequest,
            ranking::{DocumentsRequest, RerankRequest},
            tasks::VertexRequest,
            token_classification::{FindEntitiesRequest, LabelTokensRequest},
            tokens::{DecodeRequest, TokenizeRequest},
            translation::TranslateRequest,
            translators::{DeepLRequest, LibreTranslateRequest},
        },
        pipeline::generation::GenerationOptions,
        task::{
            classification::{ClassificationParameters, ZeroShotParameters},
            entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
        },
    };

    /// A deserializer that only records the fields of the expected struct.
    struct FieldsOf<'a>(&'a mut BTreeSet<&'static str>);

    impl<'de> Deserializer<'de> for FieldsOf<'_> {
        type Error = AnyError;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, AnyError> {
            Err(serde::de::Error::custom("expected a struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, AnyError> {
            self.0.extend(fields);
            self.deserialize_any(visitor)
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn fields_of<'de, T: Deserialize<'de>>() -> BTreeSet<&'static str> {
        let mut fields = BTreeSet::new();
        let _ = T::deserialize(FieldsOf(&mut fields));
        fields
    }

    #[test]
    fn schemas_have_the_fields_of_requests() {
        let mut document = complete(&Access::Open).unwrap();
        let requests = [
            ("ClassifyParameters", fields_of::<ClassificationParameters>()),
            ("ClassifyRequest", fields_of::<ClassifyRequest>()),
            ("CohereEmbedRequest", fields_of::<CohereEmbedRequest>()),
            ("DecodeRequest", fields_of::<DecodeRequest>()),
            ("DeepLRequest", fields_of::<DeepLRequest>()),
            ("DocumentsRequest", fields_of::<DocumentsRequest>()),
            ("EmbedOptions", fields_of::<EmbedOptions>()),
            ("EmbeddingsRequest", fields_of::<EmbeddingsRequest>()),
            ("FindEntitiesParameters", fields_of::<ZeroShotEntitiesParameters>()),
            ("FindEntitiesRequest", fields_of::<FindEntitiesRequest>()),
            ("GenerationOptions", fields_of::<GenerationOptions>()),
            ("LabelTokensParameters", fields_of::<TokenClassificationParameters>()),
            ("LabelTokensRequest", fields_of::<LabelTokensRequest>()),
            ("LibreTranslateRequest", fields_of::<LibreTranslateRequest>()),
            ("OllamaEmbedRequest", fields_of::<OllamaEmbedRequest>()),
            ("OllamaEmbeddingsRequest", fields_of::<OllamaEmbeddingsRequest>()),
            ("OllamaShowRequest", fields_of::<OllamaShowRequest>()),
            ("PredictRequest", fields_of::<PredictRequest>()),
            ("RerankRequest", fields_of::<RerankRequest>()),
            ("SimilarityRequest", fields_of::<SimilarityRequest>()),
            ("TokenizeRequest", fields_of::<TokenizeRequest>()),
            ("TranslateRequest", fields_of::<TranslateRequest>()),
            ("GenerationRequest", fields_of::<HubGenerationRequest>()),
            ("GenerationParameters", fields_of::<HubParameters>()),
            ("VertexRequest", fields_of::<VertexRequest>()),
            ("ZeroShotParameters", fields_of::<ZeroShotParameters>()),
            ("ZeroShotRequest", fields_of::<ZeroShotRequest>()),
        ];
        for (schema, fields) in requests {
            let properties = members(&mut document["components"]["schemas"][schema]["properties"]);
            assert_eq!(
                properties.map(|(name, _)| name.as_str()).collect::<BTreeSet<_>>(),
                fields,
                "{schema}"
            );
        }
    }

    #[test]
    fn references_have_targets() {
        let document = complete(&Access::Open).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        let named: BTreeSet<&str> =
            text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let known: BTreeSet<&str> = schemas.keys().map(String::as_str).collect();
        assert_eq!(named, known);
    }
}
