//! HTTP connections to AWS, directly or through the proxy in `HTTPS_PROXY`.

use std::env;

use aws_smithy_http_client::{
    Builder, Connector,
    proxy::ProxyConfig,
    tls::{Provider, rustls_provider::CryptoMode},
};
use aws_smithy_runtime_api::client::http::SharedHttpClient;

/// HTTP client for S3 and credentials. As for hub downloads, only HTTPS connections go through a proxy: container and machine
/// credentials come from addresses that a proxy cannot reach.
pub fn client() -> SharedHttpClient {
    let provider = || Provider::Rustls(CryptoMode::Ring);
    let Some(proxy) = proxy(|name| env::var(name).ok()) else {
        return Builder::new().tls_provider(provider()).build_https();
    };
    Builder::new().build_with_connector_fn(move |settings, components| {
        let mut connector = Connector::builder();
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(components.and_then(|components| components.sleep_impl()));
        connector
            .proxy_config(proxy.clone())
            .tls_provider(provider())
            .build()
    })
}

/// A connector for services without an SDK.
pub fn connector() -> Connector {
    let mut connector = Connector::builder();
    connector.set_proxy_config(proxy(|name| env::var(name).ok()));
    connector
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build()
}

/// The HTTPS proxy from the environment. In place of one that is not supported there is one that refuses connections: they
/// must not leave the network in another way.
fn proxy(variable: impl Fn(&str) -> Option<String>) -> Option<ProxyConfig> {
    let first = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| variable(name))
            .filter(|value| !value.is_empty())
    };
    let url = first(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])?;
    let url = if url.contains("://") {
        url
    } else {
        format!("http://{url}")
    };
    let proxy = ProxyConfig::https(url).or_else(|error| {
        tracing::error!("HTTPS_PROXY or ALL_PROXY: {error}; requests to AWS fail");
        ProxyConfig::https("http://127.0.0.1:0")
    });
    let proxy = proxy.ok()?;
    Some(match first(&["NO_PROXY", "no_proxy"]) {
        Some(hosts) => proxy.no_proxy(hosts),
        None => proxy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_do_not_pass_by_a_proxy_that_is_not_supported() {
        for url in ["socks5://user:password@proxy", "ftp://proxy", "http://"] {
            let found = proxy(|name| (name == "ALL_PROXY").then(|| url.to_owned()));
            let found = format!("{:?}", found.unwrap());
            assert!(found.contains("127.0.0.1:0"), "{found}");
        }
        assert!(proxy(|_| None).is_none());
    }
}
