//! Connection to S3.
//!
//! Requests run on the store's own threads, so that every function can be called from any thread, inside or outside an
//! async runtime. The threads start with the first request.

mod errors;
mod requests;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_config::{
    BehaviorVersion, Region, environment::EnvironmentVariableRegionProvider,
    meta::region::RegionProviderChain, profile::ProfileFileRegionProvider, retry::RetryConfig,
    timeout::TimeoutConfig,
};
use aws_sdk_s3::Client;
use futures::TryFutureExt;
use tokio::runtime::{Builder, Handle, Runtime};

use self::errors::RequestError;
use crate::{http, retry::retry};
use kivu::{
    error::{Error, Result},
    locked,
};

/// S3-compatible servers accept any region; AWS needs a configured one.
const DEFAULT_REGION: &str = "us-east-1";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time to a response's first byte.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time to the first response byte for a request with a body, which takes long on a slow line. The SDK detects
/// stalled uploads earlier.
const UPLOAD_TIMEOUT: Duration = Duration::from_mins(5);

/// AWS, or the server in `AWS_ENDPOINT_URL`. Region and credentials come from the usual variables, profiles and roles.
#[derive(Debug)]
pub struct S3 {
    retry_timeout: Duration,
    /// `None` before the first request, and after [`disconnect`](kivu::repository::s3::Store::disconnect).
    connection: Mutex<Option<Arc<Connection>>>,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    upload_client: Client,
    retry_timeout: Duration,
    threads: Handle,
    runtime: Option<Runtime>,
}

impl S3 {
    /// A store that retries each failed request for `retry_timeout`. It connects with the first request.
    pub fn new(retry_timeout: Duration) -> Self {
        Self {
            retry_timeout,
            connection: Mutex::default(),
        }
    }

    fn connection(&self) -> Result<Arc<Connection>> {
        let mut current = locked(&self.connection);
        if let Some(connection) = &*current {
            return Ok(Arc::clone(connection));
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("s3")
            .enable_all()
            .build()
            .map_err(Error::io("cannot start the threads for S3"))?;
        let threads = runtime.handle().clone();
        let [client, upload_client] = wait(&threads, connect()).ok_or_else(|| {
            Error::inference_because("cannot connect to S3", "its threads have stopped")
        })?;
        let connection = Arc::new(Connection {
            client,
            upload_client,
            retry_timeout: self.retry_timeout,
            threads,
            runtime: Some(runtime),
        });
        Ok(Arc::clone(current.insert(connection)))
    }
}

impl Connection {
    /// Sends a request on the store's threads until it succeeds, fails permanently or times out.
    fn send<T, E, F>(&self, request: impl Fn() -> F + Send + 'static) -> Result<T, RequestError>
    where
        T: Send + 'static,
        E: Into<RequestError> + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let request = move || request().map_err(E::into);
        let retried = retry(self.retry_timeout, RequestError::is_temporary, request);
        wait(&self.threads, retried)
            .unwrap_or_else(|| Err(RequestError::permanent("the threads for S3 have stopped")))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A runtime must not be dropped, which blocks, inside another runtime.
        self.runtime
            .take()
            .into_iter()
            .for_each(Runtime::shutdown_background);
    }
}

/// Waits for `work` without `block_on`, which panics on another runtime's threads; `None` if `work` panics.
fn wait<T: Send + 'static>(
    threads: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = flume::bounded(1);
    threads.spawn(async move {
        let _ = sender.send_async(work.await).await;
    });
    receiver.recv().ok()
}

/// A client for requests without a body, and one for uploads.
async fn connect() -> [Client; 2] {
    let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new())
        .or_else(Region::new(DEFAULT_REGION));
    let shared = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http::client())
        .region(region)
        // Disabled, since `retry` retries requests until a timeout, not for a number of attempts.
        .retry_config(RetryConfig::disabled())
        .load()
        .await;
    // Servers other than AWS usually have no host name per bucket.
    let has_endpoint =
        shared.endpoint_url().is_some() || std::env::var_os("AWS_ENDPOINT_URL_S3").is_some();
    [RESPONSE_TIMEOUT, UPLOAD_TIMEOUT].map(|timeout| {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(timeout)
            .build();
        let config = aws_sdk_s3::config::Builder::from(&shared).force_path_style(has_endpoint);
        Client::from_conf(config.timeout_config(timeouts).build())
    })
}
