//! Writes to Amazon S3 Vectors.

use std::{error::Error as StdError, time::Duration};

use aws_config::{BehaviorVersion, Region, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_s3vectors::{
    Client,
    error::{DisplayErrorContext, ProvideErrorMetadata, SdkError},
    types::{PutInputVector, VectorData},
};
use aws_smithy_types::{Document, Number};
use serde_json::Value;

use super::http;

/// For a request with its attempts, each of which carries up to 20 MB.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How an index is named.
#[derive(Clone, Debug)]
pub enum IndexName {
    /// By bucket and index.
    Names {
        /// Name of the vector bucket.
        bucket: String,
        /// Name of the index in the bucket.
        index: String,
    },
    /// By ARN.
    Arn {
        /// The ARN.
        arn: String,
        /// Its region.
        region: String,
    },
}

impl IndexName {
    /// The fields of a request: bucket, index and ARN.
    fn fields(&self) -> [Option<String>; 3] {
        match self.clone() {
            Self::Names { bucket, index } => [Some(bucket), Some(index), None],
            Self::Arn { arn, .. } => [None, None, Some(arn)],
        }
    }
}

/// An index's properties.
#[derive(Clone, Debug)]
pub struct IndexForm {
    /// Values per vector.
    pub dimensions: i64,
    /// Whether the distance metric is cosine.
    pub is_cosine: bool,
    /// Names of the metadata that queries cannot filter by.
    pub unfilterable: Vec<String>,
}

/// A vector, its key, and its metadata.
#[derive(Clone, Debug)]
pub struct IndexedVector<'a> {
    /// Unique in the index.
    pub key: &'a str,
    /// One value per dimension of the index.
    pub values: &'a [f32],
    /// Names and JSON values.
    pub metadata: Vec<(&'a str, &'a Value)>,
}

/// Why a request failed.
#[derive(Debug)]
pub enum IndexError {
    /// The service refuses what was sent, for this reason.
    Invalid(String),
    /// The same request may succeed later.
    Passing(String),
    /// The index, the permissions or the credentials are wrong.
    Other(String),
}

/// A vector index.
#[derive(Debug)]
pub struct VectorIndex {
    name: IndexName,
    client: Client,
}

impl VectorIndex {
    /// Connects with the environment's credentials, in the ARN's region or the environment's.
    pub async fn connect(name: IndexName) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .build();
        let mut defaults = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http::client())
            .timeout_config(timeouts)
            // The caller repeats requests.
            .retry_config(RetryConfig::disabled());
        if let IndexName::Arn { region, .. } = &name {
            defaults = defaults.region(Region::new(region.clone()));
        }
        Self {
            name,
            client: Client::new(&defaults.load().await),
        }
    }

    /// Reads the index's properties from the service.
    pub async fn describe(&self) -> Result<IndexForm, IndexError> {
        let [bucket, index, arn] = self.name.fields();
        let request = self
            .client
            .get_index()
            .set_vector_bucket_name(bucket)
            .set_index_name(index)
            .set_index_arn(arn);
        let response = request.send().await.map_err(|error| failure(&error))?;
        let index = response
            .index
            .ok_or_else(|| IndexError::Other("the response has no index".to_owned()))?;
        Ok(IndexForm {
            dimensions: index.dimension.into(),
            is_cosine: index.distance_metric.as_str() == "cosine",
            unfilterable: index
                .metadata_configuration
                .map_or(Vec::new(), |configuration| {
                    configuration.non_filterable_metadata_keys
                }),
        })
    }

    /// Stores vectors, and replaces ones with the same keys.
    pub async fn put(&self, vectors: &[IndexedVector<'_>]) -> Result<(), IndexError> {
        let vectors = vectors.iter().map(input).collect::<Result<_, _>>()?;
        let [bucket, index, arn] = self.name.fields();
        self.client
            .put_vectors()
            .set_vectors(Some(vectors))
            .set_vector_bucket_name(bucket)
            .set_index_name(index)
            .set_index_arn(arn)
            .send()
            .await
            .map(drop)
            .map_err(|error| failure(&error))
    }
}

fn input(vector: &IndexedVector<'_>) -> Result<PutInputVector, IndexError> {
    let fields = vector
        .metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), document(value)));
    let metadata = (!vector.metadata.is_empty()).then(|| Document::Object(fields.collect()));
    PutInputVector::builder()
        .key(vector.key)
        .data(VectorData::Float32(vector.values.to_vec()))
        .set_metadata(metadata)
        .build()
        .map_err(|error| IndexError::Invalid(error.to_string()))
}

fn document(value: &Value) -> Document {
    match value {
        Value::Null => Document::Null,
        Value::Bool(value) => Document::Bool(*value),
        Value::Number(number) => Document::Number(match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Number::PosInt(value),
            (None, Some(value)) => Number::NegInt(value),
            _ => Number::Float(number.as_f64().unwrap_or_default()),
        }),
        Value::String(text) => Document::String(text.clone()),
        Value::Array(values) => Document::Array(values.iter().map(document).collect()),
        Value::Object(fields) => Document::Object(
            fields
                .iter()
                .map(|(name, value)| (name.clone(), document(value)))
                .collect(),
        ),
    }
}

fn failure<E>(error: &SdkError<E>) -> IndexError
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let status = error
        .raw_response()
        .map_or(0, |response| response.status().as_u16());
    let code = error.code().unwrap_or_default();
    let message = match error.message() {
        Some(message) => format!("{code}: {message}"),
        None => DisplayErrorContext(error).to_string(),
    };
    let is_sent = !matches!(error, SdkError::ConstructionFailure(_));
    // The SDK reports missing credentials as a connection failure.
    let lacks_credentials = status == 0 && message.to_ascii_lowercase().contains("credentials");
    match (code, status) {
        ("ValidationException", _) => IndexError::Invalid(message),
        _ if lacks_credentials => IndexError::Other(message),
        (_, 0) if is_sent => IndexError::Passing(message),
        (_, 408 | 429 | 500..) => IndexError::Passing(message),
        _ => IndexError::Other(message),
    }
}
