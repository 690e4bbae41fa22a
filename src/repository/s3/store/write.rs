//! Writes objects: in one request, or as a multipart upload that survives the process.

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Store, retry::found};
use crate::repository::s3::{
    object::{Condition, Multipart, Part},
    url::Url,
};
use kivu_base::error::Result;

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

impl Store {
    /// Copies an object of at most 5 GB within S3; `false` if it does not exist.
    pub fn copy(&self, from: &Url, to: &Url) -> Result<bool> {
        let connection = self.connection()?;
        let source =
            utf8_percent_encode(&format!("{}/{}", from.bucket, from.key), NON_ALPHANUMERIC)
                .to_string();
        let request = connection.upload_client.copy_object().copy_source(source);
        let request = request.bucket(&to.bucket).key(&to.key);
        let sent = connection.send(move || request.clone().send());
        Ok(found(sent, || format!("cannot copy `{from}`"))?.is_some())
    }

    /// Writes an object in one request and returns its ETag; `None` if the condition is false.
    pub fn put(
        &self,
        url: &Url,
        bytes: impl Into<Bytes>,
        condition: &Condition,
    ) -> Result<Option<String>> {
        let connection = self.connection()?;
        let [if_absent, if_match] = headers(condition);
        let is_replacement = if_match.is_some();
        let (client, place, bytes) = (connection.upload_client.clone(), url.clone(), bytes.into());
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

    /// Deletes an object, if it exists.
    pub fn delete(&self, url: &Url) -> Result<()> {
        let connection = self.connection()?;
        let request = connection
            .client
            .delete_object()
            .bucket(&url.bucket)
            .key(&url.key);
        let sent = connection.send(move || request.clone().send());
        found(sent, || format!("cannot remove `{url}`")).map(drop)
    }

    /// Begins a multipart upload for an object with one metadata entry.
    pub fn begin(&self, url: &Url, name: &str, value: &str) -> Result<Multipart> {
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

    /// Uploads one part; `None` if the upload does not exist any more.
    pub fn upload(
        &self,
        upload: &Multipart,
        number: i32,
        bytes: impl Into<Bytes>,
    ) -> Result<Option<Part>> {
        let connection = self.connection()?;
        let (client, place, bytes) = (
            connection.upload_client.clone(),
            upload.clone(),
            bytes.into(),
        );
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

    /// Creates the object from its parts; `false` if the condition is false or the upload does not exist any more, for
    /// example because another process completed it.
    pub fn complete(
        &self,
        upload: &Multipart,
        parts: &[Part],
        condition: &Condition,
    ) -> Result<bool> {
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

    /// Whether an upload still exists.
    pub fn has_upload(&self, upload: &Multipart) -> Result<bool> {
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

    /// Deletes an upload and its parts.
    pub fn abort(&self, upload: &Multipart) -> Result<()> {
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
