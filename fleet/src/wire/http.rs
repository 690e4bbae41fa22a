//! KServe v2 over HTTP, with tensors as bytes after the JSON (the binary tensor data extension).

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{
    HeaderName, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, Limited};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    codec::{Contents, decode_outputs},
    messages::{ModelConfig, ModelMetadata, TensorMetadata},
    protocol::{Call, KserveClient, MAX_RESPONSE_BYTES, microseconds},
    server_url::ServerUrl,
};
use crate::{
    connect::{Client, Connector, FleetSettings, client},
    failure::{Attempt, AttemptFailure, FailureKind},
};
use kivu_base::{
    Result,
    json::{self, Budget, ReadError},
    tensor::Tensor,
};
use kivu_core::backend::TensorSpec;
use kivu_telemetry::{request::current_trace, trace::Trace};

/// JSON length in a body. Tensor contents follow it, in JSON order.
pub const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// All but the unreserved characters in RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

pub struct HttpClient {
    client: Client<Connector, Full<Bytes>>,
    /// Base URL for the model's routes.
    model_url: String,
    authorization: Option<String>,
}

#[derive(Deserialize)]
struct InferResponse {
    outputs: Vec<OutputTensor>,
}

#[derive(Deserialize)]
struct OutputTensor {
    #[serde(flatten)]
    metadata: TensorMetadata,
    #[serde(default)]
    parameters: OutputParameters,
    data: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutputParameters {
    binary_data_size: usize,
}

impl HttpClient {
    pub fn new(url: &ServerUrl, socket: SocketAddr, settings: &FleetSettings) -> Result<Self> {
        let encoded = |segment| utf8_percent_encode(segment, RESERVED);
        let mut model_url = format!("{url}/v2/models/{}", encoded(&settings.model));
        if let Some(version) = &settings.version {
            model_url += &format!("/versions/{}", encoded(version));
        }
        let client = client(url, socket, settings)?;
        Ok(Self {
            client,
            model_url,
            authorization: settings.authorization.clone(),
        })
    }

    async fn get(&self, route: &str) -> Attempt<Bytes> {
        Ok(self
            .send(self.request(Method::GET, route), Full::default())
            .await?
            .into_body())
    }

    fn request(&self, method: Method, route: &str) -> http::request::Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{route}", self.model_url));
        for (name, value) in current_trace().iter().flat_map(Trace::headers) {
            request = request.header(name, value);
        }
        match &self.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization),
            None => request,
        }
    }

    async fn send(
        &self,
        request: http::request::Builder,
        body: Full<Bytes>,
    ) -> Attempt<Response<Bytes>> {
        let request = request.body(body).map_err(|_| FailureKind::Refused)?;
        let response =
            self.client
                .request(request)
                .await
                .map_err(|error| match error.is_connect() {
                    true => FailureKind::Unreachable,
                    false => FailureKind::ConnectionLost,
                })?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|_| FailureKind::ConnectionLost)?.to_bytes();
        match parts.status {
            StatusCode::OK => Ok(Response::from_parts(parts, body)),
            status => Err(failure(status, &body)),
        }
    }
}

#[async_trait]
impl KserveClient for HttpClient {
    async fn metadata(&self) -> Attempt<ModelMetadata> {
        parse(&self.get("").await?)
    }

    async fn config(&self) -> Attempt<ModelConfig> {
        parse(&self.get("/config").await?)
    }

    async fn check_ready(&self) -> Attempt<()> {
        match self.get("/ready").await {
            // Triton does not distinguish a model that is not ready from one that does not exist.
            Err(failure) if matches!(failure.kind, FailureKind::Refused | FailureKind::Missing) => {
                Err(FailureKind::NotReady.into())
            }
            other => other.map(drop),
        }
    }

    async fn infer(&self, call: &Call, timeout: Duration) -> Attempt<Vec<Tensor>> {
        let inputs = call.inputs.iter().map(|(TensorMetadata { name, datatype, shape }, bytes)| {
            let parameters = json!({ "binary_data_size": bytes.len() });
            json!({ "name": name, "datatype": datatype, "shape": shape, "parameters": parameters })
        });
        let outputs = call.outputs.iter();
        let outputs =
            outputs.map(|spec| json!({ "name": spec.name, "parameters": { "binary_data": true } }));
        let parameters = call
            .parameters
            .iter()
            .map(|(name, text)| (name.clone(), text.clone().into()));
        let mut parameters: Map<String, Value> = parameters.collect();
        parameters.insert("timeout".to_owned(), microseconds(timeout).into());
        let json = json!({
            "inputs": inputs.collect::<Vec<_>>(),
            "outputs": outputs.collect::<Vec<_>>(),
            "parameters": parameters,
        });
        let mut body = json.to_string().into_bytes();
        let request = self
            .request(Method::POST, "/infer")
            .header(JSON_LENGTH, body.len())
            .header(CONTENT_TYPE, "application/octet-stream");
        call.inputs
            .iter()
            .for_each(|(_, bytes)| body.extend_from_slice(bytes));
        let response = self.send(request, Full::from(body)).await?;
        read_response(&response, &call.outputs)
    }
}

pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Attempt<T> {
    json::read(body, Budget::new(body.len(), usize::MAX)).map_err(|error| {
        AttemptFailure::invalid_response(match error {
            ReadError::Refused(_) => {
                "expected KServe's JSON, but found too many values for its size"
            }
            _ => "the response is not KServe's JSON",
        })
    })
}

/// Classifies a response whose status is not 200.
pub fn failure(status: StatusCode, body: &[u8]) -> AttemptFailure {
    #[derive(Deserialize)]
    struct ErrorBody {
        error: String,
    }
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE => FailureKind::NotReady,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => FailureKind::Timeout,
        StatusCode::NOT_FOUND => FailureKind::Missing,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return FailureKind::Refused.into(),
        status if status.is_client_error() => FailureKind::Refused,
        status if status.is_server_error() => FailureKind::ModelError,
        _ => FailureKind::InvalidResponse,
    };
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(ErrorBody { error }) => AttemptFailure::reported(kind, &error),
        Err(_) => kind.into(),
    }
}

/// The `wanted` outputs in a response. All its lengths are checked.
pub fn read_response(response: &Response<Bytes>, wanted: &[TensorSpec]) -> Attempt<Vec<Tensor>> {
    let invalid = AttemptFailure::invalid_response;
    let body = response.body();
    let length = match response.headers().get(JSON_LENGTH) {
        None => body.len(),
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            length.ok_or_else(|| invalid("the header with the JSON's length is not a number"))?
        }
    };
    let (json, mut rest) = body
        .split_at_checked(length)
        .ok_or_else(|| invalid("the response ends inside its JSON"))?;
    let InferResponse { outputs } = parse(json)?;
    let mut found = Vec::with_capacity(outputs.len());
    for OutputTensor {
        metadata,
        parameters,
        data,
    } in outputs
    {
        let split = rest.split_at_checked(parameters.binary_data_size);
        let (bytes, after) = split.ok_or_else(|| invalid("the response ends inside a tensor"))?;
        rest = after;
        let contents = data.map_or(Contents::Raw(bytes), Contents::Json);
        found.push((metadata, contents));
    }
    decode_outputs(&found, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kivu_base::tensor::ElementType;

    fn response(json: &str, length: Option<usize>, bytes: &[u8]) -> Response<Bytes> {
        let body = Bytes::from([json.as_bytes(), bytes].concat());
        let response = Response::builder();
        match length {
            Some(length) => response.header(JSON_LENGTH, length),
            None => response,
        }
        .body(body)
        .unwrap()
    }

    #[test]
    fn responses_are_read_from_bytes_and_from_json() {
        let wanted = [TensorSpec::new("a", ElementType::Fp32, [-1])];
        let json = r#"{"outputs":[{"name":"b","datatype":"BYTES","shape":[1],"data":["x"]},
            {"name":"a","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#;
        let tensors = read_response(
            &response(json, Some(json.len()), &1.5_f32.to_le_bytes()),
            &wanted,
        )
        .unwrap();
        assert_eq!(tensors[0].as_fp32(), Some(&[1.5][..]));
        let json = r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1.5, 2]}]}"#;
        assert_eq!(
            read_response(&response(json, None, &[]), &wanted).unwrap()[0].as_fp32(),
            Some(&[1.5, 2.0][..])
        );
    }

    #[test]
    fn responses_with_wrong_lengths_are_refused() {
        let wanted = [TensorSpec::new("a", ElementType::Fp32, [-1])];
        let whole = r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#;
        for (json, length, bytes) in [
            (whole, Some(whole.len()), &[0_u8; 3][..]),
            (whole, Some(usize::MAX), &[0; 4]),
            (whole, None, &[0; 4]),
            (r#"{"outputs":[]}"#, None, &[]),
            (
                r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1]}]}"#,
                None,
                &[],
            ),
            (
                r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[-1],"data":[1]}]}"#,
                None,
                &[],
            ),
        ] {
            let failure = read_response(&response(json, length, bytes), &wanted).unwrap_err();
            assert_eq!(failure.kind, FailureKind::InvalidResponse, "{json}");
        }
    }

    #[test]
    fn failures_are_classified_by_status_and_message() {
        for (status, message, kind) in [
            (503, "Exceeds maximum queue size", FailureKind::NotReady),
            (
                400,
                "Request for unknown model: 'm' is not found",
                FailureKind::Missing,
            ),
            (400, "unexpected shape for input 'a'", FailureKind::Refused),
            (500, "Traceback", FailureKind::ModelError),
            (502, "<html>", FailureKind::NotReady),
        ] {
            let body = json!({ "error": message }).to_string();
            let failure = failure(StatusCode::from_u16(status).unwrap(), body.as_bytes());
            assert_eq!(failure.kind, kind, "{status} {message}");
        }
    }

    #[test]
    fn model_names_are_escaped_in_paths() {
        let escaped = |name| utf8_percent_encode(name, RESERVED).to_string();
        assert_eq!(escaped("a_b-1"), "a_b-1");
        assert_eq!(escaped("../é"), "..%2F%C3%A9");
    }
}
