//! HTTP requests with AWS signatures or a password.

use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::{
    http_request::{PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4::SigningParams,
};
use aws_smithy_http_client::Connector;
use aws_smithy_runtime_api::client::http::HttpConnector;
use aws_smithy_types::{body::SdkBody, byte_stream::ByteStream};
use base64::{Engine, prelude::BASE64_STANDARD};
use kivu::error::chain;
use tokio::time::timeout;

use super::http;

const TIMEOUT: Duration = Duration::from_secs(60);

/// How a request proves who sends it.
#[derive(Debug)]
pub enum Credentials {
    /// Requests are anonymous.
    None,
    /// User name and password.
    Basic(String, String),
    /// AWS Signature Version 4, with the environment's credentials.
    Signature {
        /// AWS region, such as `eu-west-1`.
        region: String,
        /// The service's name in signatures, such as `es`.
        service: &'static str,
    },
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// The whole body; empty if there is none.
    pub body: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug)]
pub enum SendError {
    /// The same request may succeed later.
    Passing(String),
    /// The request or the credentials are wrong.
    Other(String),
}

#[derive(Debug)]
enum Authorization {
    None,
    Basic(String),
    Signature {
        provider: SharedCredentialsProvider,
        region: String,
        service: &'static str,
    },
}

/// Sends requests.
#[derive(Debug)]
pub struct SignedClient {
    connector: Connector,
    authorization: Authorization,
}

impl SignedClient {
    /// A client with these credentials; fails if AWS credentials are needed but have no source.
    pub async fn new(credentials: Credentials) -> Result<Self, SendError> {
        let authorization = match credentials {
            Credentials::None => Authorization::None,
            Credentials::Basic(name, password) => Authorization::Basic(format!(
                "Basic {}",
                BASE64_STANDARD.encode(format!("{name}:{password}"))
            )),
            Credentials::Signature { region, service } => {
                let defaults =
                    aws_config::defaults(BehaviorVersion::latest()).http_client(http::client());
                let shared = defaults.region(Region::new(region.clone())).load().await;
                let provider = shared
                    .credentials_provider()
                    .ok_or_else(|| SendError::Other("no AWS credentials were found".to_owned()))?;
                Authorization::Signature {
                    provider,
                    region,
                    service,
                }
            }
        };
        Ok(Self {
            connector: http::connector(),
            authorization,
        })
    }

    /// Sends a request with a body of this type; without a body if it is empty.
    pub async fn send(
        &self,
        method: &str,
        url: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<Answer, SendError> {
        let mut request = ::http::Request::builder().method(method).uri(url);
        if !body.is_empty() {
            request = request.header("content-type", content_type);
        }
        for (name, value) in self.headers(method, url, content_type, body).await? {
            request = request.header(name, value);
        }
        let other = |error: String| SendError::Other(error);
        let request = request
            .body(SdkBody::from(body))
            .map_err(|error| other(error.to_string()))?;
        let request = request
            .try_into()
            .map_err(|error| other(format!("{error}")))?;
        let answered = timeout(TIMEOUT, async {
            let response = self.connector.call(request).await;
            let response = response.map_err(|error| SendError::Passing(chain(&error)))?;
            let status = response.status().as_u16();
            let body = ByteStream::new(response.into_body()).collect().await;
            let body = body
                .map_err(|error| SendError::Passing(chain(&error)))?
                .to_vec();
            Ok(Answer { status, body })
        });
        let elapsed = |_| {
            Err(SendError::Passing(format!(
                "no response within {} s",
                TIMEOUT.as_secs()
            )))
        };
        answered.await.unwrap_or_else(elapsed)
    }

    /// The headers that authorize a request.
    async fn headers(
        &self,
        method: &str,
        url: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<Vec<(String, String)>, SendError> {
        let (provider, region, service) = match &self.authorization {
            Authorization::None => return Ok(Vec::new()),
            Authorization::Basic(value) => {
                return Ok(vec![("authorization".to_owned(), value.clone())]);
            }
            Authorization::Signature {
                provider,
                region,
                service,
            } => (provider, region, *service),
        };
        let other = |error: &(dyn std::error::Error + 'static)| SendError::Other(chain(error));
        let identity = provider
            .provide_credentials()
            .await
            .map_err(|error| other(&error))?
            .into();
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let parameters = SigningParams::builder()
            .identity(&identity)
            .region(region)
            .name(service)
            .time(SystemTime::now())
            .settings(settings)
            .build()
            .map_err(|error| other(&error))?
            .into();
        let signed = (!body.is_empty()).then_some(("content-type", content_type));
        let request =
            SignableRequest::new(method, url, signed.into_iter(), SignableBody::Bytes(body));
        let request = request.map_err(|error| other(&error))?;
        let (instructions, _) = sign(request, &parameters)
            .map_err(|error| other(&error))?
            .into_parts();
        let (headers, _) = instructions.into_parts();
        Ok(headers
            .into_iter()
            .map(|header| (header.name().to_owned(), header.value().to_owned()))
            .collect())
    }
}
