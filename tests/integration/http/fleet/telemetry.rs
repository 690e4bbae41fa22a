//! Traces and metrics for fleet requests.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use axum::{Router, body::Body};
use bytes::Bytes;
use h2::{RecvStream, client::SendRequest, server::SendResponse};
use http::{Request, Response};
use kivu::{config::Policy, telemetry::Embedded};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tower::ServiceExt;

use super::{
    faults::{LONG, Stage},
    post,
    proxy::{Mischief, Proxy},
};
use crate::tools::free_ports;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Forwards gRPC requests to a server and records their paths and traces, until it is dropped.
struct Relay {
    port: u16,
    heard: Heard,
    accepting: JoinHandle<()>,
}

type Heard = Arc<Mutex<Vec<(String, Option<String>)>>>;

impl Relay {
    async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, heard) = (listener.local_addr().unwrap().port(), Heard::default());
        let ear = Arc::clone(&heard);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, target, Arc::clone(&ear)));
            }
        });
        Self {
            port,
            heard,
            accepting,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn relay(client: TcpStream, target: u16, heard: Heard) {
    let server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
    let (requests, connection) = h2::client::handshake(server).await.unwrap();
    tokio::spawn(connection);
    let mut connection = h2::server::handshake(client).await.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        let trace = request
            .headers()
            .get("traceparent")
            .map(|trace| trace.to_str().unwrap().to_owned());
        heard
            .lock()
            .unwrap()
            .push((request.uri().path().to_owned(), trace));
        tokio::spawn(hand_on(request, respond, requests.clone()));
    }
}

async fn hand_on(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    requests: SendRequest<Bytes>,
) -> Result<(), h2::Error> {
    let (parts, mut body) = request.into_parts();
    let (answer, mut up) = requests
        .ready()
        .await?
        .send_request(Request::from_parts(parts, ()), false)?;
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        up.send_data(piece, false)?;
    }
    up.send_data(Bytes::new(), true)?;
    let (parts, mut body) = answer.await?.into_parts();
    let mut down = respond.send_response(Response::from_parts(parts, ()), false)?;
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        down.send_data(piece, false)?;
    }
    if let Some(trailers) = body.trailers().await? {
        down.send_trailers(trailers)?;
    }
    Ok(())
}

async fn embed_in_trace(app: &Router, header: (&str, &str)) {
    let body = json!({ "inputs": ["a short text"] }).to_string();
    let request = Request::post("/embed")
        .header("content-type", "application/json")
        .header(header.0, header.1);
    let response = app
        .clone()
        .oneshot(request.body(Body::from(body)).unwrap())
        .await
        .unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-backend"]),
        (200, &"triton".parse().unwrap())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_is_passed_to_the_server() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let x_ray = format!(
        "Root=1-{}-{};Parent=00f067aa0ba902b7;Sampled=1",
        &TRACE[..8],
        &TRACE[8..]
    );
    let headers = [
        ("traceparent", traceparent.as_str()),
        ("x-amzn-trace-id", &x_ray),
    ];

    let proxy = Proxy::start(triton.http, Mischief::None).await;
    let app = stage.app(
        Policy::Fleet,
        &[format!("http://127.0.0.1:{}", proxy.port)],
        LONG,
    );
    assert!(
        !proxy.take_heard().contains("traceparent"),
        "no request has a trace yet"
    );
    for header in headers {
        embed_in_trace(&app, header).await;
        let heard = proxy.take_heard();
        let traces = heard
            .lines()
            .filter(|line| *line == format!("traceparent: {traceparent}"))
            .count();
        assert_eq!(
            (traces, heard.matches("/infer HTTP/1.1").count()),
            (1, 1),
            "{heard}"
        );
    }
    post(&app, "/embed", &json!({ "inputs": "another text" })).await;
    assert!(
        !proxy.take_heard().contains("traceparent"),
        "a request without a trace gets none"
    );

    let relay = Relay::start(triton.grpc).await;
    let app = stage.app(
        Policy::Fleet,
        &[format!("grpc://127.0.0.1:{}", relay.port)],
        LONG,
    );
    relay.heard.lock().unwrap().clear();
    for header in headers {
        embed_in_trace(&app, header).await;
    }
    post(&app, "/embed", &json!({ "inputs": "another text" })).await;
    let infer = "/inference.GRPCInferenceService/ModelInfer".to_owned();
    let traced = (infer.clone(), Some(traceparent));
    assert_eq!(
        *relay.heard.lock().unwrap(),
        [traced.clone(), traced, (infer, None)]
    );
}

/// On one thread, because the metrics recorder belongs to the thread.
#[tokio::test]
async fn fleet_metrics_contain_no_addresses() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    let [unused] = free_ports();
    let urls = [
        format!("http://127.0.0.1:{unused}"),
        triton.urls()[0].clone(),
    ];
    let app = stage.app(Policy::Fleet, &urls, LONG);
    let embedded = Embedded::new("kivu-test");
    let recorder = embedded.recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    for _ in 0..12 {
        assert_eq!(
            post(&app, "/embed", &json!({ "inputs": "a text" }))
                .await
                .status,
            200
        );
    }
    let line = embedded.lines(SystemTime::now()).remove(0);
    let count = |name: &str| line[name].as_f64().unwrap_or_default();
    // Attempts at the first server fail until its breaker opens; each is retried on the other.
    assert!(
        count("FleetRequests0Unreachable") >= 3.0 && count("FleetOpenBreakers0") == 1.0,
        "{line:#}"
    );
    assert_eq!(
        (count("FleetRetries"), count("FleetRequests0Ok")),
        (3.0, 0.0),
        "{line:#}"
    );
    assert!(
        count("FleetRequests1Ok") >= 12.0 && line["FleetRequest1Ms"].is_array(),
        "{line:#}"
    );
    assert!(
        !line.to_string().contains("127.0.0.1") && !line.to_string().contains(&unused.to_string()),
        "{line:#}"
    );

    // The breaker closes when the server is back.
    let _first = super::server::Triton::start_at(
        &stage.packages,
        &stage.repository,
        [unused, free_ports::<1>()[0]],
        &[],
    );
    tokio::time::sleep(Duration::from_millis(1200)).await;
    for _ in 0..8 {
        assert_eq!(
            post(&app, "/embed", &json!({ "inputs": "a text" }))
                .await
                .status,
            200
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let line = embedded.lines(SystemTime::now()).remove(0);
    assert!(line["FleetRequests0Ok"].as_f64() >= Some(2.0), "{line:#}");
    assert_eq!(line.get("FleetOpenBreakers0"), None, "{line:#}");
}
