//! Handlers for `/v1/batches`.

use axum::Json;

pub(in crate::api) use super::object::{Batch, BatchRequest};
use super::{
    entry::{Entry, folder},
    object::{BATCH, BatchRecord, BatchStatus},
};
use crate::{
    api::{
        files::{
            Access, FileNames, Files, List, ListQuery, Owner, handlers::unknown, is_id, now, page,
        },
        rejection::Reply,
        request::{Call, InPath},
    },
    error::{Error, Result},
};

/// OpenAI's default and maximum page length.
const DEFAULT_LISTED: usize = 20;
const MAX_LISTED: usize = 100;

/// Start a batch
pub(in crate::api) async fn create(
    access: Access,
    Call(_, request): Call<BatchRequest>,
) -> Reply<Json<Batch>> {
    let file = request.input_file_id.clone();
    let created = access
        .run(move |files, owner| create_batch(files, owner, request))
        .await?;
    let batch = created.ok_or_else(|| unknown("file", &file))?;
    access.files.changed.notify_one();
    Ok(Json(batch))
}

/// Creates a batch; `None` if its file is unknown.
fn create_batch(files: &Files, owner: &Owner, request: BatchRequest) -> Result<Option<Batch>> {
    let record = BatchRecord::new(request, owner.models.clone())?;
    let Some(file) = files.file(&owner.folder, &record.batch.input_file_id)? else {
        return Ok(None);
    };
    if !file.is_input() {
        return Err(Error::invalid(
            "expected a file with the purpose `batch`, but found `batch_output`",
        ));
    }
    let max = files.limits.batches;
    let unfinished = Entry::all(files)?
        .iter()
        .filter(|entry| entry.owner == owner.folder)
        .count();
    if unfinished >= max {
        return Err(Error::invalid(format!(
            "expected fewer than {max} unfinished batches before a new one, but found {unfinished}; wait, or cancel some"
        )));
    }
    let entry = Entry::new(&owner.folder, &record.batch.id);
    if !files.storage.copy(
        &FileNames::new(&owner.folder, &file.id).contents,
        &entry.requests(),
    )? {
        return Ok(None);
    }
    files.write(&entry.record(), &record)?;
    files.write(&entry.queued(), &entry.id)?;
    Ok(Some(record.batch))
}

/// List the caller's batches
pub(in crate::api) async fn list(access: Access, query: ListQuery) -> Reply<Json<List<Batch>>> {
    let query = query.within(DEFAULT_LISTED, MAX_LISTED)?;
    let list = access.run(move |files, Owner { folder: owner, .. }| {
        let ids = files.ids(&folder(owner), BATCH)?;
        let read = |id: &str| {
            Ok(Entry::new(owner, id)
                .read(files)?
                .map(|record| record.batch))
        };
        page(ids, &query, BATCH, read)
    });
    Ok(Json(list.await?))
}

/// Describe a batch
pub(in crate::api) async fn retrieve(
    access: Access,
    InPath(id): InPath<String>,
) -> Reply<Json<Batch>> {
    with_batch(&access, id, |_, _, batch| Ok(batch)).await
}

/// Cancel a batch
pub(in crate::api) async fn cancel(
    access: Access,
    InPath(id): InPath<String>,
) -> Reply<Json<Batch>> {
    let batch = with_batch(&access, id, |files, entry, mut batch| match batch.status {
        BatchStatus::Cancelling => Ok(batch),
        status if status.is_final() => Err(Error::invalid(format!(
            "expected an unfinished batch, but `{}` has ended",
            batch.id
        ))),
        _ => {
            let time = now();
            files.write(&entry.cancellation(), &time)?;
            batch.cancel(time);
            Ok(batch)
        }
    });
    let batch = batch.await?;
    access.files.changed.notify_one();
    Ok(batch)
}

async fn with_batch(
    access: &Access,
    id: String,
    work: impl FnOnce(&Files, &Entry, Batch) -> Result<Batch> + Send + 'static,
) -> Reply<Json<Batch>> {
    let name = id.clone();
    let found = access.run(move |files, owner| {
        if !is_id(BATCH, &name) {
            return Ok(None);
        }
        let entry = Entry::new(&owner.folder, &name);
        let record = entry.read(files)?;
        record
            .map(|record| work(files, &entry, record.batch))
            .transpose()
    });
    found.await?.map(Json).ok_or_else(|| unknown("batch", &id))
}
