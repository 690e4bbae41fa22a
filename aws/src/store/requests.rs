//! Requests: objects in one piece, in parallel ranges, or as a multipart upload that survives the process.

use std::{collections::HashMap, ops::Range, time::Duration};

use aws_sdk_s3::{
    Client,
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::Bytes;
use futures::{StreamExt, stream};

use super::{
    S3,
    errors::{RequestError, found},
};
use crate::retry::retry;
use kivu::{
    error::Result,
    locked,
    repository::s3::{Change, Condition, Multipart, Object, Part, Pieces, Store, Url},
};

/// Version id of an object that was written while its bucket had no versioning.
const NO_VERSION: &str = "null";
const NO_SIZE: &str = "the response has no `Content-Length`";
/// Range size: smaller ones cost more per byte.
const RANGE_BYTES: u64 = 6 * 1024 * 1024;
/// Ranges that are read at once; with the one in use, 38 MB at most.
const PARALLEL: usize = 4;

impl Store for S3 {
    fn disconnect(&self) {
        locked(&self.connection).take();
    }

    fn current(&self, url: &Url) -> Result<Option<Object>> {
        let connection = self.connection()?;
        let request = connection
            .client
            .head_object()
            .bucket(&url.bucket)
            .key(&url.key);
        let head = connection.send(move || request.clone().send());
        let action = || format!("cannot read `{url}`");
        let Some(head) = found(head, action)? else {
            return Ok(None);
        };
        let size = head.content_length().and_then(|size| size.try_into().ok());
        Ok(Some(Object {
            size: size.ok_or_else(|| RequestError::permanent(NO_SIZE).during(action()))?,
            ..object(
                head.e_tag(),
                head.version_id().map(str::to_owned),
                head.metadata(),
            )
        }))
    }

    fn read(&self, url: &Url) -> Result<Option<(Bytes, Object)>> {
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

    fn list_tags(&self, prefix: &Url) -> Result<Vec<(String, String)>> {
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

    fn pieces(&self, url: &Url, object: &Object, range: Range<u64>) -> Result<Pieces> {
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

    fn put(&self, url: &Url, bytes: Bytes, condition: &Condition) -> Result<Option<String>> {
        let connection = self.connection()?;
        let [if_absent, if_match] = headers(condition);
        let is_replacement = if_match.is_some();
        let (client, place, bytes) = (connection.upload_client.clone(), url.clone(), bytes);
        let sent = connection.send(move || {
            let request = client.put_object().bucket(&place.bucket).key(&place.key);
            let request = request
                .set_if_none_match(if_absent.clone())
                .set_if_match(if_match.clone());
            request.body(ByteStream::from(bytes.clone())).send()
        });
        match sent {
            Ok(response) => Ok(Some(response.e_tag().unwrap_or_default().to_owned())),
            // A deleted object does not have that ETag either.
            Err(error) if error.is_refused || is_replacement && error.is_not_found() => Ok(None),
            Err(error) => Err(error.during(format!("cannot write `{url}`"))),
        }
    }

    fn delete(&self, url: &Url) -> Result<()> {
        let connection = self.connection()?;
        let request = connection
            .client
            .delete_object()
            .bucket(&url.bucket)
            .key(&url.key);
        let sent = connection.send(move || request.clone().send());
        found(sent, || format!("cannot remove `{url}`")).map(drop)
    }

    fn begin(&self, url: &Url, name: &str, value: &str) -> Result<Multipart> {
        let connection = self.connection()?;
        let request = connection
            .client
            .create_multipart_upload()
            .bucket(&url.bucket)
            .key(&url.key);
        let request = request.metadata(name, value);
        let sent = connection.send(move || request.clone().send());
        let response = sent.map_err(|error| error.during(format!("cannot write `{url}`")))?;
        let id = response.upload_id().unwrap_or_default().to_owned();
        Ok(Multipart {
            bucket: url.bucket.clone(),
            key: url.key.clone(),
            id,
        })
    }

    fn upload(&self, upload: &Multipart, number: i32, bytes: Bytes) -> Result<Option<Part>> {
        let connection = self.connection()?;
        let (client, place, bytes) = (connection.upload_client.clone(), upload.clone(), bytes);
        let size = bytes.len() as u64;
        let sent = connection.send(move || {
            let request = client
                .upload_part()
                .bucket(&place.bucket)
                .key(&place.key)
                .upload_id(&place.id);
            request
                .part_number(number)
                .body(ByteStream::from(bytes.clone()))
                .send()
        });
        let response = found(sent, || writing(upload))?;
        Ok(response.map(|response| {
            let etag = response.e_tag().unwrap_or_default().to_owned();
            Part { number, etag, size }
        }))
    }

    fn complete(&self, upload: &Multipart, parts: &[Part], condition: &Condition) -> Result<bool> {
        let connection = self.connection()?;
        let [if_absent, if_match] = headers(condition);
        let parts = parts.iter().map(|part| {
            CompletedPart::builder()
                .part_number(part.number)
                .e_tag(&part.etag)
                .build()
        });
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(parts.collect()))
            .build();
        let request = connection.upload_client.complete_multipart_upload();
        let request = request
            .bucket(&upload.bucket)
            .key(&upload.key)
            .upload_id(&upload.id);
        let request = request
            .multipart_upload(parts)
            .set_if_none_match(if_absent)
            .set_if_match(if_match);
        let sent = connection.send(move || request.clone().send());
        match sent {
            Err(error) if error.is_refused => Ok(false),
            sent => Ok(found(sent, || writing(upload))?.is_some()),
        }
    }

    fn has_upload(&self, upload: &Multipart) -> Result<bool> {
        let connection = self.connection()?;
        let request = connection
            .client
            .list_parts()
            .bucket(&upload.bucket)
            .key(&upload.key);
        let request = request.upload_id(&upload.id).max_parts(1);
        let sent = connection.send(move || request.clone().send());
        Ok(found(sent, || writing(upload))?.is_some())
    }

    fn abort(&self, upload: &Multipart) -> Result<()> {
        let connection = self.connection()?;
        let request = connection
            .client
            .abort_multipart_upload()
            .bucket(&upload.bucket)
            .key(&upload.key);
        let request = request.upload_id(&upload.id);
        let sent = connection.send(move || request.clone().send());
        found(sent, || writing(upload)).map(drop)
    }
}

/// Values for `If-None-Match` and `If-Match`.
fn headers(condition: &Condition) -> [Option<String>; 2] {
    match condition {
        Condition::None => [None, None],
        Condition::IsAbsent => [Some("*".into()), None],
        Condition::IsStill(etag) => [None, Some(etag.clone())],
    }
}

fn writing(upload: &Multipart) -> String {
    format!("cannot write `s3://{}/{}`", upload.bucket, upload.key)
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
    retry(timeout, RequestError::is_temporary, read)
        .await
        .map_err(|error| match error {
            error if error.is_refused => Change::Replaced.error(url),
            // Without an ETag, nobody knows whether the object was ever there.
            error if error.is_not_found() && !object.etag.is_empty() => Change::Deleted.error(url),
            error => error.during(format!("cannot read `{url}`")),
        })
}
