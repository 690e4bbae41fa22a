//! S3 and S3-compatible servers. The AWS SDK is used only here.

#[cfg_attr(not(feature = "s3"), path = "disabled.rs")]
mod store;

pub mod object;
pub mod pieces;
pub mod url;

pub use self::{
    object::{Change, Condition, MIN_PART_BYTES, Multipart, Object, Part},
    pieces::{Pieces, Reader},
    store::Store,
    url::{MAX_KEY_BYTES, Url, fit_key},
};
