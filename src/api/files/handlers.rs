//! Handlers for `/v1/files`.

use std::io::Read;

use axum::{
    Json,
    body::{Body, Bytes},
    extract::Request,
    http::{
        StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION},
    },
    response::IntoResponse,
};
use futures::stream;
use schemars::JsonSchema;
use serde::Serialize;

pub(in crate::api) use super::access::unknown;
use super::{
    Access, Anchor, Contents, FileNames, FileObject, List, ListQuery, ObjectKind, UploadPurpose,
    upload,
};
use crate::{
    api::{rejection::Reply, request::InPath},
    error::{Error, Result},
};

/// OpenAI's maximum page length.
const MAX_LISTED: usize = 10_000;
/// Bytes per read.
const BLOCK_BYTES: usize = 256 * 1024;

/// A form, `multipart/form-data`.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "only its schema is used; the fields are read one after the other"
)]
pub(in crate::api) struct UploadForm {
    /// JSON Lines: a request per line, with `custom_id`, `method`, `url` and `body`.
    #[schemars(extend("contentMediaType" = "application/octet-stream"))]
    file: String,
    purpose: UploadPurpose,
    /// With `expires_after[seconds]`.
    #[schemars(rename = "expires_after[anchor]")]
    anchor: Option<Anchor>,
    /// From an hour to 30 days, the default.
    #[schemars(rename = "expires_after[seconds]", range(min = 3600, max = 2_592_000))]
    seconds: Option<u64>,
}

/// A deleted file.
#[derive(Serialize, JsonSchema)]
pub(in crate::api) struct FileDeleted {
    /// The file's id.
    id: String,
    /// `file`.
    object: ObjectKind,
    /// Always true.
    deleted: bool,
}

/// Upload a file
pub(in crate::api) async fn create(access: Access, request: Request) -> Reply<Json<FileObject>> {
    upload::receive(&access, request).await.map(Json)
}

/// List the caller's files
pub(in crate::api) async fn list(
    access: Access,
    query: ListQuery,
) -> Reply<Json<List<FileObject>>> {
    let query = query.within(MAX_LISTED, MAX_LISTED)?;
    Ok(Json(
        access
            .run(move |files, owner| files.list(&owner.folder, &query))
            .await?,
    ))
}

/// Describe a file
pub(in crate::api) async fn retrieve(
    access: Access,
    InPath(id): InPath<String>,
) -> Reply<Json<FileObject>> {
    Ok(Json(find(&access, id).await?))
}

/// Delete a file
pub(in crate::api) async fn delete(
    access: Access,
    InPath(id): InPath<String>,
) -> Reply<Json<FileDeleted>> {
    let FileObject { id, object, .. } = find(&access, id).await?;
    let name = id.clone();
    access
        .run(move |files, owner| files.remove(&owner.folder, &name))
        .await?;
    Ok(Json(FileDeleted {
        id,
        object,
        deleted: true,
    }))
}

/// Download a file
pub(in crate::api) async fn content(access: Access, InPath(id): InPath<String>) -> Reply {
    let FileObject { id, bytes, .. } = find(&access, id).await?;
    let name = FileNames::new(&access.owner.folder, &id).contents;
    let open = access.run(move |files, _| match files.storage.link(&name, bytes)? {
        Some(link) => Ok(Opened::Elsewhere(link)),
        None => files.storage.open(&name).map(Opened::Here),
    });
    let (size, contents) = match open.await? {
        Opened::Elsewhere(link) => {
            return Ok((StatusCode::FOUND, [(LOCATION, link)]).into_response());
        }
        Opened::Here(contents) => contents.ok_or_else(|| unknown("file", &id))?,
    };
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, size.to_string()),
    ];
    let blocks = stream::try_unfold(
        (contents, access.files),
        |(mut contents, files)| async move {
            let read = move || {
                let mut block = Vec::with_capacity(BLOCK_BYTES);
                let read = (&mut contents)
                    .take(BLOCK_BYTES as u64)
                    .read_to_end(&mut block);
                Ok(read.map(|found| (found > 0).then(|| (Bytes::from(block), contents))))
            };
            let read = files
                .threads
                .run(read)
                .await
                .map_err(std::io::Error::other)??;
            Ok::<_, std::io::Error>(read.map(|(block, contents)| (block, (contents, files))))
        },
    );
    Ok((headers, Body::from_stream(blocks)).into_response())
}

/// Where a file's contents are read.
enum Opened {
    Here(Option<Contents>),
    Elsewhere(String),
}

async fn find(access: &Access, id: String) -> Reply<FileObject> {
    let name = id.clone();
    let found: Result<_, Error> = access
        .run(move |files, owner| files.file(&owner.folder, &name))
        .await;
    found?.ok_or_else(|| unknown("file", &id))
}
