//! Who may ask: holders of a key, whoever API Gateway has let through, or anybody.

mod keyring;
mod keys;

use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header::AUTHORIZATION};
use subtle::ConstantTimeEq;

pub use self::keyring::make_key;
use self::keys::Keys;
use super::rejection::Rejection;
use crate::{
    config::{AuthConfig, AuthMode},
    error::{Error, Result},
};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const FRONT: HeaderName = HeaderName::from_static("x-kivu-front");
/// Longer than any key: what is longer is not even hashed.
const LONGEST_KEY: usize = 512;
/// What may be asked without a key: how the server is, and the pages that say how to ask it, which are the same
/// everywhere.
pub(super) const OPEN_PATHS: [&str; 7] =
    ["/", "/docs", "/health", "/openapi.json", "/ping", "/v2/health/live", "/v2/health/ready"];

/// Where requests come from, which decides what is safe when nothing is configured.
#[derive(Clone, Copy, Debug)]
pub enum BindScope {
    /// From whoever can connect to this address.
    Address(SocketAddr),
    /// From API Gateway.
    ApiGateway,
}

/// What callers have to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Nothing,
    Key,
    /// What API Gateway checks.
    Gateway,
}

/// Put into a request's extensions by the program that knows that API Gateway has checked the caller.
#[derive(Clone, Copy, Debug)]
pub struct GatewayVerified;

/// Lets requests through or turns them away.
#[derive(Debug)]
pub struct Guard {
    way: Way,
    front: Option<[u8; 32]>,
}

#[derive(Debug)]
enum Way {
    Open,
    Gateway,
    Keys(Box<Keys>),
}

impl Default for Guard {
    /// Lets everybody through.
    fn default() -> Self {
        Self { way: Way::Open, front: None }
    }
}

impl Guard {
    /// The guard that is configured.
    ///
    /// Where nothing is, only callers on this machine get in without a key: a server that others can reach is
    /// refused, unless `auth.mode` says `none` in so many words.
    pub fn new(config: &AuthConfig, reach: BindScope) -> Result<Self> {
        let has_keys = !config.keys.is_empty() || config.keys_file.is_some() || config.keys_secret.is_some();
        let way = match (config.mode, reach) {
            (Some(AuthMode::None), _) => Way::Open,
            (Some(AuthMode::Iam | AuthMode::Jwt), BindScope::ApiGateway) => Way::Gateway,
            (Some(AuthMode::Iam | AuthMode::Jwt), BindScope::Address(_)) => {
                return Err(Error::config(
                    "expected `auth.mode` to be `keys` or `none`, since only API Gateway checks signatures and \
                     tokens, but found `iam` or `jwt`",
                ));
            }
            (Some(AuthMode::Keys) | None, _) if has_keys => Way::Keys(Box::new(Keys::new(config)?)),
            (None, BindScope::Address(address)) if address.ip().is_loopback() => Way::Open,
            (Some(AuthMode::Keys) | None, _) => {
                return Err(Error::config(
                    "expected keys for a server that others can reach, but found none; `kivu key NAME` makes one \
                     for `auth.keys`, and `auth.mode = \"none\"` lets everybody in",
                ));
            }
        };
        let guard = Self { way, front: config.front.as_ref().map(|front| keyring::hash(&front.0)) };
        if let (Way::Open, BindScope::ApiGateway) = (&guard.way, reach) {
            tracing::warn!("everybody may ask: `auth.mode` is `none`");
        } else if let (Way::Open, BindScope::Address(address)) = (&guard.way, reach)
            && !address.ip().is_loopback()
        {
            tracing::warn!(%address, "everybody who can reach this address may ask: `auth.mode` is `none`");
        }
        Ok(guard)
    }

    /// Reads the keys for the first time, so that a file or a secret that cannot be read is told at the start.
    pub async fn prepare(&self) -> Result<()> {
        match &self.way {
            Way::Keys(keys) => keys.prepare().await,
            Way::Open | Way::Gateway => Ok(()),
        }
    }

    /// What has to be shown.
    pub(super) fn asks(&self) -> Asks {
        match self.way {
            Way::Open => Asks::Nothing,
            Way::Gateway => Asks::Gateway,
            Way::Keys(_) => Asks::Key,
        }
    }

    /// The name of the key that a request shows, where keys are asked for; its refusal, if it may not go on.
    pub(super) async fn admit(&self, request: Asking<'_>) -> Result<Option<String>, Refusal> {
        // Texts come to `/` by POST; that no other route takes a method is told to everybody.
        let brings_texts = request.path == "/" && *request.method == Method::POST;
        if OPEN_PATHS.contains(&request.path) && !brings_texts {
            return Ok(None);
        }
        if let Some(front) = &self.front {
            let shown = request
                .headers
                .get(FRONT)
                .map(|value| keyring::hash(&String::from_utf8_lossy(value.as_bytes())));
            if !shown.is_some_and(|shown| bool::from(shown.ct_eq(front))) {
                return Err(Refusal::passed_by());
            }
        }
        match &self.way {
            Way::Open => Ok(None),
            Way::Gateway if request.is_vouched => Ok(None),
            Way::Gateway => Err(Refusal::unauthorized(
                "not vouched for",
                "expected a request that API Gateway has checked",
            )),
            Way::Keys(keys) => {
                let shown = shown_keys(request.headers);
                if shown.is_empty() {
                    let why =
                        if hints_at_key(request.headers) { "key in the wrong header" } else { "no key" };
                    return Err(Refusal::unauthorized(why, WHERE_KEYS_GO));
                }
                match keys.find(&shown).await {
                    Ok(Some(name)) => Ok(Some(name)),
                    Ok(None) => Err(Refusal::unauthorized("unknown key", "the key is not known")),
                    Err(error) => Err(Refusal::unreadable(error)),
                }
            }
        }
    }
}

pub(super) const WHERE_KEYS_GO: &str =
    "expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none";

/// What of a request says who asks.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) is_vouched: bool,
}

/// The keys that a request shows, in either header.
fn shown_keys(headers: &HeaderMap) -> Vec<&str> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let bearer = text(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let plain = text(API_KEY);
    let shown = [bearer, plain].into_iter().flatten();
    shown.filter(|key| !key.is_empty() && key.len() <= LONGEST_KEY).collect()
}

/// Whether somebody tried, though not where keys are looked for.
fn hints_at_key(headers: &HeaderMap) -> bool {
    ["authorization", "api-key", "apikey", "x-api-token", "x-auth-token", "token"]
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// Why a request may not go on: for its sender, and for the log.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: &'static str,
    pub(super) rejection: Rejection,
}

impl Refusal {
    fn unauthorized(why: &'static str, message: &str) -> Self {
        Self { why, rejection: Rejection::new(StatusCode::UNAUTHORIZED, message) }
    }

    fn passed_by() -> Self {
        let message = "expected a request that came through the front door; ask at its address";
        Self { why: "not through the front", rejection: Rejection::new(StatusCode::FORBIDDEN, message) }
    }

    fn unreadable(error: Error) -> Self {
        let message = "who may ask cannot be looked up at the moment; try again shortly";
        let rejection = Rejection::because(StatusCode::SERVICE_UNAVAILABLE, message, error);
        Self { why: "keys cannot be read", rejection }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn config(mode: Option<AuthMode>, keys: &[&str]) -> AuthConfig {
        AuthConfig { mode, keys: keys.iter().map(ToString::to_string).collect(), ..Config::default().auth }
    }

    #[test]
    fn only_this_machine_gets_in_where_nothing_is_configured() {
        let (_, line) = make_key("a").unwrap();
        let listening = |address: &str| BindScope::Address(address.parse().unwrap());
        struct Case(Option<AuthMode>, bool, BindScope, &'static str);
        let cases = [
            Case(None, false, listening("127.0.0.1:80"), "open"),
            Case(None, false, listening("[::1]:80"), "open"),
            Case(None, false, listening("0.0.0.0:80"), "refused"),
            Case(None, false, BindScope::ApiGateway, "refused"),
            Case(None, true, listening("127.0.0.1:80"), "keys"),
            Case(None, true, listening("0.0.0.0:80"), "keys"),
            Case(Some(AuthMode::Keys), false, listening("127.0.0.1:80"), "refused"),
            Case(Some(AuthMode::None), true, listening("0.0.0.0:80"), "open"),
            Case(Some(AuthMode::None), false, BindScope::ApiGateway, "open"),
            Case(Some(AuthMode::Iam), false, BindScope::ApiGateway, "gateway"),
            Case(Some(AuthMode::Jwt), false, listening("127.0.0.1:80"), "refused"),
        ];
        for Case(mode, has_keys, reach, expected) in cases {
            let keys: &[&str] = if has_keys { &[&line] } else { &[] };
            let found = match Guard::new(&config(mode, keys), reach).map(|guard| guard.way) {
                Ok(Way::Open) => "open",
                Ok(Way::Gateway) => "gateway",
                Ok(Way::Keys(_)) => "keys",
                Err(_) => "refused",
            };
            assert_eq!(found, expected, "{mode:?}, keys: {has_keys}, {reach:?}");
        }
    }
}
