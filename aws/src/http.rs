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

/// The HTTPS proxy from the environment. A URL that cannot be parsed is ignored, as by `hyper_util` for the hub.
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
    let proxy = ProxyConfig::https(url).ok()?;
    Some(match first(&["NO_PROXY", "no_proxy"]) {
        Some(hosts) => proxy.no_proxy(hosts),
        None => proxy,
    })
}
