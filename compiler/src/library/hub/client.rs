//! The hub's HTTP API: repository file lists, and file contents from any offset.

use std::{error::Error as StdError, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};

use super::{
    connect::{ClientError, HttpClient, client},
    repository_name::{RepositoryName, is_commit},
};
use kivu::{
    Error, Result,
    address::{shown, without_user},
    config::HubConfig,
    error::{Message, chain},
    hexadecimal::{hex, is_hex},
};

/// All but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
/// All but the unreserved characters and the slash, for paths.
const RESERVED_IN_PATHS: &AsciiSet = &RESERVED.remove(b'/');
const MAX_REDIRECTS: usize = 10;
/// Maximum size of a file list, in bytes.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;
/// Attempts without progress.
const MAX_ATTEMPTS: u32 = 5;
/// A longer rate limit is an error.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A failed attempt.
#[derive(Debug)]
pub enum Failure {
    /// Further attempts would fail, too.
    Final(Error),
    /// Another attempt may succeed, after the wait that the hub asks for, if any.
    Transient(Error, Option<Duration>),
}

/// An attempt's outcome.
pub type Attempt<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// A repository's files at a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The commit's hash.
    pub commit: String,
    /// The commit's files, or those of them that are known.
    pub files: Vec<HubFile>,
    /// Whether these are all files in the commit.
    pub is_whole: bool,
}

/// A file in a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubFile {
    /// Relative to the repository's root.
    pub path: String,
    /// In bytes; 0 for a file that another program downloaded.
    pub size: u64,
    /// A large file's SHA-256, or a small file's Git SHA-1: its blob's name in the cache.
    pub hash: String,
}

/// Response from `/api/models`.
#[derive(Deserialize)]
struct Info {
    id: Option<String>,
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    blob_id: Option<String>,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// A hub client.
pub struct Hub<'a> {
    /// Where the hub is, how it is reached, and where its files are kept.
    pub config: &'a HubConfig,
    /// Without user information, which requests do not use, and neither errors nor the log may show.
    pub endpoint: String,
    http: HttpClient,
}

impl<'a> Hub<'a> {
    /// Connects with the first request.
    pub fn new(config: &'a HubConfig) -> Result<Self> {
        Ok(Self {
            config,
            endpoint: without_user(&config.endpoint),
            http: client()?,
        })
    }

    /// Lists a repository's files; also resolves the commit.
    pub async fn list(&self, name: &RepositoryName) -> Result<Listing> {
        let revision = utf8_percent_encode(&name.revision, RESERVED);
        let url = format!(
            "{}/api/models/{}/revision/{revision}?blobs=true",
            self.endpoint, name.id
        );
        let mut attempts = Attempts::new(self.config);
        let body = loop {
            match self.read(&url, name).await {
                Ok(body) => break body,
                Err(failure) => attempts.wait(failure).await?,
            }
        };
        let (id, listing) = Listing::parse(&body, name)?;
        if let Some(id) = id.filter(|id| *id != name.id) {
            tracing::warn!(
                "`{}` is now called `{id}` on the hub; use that name",
                name.id
            );
        }
        Ok(listing)
    }

    async fn read(&self, url: &str, name: &RepositoryName) -> Attempt<Bytes> {
        let response = self.get(url, 0, name).await?;
        let body = Limited::new(response.into_body(), MAX_LIST_BYTES).collect();
        match timeout(self.config.timeout, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(self.unreachable(&*error, name)),
            Err(elapsed) => Err(self.unreachable(&elapsed, name)),
        }
    }

    /// Opens a file's contents at byte `from`.
    pub async fn open(
        &self,
        name: &RepositoryName,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Attempt<Response<Incoming>> {
        let encoded = utf8_percent_encode(path, RESERVED_IN_PATHS);
        let url = format!("{}/{}/resolve/{commit}/{encoded}", self.endpoint, name.id);
        self.get(&url, from, name).await
    }

    /// Follows redirects; sends the token only to the same host.
    async fn get(
        &self,
        url: &str,
        from: u64,
        name: &RepositoryName,
    ) -> Attempt<Response<Incoming>> {
        let invalid_url = |error| {
            Error::config_because(
                format!(
                    "expected a hub URL in HF_ENDPOINT, but found `{}`",
                    shown(url)
                ),
                error,
            )
        };
        let first: Uri = url.parse().map_err(invalid_url)?;
        let mut target = first.clone();
        for _ in 0..MAX_REDIRECTS {
            let mut request = Request::get(&target);
            request = request.header(USER_AGENT, concat!("kivu/", env!("CARGO_PKG_VERSION")));
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let is_same_host =
                (target.scheme(), target.authority()) == (first.scheme(), first.authority());
            if let Some(token) = self.config.token.as_ref().filter(|_| is_same_host) {
                request = request.header(AUTHORIZATION, format!("Bearer {}", token.0));
            }
            let request = request.body(Empty::new()).map_err(|error| {
                Error::config_because(
                    "expected a token without control characters in HF_TOKEN",
                    error,
                )
            })?;
            let response = match timeout(self.config.timeout, self.http.request(request)).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => return Err(self.unreachable(&error, name)),
                Err(elapsed) => return Err(self.unreachable(&elapsed, name)),
            };
            let status = response.status();
            if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
                return Ok(response);
            }
            if !status.is_redirection() {
                return Err(self.refusal(status, response.headers(), name));
            }
            target = redirected(&target, response.headers()).ok_or_else(|| {
                Error::config(format!(
                    "expected `{}` to redirect to a URL, but found none that is valid",
                    shown(&target.to_string())
                ))
            })?;
        }
        Err(Error::config(format!(
            "expected at most {MAX_REDIRECTS} redirects from `{}`, but found more",
            shown(url)
        ))
        .into())
    }

    fn unreachable(&self, error: &(dyn StdError + 'static), name: &RepositoryName) -> Failure {
        // The client's own message only names the operation.
        let cause = error.source().filter(|_| error.is::<ClientError>());
        let causes = chain(cause.unwrap_or(error));
        let error = Error::unavailable(format!(
            "expected a response from `{}` for `{}`, but found {causes}",
            self.endpoint, name.id
        ))
        .with_hint(
            "check the name and the connection, or set HF_HUB_OFFLINE=1 to use files that were \
             downloaded earlier",
        );
        Failure::Transient(error, None)
    }

    /// Classifies a response with a status other than success or redirection.
    fn refusal(&self, status: StatusCode, headers: &HeaderMap, name: &RepositoryName) -> Failure {
        if status == StatusCode::TOO_MANY_REQUESTS {
            return self.rate_limit(headers);
        }
        let header = |name: &str| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let (code, reason) = (header("x-error-code"), header("x-error-message"));
        if let Some(message) = self.explanation(status, [code, reason], name) {
            return Failure::Final(match is_about_token(status, reason) {
                true => Error::config(message),
                false => Error::invalid(message),
            });
        }
        let error = Error::unavailable(format!(
            "expected a response from `{}` for `{}`, but found the status {status}{}",
            self.endpoint,
            name.id,
            because(reason)
        ))
        .with_hint("try again later");
        match status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            true => Failure::Transient(error, wait(headers)),
            false => Failure::Final(error),
        }
    }

    fn rate_limit(&self, headers: &HeaderMap) -> Failure {
        let after = wait(headers);
        let when = after.map_or("later".to_owned(), |after| {
            format!("in {} s", after.as_secs())
        });
        let token = if self.config.token.is_some() {
            ""
        } else {
            ", or set HF_TOKEN, which raises the limit"
        };
        let error = Error::unavailable(format!("`{}` limits requests", self.endpoint))
            .with_hint(format!("try again {when}{token}"));
        Failure::Transient(error, after)
    }

    /// Message for a response that another attempt would not change; `None` if the cause is unknown.
    fn explanation(
        &self,
        status: StatusCode,
        [code, reason]: [&str; 2],
        name: &RepositoryName,
    ) -> Option<Message> {
        let (endpoint, id) = (&self.endpoint, &name.id);
        let has_token = self.config.token.is_some();
        let is_disabled = code == "DisabledRepo"
            || status == StatusCode::FORBIDDEN && reason == "Access to this resource is disabled.";
        Some(match (status, code) {
            (_, "GatedRepo") => {
                let token = if has_token {
                    "with HF_TOKEN's account"
                } else {
                    "and set HF_TOKEN"
                };
                Message::new(format!("`{id}` is gated"))
                    .with_hint(format!("accept its terms at {endpoint}/{id} {token}"))
            }
            (_, "RevisionNotFound") => Message::new(format!(
                "expected the revision `{}` of `{id}`, but found none",
                name.revision
            ))
            .with_hint(format!("{endpoint}/{id}/tree/main lists them")),
            (_, "EntryNotFound") => Message::new(format!(
                "a file that `{endpoint}` lists for `{id}` is missing"
            ))
            .with_hint("try again later"),
            _ if is_disabled => Message::new(format!("the hub has disabled `{id}`"))
                .with_hint("choose another model"),
            _ if is_about_token(status, reason) => Message::new(format!(
                "expected a valid token in HF_TOKEN or from `hf auth login`, but `{endpoint}` \
                 refused it"
            ))
            .with_hint(format!("create one at {endpoint}/settings/tokens")),
            (StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND, _) => {
                let token = if has_token {
                    "that HF_TOKEN's account can read it"
                } else {
                    "set HF_TOKEN"
                };
                Message::new(format!(
                    "expected a repository `{id}` at `{endpoint}`, but found none that is public"
                ))
                .with_hint(format!("check the name or, if it is private, {token}"))
            }
            (StatusCode::FORBIDDEN, _) => Message::new(format!(
                "expected access to `{id}`, but it was refused{}",
                because(reason)
            ))
            .with_hint("check HF_TOKEN"),
            _ => return None,
        })
    }
}

impl Listing {
    /// Reads the hub's response; also returns the repository's current name.
    pub fn parse(body: &[u8], name: &RepositoryName) -> Result<(Option<String>, Self)> {
        let unreadable = |error| {
            Error::config_because(
                format!("expected the files of `{name}` from the hub"),
                error,
            )
        };
        let info: Info = serde_json::from_slice(body).map_err(unreadable)?;
        if !is_commit(&info.sha) {
            return Err(invalid(name, &format!("the commit `{}`", info.sha)));
        }
        let files = info
            .siblings
            .into_iter()
            .map(|file| file.checked(name))
            .collect::<Result<_>>()?;
        Ok((
            info.id,
            Self {
                commit: info.sha,
                files,
                is_whole: true,
            },
        ))
    }

    /// Identifies the files: the commit, or a hash if there may be others.
    pub fn id(&self) -> String {
        if self.is_whole {
            return self.commit.clone();
        }
        let mut files: Vec<_> = self
            .files
            .iter()
            .map(|file| format!("{}\n{}\n", file.path, file.hash))
            .collect();
        files.sort();
        hex(&Sha256::digest(files.concat()))
    }
}

impl Sibling {
    fn checked(self, name: &RepositoryName) -> Result<HubFile> {
        let path = self.rfilename;
        let is_inside = !path.is_empty()
            && !path.contains(['\\', '\0'])
            && path.split('/').all(|part| !["", ".", ".."].contains(&part));
        if !is_inside {
            return Err(invalid(name, &format!("the path `{path}`")));
        }
        let (hash, size) = match (self.lfs, self.blob_id, self.size) {
            (Some(lfs), _, _) if is_hex(&lfs.sha256, 64) => (lfs.sha256, lfs.size),
            (None, Some(id), Some(size)) if is_hex(&id, 40) => (id, size),
            _ => return Err(invalid(name, &format!("no hash of `{path}`"))),
        };
        Ok(HubFile { path, size, hash })
    }
}

fn invalid(name: &RepositoryName, found: &str) -> Error {
    Error::config(format!(
        "expected the files of `{name}` with their sizes and hashes from the hub, but found \
         {found}"
    ))
    .with_hint("check HF_ENDPOINT")
}

fn because(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(" ({reason})")
    }
}

/// Whether the hub refuses the token, and not a repository.
fn is_about_token(status: StatusCode, reason: &str) -> bool {
    status == StatusCode::UNAUTHORIZED && reason.starts_with("Invalid credentials")
}

/// A redirect's target, without user information; `None` if it is missing, or would downgrade HTTPS to HTTP.
fn redirected(from: &Uri, headers: &HeaderMap) -> Option<Uri> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let location = match location
        .strip_prefix('/')
        .filter(|rest| !rest.starts_with('/'))
    {
        Some(path) => format!("{}://{}/{path}", from.scheme_str()?, from.authority()?),
        None => location.to_owned(),
    };
    let mut to: Uri = location.parse().ok()?;
    if let Some((_, host)) = to.authority()?.as_str().rsplit_once('@') {
        let mut parts = to.clone().into_parts();
        parts.authority = Some(host.parse().ok()?);
        to = Uri::from_parts(parts).ok()?;
    }
    to.scheme_str()
        .filter(|scheme| *scheme == "https" || Some(*scheme) == from.scheme_str())?;
    Some(to)
}

/// The seconds in `retry-after`, or in the hub's `ratelimit`, such as `"api";r=0;t=55`.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let limit = || {
        text("ratelimit")?
            .split(';')
            .find_map(|part| part.trim().strip_prefix("t=")?.parse().ok())
    };
    let seconds = text(RETRY_AFTER.as_str())
        .and_then(|seconds| seconds.trim().parse().ok())
        .or_else(limit);
    seconds.map(Duration::from_secs)
}

/// Attempts for one operation, with exponential back-off.
pub struct Attempts {
    count: u32,
    pause: Duration,
}

impl Attempts {
    /// No attempts so far; the first pause is the configured one.
    pub fn new(config: &HubConfig) -> Self {
        Self {
            count: 0,
            pause: config.retry_pause,
        }
    }

    /// Waits before the next attempt; returns the error if no attempt remains.
    pub async fn wait(&mut self, failure: Failure) -> Result<()> {
        let (error, after) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Transient(error, after) => (error, after),
        };
        self.count += 1;
        if self.count >= MAX_ATTEMPTS || after.is_some_and(|after| after > MAX_WAIT) {
            return Err(error);
        }
        tracing::debug!("attempt {} failed: {error}", self.count);
        sleep(after.unwrap_or(self.pause * 2_u32.pow(self.count - 1))).await;
        Ok(())
    }

    /// Resets the attempt count after progress.
    pub fn reset(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )])
    }

    #[test]
    fn redirects_are_absolute_or_relative_and_keep_tls() {
        let to = |from: &'static str, location| {
            redirected(&Uri::from_static(from), &headers("location", location))
                .map(|uri| uri.to_string())
        };
        assert_eq!(to("https://a/b", "/c?d").as_deref(), Some("https://a/c?d"));
        assert_eq!(
            to("https://a/b", "https://c/d").as_deref(),
            Some("https://c/d")
        );
        assert_eq!(
            to("http://a/b", "http://c/d").as_deref(),
            Some("http://c/d")
        );
        assert_eq!(
            to("https://a/b", "https://me:word@c/d?key=1@2").as_deref(),
            Some("https://c/d?key=1@2")
        );
        assert_eq!(to("https://a/b", "http://c/d"), None);
        assert_eq!(to("https://a/b", "//c/d"), None);
    }

    #[test]
    fn the_hub_says_when_to_try_again() {
        assert_eq!(
            wait(&headers("retry-after", "7")),
            Some(Duration::from_secs(7))
        );
        assert_eq!(
            wait(&headers("ratelimit", "\"api\";r=0;t=55")),
            Some(Duration::from_secs(55))
        );
        assert_eq!(wait(&headers("retry-after", "soon")), None);
    }

    #[test]
    fn files_outside_of_the_repository_are_refused() {
        let name: RepositoryName = "a/b".parse().unwrap();
        let file = |path: &str, blob: &str| {
            Sibling {
                rfilename: path.into(),
                blob_id: Some(blob.into()),
                size: Some(1),
                lfs: None,
            }
            .checked(&name)
        };
        let hash = "0123456789abcdef0123456789abcdef01234567";
        assert!(file("1_Pooling/config.json", hash).is_ok());
        for path in ["", "/etc/passwd", "../a", "a/../b", "a//b", "./a", "a\\b"] {
            assert!(file(path, hash).is_err(), "{path}");
        }
        assert!(file("a", "../../etc/passwd").is_err());
    }

    #[tokio::test]
    async fn a_server_that_asks_for_a_long_wait_is_not_asked_again() {
        let failure = |seconds| {
            Failure::Transient(
                Error::unavailable("status 503"),
                Some(Duration::from_secs(seconds)),
            )
        };
        let config = HubConfig::default();
        assert!(Attempts::new(&config).wait(failure(0)).await.is_ok());
        let long = timeout(Duration::from_secs(5), async {
            Attempts::new(&config)
                .wait(failure(MAX_WAIT.as_secs() + 1))
                .await
        });
        assert!(long.await.expect("there is no wait").is_err());
    }
}
