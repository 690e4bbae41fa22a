//! The interface to S3 and S3-compatible servers, which the crate `kivu-aws` implements.

use std::{fmt, ops::Range};

use bytes::Bytes;

use super::{
    object::{Change, Condition, Multipart, Object, Part},
    pieces::Pieces,
    url::Url,
};
use kivu_base::Result;

/// A server with objects.
///
/// Every method can be called from any thread, inside or outside an async runtime, and waits for its result. It repeats
/// requests that may succeed later.
pub trait Store: fmt::Debug + Send + Sync {
    /// Closes all connections and forgets credentials; the next request gets new ones.
    fn disconnect(&self);

    /// An object's properties without its version, so that any version with this ETag is read; `None` if it does not
    /// exist.
    fn head(&self, url: &Url) -> Result<Option<Object>> {
        Ok(self.current(url)?.map(|object| Object {
            version: None,
            ..object
        }))
    }

    /// Properties of the current object with its version, if it has one; `None` if it does not exist or was deleted.
    fn current(&self, url: &Url) -> Result<Option<Object>>;

    /// How the object at `url` has changed since it was `object`, if it has.
    fn change(&self, url: &Url, object: &Object) -> Result<Option<Change>> {
        Ok(match self.current(url)? {
            None => Some(Change::Deleted),
            Some(current) if current.is_version(object.version.as_deref(), Some(&object.etag)) => {
                None
            }
            Some(_) => Some(Change::Replaced),
        })
    }

    /// A small object; `None` if it does not exist.
    fn read(&self, url: &Url) -> Result<Option<(Bytes, Object)>>;

    /// Sorted keys that begin with the key in `prefix`.
    fn list(&self, prefix: &Url) -> Result<Vec<String>> {
        Ok(self
            .list_tags(prefix)?
            .into_iter()
            .map(|(key, _)| key)
            .collect())
    }

    /// Sorted keys that begin with the key in `prefix`, with the objects' ETags.
    fn list_tags(&self, prefix: &Url) -> Result<Vec<(String, String)>>;

    /// An object's bytes in `range`, in order. Ranges are read ahead in parallel.
    ///
    /// If the object is replaced meanwhile, the iterator ends with an error.
    fn pieces(&self, url: &Url, object: &Object, range: Range<u64>) -> Result<Pieces>;

    /// Writes an object in one request and returns its ETag; `None` if the condition is false.
    fn put(&self, url: &Url, bytes: Bytes, condition: &Condition) -> Result<Option<String>>;

    /// Deletes an object, if it exists.
    fn delete(&self, url: &Url) -> Result<()>;

    /// Begins a multipart upload for an object with one metadata entry.
    fn begin(&self, url: &Url, name: &str, value: &str) -> Result<Multipart>;

    /// Uploads one part; `None` if the upload does not exist any more.
    fn upload(&self, upload: &Multipart, number: i32, bytes: Bytes) -> Result<Option<Part>>;

    /// Creates the object from its parts; `false` if the condition is false or the upload does not exist any more, for
    /// example because another process completed it.
    fn complete(&self, upload: &Multipart, parts: &[Part], condition: &Condition) -> Result<bool>;

    /// Whether an upload still exists.
    fn has_upload(&self, upload: &Multipart) -> Result<bool>;

    /// Deletes an upload and its parts.
    fn abort(&self, upload: &Multipart) -> Result<()>;
}
