//! The configuration of the clients.

use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::{
    Builder as HttpClient,
    tls::{Provider, rustls_provider::CryptoMode},
};

/// Account, region and endpoints of the environment.
pub(super) async fn configuration() -> SdkConfig {
    let http = HttpClient::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await
}
