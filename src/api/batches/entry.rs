//! Names of a batch's objects, and its place in the queue.

use super::object::{BATCH, BatchRecord};
use crate::{
    api::files::{Files, is_id},
    error::Result,
};

/// Folder for unfinished batches, each an empty object.
pub(super) const QUEUE: &str = "queue";

/// A batch and its owner's folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) owner: String,
    pub(super) id: String,
}

/// The folder with an owner's batches.
pub(super) fn folder(owner: &str) -> String {
    format!("{owner}/batches")
}

impl Entry {
    pub(super) fn new(owner: &str, id: &str) -> Self {
        Self {
            owner: owner.to_owned(),
            id: id.to_owned(),
        }
    }

    /// The entry with this name in the queue.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (owner, id) = name.split_once('.')?;
        is_id(BATCH, id).then(|| Self::new(owner, id))
    }

    /// Unfinished batches, oldest first.
    pub(super) fn all(files: &Files) -> Result<Vec<Self>> {
        let names = files.storage.list(QUEUE)?;
        let mut entries: Vec<Self> = names.iter().filter_map(|name| Self::parse(name)).collect();
        entries.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(entries)
    }

    fn name(&self, ending: &str) -> String {
        format!("{}/{}{ending}", folder(&self.owner), self.id)
    }

    pub(super) fn record(&self) -> String {
        self.name(".json")
    }

    /// The requests, which remain when their file is deleted.
    pub(super) fn requests(&self) -> String {
        self.name(".in.jsonl")
    }

    /// All responses, in the requests' order.
    pub(super) fn responses(&self) -> String {
        self.name(".out.jsonl")
    }

    fn report(&self) -> String {
        self.name(".out.jsonl.report.json")
    }

    /// Exists from the request to cancel the batch; contains its time.
    pub(super) fn cancellation(&self) -> String {
        self.name(".cancel")
    }

    /// Exists while the batch is unfinished.
    pub(super) fn queued(&self) -> String {
        format!("{QUEUE}/{}.{}", self.owner, self.id)
    }

    /// When the batch was to be cancelled.
    pub(super) fn cancelled_at(&self, files: &Files) -> Result<Option<u64>> {
        files.read(&self.cancellation())
    }

    /// The batch as its owner sees it.
    pub(super) fn read(&self, files: &Files) -> Result<Option<BatchRecord>> {
        let Some(mut record) = files.read::<BatchRecord>(&self.record())? else {
            return Ok(None);
        };
        if !record.batch.status.is_final()
            && let Some(time) = self.cancelled_at(files)?
        {
            record.batch.cancel(time);
        }
        Ok(Some(record))
    }

    /// Removes everything but the batch object, the place in the queue last.
    pub(super) fn clean(&self, files: &Files) -> Result<()> {
        for name in [
            self.requests(),
            self.responses(),
            self.report(),
            self.cancellation(),
            self.queued(),
        ] {
            files.storage.remove(&name)?;
        }
        Ok(())
    }
}
