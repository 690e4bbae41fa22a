//! Streamed responses as a runtime API receives them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that meets what it does not expect fails"
)]

#[path = "../api/streaming.rs"]
mod streaming;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
};

use axum::body::{Body, Bytes};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{FutureExt, future::BoxFuture, stream};
use http::{Response, header::SET_COOKIE};
use lambda_http::{
    Error,
    lambda_runtime::{Context, LambdaInvocation},
    tower::{Layer, Service, service_fn},
};
use lambda_runtime_api_client::PooledClient;
use serde_json::{Value, json};

use crate::streaming::StreamLayer;

/// A request to the runtime API.
struct Received {
    line: String,
    headers: BTreeMap<String, Vec<String>>,
    chunks: Vec<Vec<u8>>,
    trailers: BTreeMap<String, Vec<String>>,
}

impl Received {
    /// The prelude and the body.
    fn response(&self) -> (Value, Vec<u8>) {
        let bytes = self.chunks.concat();
        let end = bytes
            .windows(8)
            .position(|window| window == [0; 8])
            .expect("a separator");
        (
            serde_json::from_slice(&bytes[..end]).unwrap(),
            bytes[end + 8..].to_vec(),
        )
    }
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn headers(reader: &mut impl BufRead) -> BTreeMap<String, Vec<String>> {
    let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some((name, value)) = line(reader).split_once(':') {
        headers
            .entry(name.to_ascii_lowercase())
            .or_default()
            .push(value.trim().to_owned());
    }
    headers
}

fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let size = usize::from_str_radix(&line(reader), 16).unwrap();
    if size == 0 {
        return None;
    }
    let mut bytes = vec![0; size];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(line(reader), "", "after a chunk");
    Some(bytes)
}

fn answer(mut stream: &TcpStream, status: &str) {
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
}

/// A runtime API that reads one response to its end.
fn read_all(stream: &TcpStream) -> Received {
    let mut reader = BufReader::new(stream);
    let (line, headers_read) = (line(&mut reader), headers(&mut reader));
    let chunks = std::iter::from_fn(|| chunk(&mut reader)).collect();
    let trailers = headers(&mut reader);
    answer(stream, "202 Accepted");
    Received {
        line,
        headers: headers_read,
        chunks,
        trailers,
    }
}

/// A runtime API that closes the connection after the first chunk.
fn read_one(stream: &TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(stream);
    line(&mut reader);
    headers(&mut reader);
    chunk(&mut reader).unwrap()
}

fn runtime_api<T: Send + 'static>(
    serve: impl FnOnce(&TcpStream) -> T + Send + 'static,
) -> (Arc<PooledClient>, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let client = PooledClient::builder()
        .with_endpoint(address.parse().unwrap())
        .build();
    (
        Arc::new(client),
        thread::spawn(move || serve(&listener.accept().unwrap().0)),
    )
}

fn invocation() -> LambdaInvocation {
    let (parts, ()) = Response::builder()
        .header("lambda-runtime-invocation-id", "the-id")
        .body(())
        .unwrap()
        .into_parts();
    let mut context = Context::default();
    context.request_id = "1".into();
    LambdaInvocation {
        parts,
        body: Bytes::new(),
        context,
    }
}

type Handler = BoxFuture<'static, Response<Body>>;

/// Handles one invocation.
async fn invoke(
    runtime_api: Arc<PooledClient>,
    handler: impl Fn(&LambdaInvocation) -> Option<Handler> + Clone,
) -> Result<(), Error> {
    let inner =
        service_fn(async |_: LambdaInvocation| Err::<(), Error>("the inner service".into()));
    StreamLayer {
        handler,
        runtime_api,
    }
    .layer(inner)
    .call(invocation())
    .await
}

/// A response as the runtime API receives it.
async fn sent(response: impl Fn() -> Response<Body> + Clone + Send + 'static) -> Received {
    let (client, server) = runtime_api(read_all);
    let handler = move |_: &LambdaInvocation| {
        let response = response();
        Some(async move { response }.boxed())
    };
    invoke(client, handler).await.unwrap();
    server.join().unwrap()
}

fn of_chunks(chunks: Vec<Result<Bytes, &'static str>>) -> Body {
    Body::from_stream(stream::iter(chunks))
}

#[tokio::test]
async fn a_response_is_a_prelude_eight_zero_bytes_and_the_body() {
    let received = sent(|| {
        let response = Response::builder()
            .status(201)
            .header("x-one", "1")
            .header("x-two", "2");
        let response = response
            .header("x-two", "3")
            .header(SET_COOKIE, "a=b")
            .header(SET_COOKIE, "c=d");
        response
            .body(of_chunks(vec![Ok("one ".into()), Ok("two".into())]))
            .unwrap()
    })
    .await;
    assert_eq!(
        received.line,
        "POST /2018-06-01/runtime/invocation/1/response HTTP/1.1"
    );
    for (name, value) in [
        (
            "content-type",
            "application/vnd.awslambda.http-integration-response",
        ),
        ("lambda-runtime-function-response-mode", "streaming"),
        ("transfer-encoding", "chunked"),
        ("lambda-runtime-invocation-id", "the-id"),
    ] {
        assert_eq!(received.headers[name], [value]);
    }
    let (prelude, body) = received.response();
    let expected = json!({ "statusCode": 201, "headers": { "x-one": "1", "x-two": "2, 3" }, "cookies": ["a=b", "c=d"] });
    assert_eq!(
        (prelude, body.as_slice()),
        (expected, b"one two".as_slice())
    );
    assert_eq!(received.chunks.len(), 3, "chunks are not joined");
    assert!(received.trailers.is_empty());
}

/// Compressed bodies and tensors have zero bytes, too.
#[tokio::test]
async fn bodies_are_sent_as_they_are() {
    for body in [
        Vec::new(),
        vec![0; 16],
        (0..=255).cycle().take(3_000_000).collect(),
    ] {
        let expected = body.clone();
        let received = sent(move || Response::new(Body::from(body.clone()))).await;
        let (prelude, body) = received.response();
        assert_eq!(
            prelude,
            json!({ "statusCode": 200, "headers": {}, "cookies": [] })
        );
        assert!(body == expected, "{} bytes", expected.len());
    }
}

/// The client must be able to see that a response is incomplete.
#[tokio::test]
async fn an_error_in_the_middle_is_reported_in_trailers() {
    let received = sent(|| {
        Response::new(of_chunks(vec![
            Ok("half".into()),
            Err("a secret"),
            Ok("more".into()),
        ]))
    })
    .await;
    assert_eq!(received.response().1, b"half");
    let announced = [
        "lambda-runtime-function-error-type",
        "lambda-runtime-function-error-body",
    ];
    assert_eq!(received.headers["trailer"], announced);
    assert_eq!(received.trailers[announced[0]], ["Runtime.StreamError"]);
    let report = BASE64_STANDARD
        .decode(&received.trailers[announced[1]][0])
        .unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(
        report,
        json!({ "errorType": "Runtime.StreamError", "errorMessage": "the response is incomplete; the log has the cause" })
    );
}

/// A function that ended here would start again for the next request.
#[tokio::test]
async fn a_closed_connection_ends_only_its_invocation() {
    let (client, server) = runtime_api(read_one);
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let handler = move |_: &LambdaInvocation| {
        let held = Arc::clone(&held);
        let endless = stream::repeat_with(move || {
            let _held = &held;
            Ok::<_, Infallible>(Bytes::from(vec![1; 65_536]))
        });
        Some(async move { Response::new(Body::from_stream(endless)) }.boxed())
    };
    invoke(client, handler).await.unwrap();
    assert!(server.join().unwrap().ends_with(&[0; 8]));
    // The connection's task, which drops the body, may still run.
    while Arc::strong_count(&alive) > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_refused_response_ends_only_its_invocation() {
    let (client, server) = runtime_api(|stream| {
        let mut reader = BufReader::new(stream);
        line(&mut reader);
        headers(&mut reader);
        answer(stream, "410 Gone");
    });
    let handler = |_: &LambdaInvocation| Some(async { Response::new(Body::from("text")) }.boxed());
    invoke(client, handler).await.unwrap();
    server.join().unwrap();
}

#[tokio::test]
async fn other_events_go_to_the_inner_service() {
    let (client, _server) = runtime_api(|_| ());
    let error = invoke(client, |_: &LambdaInvocation| None)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the inner service");
}
