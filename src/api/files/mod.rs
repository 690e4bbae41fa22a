//! Files that clients upload, and the outputs of batches: OpenAI's `/v1/files`.
//!
//! Each caller has a folder of its own, in which only its requests look for ids.

mod access;
pub(super) mod handlers;
mod local;
mod object;
mod s3;
mod storage;
mod threads;
mod upload;

use std::{path::Path, sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use tokio::sync::Notify;

pub(super) use self::{
    access::{Access, Owner},
    object::{
        Anchor, ExpiresAfter, FileObject, List, ListQuery, ObjectKind, Order, Purpose,
        UploadPurpose, age, is_id, new_id, now, page,
    },
    storage::{Contents, Storage},
};
use self::{local::LocalStorage, s3::S3Storage, threads::FileThreads};
use crate::{
    config::{Config, FilesConfig},
    error::{Error, Result},
    json,
    repository::s3::{Store, Url},
};

/// Unfinished uploads are removed after this time.
const MAX_UPLOAD: Duration = Duration::from_hours(24);

/// Files and batches.
#[derive(Debug)]
pub struct Files {
    /// Where the storage is, if it is in S3.
    pub(super) prefix: Option<Url>,
    pub(super) storage: Box<dyn Storage>,
    pub(super) limits: FilesConfig,
    /// Notified when batches are created or cancelled.
    pub(super) changed: Notify,
    /// For requests' work.
    threads: FileThreads,
}

/// A file's names in the storage.
pub(super) struct FileNames {
    pub(super) object: String,
    pub(super) contents: String,
}

impl FileNames {
    pub(super) fn new(owner: &str, id: &str) -> Self {
        let folder = folder(owner);
        Self {
            object: format!("{folder}/{id}{OBJECT}"),
            contents: format!("{folder}/{id}{CONTENTS}"),
        }
    }
}

const OBJECT: &str = ".json";
const CONTENTS: &str = ".jsonl";
/// Prefix for file ids.
pub(super) const FILE: &str = "file-";

fn folder(owner: &str) -> String {
    format!("{owner}/files")
}

impl Files {
    /// The configured files; `None` if there is no folder for them.
    pub fn open(config: &Config) -> Result<Option<Arc<Self>>> {
        let limits = config.files.clone();
        let Some(place) = &limits.folder else {
            return Ok(None);
        };
        let prefix = Url::of(Path::new(place)).transpose()?;
        let storage: Box<dyn Storage> = match &prefix {
            Some(prefix) => Box::new(S3Storage {
                store: Store::new(config.s3.timeout()),
                prefix: prefix.clone(),
            }),
            None => Box::new(LocalStorage::open(Path::new(place))?),
        };
        let (changed, threads) = (Notify::new(), FileThreads::default());
        Ok(Some(Arc::new(Self {
            prefix,
            storage,
            limits,
            changed,
            threads,
        })))
    }

    /// A caller's file; `None` if it is unknown or has expired.
    pub(super) fn file(&self, owner: &str, id: &str) -> Result<Option<FileObject>> {
        if !is_id(FILE, id) {
            return Ok(None);
        }
        let object: Option<FileObject> = self.read(&FileNames::new(owner, id).object)?;
        Ok(object.filter(|object| !object.has_expired(now())))
    }

    /// Reads an object in JSON.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(bytes) = self.storage.read(name)? else {
            return Ok(None);
        };
        let damaged = |error| {
            Error::inference_because(format!("`{name}` cannot be read"), json::syntax(&error))
        };
        serde_json::from_slice(&bytes).map(Some).map_err(damaged)
    }

    /// Writes an object in JSON.
    pub(super) fn write(&self, name: &str, value: &impl serde::Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(value).map_err(|error| {
            Error::inference_because(format!("`{name}` cannot be written"), error)
        })?;
        self.storage.write(name, bytes)
    }

    /// Ids of a folder's objects, oldest first.
    pub(super) fn ids(&self, folder: &str, prefix: &str) -> Result<Vec<String>> {
        let names = self.storage.list(folder)?;
        let ids = names
            .iter()
            .filter_map(|name| name.strip_suffix(OBJECT))
            .filter(|id| is_id(prefix, id));
        Ok(ids.map(str::to_owned).collect())
    }

    fn list(&self, owner: &str, query: &ListQuery) -> Result<List<FileObject>> {
        let (ids, time) = (self.ids(&folder(owner), FILE)?, now());
        page(ids, query, FILE, |id| {
            let object: Option<FileObject> = self.read(&FileNames::new(owner, id).object)?;
            let is_wanted = |object: &FileObject| {
                !object.has_expired(time)
                    && query
                        .purpose
                        .as_ref()
                        .is_none_or(|purpose| object.is_for(purpose))
            };
            Ok(object.filter(is_wanted))
        })
    }

    pub(super) fn remove(&self, owner: &str, id: &str) -> Result<()> {
        let names = FileNames::new(owner, id);
        self.storage.remove(&names.object)?;
        self.storage.remove(&names.contents)
    }

    /// Refuses a caller's next file if there are too many.
    fn make_room(&self, owner: &str) -> Result<()> {
        let max = self.limits.count;
        let count = || self.ids(&folder(owner), FILE).map(|ids| ids.len());
        if count()? < max {
            return Ok(());
        }
        self.sweep(owner)?;
        match count()? {
            found if found < max => Ok(()),
            found => Err(Error::invalid(format!(
                "expected fewer than {max} files before an upload, but found {found}; delete some"
            ))),
        }
    }

    /// Removes a caller's expired files, and what unfinished uploads have left.
    pub(super) fn sweep(&self, owner: &str) -> Result<()> {
        let (folder, time) = (folder(owner), now());
        for id in self.ids(&folder, FILE)? {
            let object: Option<FileObject> = self.read(&FileNames::new(owner, &id).object)?;
            if object.is_some_and(|object| object.has_expired(time)) {
                self.remove(owner, &id)?;
            }
        }
        let names = self.storage.list(&folder)?;
        for id in names
            .iter()
            .filter_map(|name| name.strip_suffix(CONTENTS))
            .filter(|id| is_id(FILE, id))
        {
            let is_complete = names.binary_search(&format!("{id}{OBJECT}")).is_ok();
            if !is_complete && age(FILE, id) >= MAX_UPLOAD {
                self.storage.remove(&FileNames::new(owner, id).contents)?;
            }
        }
        self.storage.tidy(&folder, MAX_UPLOAD)
    }
}
