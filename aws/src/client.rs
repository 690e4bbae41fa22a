//! Clients for AWS services.

use std::{error, io, time::Duration};

use aws_config::{BehaviorVersion, SdkConfig};
use tokio::{sync::OnceCell, time::timeout};

use super::http;

/// Timeout for delivering a message or an event.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that is created on first use, with credentials, region and endpoints from the environment.
#[derive(Debug)]
pub struct LazyClient<C>(OnceCell<C>);

impl<C> LazyClient<C> {
    pub fn new() -> Self {
        Self(OnceCell::new())
    }

    pub async fn get(&self, connect: fn(&SdkConfig) -> C) -> &C {
        let create = async || {
            let defaults = aws_config::defaults(BehaviorVersion::latest());
            connect(&defaults.http_client(http::client()).load().await)
        };
        self.0.get_or_init(create).await
    }
}

/// Waits for a delivery, for [`DELIVERY_TIMEOUT`] at most.
pub async fn deliver<T, E: error::Error + Send + Sync + 'static>(
    delivery: impl Future<Output = Result<T, E>>,
) -> io::Result<T> {
    match timeout(DELIVERY_TIMEOUT, delivery).await {
        Ok(delivered) => delivered.map_err(io::Error::other),
        Err(elapsed) => Err(io::Error::other(elapsed)),
    }
}
