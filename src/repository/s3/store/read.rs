//! Reading objects, large ones in parallel ranges.

use std::{collections::HashMap, ops::Range, time::Duration};

use aws_sdk_s3::Client;
use bytes::Bytes;
use futures::{StreamExt, stream};

use super::{
    Store,
    retry::{RequestError, found, retry},
};
use crate::repository::s3::{
    object::{Change, Object},
    pieces::Pieces,
    url::Url,
};
use kivu_base::error::Result;

/// Version id of an object that was written while its bucket had no versioning.
const NO_VERSION: &str = "null";
/// Range size: smaller ones cost more per byte.
const RANGE_BYTES: u64 = 6 * 1024 * 1024;
/// Ranges that are read at once; with the one in use, 38 MB at most.
const PARALLEL: usize = 4;

impl Store {
    /// An object's properties without its version, so that any version with this ETag is read; `None` if it does not
    /// exist.
    pub fn head(&self, url: &Url) -> Result<Option<Object>> {
        Ok(self.current(url)?.map(|object| Object {
            version: None,
            ..object
        }))
    }

    /// Properties of the current object with its version, if it has one; `None` if it does not exist or was deleted.
    pub fn current(&self, url: &Url) -> Result<Option<Object>> {
        let connection = self.connection()?;
        let request = connection
            .client
            .head_object()
            .bucket(&url.bucket)
            .key(&url.key);
        let head = connection.send(move || request.clone().send());
        let head = found(head, || format!("cannot read `{url}`"))?;
        Ok(head.map(|head| Object {
            size: head
                .content_length()
                .and_then(|size| size.try_into().ok())
                .unwrap_or(0),
            ..object(
                head.e_tag(),
                head.version_id().map(str::to_owned),
                head.metadata(),
            )
        }))
    }

    /// How the object at `url` has changed since it was `object`, if it has.
    pub fn change(&self, url: &Url, object: &Object) -> Result<Option<Change>> {
        Ok(match self.current(url)? {
            None => Some(Change::Deleted),
            Some(current) if current.is_version(object.version.as_deref(), Some(&object.etag)) => {
                None
            }
            Some(_) => Some(Change::Replaced),
        })
    }

    /// A small object; `None` if it does not exist.
    pub fn read(&self, url: &Url) -> Result<Option<(Bytes, Object)>> {
        let connection = self.connection()?;
        let request = connection
            .client
            .get_object()
            .bucket(&url.bucket)
            .key(&url.key);
        let read = connection.send(move || {
            let request = request.clone();
            async move {
                let response = request.send().await?;
                let version = response.version_id().map(str::to_owned);
                let object = object(response.e_tag(), version, response.metadata());
                let bytes = response
                    .body
                    .collect()
                    .await
                    .map_err(RequestError::temporary)?
                    .into_bytes();
                Ok::<_, RequestError>((
                    bytes.clone(),
                    Object {
                        size: bytes.len() as u64,
                        ..object
                    },
                ))
            }
        });
        found(read, || format!("cannot read `{url}`"))
    }

    /// Sorted keys that begin with the key in `prefix`.
    pub fn list(&self, prefix: &Url) -> Result<Vec<String>> {
        Ok(self
            .list_tags(prefix)?
            .into_iter()
            .map(|(key, _)| key)
            .collect())
    }

    /// Sorted keys that begin with the key in `prefix`, with the objects' ETags.
    pub fn list_tags(&self, prefix: &Url) -> Result<Vec<(String, String)>> {
        let connection = self.connection()?;
        let request = connection
            .client
            .list_objects_v2()
            .bucket(&prefix.bucket)
            .prefix(&prefix.key);
        let listed = connection.send(move || {
            let pages = request.clone().into_paginator().send();
            pages.collect::<Result<Vec<_>, _>>()
        });
        let pages = listed.map_err(|error| error.during(format!("cannot list `{prefix}`")))?;
        let objects = pages.iter().flat_map(|page| page.contents());
        let tag =
            |object: &aws_sdk_s3::types::Object| object.e_tag().unwrap_or_default().to_owned();
        let mut keys: Vec<_> = objects
            .filter_map(|object| Some((object.key()?.to_owned(), tag(object))))
            .collect();
        keys.sort();
        Ok(keys)
    }

    /// An object's bytes in `range`, in order. Ranges are read ahead in parallel.
    ///
    /// If the object is replaced meanwhile, the iterator ends with an error.
    pub fn pieces(&self, url: &Url, object: &Object, range: Range<u64>) -> Result<Pieces> {
        let connection = self.connection()?;
        let (sender, pieces) = flume::bounded(0);
        let (client, url, object) = (connection.client.clone(), url.clone(), object.clone());
        let end = range.end.min(object.size);
        let timeout = connection.retry_timeout;
        connection.threads.spawn(async move {
            let starts = (range.start..end).step_by(RANGE_BYTES as usize);
            let parts = starts.map(|start| {
                let range = start..end.min(start + RANGE_BYTES);
                let (client, url, object) = (&client, &url, &object);
                async move { read_range(client, url, object, range, timeout).await }
            });
            let mut parts = stream::iter(parts).buffered(PARALLEL);
            while let Some(part) = parts.next().await {
                let is_over = part.is_err();
                if sender.send_async(part).await.is_err() || is_over {
                    return;
                }
            }
        });
        Ok(Box::new(pieces.into_iter()))
    }
}

fn object(
    etag: Option<&str>,
    version: Option<String>,
    metadata: Option<&HashMap<String, String>>,
) -> Object {
    Object {
        size: 0,
        etag: etag.unwrap_or_default().to_owned(),
        // Objects without a version in a bucket with others.
        version: version.filter(|version| version != NO_VERSION),
        metadata: metadata.cloned().unwrap_or_default().into_iter().collect(),
    }
}

async fn read_range(
    client: &Client,
    url: &Url,
    object: &Object,
    range: Range<u64>,
    timeout: Duration,
) -> Result<Vec<Bytes>> {
    let request = client
        .get_object()
        .bucket(&url.bucket)
        .key(&url.key)
        .set_version_id(object.version.clone())
        .set_if_match(Some(object.etag.clone()).filter(|etag| !etag.is_empty()))
        .range(format!("bytes={}-{}", range.start, range.end - 1));
    let read = || async {
        let mut response = request.clone().send().await?;
        let total = response
            .content_range()
            .and_then(|range| range.rsplit('/').next()?.parse::<u64>().ok());
        if total.is_some_and(|total| total != object.size) {
            return Err(RequestError::refused());
        }
        let (mut chunks, mut size) = (Vec::new(), 0);
        while let Some(chunk) = response.body.next().await {
            let chunk = chunk.map_err(RequestError::temporary)?;
            size += chunk.len() as u64;
            chunks.push(chunk);
        }
        if size != range.end - range.start {
            let expected = range.end - range.start;
            return Err(RequestError::temporary(format!(
                "expected {expected} bytes, but found {size}"
            )));
        }
        Ok(chunks)
    };
    retry(timeout, read).await.map_err(|error| match error {
        error if error.is_refused => Change::Replaced.error(url),
        // Without an ETag, nobody knows whether the object was ever there.
        error if error.is_not_found() && !object.etag.is_empty() => Change::Deleted.error(url),
        error => error.during(format!("cannot read `{url}`")),
    })
}
