//! Writing objects: as a whole, or in parts that survive the writer; on conditions, so that two writers end in
//! one result.

use std::collections::BTreeMap;

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::Bytes;

use super::{Store, failure::patiently};
use crate::{
    error::Result,
    repository::s3::{Condition, Multipart, Part, Url},
};

impl Store {
    /// Writes an object as a whole; gives the server's mark of it, or nothing where the condition does not hold.
    pub fn put(
        &self,
        url: &Url,
        bytes: impl Into<Bytes>,
        condition: &Condition,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Option<String>> {
        let (client, url, bytes, metadata) = (self.writer(), url.clone(), bytes.into(), metadata.clone());
        let [if_absent, if_match] = condition.headers();
        self.wait(async move {
            let ask = || async {
                let request = client.put_object().bucket(&url.bucket).key(&url.key);
                let request = request.set_if_none_match(if_absent.clone()).set_if_match(if_match.clone());
                let request = request.set_metadata(Some(metadata.clone().into_iter().collect()));
                Ok(request.body(ByteStream::from(bytes.clone())).send().await?)
            };
            match patiently(ask).await {
                Ok(answer) => Ok(Some(answer.e_tag().unwrap_or_default().to_owned())),
                // An object that was to be replaced and is gone is no longer as it was.
                Err(failure) if failure.is_refused || if_match.is_some() && failure.is_not_found() => {
                    Ok(None)
                }
                Err(failure) => Err(failure.during(format!("cannot write `{url}`"))),
            }
        })
    }

    /// Removes an object; one that is not there is no error.
    pub fn delete(&self, url: &Url) -> Result<()> {
        let (client, url) = (self.client(), url.clone());
        self.wait(async move {
            let ask = || async { Ok(client.delete_object().bucket(&url.bucket).key(&url.key).send().await?) };
            match patiently(ask).await {
                Err(failure) if !failure.is_not_found() => {
                    Err(failure.during(format!("cannot remove `{url}`")))
                }
                _ => Ok(()),
            }
        })
    }

    /// Begins an upload in parts.
    pub fn begin(&self, url: &Url, metadata: &BTreeMap<String, String>) -> Result<Multipart> {
        let (client, url, metadata) = (self.client(), url.clone(), metadata.clone());
        self.wait(async move {
            let ask = || async {
                let request = client.create_multipart_upload().bucket(&url.bucket).key(&url.key);
                Ok(request.set_metadata(Some(metadata.clone().into_iter().collect())).send().await?)
            };
            let answer =
                patiently(ask).await.map_err(|failure| failure.during(format!("cannot write `{url}`")))?;
            let id = answer.upload_id().unwrap_or_default().to_owned();
            Ok(Multipart { bucket: url.bucket, key: url.key, id })
        })
    }

    /// Uploads one part; nothing where the upload is no longer known.
    pub fn upload(&self, upload: &Multipart, number: i32, bytes: impl Into<Bytes>) -> Result<Option<Part>> {
        let (client, upload, bytes) = (self.writer(), upload.clone(), bytes.into());
        self.wait(async move {
            let ask = || async {
                let request = client.upload_part().bucket(&upload.bucket).key(&upload.key);
                let request = request.upload_id(&upload.id).part_number(number);
                Ok(request.body(ByteStream::from(bytes.clone())).send().await?)
            };
            match patiently(ask).await {
                Ok(answer) => {
                    let etag = answer.e_tag().unwrap_or_default().to_owned();
                    Ok(Some(Part { number, etag, size: bytes.len() as u64 }))
                }
                Err(failure) if failure.is_not_found() => Ok(None),
                Err(failure) => Err(failure.during(action(&upload))),
            }
        })
    }

    /// Makes the object of its parts; `false` where the condition does not hold or the upload is not known,
    /// which is so after somebody else completed it.
    pub fn complete(&self, upload: &Multipart, parts: &[Part], condition: &Condition) -> Result<bool> {
        let (client, upload) = (self.writer(), upload.clone());
        let [if_absent, if_match] = condition.headers();
        let parts = parts
            .iter()
            .map(|part| CompletedPart::builder().part_number(part.number).e_tag(&part.etag).build());
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts.collect())).build();
        self.wait(async move {
            let ask = || async {
                let request = client.complete_multipart_upload().bucket(&upload.bucket).key(&upload.key);
                let request = request.upload_id(&upload.id).multipart_upload(parts.clone());
                let request = request.set_if_none_match(if_absent.clone()).set_if_match(if_match.clone());
                Ok(request.send().await?)
            };
            match patiently(ask).await {
                Ok(_) => Ok(true),
                Err(failure) if failure.is_refused || failure.is_not_found() => Ok(false),
                Err(failure) => Err(failure.during(action(&upload))),
            }
        })
    }

    /// Whether the server still knows of an upload.
    pub fn knows(&self, upload: &Multipart) -> Result<bool> {
        let (client, upload) = (self.client(), upload.clone());
        self.wait(async move {
            let ask = || async {
                let request = client.list_parts().bucket(&upload.bucket).key(&upload.key);
                Ok(request.upload_id(&upload.id).max_parts(1).send().await?)
            };
            match patiently(ask).await {
                Ok(_) => Ok(true),
                Err(failure) if failure.is_not_found() => Ok(false),
                Err(failure) => Err(failure.during(action(&upload))),
            }
        })
    }

    /// Gives an upload up, and what was uploaded for it.
    pub fn abort(&self, upload: &Multipart) -> Result<()> {
        let (client, upload) = (self.client(), upload.clone());
        self.wait(async move {
            let ask = || async {
                let request = client.abort_multipart_upload().bucket(&upload.bucket).key(&upload.key);
                Ok(request.upload_id(&upload.id).send().await?)
            };
            match patiently(ask).await {
                Err(failure) if !failure.is_not_found() => Err(failure.during(action(&upload))),
                _ => Ok(()),
            }
        })
    }
}

/// What a request for an upload does, for its error.
fn action(upload: &Multipart) -> String {
    format!("cannot write `s3://{}/{}`", upload.bucket, upload.key)
}
