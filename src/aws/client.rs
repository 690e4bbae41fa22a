//! Configuration for AWS clients.

use aws_config::{BehaviorVersion, SdkConfig};

use super::http;

/// Account, region and endpoints from the environment.
pub(super) async fn configuration() -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest()).http_client(http::client()).load().await
}
