//! Actions of AWS services that take and return JSON.

use std::{error, fmt, time::Duration};

use ::http::{Request, Response};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_runtime::retries::classifiers::{THROTTLING_ERRORS, TRANSIENT_ERRORS};
use aws_types::service_config::ServiceConfigKey;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tokio::{sync::OnceCell, time::timeout};

use super::{
    http,
    retry::retry,
    signed_http::{SendError, SignedClient},
};

/// Time limit for delivering a message or an event.
pub const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A service.
#[derive(Debug)]
pub struct Service {
    /// In host names and signatures.
    name: &'static str,
    /// In names of configured endpoints, such as `AWS_ENDPOINT_URL_SECRETS_MANAGER`.
    id: &'static str,
    content_type: &'static str,
    /// Precedes an action in the header `x-amz-target`; if `None`, the action is the path, and hosts have IPv6 addresses.
    target: Option<&'static str>,
    /// Precedes `.REGION` in host names of `us-gov` with FIPS.
    government: &'static str,
}

/// Domains of AWS's partitions, by how their regions' names begin: without and with IPv6 addresses.
const DOMAINS: [(&str, [&str; 2]); 7] = [
    ("cn-", ["amazonaws.com.cn", "api.amazonwebservices.com.cn"]),
    ("eu-isoe-", ["cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"]),
    ("eusc-", ["amazonaws.eu", "api.amazonwebservices.eu"]),
    ("us-iso-", ["c2s.ic.gov", "api.aws.ic.gov"]),
    ("us-isob-", ["sc2s.sgov.gov", "api.aws.scloud"]),
    ("us-isof-", ["csp.hci.ic.gov", "api.aws.hci.ic.gov"]),
    ("", ["amazonaws.com", "api.aws"]),
];

impl Service {
    /// Amazon DynamoDB.
    pub const DYNAMODB: Self = Self {
        name: "dynamodb",
        id: "DynamoDB",
        content_type: "application/x-amz-json-1.0",
        target: Some("DynamoDB_20120810"),
        government: "dynamodb",
    };
    /// Amazon EventBridge.
    pub const EVENT_BRIDGE: Self = Self {
        name: "events",
        id: "EventBridge",
        content_type: "application/x-amz-json-1.1",
        target: Some("AWSEvents"),
        government: "events",
    };
    /// Amazon S3 Vectors.
    pub const S3_VECTORS: Self = Self {
        name: "s3vectors",
        id: "S3Vectors",
        content_type: "application/json",
        target: None,
        government: "s3vectors-fips",
    };
    /// AWS Secrets Manager.
    pub const SECRETS_MANAGER: Self = Self {
        name: "secretsmanager",
        id: "Secrets Manager",
        content_type: "application/x-amz-json-1.1",
        target: Some("secretsmanager"),
        government: "secretsmanager-fips",
    };
    /// Amazon SQS.
    pub const SQS: Self = Self {
        name: "sqs",
        id: "SQS",
        content_type: "application/x-amz-json-1.0",
        target: Some("AmazonSQS"),
        government: "sqs",
    };

    /// The endpoint in the environment or the profile, or else AWS's, as in the SDKs' endpoint rules.
    fn endpoint(&self, config: &SdkConfig, region: &str) -> String {
        let key = ServiceConfigKey::builder()
            .service_id(self.id)
            .env("AWS_ENDPOINT_URL")
            .profile("endpoint_url")
            .build();
        let configured = config
            .service_config()
            .zip(key.ok())
            .and_then(|(configured, key)| configured.load_config(key))
            .or_else(|| config.endpoint_url().map(str::to_owned));
        if let Some(url) = configured {
            return url;
        }
        let has_ipv6 = config.use_dual_stack() == Some(true) || self.target.is_none();
        let domains = DOMAINS
            .iter()
            .find(|(prefix, _)| region.starts_with(prefix));
        let domain = domains.map_or("", |(_, domains)| domains[usize::from(has_ipv6)]);
        let name = match config.use_fips() == Some(true) {
            true if region.starts_with("us-gov-") && !has_ipv6 => self.government.to_owned(),
            true => format!("{}-fips", self.name),
            false => self.name.to_owned(),
        };
        format!("https://{name}.{region}.{domain}")
    }

    fn request(
        &self,
        endpoint: &str,
        action: &str,
        body: Vec<u8>,
    ) -> ::http::Result<Request<Bytes>> {
        let endpoint = endpoint.trim_end_matches('/');
        let request = match self.target {
            Some(target) => Request::post(format!("{endpoint}/"))
                .header("x-amz-target", format!("{target}.{action}")),
            None => Request::post(format!("{endpoint}/{action}")),
        };
        request
            .header("content-type", self.content_type)
            .body(body.into())
    }
}

/// A client of a service. It connects with the first action, with credentials, region and endpoint from the environment.
#[derive(Debug)]
pub struct ServiceClient {
    service: &'static Service,
    region: Option<String>,
    connection: OnceCell<Connection>,
}

#[derive(Debug)]
struct Connection {
    http: SignedClient,
    endpoint: String,
}

impl ServiceClient {
    /// A client in the environment's region.
    pub const fn new(service: &'static Service) -> Self {
        Self {
            service,
            region: None,
            connection: OnceCell::const_new(),
        }
    }

    /// A client in this region, or else the environment's.
    pub fn in_region(service: &'static Service, region: Option<String>) -> Self {
        Self {
            region,
            ..Self::new(service)
        }
    }

    /// Takes an action, once; `Null` without a result.
    pub async fn call(&self, action: &str, body: &impl Serialize) -> Result<Value, ActionError> {
        let connection = self.connection.get_or_try_init(|| self.connect()).await?;
        let body = serde_json::to_vec(body).map_err(ActionError::permanent)?;
        let request = self
            .service
            .request(&connection.endpoint, action, body)
            .map_err(ActionError::permanent)?;
        let response = connection.http.send(request).await?;
        match response.body() {
            _ if !response.status().is_success() => Err(ActionError::from(&response)),
            body if body.is_empty() => Ok(Value::Null),
            body => serde_json::from_slice(body).map_err(ActionError::permanent),
        }
    }

    /// Takes an action, again after temporary failures, within `time_limit`.
    pub async fn call_within(
        &self,
        time_limit: Duration,
        action: &str,
        body: &impl Serialize,
    ) -> Result<Value, ActionError> {
        let called = retry(
            time_limit,
            |error: &ActionError| error.is_temporary,
            || self.call(action, body),
        );
        timeout(time_limit, called).await.unwrap_or_else(|_| {
            Err(ActionError::temporary(format!(
                "the response took longer than {}ms",
                time_limit.as_millis()
            )))
        })
    }

    async fn connect(&self) -> Result<Connection, ActionError> {
        let mut defaults =
            aws_config::defaults(BehaviorVersion::latest()).http_client(http::client());
        if let Some(region) = &self.region {
            defaults = defaults.region(Region::new(region.clone()));
        }
        let config = defaults.load().await;
        let region = config.region().ok_or_else(|| {
            ActionError::permanent("expected an AWS region in `AWS_REGION`, but found none")
        })?;
        Ok(Connection {
            endpoint: self.service.endpoint(&config, region.as_ref()),
            http: SignedClient::signing(&config, self.service.name)?,
        })
    }
}

/// Why an action has no result.
#[derive(Debug)]
pub struct ActionError {
    /// AWS's code, such as `ResourceNotFoundException`; empty without a response.
    pub code: String,
    /// Whether the same request may succeed later.
    pub is_temporary: bool,
    message: String,
}

impl ActionError {
    fn temporary(reason: impl fmt::Display) -> Self {
        Self {
            code: String::new(),
            is_temporary: true,
            message: reason.to_string(),
        }
    }

    fn permanent(reason: impl fmt::Display) -> Self {
        Self {
            is_temporary: false,
            ..Self::temporary(reason)
        }
    }
}

impl From<SendError> for ActionError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Passing(reason) => Self::temporary(reason),
            SendError::Other(reason) => Self::permanent(reason),
        }
    }
}

impl From<&Response<Bytes>> for ActionError {
    /// The error in a response: `NAMESPACE#CODE` in the body, or `CODE:URL` in a header.
    fn from(response: &Response<Bytes>) -> Self {
        let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        let text = |name: &str| body[name].as_str();
        let header = response.headers().get("x-amzn-errortype");
        let code = header
            .and_then(|value| value.to_str().ok())
            .or_else(|| text("__type"))
            .unwrap_or_default();
        let code = code
            .split(':')
            .next()
            .and_then(|code| code.rsplit('#').next())
            .unwrap_or_default();
        let status = response.status().as_u16();
        let has_temporary_code =
            THROTTLING_ERRORS.contains(&code) || TRANSIENT_ERRORS.contains(&code);
        let message = match (
            code,
            text("message")
                .or_else(|| text("Message"))
                .unwrap_or_default(),
        ) {
            ("", "") => format!("the status is {status}"),
            (code, "") => code.to_owned(),
            ("", message) => message.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        Self {
            code: code.to_owned(),
            is_temporary: has_temporary_code || matches!(status, 408 | 429 | 500..),
            message,
        }
    }
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl error::Error for ActionError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the endpoint tests of AWS's SDKs.
    #[test]
    fn endpoints_are_the_sdks() {
        for (service, region, is_fips, has_ipv6, expected) in [
            (
                &Service::DYNAMODB,
                "eu-west-1",
                false,
                false,
                "dynamodb.eu-west-1.amazonaws.com",
            ),
            (
                &Service::DYNAMODB,
                "us-gov-west-1",
                true,
                false,
                "dynamodb.us-gov-west-1.amazonaws.com",
            ),
            (
                &Service::DYNAMODB,
                "us-gov-east-1",
                true,
                true,
                "dynamodb-fips.us-gov-east-1.api.aws",
            ),
            (
                &Service::EVENT_BRIDGE,
                "cn-north-1",
                false,
                true,
                "events.cn-north-1.api.amazonwebservices.com.cn",
            ),
            (
                &Service::EVENT_BRIDGE,
                "us-iso-east-1",
                true,
                false,
                "events-fips.us-iso-east-1.c2s.ic.gov",
            ),
            (
                &Service::SECRETS_MANAGER,
                "us-gov-west-1",
                true,
                false,
                "secretsmanager-fips.us-gov-west-1.amazonaws.com",
            ),
            (
                &Service::SECRETS_MANAGER,
                "us-east-2",
                true,
                false,
                "secretsmanager-fips.us-east-2.amazonaws.com",
            ),
            (
                &Service::SQS,
                "us-isob-east-1",
                false,
                false,
                "sqs.us-isob-east-1.sc2s.sgov.gov",
            ),
            (
                &Service::SQS,
                "us-east-1",
                true,
                true,
                "sqs-fips.us-east-1.api.aws",
            ),
            (
                &Service::S3_VECTORS,
                "us-east-1",
                false,
                false,
                "s3vectors.us-east-1.api.aws",
            ),
            (
                &Service::S3_VECTORS,
                "us-gov-west-1",
                true,
                false,
                "s3vectors-fips.us-gov-west-1.api.aws",
            ),
        ] {
            let config = SdkConfig::builder()
                .use_fips(is_fips)
                .use_dual_stack(has_ipv6)
                .build();
            let found = service.endpoint(&config, region);
            assert_eq!(found, format!("https://{expected}"));
        }
    }

    #[test]
    fn errors_have_a_code_and_may_be_temporary() {
        let error = |status: u16, header: Option<&str>, body: &str| {
            let response = Response::builder().status(status);
            let response = match header {
                Some(header) => response.header("x-amzn-errortype", header),
                None => response,
            };
            let response = response
                .body(Bytes::copy_from_slice(body.as_bytes()))
                .unwrap();
            let error = ActionError::from(&response);
            (error.to_string(), error.code, error.is_temporary)
        };
        let owned = |message: &str, code: &str, is_temporary| {
            (message.to_owned(), code.to_owned(), is_temporary)
        };
        assert_eq!(
            error(
                400,
                None,
                r#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","message":"no"}"#
            ),
            owned(
                "ConditionalCheckFailedException: no",
                "ConditionalCheckFailedException",
                false
            )
        );
        assert_eq!(
            error(
                400,
                None,
                r#"{"__type":"ThrottlingException","Message":"slow"}"#
            ),
            owned("ThrottlingException: slow", "ThrottlingException", true)
        );
        assert_eq!(
            error(
                400,
                Some("ValidationException:http://internal.amazon.com/"),
                "{}"
            ),
            owned("ValidationException", "ValidationException", false)
        );
        assert_eq!(
            error(503, None, "<html>"),
            owned("the status is 503", "", true)
        );
    }
}
