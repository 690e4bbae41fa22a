//! HTTP requests with AWS signatures or a password.

use std::time::{Duration, SystemTime};

use ::http::{Request, Response, header::AUTHORIZATION};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::{
    Credentials as Keys,
    provider::{ProvideCredentials, SharedCredentialsProvider},
};
use aws_sigv4::{
    http_request::{PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4::SigningParams,
};
use aws_smithy_http_client::Connector;
use aws_smithy_runtime_api::client::http::HttpConnector;
use aws_smithy_types::{body::SdkBody, byte_stream::ByteStream};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use kivu::error::chain;
use tokio::{sync::Mutex, time::timeout};

use super::http;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Time before the expiry of keys at which new ones are fetched.
const EXPIRY_MARGIN: Duration = Duration::from_mins(5);

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
    Signature(Signer),
}

#[derive(Debug)]
struct Signer {
    provider: SharedCredentialsProvider,
    /// The provider's last keys: it may ask a server for them each time.
    keys: Mutex<Option<Keys>>,
    region: String,
    service: &'static str,
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
                return Self::signing(&defaults.region(Region::new(region)).load().await, service);
            }
        };
        Ok(Self {
            connector: http::connector(),
            authorization,
        })
    }

    /// A client whose requests have signatures for this service, with the region and the credentials of `config`.
    pub fn signing(config: &SdkConfig, service: &'static str) -> Result<Self, SendError> {
        let missing = |what: &str| SendError::Other(format!("{what} was found"));
        let provider = config.credentials_provider();
        let signer = Signer {
            provider: provider.ok_or_else(|| missing("no source of AWS credentials"))?,
            keys: Mutex::default(),
            region: config
                .region()
                .ok_or_else(|| missing("no AWS region"))?
                .to_string(),
            service,
        };
        Ok(Self {
            connector: http::connector(),
            authorization: Authorization::Signature(signer),
        })
    }

    /// Sends a request.
    pub async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        match &self.authorization {
            Authorization::None => {}
            Authorization::Basic(value) => {
                let value = value
                    .parse()
                    .map_err(|error| SendError::Other(chain(&error)))?;
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            Authorization::Signature(signer) => signer.sign(&mut request).await?,
        }
        let request = request
            .map(SdkBody::from)
            .try_into()
            .map_err(|error| SendError::Other(chain(&error)))?;
        let answered = timeout(TIMEOUT, async {
            let response = self.connector.call(request).await;
            let response = response.map_err(|error| SendError::Passing(chain(&error)))?;
            let response = response
                .try_into_http1x()
                .map_err(|error| SendError::Other(chain(&error)))?;
            let (head, body) = response.into_parts();
            let body = ByteStream::new(body).collect().await;
            let body = body.map_err(|error| SendError::Passing(chain(&error)))?;
            Ok(Response::from_parts(head, body.into_bytes()))
        });
        let elapsed = |_| {
            Err(SendError::Passing(format!(
                "no response within {} s",
                TIMEOUT.as_secs()
            )))
        };
        answered.await.unwrap_or_else(elapsed)
    }
}

impl Signer {
    async fn keys(&self) -> Result<Keys, SendError> {
        let mut kept = self.keys.lock().await;
        let is_valid = |keys: &Keys| {
            keys.expiry()
                .is_none_or(|expiry| expiry > SystemTime::now() + EXPIRY_MARGIN)
        };
        if let Some(keys) = kept.as_ref().filter(|keys| is_valid(keys)) {
            return Ok(keys.clone());
        }
        let keys = self.provider.provide_credentials().await;
        let keys = keys.map_err(|error| SendError::Other(chain(&error)))?;
        Ok(kept.insert(keys).clone())
    }

    /// Adds a signature over the method, the URL, the headers and the body.
    async fn sign(&self, request: &mut Request<Bytes>) -> Result<(), SendError> {
        let other = |error: &(dyn std::error::Error + 'static)| SendError::Other(chain(error));
        let identity = self.keys().await?.into();
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let parameters = SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(self.service)
            .time(SystemTime::now())
            .settings(settings)
            .build()
            .map_err(|error| other(&error))?
            .into();
        let url = request.uri().to_string();
        let headers = request
            .headers()
            .iter()
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let body = SignableBody::Bytes(request.body());
        let signable = SignableRequest::new(request.method().as_str(), url, headers, body);
        let signed = sign(signable.map_err(|error| other(&error))?, &parameters);
        let (instructions, _) = signed.map_err(|error| other(&error))?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }
}
