//! Reading objects: parts side by side, handed on in order.

use std::{
    collections::VecDeque,
    io::{self, Read},
    ops::Range,
};

use aws_sdk_s3::Client;
use bytes::{Buf, Bytes};
use futures::{StreamExt, stream};

use super::{
    Store,
    failure::{Failure, patiently},
};
use crate::{
    error::{Error, Result},
    repository::s3::{Object, Url},
};

/// What one request reads: smaller parts cost a server more than they carry.
const PART_BYTES: u64 = 6 * 1024 * 1024;
/// Requests under way at once: with what is being taken, 38 MB at most.
const PARALLEL: usize = 4;

impl Store {
    /// What is known of an object (of that version), or nothing where there is none.
    pub fn head(&self, url: &Url, version: Option<&str>) -> Result<Option<Object>> {
        let (client, url, version) = (self.client(), url.clone(), version.map(str::to_owned));
        self.wait(async move {
            let ask = || async {
                let request = client.head_object().bucket(&url.bucket).key(&url.key);
                Ok(request.set_version_id(version.clone()).send().await?)
            };
            match patiently(ask).await {
                Ok(head) => Ok(Some(Object {
                    size: head.content_length().and_then(|size| size.try_into().ok()).unwrap_or(0),
                    etag: head.e_tag().unwrap_or_default().to_owned(),
                    version: version.clone(),
                    metadata: head.metadata().cloned().unwrap_or_default().into_iter().collect(),
                })),
                Err(failure) if failure.is_not_found() => Ok(None),
                Err(failure) => Err(failure.during(format!("cannot read `{url}`"))),
            }
        })
    }

    /// A small object as a whole, with what is known of it; nothing where there is none.
    pub fn read(&self, url: &Url) -> Result<Option<(Bytes, Object)>> {
        let (client, url) = (self.client(), url.clone());
        self.wait(async move {
            let ask = || async {
                let answer = client.get_object().bucket(&url.bucket).key(&url.key).send().await?;
                let object = Object {
                    size: 0,
                    etag: answer.e_tag().unwrap_or_default().to_owned(),
                    version: answer.version_id().map(str::to_owned),
                    metadata: answer.metadata().cloned().unwrap_or_default().into_iter().collect(),
                };
                let bytes = answer.body.collect().await.map_err(Failure::passing)?.into_bytes();
                Ok((bytes, object))
            };
            match patiently(ask).await {
                Ok((bytes, object)) => {
                    let size = bytes.len() as u64;
                    Ok(Some((bytes, Object { size, ..object })))
                }
                Err(failure) if failure.is_not_found() => Ok(None),
                Err(failure) => Err(failure.during(format!("cannot read `{url}`"))),
            }
        })
    }

    /// The keys of all objects whose keys begin with that of `prefix`, in their order.
    pub fn list(&self, prefix: &Url) -> Result<Vec<String>> {
        let (client, prefix) = (self.client(), prefix.clone());
        self.wait(async move {
            let (mut keys, mut next) = (Vec::new(), None::<String>);
            loop {
                let ask = || async {
                    let request = client.list_objects_v2().bucket(&prefix.bucket).prefix(&prefix.key);
                    Ok(request.set_continuation_token(next.clone()).send().await?)
                };
                let page = patiently(ask)
                    .await
                    .map_err(|failure| failure.during(format!("cannot list `{prefix}`")))?;
                keys.extend(page.contents().iter().filter_map(|object| object.key().map(str::to_owned)));
                next = page.next_continuation_token().map(str::to_owned);
                if next.is_none() {
                    keys.sort();
                    return Ok(keys);
                }
            }
        })
    }

    /// The bytes of an object within `range`, in order, read in parts side by side while they are taken.
    ///
    /// An object that is replaced meanwhile is an error.
    pub fn pieces(&self, url: &Url, object: &Object, range: Range<u64>) -> Pieces {
        let (sender, pieces) = flume::bounded(0);
        let (client, url, object) = (self.client(), url.clone(), object.clone());
        let end = range.end.min(object.size);
        self.shared.runtime.spawn(async move {
            let starts = (range.start..end).step_by(PART_BYTES as usize);
            let parts = starts.map(|start| {
                let range = start..end.min(start + PART_BYTES);
                let (client, url, object) = (&client, &url, &object);
                async move { read_range(client, url, object, range).await }
            });
            let mut parts = stream::iter(parts).buffered(PARALLEL);
            while let Some(part) = parts.next().await {
                let is_over = part.is_err();
                if sender.send_async(part).await.is_err() || is_over {
                    return;
                }
            }
        });
        Pieces { pieces, is_over: false }
    }
}

async fn read_range(client: &Client, url: &Url, object: &Object, range: Range<u64>) -> Result<Vec<Bytes>> {
    let ask = || async {
        let mut answer = client
            .get_object()
            .bucket(&url.bucket)
            .key(&url.key)
            .set_version_id(object.version.clone())
            .set_if_match(Some(object.etag.clone()).filter(|etag| !etag.is_empty()))
            .range(format!("bytes={}-{}", range.start, range.end - 1))
            .send()
            .await?;
        let found = answer.content_range().and_then(|range| range.rsplit('/').next()?.parse::<u64>().ok());
        if found.is_some_and(|found| found != object.size) {
            return Err(Failure::refused());
        }
        let (mut chunks, mut size) = (Vec::new(), 0);
        while let Some(chunk) = answer.body.next().await {
            let chunk = chunk.map_err(Failure::passing)?;
            size += chunk.len() as u64;
            chunks.push(chunk);
        }
        if size != range.end - range.start {
            return Err(Failure::passing(format!(
                "{} bytes were asked for, {size} came",
                range.end - range.start
            )));
        }
        Ok(chunks)
    };
    patiently(ask).await.map_err(|failure| {
        if failure.is_refused {
            return replaced(url);
        }
        failure.during(format!("cannot read `{url}`"))
    })
}

fn replaced(url: &Url) -> Error {
    let source = io::Error::new(io::ErrorKind::StaleNetworkFileHandle, "the object was replaced");
    Error::Io { action: format!("expected `{url}` to stay as it was while it is read"), source }
}

/// The parts of an object, in order.
#[derive(Debug)]
pub struct Pieces {
    pieces: flume::Receiver<Result<Vec<Bytes>>>,
    is_over: bool,
}

impl Pieces {
    /// The same as a reader.
    pub fn into_reader(self) -> Reader {
        Reader { pieces: self, chunks: VecDeque::new() }
    }
}

impl Iterator for Pieces {
    type Item = Result<Vec<Bytes>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.pieces.recv().ok();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// The bytes of an object, in order.
#[derive(Debug)]
pub struct Reader {
    pieces: Pieces,
    chunks: VecDeque<Bytes>,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(chunk) = self.chunks.front_mut() {
                let taken = chunk.len().min(buffer.len());
                chunk.copy_to_slice(&mut buffer[..taken]);
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
                if taken > 0 || buffer.is_empty() {
                    return Ok(taken);
                }
                continue;
            }
            match self.pieces.next() {
                Some(Ok(chunks)) => self.chunks.extend(chunks),
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
    }
}
