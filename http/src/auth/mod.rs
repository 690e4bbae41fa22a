//! Access control: API keys, callers that API Gateway has authenticated, or open access.

mod key_limits;
mod keyring;
mod keys;
mod local;
mod quotas;
mod rate;

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use axum::http::{HeaderMap, HeaderName, StatusCode, header::AUTHORIZATION, request::Parts};

pub use self::local::may_be_of_other_page;
pub use self::{
    key_limits::{Date, KeyLimits},
    keyring::{make_key, make_limited_key},
};
use self::{keyring::Key, keys::Keys, quotas::Quotas, rate::Rates};
use super::bodies::rejection::Rejection;
use kivu::{
    Error, Result,
    cloud::Cloud,
    config::{AuthConfig, AuthMode},
};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Header with the trusted proxy's secret.
const PROXY_SECRET: HeaderName = HeaderName::from_static("x-kivu-proxy-secret");
/// Longer header values are ignored without being hashed.
const MAX_KEY_BYTES: usize = 512;

pub const NO_KEY: &str = "expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none";
const MISPLACED_KEY: &str = "expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found another header or form";
const EXPIRED: &str = "expected a valid key, but found one that has expired";
pub const NOT_PROXIED: &str =
    "expected a request through the trusted proxy, but found a direct one; use the proxy's address";

/// Where requests come from, which determines the default access mode.
#[derive(Clone, Copy, Debug)]
pub enum BindScope {
    /// Any client that can connect to this listening address.
    Address(SocketAddr),
    /// API Gateway.
    ApiGateway,
}

impl BindScope {
    fn is_loopback(self) -> bool {
        matches!(self, Self::Address(address) if address.ip().is_loopback())
    }
}

/// A request extension that marks requests whose caller API Gateway has authenticated.
#[derive(Clone, Copy, Debug)]
pub struct GatewayVerified;

/// Admits or rejects requests before their body is read; by default, admits all.
#[derive(Debug, Default)]
pub struct Guard {
    access: Access,
    /// The trusted proxy's secret.
    proxy: Option<Keys>,
    /// Origins whose pages are answered although they are other sites'.
    pages: Vec<String>,
    rates: Rates,
    quotas: Quotas,
}

/// A caller with a key.
#[derive(Clone, Debug)]
pub struct Caller {
    pub name: String,
    /// The models that the caller may use; all if there are none.
    pub models: Vec<String>,
}

/// The credentials that a request needs.
#[derive(Debug, Default)]
pub enum Access {
    #[default]
    Open,
    /// Open to programs on this machine, and to the server's own pages.
    Local,
    GatewayVerified,
    Keys(Box<Keys>),
}

impl Guard {
    /// The configured guard. Secrets and counts of requests are in `cloud`.
    ///
    /// Without configuration, a server on a loopback address is open to this machine and any other needs keys. Open access on a
    /// reachable address requires `auth.mode = "none"`.
    pub fn new(config: &AuthConfig, scope: BindScope, cloud: &Cloud) -> Result<Self> {
        let has_keys =
            !config.keys.is_empty() || config.keys_file.is_some() || config.keys_secret.is_some();
        let access = match (config.mode, scope) {
            (Some(AuthMode::None), _) => Access::Open,
            (Some(AuthMode::Iam | AuthMode::Jwt), BindScope::ApiGateway) => Access::GatewayVerified,
            (Some(AuthMode::Iam | AuthMode::Jwt), BindScope::Address(_)) => {
                return Err(Error::config(
                    "`auth.mode` is `iam` or `jwt`, but only API Gateway checks signatures and tokens; set it to `keys` or `none`",
                ));
            }
            (Some(AuthMode::Keys) | None, _) if has_keys => {
                Access::Keys(Box::new(Keys::new(config, cloud)?))
            }
            (None, scope) if scope.is_loopback() => Access::Local,
            (Some(AuthMode::Keys) | None, _) => {
                return Err(Error::config(
                    "expected keys for a server that is reachable from other machines, but found \
                     none",
                )
                .with_hint(
                    "`kivu key NAME` creates one for `auth.keys`, and `auth.mode = \"none\"` \
                     allows open access",
                ));
            }
        };
        if matches!(access, Access::Open) {
            let keys = if has_keys {
                ", and the configured keys are ignored"
            } else {
                ""
            };
            tracing::warn!(?scope, "open access: `auth.mode` is `none`{keys}");
        }
        let (proxy, quotas) = (Keys::of_proxy(config, cloud)?, Quotas::new(config, cloud)?);
        Ok(Self {
            access,
            proxy,
            quotas,
            ..Self::default()
        })
    }

    /// Answers pages from `origins` on a server without keys, too.
    #[must_use]
    pub fn with_pages(self, origins: Vec<String>) -> Self {
        Self {
            pages: origins,
            ..self
        }
    }

    /// Whether requests need an API key.
    pub fn requires_key(&self) -> bool {
        matches!(self.access, Access::Keys(_))
    }

    /// Reads the keys and the proxy's secret for the first time, so that unreadable ones are an error at startup.
    pub async fn prepare(&self) -> Result<()> {
        let keys = async {
            match &self.access {
                Access::Keys(keys) => keys.prepare().await,
                Access::Open | Access::Local | Access::GatewayVerified => Ok(()),
            }
        };
        let proxy = async {
            match &self.proxy {
                Some(proxy) => proxy.prepare().await,
                None => Ok(()),
            }
        };
        tokio::try_join!(keys, proxy).map(|_| ())
    }

    /// The credentials that requests need.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Admits a request to a route that is not open, with its caller where keys are required.
    pub async fn admit(&self, request: &Parts) -> Result<Option<Caller>, Refusal> {
        if let Some(proxy) = &self.proxy {
            let shown = request.headers.get(PROXY_SECRET);
            let shown = shown.and_then(|value| value.to_str().ok());
            let found = match shown.filter(|shown| shown.len() <= MAX_KEY_BYTES) {
                Some(shown) => proxy.find(&[shown]).await.map_err(Refusal::unreadable)?,
                None => None,
            };
            if found.is_none() {
                return Err(Refusal::new(
                    "not through the trusted proxy",
                    StatusCode::FORBIDDEN,
                    NOT_PROXIED,
                ));
            }
        }
        let unauthorized =
            |reason, message| Err(Refusal::new(reason, StatusCode::UNAUTHORIZED, message));
        match &self.access {
            Access::Open => Ok(None),
            Access::Local => match local::check(request, &self.pages) {
                Ok(()) => Ok(None),
                Err(message) => Err(Refusal::new(
                    "from another site's page",
                    StatusCode::FORBIDDEN,
                    message,
                )),
            },
            Access::GatewayVerified if request.extensions.get::<GatewayVerified>().is_some() => {
                Ok(None)
            }
            Access::GatewayVerified => unauthorized(
                "not verified by API Gateway",
                "expected a request that API Gateway has verified, but found a direct one",
            ),
            Access::Keys(keys) => {
                let shown = shown_keys(&request.headers);
                if shown.is_empty() {
                    return match has_misplaced_key(&request.headers) {
                        true => unauthorized("key in the wrong header", MISPLACED_KEY),
                        false => unauthorized("no key", NO_KEY),
                    };
                }
                match keys.find(&shown).await {
                    Ok(Some(key)) => self.within_limits(key).await.map(Some),
                    Ok(None) => unauthorized("unknown key", "unknown key"),
                    Err(error) => Err(Refusal::unreadable(error)),
                }
            }
        }
    }

    /// The caller, if the key has not expired and is not used too often.
    async fn within_limits(&self, key: Key) -> Result<Caller, Refusal> {
        let name = key.name.clone();
        self.check_limits(key).await.map_err(|refusal| Refusal {
            caller: Some(name),
            ..refusal
        })
    }

    async fn check_limits(&self, key: Key) -> Result<Caller, Refusal> {
        if key.limits.has_expired(SystemTime::now()) {
            return Err(Refusal::new(
                "expired key",
                StatusCode::UNAUTHORIZED,
                EXPIRED,
            ));
        }
        let too_many = |reason, limit: String, wait: Duration| {
            let message = format!("expected at most {limit} with this key; retry later");
            let mut refusal = Refusal::new(reason, StatusCode::TOO_MANY_REQUESTS, &message);
            refusal.rejection.retry_after_s =
                (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
            Err(refusal)
        };
        if let Some(per_minute) = key.limits.per_minute
            && let Err(wait) = self.rates.admit(&key.name, per_minute)
        {
            let limit = format!("{per_minute} requests per minute");
            return too_many("too many requests with this key", limit, wait);
        }
        if let Some(per_day) = key.limits.per_day
            && !self.quotas.admit(&key.name, per_day).await
        {
            let limit = format!("{per_day} requests per day (UTC)");
            return too_many(
                "quota of this key is used up",
                limit,
                quotas::until_tomorrow(),
            );
        }
        Ok(Caller {
            name: key.name,
            models: key.limits.models,
        })
    }
}

/// A rejected request: the reason and the caller for the log, and the response.
#[derive(Debug)]
pub struct Refusal {
    pub reason: &'static str,
    /// The key's name, if the key is known.
    pub caller: Option<String>,
    pub rejection: Rejection,
}

impl Refusal {
    fn new(reason: &'static str, status: StatusCode, message: &str) -> Self {
        Self {
            reason,
            caller: None,
            rejection: Rejection::new(status, message),
        }
    }

    fn unreadable(error: Error) -> Self {
        Self {
            reason: "keys cannot be read",
            caller: None,
            rejection: Rejection::because(
                StatusCode::SERVICE_UNAVAILABLE,
                "cannot read the keys at the moment; try again shortly",
                error,
            ),
        }
    }
}

/// A request's keys, from both headers.
fn shown_keys(headers: &HeaderMap) -> Vec<&str> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
    };
    let bearer = text(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        // DeepL's clients send the second.
        let is_known = ["bearer", "deepl-auth-key"]
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known));
        is_known.then(|| key.trim())
    });
    let shown = [bearer, text(API_KEY)].into_iter().flatten();
    shown
        .filter(|key| !key.is_empty() && key.len() <= MAX_KEY_BYTES)
        .collect()
}

/// Whether there is a header that other services take keys in.
fn has_misplaced_key(headers: &HeaderMap) -> bool {
    [
        "authorization",
        "api-key",
        "apikey",
        "x-api-token",
        "x-auth-token",
        "token",
    ]
    .iter()
    .any(|name| headers.contains_key(*name))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use kivu::config::Config;

    fn config(mode: Option<AuthMode>, keys: &[&str]) -> AuthConfig {
        AuthConfig {
            mode,
            keys: keys.iter().map(ToString::to_string).collect(),
            ..Config::default().auth
        }
    }

    #[test]
    fn keys_are_read_from_the_headers_of_all_clients() {
        let shown = |name: &'static str, value: &'static str| {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value)]);
            shown_keys(&headers)
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(shown("authorization", "Bearer secret"), ["secret"]);
        assert_eq!(shown("authorization", "DeepL-Auth-Key secret"), ["secret"]);
        assert_eq!(shown("x-api-key", "secret"), ["secret"]);
        assert!(shown("authorization", "Basic secret").is_empty());
    }

    #[test]
    fn only_loopback_is_open_by_default() {
        let (_, line) = make_key("a").unwrap();
        let listening = |address: &str| BindScope::Address(address.parse().unwrap());
        struct Case(Option<AuthMode>, bool, BindScope, &'static str);
        let cases = [
            Case(None, false, listening("127.0.0.1:80"), "local"),
            Case(None, false, listening("[::1]:80"), "local"),
            Case(
                Some(AuthMode::None),
                false,
                listening("127.0.0.1:80"),
                "open",
            ),
            Case(None, false, listening("0.0.0.0:80"), "refused"),
            Case(None, false, BindScope::ApiGateway, "refused"),
            Case(None, true, listening("127.0.0.1:80"), "keys"),
            Case(None, true, listening("0.0.0.0:80"), "keys"),
            Case(
                Some(AuthMode::Keys),
                false,
                listening("127.0.0.1:80"),
                "refused",
            ),
            Case(Some(AuthMode::None), true, listening("0.0.0.0:80"), "open"),
            Case(Some(AuthMode::None), false, BindScope::ApiGateway, "open"),
            Case(Some(AuthMode::Iam), false, BindScope::ApiGateway, "gateway"),
            Case(
                Some(AuthMode::Jwt),
                false,
                listening("127.0.0.1:80"),
                "refused",
            ),
        ];
        for Case(mode, has_keys, scope, expected) in cases {
            let keys: &[&str] = if has_keys { &[&line] } else { &[] };
            let found = match Guard::new(&config(mode, keys), scope, &Cloud::default())
                .map(|guard| guard.access)
            {
                Ok(Access::Open) => "open",
                Ok(Access::Local) => "local",
                Ok(Access::GatewayVerified) => "gateway",
                Ok(Access::Keys(_)) => "keys",
                Err(_) => "refused",
            };
            assert_eq!(found, expected, "{mode:?}, keys: {has_keys}, {scope:?}");
        }
    }
}
