//! Receives an uploaded file: a form whose fields come in any order, and whose file is stored while it is received.

use std::{
    future::Future,
    io::{self, Read},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use axum::{
    body::Bytes,
    extract::Request,
    http::{
        StatusCode,
        header::{CONTENT_ENCODING, CONTENT_TYPE},
    },
};
use bytes::Buf;
use multer::{Constraints, Field, Multipart, SizeLimit};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::{
    Access, ExpiresAfter, FILE, FileNames, FileObject, Files, Purpose, UploadPurpose, new_id,
};
use crate::{
    api::{
        rejection::{Rejection, Reply},
        request::from_value,
    },
    error::{Error, Result},
};

/// Maximum size of all fields except the file.
const MAX_FIELD_BYTES: u64 = 1024;
const MAX_NAME_CHARS: usize = 255;
/// Clients that send more slowly are given up.
const MIN_BYTES_PER_S: u64 = 100_000;
const FILE_FIELD: &str = "file";

/// Form fields.
#[derive(Default)]
struct Form {
    file: Option<ReceivedFile>,
    fields: Map<String, Value>,
    expires_after: Map<String, Value>,
}

struct ReceivedFile {
    id: String,
    name: String,
    bytes: u64,
}

/// The time for an upload, which grows with the received bytes.
struct Pace<'a> {
    access: &'a Access,
    started: Instant,
    received: u64,
}

impl Pace<'_> {
    async fn bound<T>(&self, work: impl Future<Output = multer::Result<T>>) -> Result<T> {
        let time =
            self.access.deadline.remaining() + Duration::from_secs(self.received / MIN_BYTES_PER_S);
        let received = tokio::time::timeout(time, work)
            .await
            .map_err(|_| self.access.deadline.exceeded())?;
        received.map_err(|error| refused(&error, self.access.files.limits.bytes))
    }
}

pub(super) async fn receive(access: &Access, request: Request) -> Reply<FileObject> {
    let boundary = boundary(&request)?;
    access
        .run(|files, owner| files.make_room(&owner.folder))
        .await?;
    let max = access.files.limits.bytes;
    let limits = SizeLimit::new()
        .per_field(MAX_FIELD_BYTES)
        .for_field(FILE_FIELD, max);
    let constraints = Constraints::new().size_limit(limits);
    let body = request.into_body().into_data_stream();
    let mut parts = Multipart::with_constraints(body, boundary, constraints);
    let mut pace = Pace {
        access,
        started: Instant::now(),
        received: 0,
    };
    let mut form = Form::default();
    let received = async {
        while let Some(field) = pace.bound(parts.next_field()).await? {
            form.read(field, &mut pace).await?;
        }
        Ok::<_, Error>(())
    };
    let received = received.await;
    let created = match received {
        Ok(()) => form.object(),
        Err(error) => Err(error),
    };
    let id = form.file.map(|file| file.id);
    let names = id.map(|id| FileNames::new(&access.owner.folder, &id));
    let done = access.finish(move |files| match (created, names) {
        (Ok(object), Some(names)) => files.write(&names.object, &object).map(|()| object),
        (Ok(object), None) => Ok(object),
        (Err(error), names) => {
            names.map_or(Ok(()), |names| files.storage.remove(&names.contents))?;
            Err(error)
        }
    });
    let object = done.await?;
    tracing::info!(
        id = object.id,
        bytes = object.bytes,
        seconds = pace.started.elapsed().as_secs_f64(),
        "file uploaded"
    );
    Ok(object)
}

/// The form's boundary; another content type is refused.
fn boundary(request: &Request) -> Reply<String> {
    let header = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let unsupported = |message: &str| Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
    if header(CONTENT_ENCODING).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(unsupported(
            "expected a form without `content-encoding`, but found one",
        ));
    }
    multer::parse_boundary(header(CONTENT_TYPE).unwrap_or_default()).map_err(|_| {
        unsupported(
            "expected the content type `multipart/form-data` with a boundary, but found another",
        )
    })
}

fn refused(error: &multer::Error, max: u64) -> Error {
    match error {
        multer::Error::FieldSizeExceeded { field_name, .. } => match field_name.as_deref() {
            Some(FILE_FIELD) => Error::too_large(format!(
                "expected a file of at most {max} bytes, but found more"
            )),
            _ => Error::too_large(format!(
                "expected fields of at most {MAX_FIELD_BYTES} bytes, but found more"
            )),
        },
        _ => Error::malformed(
            "expected a complete form as `multipart/form-data`, but found something else",
        ),
    }
}

impl Form {
    async fn read(&mut self, mut field: Field<'static>, pace: &mut Pace<'_>) -> Result<()> {
        let name = field.name().unwrap_or_default().to_owned();
        if name == FILE_FIELD {
            if self.file.is_some() {
                return Err(Error::invalid(
                    "expected `file` once, but found it several times",
                ));
            }
            self.file = Some(ReceivedFile::store(field, pace).await?);
            return Ok(());
        }
        let mut text = Vec::new();
        while let Some(chunk) = pace.bound(field.chunk()).await? {
            text.extend_from_slice(&chunk);
        }
        let text = String::from_utf8(text)
            .map_err(|_| Error::invalid("expected UTF-8 in all fields, but found other bytes"))?;
        match name.as_str() {
            "expires_after[seconds]" => {
                // Another text is refused with the value's name.
                let seconds = text
                    .parse::<u64>()
                    .map_or_else(|_| json!(text), Value::from);
                self.expires_after.insert("seconds".into(), seconds);
            }
            "expires_after[anchor]" => {
                drop(self.expires_after.insert("anchor".into(), text.into()))
            }
            "purpose" => drop(self.fields.insert(name, text.into())),
            // Unknown fields are ignored.
            _ => {}
        }
        Ok(())
    }

    /// The form's file.
    fn object(&mut self) -> Result<FileObject> {
        #[derive(serde::Deserialize)]
        struct Fields {
            purpose: UploadPurpose,
            expires_after: Option<ExpiresAfter>,
        }
        if !self.expires_after.is_empty() {
            self.fields.insert(
                "expires_after".into(),
                std::mem::take(&mut self.expires_after).into(),
            );
        }
        let Fields {
            purpose,
            expires_after,
        } = from_value(std::mem::take(&mut self.fields).into())?;
        let UploadPurpose::Batch = purpose;
        let expires_s = expires_after
            .map(|expiry| expiry.seconds("expires_after"))
            .transpose()?;
        let file = self.file.as_ref();
        let file =
            file.ok_or_else(|| Error::invalid("expected the field `file`, but found none"))?;
        Ok(FileObject::new(
            file.id.clone(),
            file.bytes,
            file.name.clone(),
            Purpose::Batch,
            expires_s,
        ))
    }
}

impl ReceivedFile {
    async fn store(field: Field<'static>, pace: &mut Pace<'_>) -> Result<Self> {
        let name = field.file_name().unwrap_or("upload").to_owned();
        if name.chars().count() > MAX_NAME_CHARS {
            return Err(Error::invalid(format!(
                "expected a file name of at most {MAX_NAME_CHARS} characters, but found more"
            )));
        }
        let id = new_id(FILE);
        let names = FileNames::new(&pace.access.owner.folder, &id);
        let (chunks, stored) = spawn_storing(Arc::clone(&pace.access.files), names.contents)?;
        let received = Self::pass_on(field, pace, chunks).await;
        // Also after an error: nothing of a refused file is left when its sender gets the answer.
        let failed = |_| Err(Error::inference("storing the file failed"));
        let stored = stored.await.unwrap_or_else(failed);
        received?;
        Ok(Self {
            id,
            name,
            bytes: stored?,
        })
    }

    async fn pass_on(mut field: Field<'static>, pace: &mut Pace<'_>, chunks: Chunks) -> Result<()> {
        while let Some(chunk) = pace.bound(field.chunk()).await? {
            pace.received += chunk.len() as u64;
            // Storing has ended with an error.
            if chunks.send_async(Some(chunk)).await.is_err() {
                return Ok(());
            }
        }
        let _ = chunks.send_async(None).await;
        Ok(())
    }
}

/// A file's chunks; `None` at its end.
type Chunks = flume::Sender<Option<Bytes>>;

/// Stores chunks on a thread, since writing blocks. A file whose end is not sent is not stored, and one for which nobody
/// waits any more is removed.
fn spawn_storing(
    files: Arc<Files>,
    name: String,
) -> Result<(Chunks, oneshot::Receiver<Result<u64>>)> {
    let (chunks, received) = flume::bounded(4);
    let (done, stored) = oneshot::channel();
    let mut incoming = Incoming {
        received,
        chunk: Bytes::new(),
        has_ended: false,
    };
    let work = move || {
        let Err(Ok(_)) = done.send(files.storage.store(&name, &mut incoming)) else {
            return;
        };
        if let Err(error) = files.storage.remove(&name) {
            tracing::warn!(
                error = error.chain(),
                "cannot remove an upload that was given up"
            );
        }
    };
    let thread = thread::Builder::new().name("upload".into()).spawn(work);
    thread.map_err(Error::io("cannot start a thread for an upload"))?;
    Ok((chunks, stored))
}

struct Incoming {
    received: flume::Receiver<Option<Bytes>>,
    chunk: Bytes,
    has_ended: bool,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() && !self.has_ended {
            match self.received.recv() {
                Ok(Some(chunk)) => self.chunk = chunk,
                Ok(None) => self.has_ended = true,
                Err(_) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the upload was given up",
                    ));
                }
            }
        }
        let taken = self.chunk.len().min(buffer.len());
        self.chunk.copy_to_slice(&mut buffer[..taken]);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, FilesConfig};

    /// The client has closed the connection after the file's last byte.
    #[test]
    fn a_file_for_which_nobody_waits_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let place = FilesConfig {
            folder: Some(folder.path().display().to_string()),
            ..FilesConfig::default()
        };
        let files = Files::open(&Config {
            files: place,
            ..Config::default()
        })
        .unwrap()
        .unwrap();
        let store = |name: &str, waits: bool| {
            let (chunks, stored) = spawn_storing(Arc::clone(&files), format!("a/{name}")).unwrap();
            chunks.send(Some(Bytes::from_static(b"{}"))).unwrap();
            let stored = waits.then_some(stored);
            chunks.send(None).unwrap();
            while !chunks.is_disconnected() {
                thread::yield_now();
            }
            stored.map(|stored| stored.blocking_recv().unwrap().unwrap())
        };
        assert_eq!(
            (store("kept", true), store("given-up", false)),
            (Some(2), None)
        );
        assert_eq!(files.storage.list("a").unwrap(), ["kept"]);
    }
}
