//! KServe v2 over HTTP, tensors as bytes behind the JSON.

use std::{collections::BTreeMap, fmt::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderName, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, Error as ClientError},
    rt::{TokioExecutor, TokioTimer},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    address::ServerUrl,
    codec,
    connect::Connector,
    failure::{Failure, Kind},
    transport::{Call, Described, Description, LONGEST_ANSWER, LONGEST_IDLE, Target, microseconds},
};
use crate::{
    backend::TensorSpec,
    json,
    telemetry::trace::{TRACEPARENT, Trace},
    tensor::Tensor,
};

/// How many bytes of a message are JSON; the rest are the tensors', in the order in which JSON names them.
pub(super) const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Kept connections to one address, as many as requests were ever under way.
pub(super) struct HttpTransport {
    client: Client<Connector, Full<Bytes>>,
    base: String,
    authorization: Option<Arc<str>>,
}

#[derive(Deserialize)]
pub(super) struct Metadata {
    pub(super) inputs: Vec<Described>,
    pub(super) outputs: Vec<Described>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) max_batch_size: i64,
    model_transaction_policy: TransactionPolicy,
    parameters: BTreeMap<String, ConfigParameter>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigParameter {
    string_value: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TransactionPolicy {
    decoupled: bool,
}

#[derive(Deserialize)]
struct InferAnswer {
    outputs: Vec<OutputTensor>,
}

#[derive(Deserialize)]
struct OutputTensor {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    #[serde(default)]
    parameters: Map<String, Value>,
    data: Option<Value>,
}

impl HttpTransport {
    pub(super) fn new(url: &ServerUrl, connector: Connector, authorization: Option<Arc<str>>) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(LONGEST_IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let scheme = if url.tls { "https" } else { "http" };
        Self { client, base: format!("{scheme}://{}{}", url.authority(), url.prefix), authorization }
    }

    pub(super) async fn describe(&self, target: &Target) -> Result<Description, Failure> {
        let metadata: Metadata = parse(&self.get(target, "").await?)?;
        // A server of another make may have no such route.
        let config = match self.get(target, "/config").await {
            Ok(config) => Some(parse::<Config>(&config)?),
            Err(failure) if matches!(failure.kind, Kind::Missing | Kind::Refused) => None,
            Err(failure) => return Err(failure),
        };
        Ok(Description {
            inputs: metadata.inputs,
            outputs: metadata.outputs,
            max_batch_size: config.as_ref().map(|config| config.max_batch_size),
            is_decoupled: config.as_ref().is_some_and(|config| config.model_transaction_policy.decoupled),
            parameters: config
                .into_iter()
                .flat_map(|config| config.parameters)
                .map(|(name, parameter)| (name, parameter.string_value))
                .collect(),
        })
    }

    pub(super) async fn is_ready(&self, target: &Target) -> Result<(), Failure> {
        match self.get(target, "/ready").await {
            // That the model is not there is all that Triton says of one that is not ready.
            Err(failure) if matches!(failure.kind, Kind::Refused | Kind::Missing) => {
                Err(Failure::new(Kind::NotReady))
            }
            other => other.map(|_| ()),
        }
    }

    pub(super) async fn infer(
        &self,
        target: &Target,
        call: &Call,
        time: Duration,
    ) -> Result<Vec<Tensor>, Failure> {
        let input = |input: &super::transport::CallInput| {
            let parameters = json!({ "binary_data_size": input.bytes.len() });
            json!({ "name": input.name, "datatype": input.datatype, "shape": input.shape, "parameters": parameters })
        };
        let output = |spec: &TensorSpec| json!({ "name": spec.name, "parameters": { "binary_data": true } });
        let told = call.parameters.iter().map(|(name, text)| (name.clone(), text.clone().into()));
        let mut parameters: Map<String, Value> = told.collect();
        parameters.insert("timeout".to_owned(), microseconds(time).into());
        let json = json!({
            "inputs": call.inputs.iter().map(input).collect::<Vec<_>>(),
            "outputs": call.outputs.iter().map(output).collect::<Vec<_>>(),
            "parameters": parameters,
        });
        let mut body = json.to_string().into_bytes();
        let length = body.len();
        call.inputs.iter().for_each(|input| body.extend_from_slice(&input.bytes));
        let request = self
            .request(Method::POST, target, "/infer")
            .header(JSON_LENGTH, length)
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(Full::from(body));
        let answer = self.send(request.map_err(|_| Failure::new(Kind::Refused))?).await?;
        read_answer(&answer, &call.outputs)
    }

    async fn get(&self, target: &Target, what: &str) -> Result<Bytes, Failure> {
        let request = self.request(Method::GET, target, what).body(Full::default());
        Ok(self.send(request.map_err(|_| Failure::new(Kind::Refused))?).await?.into_body())
    }

    fn request(&self, method: Method, target: &Target, what: &str) -> http::request::Builder {
        let Target { model, version } = target;
        let mut path = format!("{}/v2/models/{}", self.base, escaped(model));
        if let Some(version) = version {
            // Writing to a string cannot fail.
            let _ = write!(path, "/versions/{}", escaped(version));
        }
        let mut request = Request::builder().method(method).uri(path + what);
        if let Some(trace) = Trace::current() {
            request = request.header(TRACEPARENT, trace.traceparent());
        }
        match &self.authorization {
            Some(authorization) => request.header(AUTHORIZATION, &**authorization),
            None => request,
        }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, Failure> {
        let response = self.client.request(request).await.map_err(|error| unanswered(&error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await;
        let body = body.map_err(|_| Failure::new(Kind::Cut))?.to_bytes();
        if parts.status == StatusCode::OK {
            Ok(Response::from_parts(parts, body))
        } else {
            Err(refusal(parts.status, &body))
        }
    }
}

/// A segment of a path; names of models are seldom more than letters, digits and underscores.
fn escaped(segment: &str) -> String {
    let mut escaped = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        // Writing to a string cannot fail.
        let _ = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.write_char(char::from(byte))
            }
            _ => write!(escaped, "%{byte:02X}"),
        };
    }
    escaped
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Failure> {
    if !json::is_light(body) {
        return Err(Failure::garbled("expected KServe's JSON, but found more values than tensors have"));
    }
    serde_json::from_slice(body)
        .map_err(|_| Failure::garbled("expected KServe's JSON, but found something else"))
}

fn unanswered(error: &ClientError) -> Failure {
    Failure::new(if error.is_connect() { Kind::Unreachable } else { Kind::Cut })
}

/// What a status other than 200 says.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    #[derive(Deserialize)]
    struct Said {
        error: String,
    }
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => {
            Kind::NotReady
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Kind::Late,
        StatusCode::NOT_FOUND => Kind::Missing,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Failure::new(Kind::Refused),
        status if status.is_client_error() => Kind::Refused,
        status if status.is_server_error() => Kind::Broken,
        _ => Kind::Garbled,
    };
    match serde_json::from_slice::<Said>(body) {
        Ok(Said { error }) => Failure::told(Failure::refined(kind, &error), &error),
        Err(_) => Failure::new(kind),
    }
}

/// The wanted outputs of an answer; every length in it is checked against what is there.
pub(super) fn read_answer(answer: &Response<Bytes>, wanted: &[TensorSpec]) -> Result<Vec<Tensor>, Failure> {
    let body = answer.body();
    let length = match answer.headers().get(JSON_LENGTH) {
        None => body.len(),
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            length.ok_or_else(|| Failure::garbled("expected the length of the JSON, but found none"))?
        }
    };
    let (json, mut rest) =
        body.split_at_checked(length).ok_or_else(|| Failure::garbled("the answer ends inside its JSON"))?;
    let InferAnswer { outputs } = parse(json)?;
    let mut found: Vec<(OutputTensor, &[u8])> = Vec::with_capacity(outputs.len());
    for output in outputs {
        let size = output.parameters.get("binary_data_size").and_then(Value::as_u64).unwrap_or(0);
        let cut = || Failure::garbled("the answer ends inside a tensor");
        let size = usize::try_from(size).map_err(|_| cut())?;
        let (bytes, behind) = rest.split_at_checked(size).ok_or_else(cut)?;
        rest = behind;
        found.push((output, bytes));
    }
    let read = |spec: &TensorSpec| {
        let output = found.iter().find(|(output, _)| output.name == spec.name);
        let (output, bytes) = output.ok_or_else(|| {
            Failure::garbled(format!("expected the output `{}`, but found none", spec.name))
        })?;
        match &output.data {
            Some(data) => codec::decode_json(spec, &output.shape, data),
            None => codec::decode(spec, &output.datatype, &output.shape, bytes),
        }
    };
    wanted.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::ElementType;

    fn answer(json: &str, length: Option<usize>, bytes: &[u8]) -> Response<Bytes> {
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
    fn answers_in_bytes_and_in_json_are_read() {
        let wanted = [TensorSpec::new("a", ElementType::Fp32, [-1])];
        let json = r#"{"outputs":[{"name":"b","datatype":"BYTES","shape":[1],"data":["x"]},
            {"name":"a","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#;
        let tensors = read_answer(&answer(json, Some(json.len()), &1.5_f32.to_le_bytes()), &wanted).unwrap();
        assert_eq!(tensors[0].as_fp32(), Some(&[1.5][..]));
        let json = r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1.5, 2]}]}"#;
        assert_eq!(
            read_answer(&answer(json, None, &[]), &wanted).unwrap()[0].as_fp32(),
            Some(&[1.5, 2.0][..])
        );
    }

    #[test]
    fn answers_that_lie_are_refused() {
        let wanted = [TensorSpec::new("a", ElementType::Fp32, [-1])];
        let whole =
            r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#;
        for (json, length, bytes) in [
            (whole, Some(whole.len()), &[0_u8; 3][..]),
            (whole, Some(usize::MAX), &[0; 4]),
            (whole, None, &[0; 4]),
            (r#"{"outputs":[]}"#, None, &[]),
            (r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1]}]}"#, None, &[]),
            (r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[-1],"data":[1]}]}"#, None, &[]),
        ] {
            let failure = read_answer(&answer(json, length, bytes), &wanted).unwrap_err();
            assert_eq!(failure.kind, Kind::Garbled, "{json}");
        }
    }

    #[test]
    fn statuses_and_words_tell_what_a_retry_mends() {
        for (status, words, kind) in [
            (503, "Exceeds maximum queue size", Kind::NotReady),
            (400, "Request for unknown model: 'm' is not found", Kind::Missing),
            (400, "unexpected shape for input 'a'", Kind::Refused),
            (500, "Traceback", Kind::Broken),
            (502, "<html>", Kind::NotReady),
        ] {
            let body = json!({ "error": words }).to_string();
            let failure = refusal(StatusCode::from_u16(status).unwrap(), body.as_bytes());
            assert_eq!(failure.kind, kind, "{status} {words}");
        }
    }

    #[test]
    fn names_are_escaped_in_paths() {
        assert_eq!(escaped("a_b-1"), "a_b-1");
        assert_eq!(escaped("../é"), "..%2F%C3%A9");
    }
}
