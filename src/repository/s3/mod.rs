//! Objects in S3 and S3-compatible servers.

pub mod object;
pub mod pieces;
mod store;
pub mod url;

pub use self::{
    object::{Change, Condition, MIN_PART_BYTES, Multipart, Object, Part},
    pieces::{Pieces, Reader},
    store::Store,
    url::{MAX_KEY_BYTES, Url, fit_key},
};
