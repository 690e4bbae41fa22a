//! The store of a build with the feature `s3`.

mod failure;
mod read;
mod write;

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use aws_config::{
    BehaviorVersion, Region, environment::EnvironmentVariableRegionProvider,
    meta::region::RegionProviderChain, profile::ProfileFileRegionProvider, retry::RetryConfig,
    timeout::TimeoutConfig,
};
use aws_sdk_s3::Client;
use aws_smithy_http_client::{
    Builder as HttpClient,
    tls::{Provider, rustls_provider::CryptoMode},
};
use tokio::runtime::{Builder, Runtime};

pub use self::{
    failure::set_patience,
    read::{Pieces, Reader},
};
use crate::error::{Error, Result};

/// What S3-compatible servers take where no region is configured.
const REGION: &str = "us-east-1";
/// The longest that a connection is waited for, and then the beginning of an answer: a server that says nothing is
/// as good as none.
const CONNECT: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(15);
/// The same where the request has something to carry first: a part takes its time on a slow line. One that stalls
/// altogether is noticed sooner.
const CARRY: Duration = Duration::from_mins(5);
/// The store that the environment names: AWS, or what `AWS_ENDPOINT_URL` names, with the usual variables,
/// profiles and roles for credentials.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    /// The same for requests that carry something.
    writer: Client,
    runtime: Runtime,
}

/// One for the process: connections are kept, and a runtime may not end inside another.
static STORE: OnceLock<Store> = OnceLock::new();

impl Store {
    /// The store, connected to when it is first used.
    pub fn open() -> Result<Self> {
        if let Some(store) = STORE.get() {
            return Ok(store.clone());
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("s3")
            .enable_all()
            .build()
            .map_err(Error::io("cannot start the threads for S3"))?;
        let [client, writer] = wait(&runtime, connect())?;
        let store = Self { shared: Arc::new(Shared { client, writer, runtime }) };
        Ok(STORE.get_or_init(|| store).clone())
    }

    fn client(&self) -> Client {
        self.shared.client.clone()
    }

    fn writer(&self) -> Client {
        self.shared.writer.clone()
    }

    /// Runs a request on the threads for S3 while this thread waits.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        wait(&self.shared.runtime, async { Ok(work.await) })?
    }
}

/// Waits for `work` on a thread that may belong to another runtime, which is why it is not `block_on`.
fn wait<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (reply, answer) = flume::bounded(1);
    runtime.spawn(async move {
        // Whoever asked may have gone.
        let _ = reply.send_async(work.await).await;
    });
    let stopped = |_| Error::inference_because("the threads for S3 have stopped", "no answer came");
    answer.recv().map_err(stopped)?
}

/// A client for requests that carry nothing, and one for those that do.
async fn connect() -> Result<[Client; 2]> {
    let http = HttpClient::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new())
        .or_else(Region::new(REGION));
    let shared = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .region(region)
        // Tries are counted in one place, `patiently`, which knows how long somebody is ready to wait.
        .retry_config(RetryConfig::disabled())
        .load()
        .await;
    // A server of one's own has no name for each bucket.
    let own_server = shared.endpoint_url().is_some() || std::env::var_os("AWS_ENDPOINT_URL_S3").is_some();
    let client = |answer| {
        let times = TimeoutConfig::builder().connect_timeout(CONNECT).read_timeout(answer).build();
        let config = aws_sdk_s3::config::Builder::from(&shared).force_path_style(own_server);
        Client::from_conf(config.timeout_config(times).build())
    };
    Ok([client(ANSWER), client(CARRY)])
}
