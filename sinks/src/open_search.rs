//! OpenSearch: the bulk API, with the rows' ids.

use std::{env, fmt, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, Uri, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    errors::other_dimensions,
    parameters::{Parameters, VECTOR, decoded},
    retry::{Failure, retried},
    waiting::Waiting,
};
use kivu::error::{Error, Result};
use kivu_aws::signed_http::{Credentials, SendError, SignedClient};
use kivu_jobs::sink::{Record, Refusal, Sink, SinkKind, SinkSettings, SinkUrl};

const MAX_ID_BYTES: usize = 512;
/// A domain's smallest limit for a request is 10 MiB. A record alone may be larger, and is refused by the server.
const MAX_REQUEST_BYTES: usize = 8 * 1024 * 1024;
/// Statuses of requests, and of documents, that may succeed later.
const PASSING: [u16; 4] = [429, 502, 503, 504];
const TOO_LARGE: u16 = 413;
/// Begins the part of a reason that quotes the document.
const PREVIEW: &str = ". Preview of field's value";

/// OpenSearch.
pub const OPEN_SEARCH: SinkKind = SinkKind {
    schemes: &["opensearch+https://", "opensearch+http://"],
    parse: |text| Ok(Arc::new(OpenSearchUrl::of(text)?)),
};
const SCHEME: &str = "opensearch+";

/// An index of an OpenSearch domain or cluster.
#[derive(Clone)]
struct OpenSearchUrl {
    /// Scheme, host and port.
    origin: String,
    host: String,
    user: Option<(String, String)>,
    index: String,
    /// Field with the vectors.
    vector: String,
    /// Region for AWS signatures; from the host, unless the domain has a custom one.
    region: Option<String>,
}

impl OpenSearchUrl {
    fn of(url: &str) -> Result<Self> {
        let wrong = || {
            Error::config(
                "expected `opensearch+https://[USER:PASSWORD@]HOST[:PORT]/INDEX`, but found another URL",
            )
        };
        let uri: Uri = url
            .strip_prefix(SCHEME)
            .unwrap_or_default()
            .parse()
            .map_err(|_| wrong())?;
        let (Some(scheme @ ("http" | "https")), Some(authority)) =
            (uri.scheme_str(), uri.authority())
        else {
            return Err(wrong());
        };
        let mut parameters = Parameters::of(uri.query().unwrap_or_default())?;
        let vector = parameters
            .take("vector")
            .unwrap_or_else(|| VECTOR.to_owned());
        let region = parameters.take("region");
        parameters.end("`vector` and `region`")?;
        let index = uri.path().trim_start_matches('/');
        if index.is_empty() || index.contains('/') {
            return Err(wrong());
        }
        let (user, address) = match authority.as_str().rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority.as_str()),
        };
        let user = user
            .map(|user| user.split_once(':').ok_or_else(wrong))
            .transpose()?;
        let user = user.map(|(name, password)| (decoded(name), decoded(password)));
        Ok(Self {
            origin: format!("{scheme}://{address}"),
            host: authority.host().to_owned(),
            user,
            index: decoded(index),
            vector,
            region,
        })
    }
}

impl fmt::Display for OpenSearchUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            origin,
            index,
            vector,
            ..
        } = self;
        write!(f, "{SCHEME}{origin}/{index}?vector={vector}")
    }
}

impl SinkUrl for OpenSearchUrl {
    fn taken<'a>(&'a self, _: &'a str) -> Vec<&'a str> {
        vec![&self.vector]
    }

    fn connect(&self, settings: &SinkSettings, dimensions: usize) -> Result<Box<dyn Sink>> {
        Ok(Box::new(OpenSearch::connect(self, settings, dimensions)?))
    }
}

struct OpenSearch {
    client: SignedClient,
    url: OpenSearchUrl,
    /// The URL, for messages.
    place: String,
    metadata: Vec<String>,
    waiting: Waiting,
}

impl OpenSearch {
    fn connect(url: &OpenSearchUrl, settings: &SinkSettings, dimensions: usize) -> Result<Self> {
        let credentials = credentials(url, |name| env::var(name).ok())?;
        let waiting = Waiting::new()?;
        let place = settings.url.to_string();
        let client = waiting.wait(async {
            SignedClient::new(credentials)
                .await
                .map_err(|error| match error {
                    SendError::Passing(reason) | SendError::Other(reason) => {
                        Error::config(format!("cannot connect to `{place}`: {reason}"))
                    }
                })
        })?;
        let sink = Self {
            client,
            url: url.clone(),
            place,
            metadata: settings.metadata.clone(),
            waiting,
        };
        let mapping = sink.waiting.wait(sink.mapping())?;
        check_mapping(&mapping, &sink.url.vector, &sink.place, dimensions)?;
        Ok(sink)
    }

    fn address(&self, operation: &str) -> String {
        let index = percent_encoding::utf8_percent_encode(
            &self.url.index,
            percent_encoding::NON_ALPHANUMERIC,
        );
        format!("{}/{index}/{operation}", self.url.origin)
    }

    async fn mapping(&self) -> Result<Value> {
        let action = format!("cannot read the mapping of `{}`", self.place);
        let address = self.address("_mapping");
        let answer = retried(&action, async || {
            self.answer(Method::GET, &address, Bytes::new()).await
        })
        .await?;
        match answer.status().as_u16() {
            200 => serde_json::from_slice(answer.body())
                .map_err(|_| Error::config(format!("{action}: the response is not JSON"))),
            404 => Err(Error::config(format!(
                "expected an index at `{}`, but found none",
                self.place
            ))
            .with_hint("create it with a `knn_vector` field")),
            status => Err(Error::config(format!("{action}: the status is {status}"))),
        }
    }

    async fn answer(
        &self,
        method: Method,
        address: &str,
        body: Bytes,
    ) -> Result<Response<Bytes>, Failure> {
        let mut request = Request::builder().method(method).uri(address);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/x-ndjson");
        }
        let sent = match request.body(body) {
            Ok(request) => self.client.send(request).await,
            Err(error) => Err(SendError::Other(error.to_string())),
        };
        match sent {
            Ok(answer) if PASSING.contains(&answer.status().as_u16()) => Err(Failure::Passing(
                format!("the status is {}", answer.status().as_u16()),
            )),
            Ok(answer) => Ok(answer),
            Err(SendError::Passing(reason)) => Err(Failure::Passing(reason)),
            Err(SendError::Other(reason)) => {
                Err(Error::config(format!("cannot write to `{}`: {reason}", self.place)).into())
            }
        }
    }

    /// A document, behind its action.
    fn lines(&self, record: &Record) -> Vec<u8> {
        let fields = self
            .metadata
            .iter()
            .zip(&record.metadata)
            .filter(|(_, value)| !value.is_null());
        let mut document: Map<String, Value> = fields
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        document.insert(self.url.vector.clone(), json!(record.vector));
        let action = json!({ "index": { "_id": record.id } });
        format!("{action}\n{}\n", Value::Object(document)).into_bytes()
    }

    /// Stores documents, until none of them has a passing failure.
    async fn store(&self, documents: Vec<Document>, refusals: &mut Vec<Refusal>) -> Result<()> {
        let (action, address) = (
            format!("cannot write to `{}`", self.place),
            self.address("_bulk"),
        );
        let mut batch = Batch {
            pending: documents,
            ..Batch::default()
        };
        retried(&action, async || self.attempt(&address, &mut batch).await).await?;
        refusals.extend(batch.refused);
        self.store_halves(batch.large, refusals).await
    }

    async fn attempt(&self, address: &str, batch: &mut Batch) -> Result<(), Failure> {
        let lines: Vec<&[u8]> = batch
            .pending
            .iter()
            .map(|document| document.lines.as_slice())
            .collect();
        let body = lines.concat().into();
        let answer = self.answer(Method::POST, address, body).await?;
        if answer.status().as_u16() == TOO_LARGE {
            batch.large = std::mem::take(&mut batch.pending);
            return Ok(());
        }
        let items = self.items(&answer, lines.len())?;
        for (document, item) in std::mem::take(&mut batch.pending).into_iter().zip(items) {
            match Item::from(item.index) {
                Item::Stored => {}
                Item::Refused(reason) => batch.refused.push((document.place, reason)),
                Item::Passing => batch.pending.push(document),
            }
        }
        match batch.pending.len() {
            0 => Ok(()),
            count => Err(Failure::Passing(format!(
                "the cluster is too busy for {count} documents"
            ))),
        }
    }

    /// Stores documents that are too large for one request.
    async fn store_halves(
        &self,
        mut large: Vec<Document>,
        refusals: &mut Vec<Refusal>,
    ) -> Result<()> {
        if large.len() <= 1 {
            let refused = large.iter().map(|Document { place, lines }| {
                (
                    *place,
                    format!(
                        "expected a shorter document, but found {} bytes",
                        lines.len()
                    ),
                )
            });
            refusals.extend(refused);
            return Ok(());
        }
        let right = large.split_off(large.len() / 2);
        Box::pin(self.store(large, refusals)).await?;
        Box::pin(self.store(right, refusals)).await
    }

    fn items(&self, answer: &Response<Bytes>, count: usize) -> Result<Vec<BulkItem>> {
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(Error::config(format!(
                "cannot write to `{}`: the status is {status}",
                self.place
            )));
        }
        let response: BulkResponse = serde_json::from_slice(answer.body()).map_err(|_| {
            Error::config(format!(
                "the response from `{}` is not a bulk response",
                self.place
            ))
        })?;
        if response.items.len() != count {
            return Err(Error::config(format!(
                "expected {count} items in the bulk response from `{}`, but found {}",
                self.place,
                response.items.len()
            )));
        }
        Ok(response.items)
    }
}

/// A document with its action, and its record's place.
struct Document {
    place: usize,
    lines: Vec<u8>,
}

/// Documents that are sent together.
#[derive(Default)]
struct Batch {
    pending: Vec<Document>,
    refused: Vec<Refusal>,
    /// Too large for one request.
    large: Vec<Document>,
}

enum Item {
    Stored,
    Refused(String),
    Passing,
}

#[derive(Deserialize)]
struct BulkResponse {
    items: Vec<BulkItem>,
}

#[derive(Deserialize)]
struct BulkItem {
    index: Indexed,
}

#[derive(Deserialize)]
struct Indexed {
    status: u16,
    result: Option<String>,
    error: Option<Value>,
}

impl From<Indexed> for Item {
    fn from(indexed: Indexed) -> Self {
        match indexed.status {
            200..300 if matches!(indexed.result.as_deref(), Some("created" | "updated")) => {
                Self::Stored
            }
            200..300 => Self::Refused(
                "the index did not store the document; an ingest pipeline may have dropped it"
                    .to_owned(),
            ),
            status if PASSING.contains(&status) => Self::Passing,
            status => {
                let error = indexed.error.unwrap_or_default();
                let text = |name: &str| error[name].as_str().unwrap_or_default();
                let reason = text("reason")
                    .split(PREVIEW)
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                Self::Refused(format!("{status} {}: {reason}", text("type")))
            }
        }
    }
}

/// The credentials in the URL, or in the environment, or AWS's for a domain of Amazon OpenSearch Service.
fn credentials(
    url: &OpenSearchUrl,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Credentials> {
    if url.host.ends_with(".aoss.amazonaws.com") {
        return Err(Error::config(
            "expected a domain or a cluster, but found a collection of OpenSearch Serverless, which does not accept \
             documents' ids, so that a resumed job would store rows twice",
        ));
    }
    let user = url.user.clone().or_else(|| {
        Some((
            variable("OPENSEARCH_USERNAME")?,
            variable("OPENSEARCH_PASSWORD").unwrap_or_default(),
        ))
    });
    if let Some((name, password)) = user {
        return Ok(Credentials::Basic(name, password));
    }
    // HOST.REGION.es.amazonaws.com
    let labels: Vec<&str> = url.host.split('.').rev().collect();
    let own_region = match labels.as_slice() {
        ["com", "amazonaws", "es", region, ..] | ["cn", "com", "amazonaws", "es", region, ..] => {
            Some((*region).to_owned())
        }
        _ => None,
    };
    Ok(match url.region.clone().or(own_region) {
        Some(region) => Credentials::Signature {
            region,
            service: "es",
        },
        None => Credentials::None,
    })
}

/// Checks that all indexes with the name have a vector field of this many dimensions.
fn check_mapping(mapping: &Value, vector: &str, place: &str, dimensions: usize) -> Result<()> {
    let indexes = mapping.as_object().filter(|indexes| !indexes.is_empty());
    let indexes = indexes.ok_or_else(|| {
        Error::config(format!(
            "expected an index at `{place}`, but found none in its mapping"
        ))
    })?;
    for index in indexes.values() {
        let field = &index["mappings"]["properties"][vector];
        let text = |name: &str| field[name].as_str();
        if text("type") != Some("knn_vector")
            || text("data_type").is_some_and(|found| found != "float")
        {
            return Err(Error::config(format!(
                "expected the field `{vector}` at `{place}` to be a `knn_vector` of floats, but found {}",
                text("type").map_or("no such field".to_owned(), |found| format!("`{found}`"))
            )));
        }
        match field["dimension"].as_i64() {
            Some(found) if found != dimensions as i64 => {
                return Err(other_dimensions(
                    &format!("`{vector}` at `{place}`"),
                    dimensions,
                    found,
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Sink for OpenSearch {
    fn check(&self, record: &Record) -> Result<(), String> {
        match record.id.len() {
            0..=MAX_ID_BYTES => Ok(()),
            found => Err(format!(
                "expected an id of at most {MAX_ID_BYTES} bytes, but found {found}"
            )),
        }
    }

    fn put(&mut self, records: &[Record]) -> Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        self.waiting.wait(async {
            let (mut waiting, mut bytes) = (Vec::new(), 0);
            for (place, record) in records.iter().enumerate() {
                let lines = self.lines(record);
                if bytes > 0 && bytes + lines.len() > MAX_REQUEST_BYTES {
                    self.store(std::mem::take(&mut waiting), &mut refusals)
                        .await?;
                    bytes = 0;
                }
                bytes += lines.len();
                waiting.push(Document { place, lines });
            }
            self.store(waiting, &mut refusals).await
        })?;
        refusals.sort_by_key(|(place, _)| *place);
        Ok(refusals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> OpenSearchUrl {
        OpenSearchUrl::of(text).unwrap()
    }

    #[test]
    fn urls_are_parsed() {
        let found = url("opensearch+http://me:p%40ss%3A@[::1]:9200/docs?vector=v");
        assert_eq!(found.user, Some(("me".into(), "p@ss:".into())));
        assert_eq!(
            found.to_string(),
            "opensearch+http://[::1]:9200/docs?vector=v"
        );
        assert_eq!(found.taken("id"), ["v"]);
        let refused = |text| OpenSearchUrl::of(text).err().unwrap().to_string();
        insta::assert_snapshot!(refused("opensearch+https://host"), @"expected `opensearch+https://[USER:PASSWORD@]HOST[:PORT]/INDEX`, but found another URL");
        insta::assert_snapshot!(refused("opensearch+https://host/docs?size=1"), @"expected only the parameters `vector` and `region` in the sink's URL, but found `size`");
        for text in [
            "opensearch+ftp://host/docs",
            "opensearch+https://me@host/docs",
        ] {
            refused(text);
        }
    }

    #[test]
    fn domains_of_aws_get_signatures() {
        let of = |text, variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
            credentials(&url(text), |name| {
                found(name).map(|(_, value)| (*value).to_owned())
            })
        };
        let domain = "opensearch+https://search-docs-abc.eu-west-1.es.amazonaws.com/docs";
        assert!(
            matches!(of(domain, &[]).unwrap(), Credentials::Signature { region, service: "es" } if region == "eu-west-1")
        );
        assert!(
            matches!(of("opensearch+https://search.example/docs?region=us-east-2", &[]).unwrap(), Credentials::Signature { region, .. } if region == "us-east-2")
        );
        let variables = [
            ("OPENSEARCH_USERNAME", "me"),
            ("OPENSEARCH_PASSWORD", "secret"),
        ];
        assert!(
            matches!(of(domain, &variables).unwrap(), Credentials::Basic(name, password) if name == "me" && password == "secret")
        );
        assert!(matches!(
            of("opensearch+http://localhost/docs", &[]).unwrap(),
            Credentials::None
        ));
        insta::assert_snapshot!(of("opensearch+https://abc.eu-west-1.aoss.amazonaws.com/docs", &[]).unwrap_err(), @"expected a domain or a cluster, but found a collection of OpenSearch Serverless, which does not accept documents' ids, so that a resumed job would store rows twice");
    }

    #[test]
    fn vector_fields_are_checked() {
        let check = |field: Value| {
            let mapping =
                json!({ "docs-1": { "mappings": { "properties": { "embedding": field } } } });
            check_mapping(&mapping, "embedding", "here", 8).map_err(|error| error.to_string())
        };
        assert_eq!(
            check(json!({ "type": "knn_vector", "dimension": 8 })),
            Ok(())
        );
        insta::assert_snapshot!(check(json!({ "type": "knn_vector", "dimension": 3 })).unwrap_err(), @"expected `embedding` at `here` for vectors of 8 values, as the model's, but found 3; choose another model or `dimensions`");
        insta::assert_snapshot!(check(json!({ "type": "float" })).unwrap_err(), @"expected the field `embedding` at `here` to be a `knn_vector` of floats, but found `float`");
        assert!(
            check(json!({ "type": "knn_vector", "dimension": 8, "data_type": "byte" })).is_err()
        );
        assert!(check_mapping(&json!({}), "embedding", "here", 8).is_err());
        assert!(
            check_mapping(
                &json!({ "docs": { "mappings": {} } }),
                "embedding",
                "here",
                8
            )
            .is_err()
        );
    }

    #[test]
    fn reasons_do_not_quote_documents() {
        let item = |status: u16, error: Value| {
            Item::from(Indexed {
                status,
                result: None,
                error: Some(error),
            })
        };
        let error = json!({
            "type": "mapper_parsing_exception",
            "reason": "failed to parse field [price] of type [float] in document with id '1'. Preview of field's value: 'secret'",
        });
        let Item::Refused(reason) = item(400, error) else {
            panic!("not refused")
        };
        insta::assert_snapshot!(reason, @"400 mapper_parsing_exception: failed to parse field [price] of type [float] in document with id '1'");
        assert!(matches!(item(429, Value::Null), Item::Passing));
    }

    #[test]
    fn only_documents_with_a_result_are_stored() {
        let item = |result: &str| {
            Item::from(Indexed {
                status: 200,
                result: Some(result.to_owned()),
                error: None,
            })
        };
        for result in ["created", "updated"] {
            assert!(matches!(item(result), Item::Stored), "{result}");
        }
        let Item::Refused(reason) = item("noop") else {
            panic!("not refused")
        };
        insta::assert_snapshot!(reason, @"the index did not store the document; an ingest pipeline may have dropped it");
    }
}
