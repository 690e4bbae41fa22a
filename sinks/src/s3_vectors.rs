//! Amazon S3 Vectors.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    errors::other_dimensions,
    retry::{Failure, retried},
    waiting::Waiting,
};
use kivu::error::{Error, Result};
use kivu_aws::service::{ActionError, Service, ServiceClient};
use kivu_jobs::sink::{Record, Refusal, Sink, SinkKind, SinkSettings, SinkUrl, value_bytes};

/// The service's limits: <https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-vectors-limitations.html>.
const MAX_KEY_CHARACTERS: usize = 1024;
const MAX_METADATA_NAMES: usize = 50;
const MAX_METADATA_BYTES: usize = 40 * 1024;
const MAX_FILTERABLE_BYTES: usize = 2 * 1024;
/// A request has at most 20 MiB; a value takes up to 16 bytes as text.
const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;
const VALUE_BYTES: usize = 16;

/// Amazon S3 Vectors.
pub const S3_VECTORS: SinkKind = SinkKind {
    schemes: &[SCHEME, "arn:"],
    parse: |text| Ok(Arc::new(VectorIndexUrl::of(text)?)),
};
const SCHEME: &str = "s3vectors://";

/// A vector index, by its bucket's and its own name, or by its ARN.
struct VectorIndexUrl {
    url: String,
    name: IndexName,
    /// The ARN's region.
    region: Option<String>,
}

/// The fields that name an index in a request.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum IndexName {
    #[serde(rename_all = "camelCase")]
    Names {
        vector_bucket_name: String,
        index_name: String,
    },
    #[serde(rename_all = "camelCase")]
    Arn { index_arn: String },
}

#[derive(Deserialize)]
struct Described {
    index: IndexForm,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexForm {
    dimension: i64,
    distance_metric: String,
    #[serde(default)]
    metadata_configuration: MetadataConfiguration,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataConfiguration {
    non_filterable_metadata_keys: Vec<String>,
}

#[derive(Serialize)]
struct PutVectors<'a> {
    #[serde(flatten)]
    index: &'a IndexName,
    vectors: Vec<Vector<'a>>,
}

#[derive(Serialize)]
struct Vector<'a> {
    key: &'a str,
    data: VectorData<'a>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<&'a str, &'a Value>,
}

#[derive(Serialize)]
struct VectorData<'a> {
    float32: &'a [f32],
}

impl VectorIndexUrl {
    fn of(url: &str) -> Result<Self> {
        let (expected, parsed) = match url.strip_prefix(SCHEME) {
            Some(names) => (
                "s3vectors://BUCKET/INDEX",
                of_names(names).map(|name| (name, None)),
            ),
            None => (
                "arn:aws:s3vectors:REGION:ACCOUNT:bucket/BUCKET/index/INDEX",
                of_arn(url).map(|(name, region)| (name, Some(region))),
            ),
        };
        let (name, region) = parsed
            .ok_or_else(|| Error::config(format!("expected `{expected}`, but found `{url}`")))?;
        let url = url.to_owned();
        Ok(Self { url, name, region })
    }
}

fn of_names(names: &str) -> Option<IndexName> {
    match names.split('/').collect::<Vec<_>>()[..] {
        [bucket, index] if !bucket.is_empty() && !index.is_empty() => Some(IndexName::Names {
            vector_bucket_name: bucket.to_owned(),
            index_name: index.to_owned(),
        }),
        _ => None,
    }
}

/// The name, and the region.
fn of_arn(arn: &str) -> Option<(IndexName, String)> {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    let [_, _, "s3vectors", region, _, resource] = parts[..] else {
        return None;
    };
    let index_arn = arn.to_owned();
    match resource.split('/').collect::<Vec<_>>()[..] {
        ["bucket", _, "index", _] => Some((IndexName::Arn { index_arn }, region.to_owned())),
        _ => None,
    }
}

impl fmt::Display for VectorIndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl SinkUrl for VectorIndexUrl {
    fn taken<'a>(&'a self, _: &'a str) -> Vec<&'a str> {
        Vec::new()
    }

    fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>> {
        Ok(Box::new(S3Vectors::connect(self, settings, dimensions)?))
    }
}

struct S3Vectors {
    client: ServiceClient,
    name: IndexName,
    /// The URL, for messages.
    place: String,
    is_cosine: bool,
    /// Metadata names, and whether queries can filter by them.
    names: Vec<(String, bool)>,
    waiting: Waiting,
}

impl S3Vectors {
    fn connect(url: &VectorIndexUrl, settings: &SinkSettings, dimensions: usize) -> Result<Self> {
        let (place, found) = (settings.url.to_string(), settings.metadata.len());
        if found > MAX_METADATA_NAMES {
            return Err(Error::config(format!(
                "expected at most {MAX_METADATA_NAMES} names in `metadata` for S3 Vectors, but found {found}"
            )));
        }
        let waiting = Waiting::new()?;
        let action = format!("cannot read the vector index `{place}`");
        let client = ServiceClient::in_region(&Service::S3_VECTORS, url.region.clone());
        let described = waiting.wait(retried(&action, async || {
            let described = client.call("GetIndex", &url.name).await;
            described.map_err(|error| failure(&action, &error))
        }))?;
        let Described { index } = serde_json::from_value(described)
            .map_err(|_| Error::config(format!("{action}: the response has no index")))?;
        if index.dimension != dimensions as i64 {
            return Err(other_dimensions(
                &format!("the index `{place}`"),
                dimensions,
                index.dimension,
            ));
        }
        let unfilterable = index.metadata_configuration.non_filterable_metadata_keys;
        let is_filterable = |name: &String| !unfilterable.contains(name);
        let names = settings
            .metadata
            .iter()
            .map(|name| (name.clone(), is_filterable(name)))
            .collect();
        Ok(Self {
            client,
            name: url.name.clone(),
            place,
            is_cosine: index.distance_metric == "cosine",
            names,
            waiting,
        })
    }

    fn vector<'a>(&'a self, record: &'a Record) -> Vector<'a> {
        let fields = self
            .names
            .iter()
            .zip(&record.metadata)
            .filter(|(_, value)| !value.is_null());
        let metadata = fields
            .map(|((name, _), value)| (name.as_str(), value))
            .collect();
        Vector {
            key: &record.id,
            data: VectorData {
                float32: &record.vector,
            },
            metadata,
        }
    }

    /// Bytes in the names and values of the metadata, without punctuation, which counts no more than the service's.
    fn metadata_bytes(&self, record: &Record, counts: impl Fn(bool) -> bool) -> usize {
        let fields = self.names.iter().zip(&record.metadata);
        let counted =
            fields.filter(|((_, is_filterable), value)| counts(*is_filterable) && !value.is_null());
        counted
            .map(|((name, _), value)| name.len() + value_bytes(value, 1))
            .sum()
    }

    /// Stores records, or halves of them, until the ones that the service refuses are alone.
    async fn store(
        &self,
        records: &[Record],
        first: usize,
        refusals: &mut Vec<Refusal>,
    ) -> Result<()> {
        let request = PutVectors {
            index: &self.name,
            vectors: records.iter().map(|record| self.vector(record)).collect(),
        };
        let action = format!("cannot write to `{}`", self.place);
        let stored = retried(&action, async || {
            match self.client.call("PutVectors", &request).await {
                Ok(_) => Ok(None),
                Err(error) if error.code == "ValidationException" => Ok(Some(error.to_string())),
                Err(error) => Err(failure(&action, &error)),
            }
        });
        match stored.await? {
            None => Ok(()),
            Some(reason) if records.len() == 1 => {
                refusals.push((first, reason));
                Ok(())
            }
            Some(_) => {
                let (left, right) = records.split_at(records.len() / 2);
                Box::pin(self.store(left, first, refusals)).await?;
                Box::pin(self.store(right, first + left.len(), refusals)).await
            }
        }
    }

    /// Places where a request ends, so that none is too large.
    fn requests<'a>(&self, records: &'a [Record]) -> Vec<&'a [Record]> {
        let size = |record: &Record| {
            record.vector.len() * VALUE_BYTES
                + record.id.len()
                + 6 * self.metadata_bytes(record, |_| true)
        };
        let (mut requests, mut first, mut total) = (Vec::new(), 0, 0);
        for (place, record) in records.iter().enumerate() {
            if place > first && total + size(record) > MAX_REQUEST_BYTES {
                requests.push(&records[first..place]);
                (first, total) = (place, 0);
            }
            total += size(record);
        }
        requests.push(&records[first..]);
        requests
    }
}

fn failure(action: &str, error: &ActionError) -> Failure {
    if error.is_temporary {
        Failure::Passing(error.to_string())
    } else {
        Error::config(format!("{action}: {error}")).into()
    }
}

impl Sink for S3Vectors {
    fn check(&self, record: &Record) -> Result<(), String> {
        let characters = record.id.chars().count();
        if characters > MAX_KEY_CHARACTERS {
            return Err(format!(
                "expected an id of at most {MAX_KEY_CHARACTERS} characters, but found {characters}"
            ));
        }
        if self.is_cosine && record.vector.iter().all(|value| *value == 0.0) {
            return Err("a vector of zeros has no cosine distance".to_owned());
        }
        let (total, filterable) = (
            self.metadata_bytes(record, |_| true),
            self.metadata_bytes(record, |is_filterable| is_filterable),
        );
        if total > MAX_METADATA_BYTES {
            return Err(format!(
                "expected at most {MAX_METADATA_BYTES} bytes of metadata, but found {total}"
            ));
        }
        if filterable > MAX_FILTERABLE_BYTES {
            return Err(format!(
                "expected at most {MAX_FILTERABLE_BYTES} bytes of metadata that queries can filter by, but found \
                 {filterable}; name long ones in the index's `nonFilterableMetadataKeys`"
            ));
        }
        Ok(())
    }

    fn put(&mut self, records: &[Record]) -> Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        self.waiting.wait(async {
            let mut first = 0;
            for request in self.requests(records) {
                self.store(request, first, &mut refusals).await?;
                first += request.len();
            }
            Ok(())
        })?;
        Ok(refusals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_have_names_or_an_arn() {
        let shown = |text| VectorIndexUrl::of(text).map(|index| index.to_string());
        for index in [
            "s3vectors://b/i",
            "arn:aws:s3vectors:eu-west-1:123456789012:bucket/b/index/i",
        ] {
            assert_eq!(shown(index).unwrap(), index);
        }
        insta::assert_snapshot!(shown("s3vectors://bucket").unwrap_err(), @"expected `s3vectors://BUCKET/INDEX`, but found `s3vectors://bucket`");
        insta::assert_snapshot!(shown("arn:aws:s3:::bucket").unwrap_err(), @"expected `arn:aws:s3vectors:REGION:ACCOUNT:bucket/BUCKET/index/INDEX`, but found `arn:aws:s3:::bucket`");
    }
}
