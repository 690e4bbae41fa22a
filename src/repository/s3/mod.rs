//! Objects in S3, and in whatever speaks like it: the only place that speaks to the AWS SDK.
//!
//! Everything here may be called from any thread, of an async runtime or not: requests run on threads of their
//! own, which start with the first `s3://` URL that is used. A program that uses none pays nothing.

mod failure;
mod read;
mod write;

use std::{
    fmt,
    future::Future,
    path::Path,
    str::FromStr,
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
    read::{Object, Pieces, Reader},
    write::{Condition, Multipart, Part, SMALLEST_PART},
};
use crate::error::{Error, Result};

const SCHEME: &str = "s3://";
/// What S3-compatible servers take where no region is configured.
const REGION: &str = "us-east-1";
/// The longest that a connection is waited for, and then the beginning of an answer: a server that says nothing is
/// as good as none.
const CONNECT: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(15);
/// The same where the request has something to carry first: a part takes its time on a slow line. One that stalls
/// altogether is noticed sooner.
const CARRY: Duration = Duration::from_mins(5);
/// The longest key that S3 takes, in bytes.
pub const LONGEST_KEY: usize = 1024;

/// The place of an object, or of all objects whose keys begin alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// The bucket.
    pub bucket: String,
    /// The key, as it is: nothing in it is escaped.
    pub key: String,
}

impl Url {
    /// The URL that a path on the command line or in the configuration is, if it is one.
    pub fn of(path: &Path) -> Option<Result<Self>> {
        let text = path.to_str()?;
        text.starts_with(SCHEME).then(|| text.parse())
    }

    /// The URL of the same bucket with another key.
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { bucket: self.bucket.clone(), key: key.into() }
    }

    /// The URL of `name` under this one.
    pub fn join(&self, name: &str) -> Self {
        let prefix = self.key.trim_end_matches('/');
        self.with_key(if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") })
    }

    /// What stands after the last slash of the key.
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (bucket, key) = text
            .strip_prefix(SCHEME)
            .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
            .filter(|(bucket, _)| !bucket.is_empty())
            .ok_or_else(|| Error::config(format!("expected `{SCHEME}BUCKET/KEY`, but found `{text}`")))?;
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

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
    let stopped = |_| Error::inference("the threads for S3 have stopped", "no answer came");
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

/// A key that S3 takes: one that is too long keeps its beginning and its end, and a digest of the whole
/// stands for what is left out.
pub fn fit_key(key: &str) -> String {
    const END: usize = 64;
    const DIGEST: usize = 16;
    if key.len() <= LONGEST_KEY {
        return key.to_owned();
    }
    let digest = blake3::hash(key.as_bytes()).to_hex();
    let head = &key[..key.floor_char_boundary(LONGEST_KEY - END - DIGEST - 2)];
    let tail = &key[key.ceil_char_boundary(key.len() - END)..];
    // A slash in the tail would make another folder of it.
    format!("{head}~{}~{}", &digest[..DIGEST], tail.replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_they_are_written() {
        let url: Url = "s3://bucket/a b/c+d%20é.jsonl".parse().unwrap();
        assert_eq!((url.bucket.as_str(), url.key.as_str()), ("bucket", "a b/c+d%20é.jsonl"));
        assert_eq!(url.to_string(), "s3://bucket/a b/c+d%20é.jsonl");
        assert_eq!(url.name(), "c+d%20é.jsonl");
        let bucket: Url = "s3://bucket".parse().unwrap();
        assert_eq!(bucket.join("x").key, "x");
        assert_eq!(bucket.join("a/").join("x").key, "a/x");
        for wrong in ["s3://", "s3:///key", "http://a/b"] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
        assert!(Url::of(Path::new("/tmp/s3")).is_none());
    }

    #[test]
    fn keys_that_are_too_long_fit_and_stay_apart() {
        let key = |last: &str| format!("{}{last}.jsonl.report.json", "é/".repeat(400));
        let (one, other) = (fit_key(&key("a")), fit_key(&key("b")));
        assert!(one.len() <= LONGEST_KEY && other.len() <= LONGEST_KEY && one != other);
        assert!(one.ends_with(".jsonl.report.json"), "{one}");
        assert_eq!(fit_key("short"), "short");
    }
}
