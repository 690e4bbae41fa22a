//! Files and batches in S3, where a lifecycle rule removes old ones.

use std::{io::Read, time::Duration};

use super::storage::{Contents, Storage};
use crate::{
    batch::{JobInput, JobOutput},
    error::{Error, Result},
    repository::s3::{Condition, MIN_PART_BYTES, Reader, Store, Url},
};

/// Larger objects do not fit into the response of a Lambda function, in base64.
const MAX_RESPONSE_BYTES: u64 = 4 * 1024 * 1024;
/// How long a link can be used.
const LINK_TIME: Duration = Duration::from_mins(15);

#[derive(Debug)]
pub(super) struct S3Storage {
    pub(super) store: Store,
    pub(super) prefix: Url,
}

impl S3Storage {
    fn url(&self, name: &str) -> Url {
        self.prefix.join(name)
    }

    /// Uploads contents that begin with `first`, which has a part's size.
    fn upload(&self, url: &Url, first: Vec<u8>, contents: &mut dyn Read) -> Result<u64> {
        let upload = self.store.begin(url, "kivu-files", "1")?;
        let sent = (|| {
            let (mut parts, mut size, mut part) = (Vec::new(), 0, first);
            while !part.is_empty() {
                size += part.len() as u64;
                let number = i32::try_from(parts.len() + 1).unwrap_or(i32::MAX);
                let sent = self.store.upload(&upload, number, part)?;
                parts.push(sent.ok_or_else(|| {
                    Error::unavailable(format!("the upload of `{url}` was lost"))
                })?);
                part = read_part(contents, url)?;
            }
            match self.store.complete(&upload, &parts, &Condition::None)? {
                true => Ok(size),
                false => Err(Error::unavailable(format!(
                    "the upload of `{url}` was lost"
                ))),
            }
        })();
        if sent.is_err() {
            // A lifecycle rule removes it otherwise.
            let _ = self.store.abort(&upload);
        }
        sent
    }
}

/// At most a part's bytes.
fn read_part(contents: &mut dyn Read, url: &Url) -> Result<Vec<u8>> {
    let mut part = Vec::new();
    let read = contents.take(MIN_PART_BYTES as u64).read_to_end(&mut part);
    read.map_err(Error::io(format!("cannot write `{url}`")))?;
    Ok(part)
}

impl Storage for S3Storage {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self
            .store
            .read(&self.url(name))?
            .map(|(bytes, _)| bytes.to_vec()))
    }

    fn write(&self, name: &str, contents: Vec<u8>) -> Result<()> {
        self.store
            .put(&self.url(name), contents, &Condition::None)
            .map(drop)
    }

    fn store(&self, name: &str, contents: &mut dyn Read) -> Result<u64> {
        let url = self.url(name);
        let first = read_part(contents, &url)?;
        if first.len() >= MIN_PART_BYTES {
            return self.upload(&url, first, contents);
        }
        let size = first.len() as u64;
        self.store.put(&url, first, &Condition::None)?;
        Ok(size)
    }

    fn open(&self, name: &str) -> Result<Option<Contents>> {
        let url = self.url(name);
        let Some(object) = self.store.head(&url)? else {
            return Ok(None);
        };
        let pieces = self.store.pieces(&url, &object, 0..object.size)?;
        Ok(Some((object.size, Box::new(Reader::new(pieces)))))
    }

    fn link(&self, name: &str, bytes: u64) -> Result<Option<String>> {
        (bytes > MAX_RESPONSE_BYTES)
            .then(|| self.store.link(&self.url(name), LINK_TIME))
            .transpose()
    }

    fn copy(&self, from: &str, to: &str) -> Result<bool> {
        self.store.copy(&self.url(from), &self.url(to))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.store.delete(&self.url(name))
    }

    fn list(&self, folder: &str) -> Result<Vec<String>> {
        let url = self.url(&format!("{folder}/"));
        let keys = self.store.list(&url)?;
        let names = keys.iter().filter_map(|key| key.strip_prefix(&url.key));
        Ok(names
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect())
    }

    fn folders(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn tidy(&self, _: &str, _: Duration) -> Result<()> {
        Ok(())
    }

    fn input(&self, name: &str) -> Result<Option<JobInput>> {
        let url = self.url(name);
        let object = self.store.head(&url)?;
        Ok(object.map(|object| JobInput::Object(self.store.clone(), url, object)))
    }

    fn output(&self, name: &str) -> JobOutput {
        JobOutput::Object(self.store.clone(), self.url(name))
    }

    /// The queue gives each batch to one function at a time; checkpoints in S3 refuse a second one.
    fn lock(&self) -> Result<bool> {
        Ok(true)
    }
}
