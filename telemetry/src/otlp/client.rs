//! Sends the exporters' requests.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use async_trait::async_trait;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, builderstates::WantsSchemes};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::{runtime::Handle, time::timeout};
use tokio_rustls::rustls::{RootCertStore, crypto::ring};

use kivu_base::{Error, Result, certificates::client_tls, config::OtlpReceiver, error::chain};

/// Responses are empty, or name what was refused.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Receivers and load balancers close idle connections after a minute or later.
const MAX_IDLE: Duration = Duration::from_secs(50);

type Connections = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client that any thread may wait for; its connections belong to a Tokio runtime.
#[derive(Debug)]
pub struct Client {
    /// The signal's name, for the log.
    what: &'static str,
    connections: Connections,
    runtime: Handle,
    timeout: Duration,
    /// Whether the last request failed, which was logged.
    is_failing: AtomicBool,
}

impl Client {
    pub fn new(what: &'static str, to: &OtlpReceiver, runtime: Handle) -> Result<Self> {
        let mut direct = HttpConnector::new();
        direct.enforce_http(false);
        direct.set_nodelay(true);
        // Reading the system's certificates takes milliseconds.
        let tls = match to.url.starts_with("https:") {
            true => system_tls()?,
            false => {
                HttpsConnectorBuilder::new().with_tls_config(client_tls(RootCertStore::empty())?)
            }
        };
        let https = tls.https_or_http().enable_http1().wrap_connector(direct);
        let connections = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(MAX_IDLE)
            .pool_timer(TokioTimer::new())
            .build(https);
        Ok(Self {
            what,
            connections,
            runtime,
            timeout: to.timeout,
            is_failing: AtomicBool::new(false),
        })
    }

    /// Logs the first failure, and the first success after it.
    fn report(&self, failure: Option<String>) {
        let what = self.what;
        match failure {
            Some(cause) if !self.is_failing.swap(true, Relaxed) => {
                tracing::warn!(
                    cause,
                    "{what} cannot be sent to the OTLP endpoint; they are lost until it is reachable"
                );
            }
            None if self.is_failing.swap(false, Relaxed) => {
                tracing::info!("{what} are received by the OTLP endpoint again");
            }
            _ => {}
        }
    }
}

fn system_tls() -> Result<HttpsConnectorBuilder<WantsSchemes>> {
    let tls = HttpsConnectorBuilder::new().with_provider_and_native_roots(ring::default_provider());
    tls.map_err(|error| {
        Error::io("cannot read trusted certificates")(error).with_hint("set SSL_CERT_FILE")
    })
}

async fn send(
    connections: Connections,
    request: Request<Bytes>,
) -> std::result::Result<Response<Bytes>, HttpError> {
    let (parts, body) = connections
        .request(request.map(Full::new))
        .await?
        .into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES)
        .collect()
        .await?
        .to_bytes();
    Ok(Response::from_parts(parts, body))
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(
        &self,
        request: Request<Bytes>,
    ) -> std::result::Result<Response<Bytes>, HttpError> {
        let (connections, limit) = (self.connections.clone(), self.timeout);
        // A timeout can only be made in the runtime.
        let sent = self
            .runtime
            .spawn(async move { timeout(limit, send(connections, request)).await });
        let response = match sent.await {
            Ok(Ok(response)) => response,
            Ok(Err(late)) => Err(late.into()),
            // The runtime ends.
            Err(cancelled) => return Err(cancelled.into()),
        };
        self.report(match &response {
            Err(error) => Some(chain(&**error)),
            Ok(response) if !response.status().is_success() => {
                Some(format!("status {}", response.status()))
            }
            Ok(_) => None,
        });
        response
    }
}
