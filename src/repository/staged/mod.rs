//! Bundles in S3: `<prefix>/<name>/<digest>/` with the manifest written last, and `<prefix>/<name>/latest`, which
//! names a digest.

mod pull;
mod push;

use std::str;

use super::{
    bundle::{Bundle, Home, MANIFEST},
    s3::{Object, Store, Url},
};
use crate::error::{Error, Result};

pub use self::{
    pull::{cached, pull},
    push::{Pushed, push},
};

/// The name of the object that names a digest.
const LATEST: &str = "latest";
/// What an object's metadata calls the BLAKE3 of its contents.
const BLAKE3: &str = "blake3";

/// Opens the bundle at `url`, which is `…/NAME`, whose `latest` is taken, or `…/NAME/DIGEST`.
pub(super) fn open(store: &Store, url: &Url) -> Result<Bundle> {
    let home = if is_digest(url.name()) { url.clone() } else { url.join(&latest(store, url)?) };
    let manifest = home.join(MANIFEST);
    let (bytes, _) = store.read(&manifest)?.ok_or_else(|| {
        Error::model(format!(
            "expected a bundle at `{home}`, but found no `{MANIFEST}`; `kivu push` writes it last"
        ))
    })?;
    let text = str::from_utf8(&bytes)
        .map_err(|error| Error::model_because(format!("`{home}` is no bundle"), error))?;
    let bundle = Bundle::parse(text, Home::S3(store.clone(), home.clone()), &home)?;
    if bundle.digest() != home.name() {
        return Err(Error::model(format!(
            "expected the manifest at `{home}` to have the SHA-256 in its URL, but found {}; push the bundle again",
            bundle.digest()
        )));
    }
    Ok(bundle)
}

/// The digest that `latest` names.
fn latest(store: &Store, name: &Url) -> Result<String> {
    let place = name.join(LATEST);
    let (bytes, _) = store.read(&place)?.ok_or_else(|| {
        Error::model(format!(
            "expected a bundle at `{name}`, but found no `{LATEST}`; `kivu push` puts bundles there"
        ))
    })?;
    digest_in(&bytes, &place)
}

/// The digest that an object called [`LATEST`] holds.
fn digest_in(bytes: &[u8], place: &Url) -> Result<String> {
    let digest = String::from_utf8_lossy(bytes).trim().to_owned();
    if is_digest(&digest) {
        return Ok(digest);
    }
    Err(Error::model(format!(
        "expected a digest in `{place}`, but found {} bytes of something else",
        bytes.len()
    )))
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reads a file of a bundle piece by piece; gives its size. No version is asked for: its hash decides.
pub(super) fn read_through(store: &Store, url: &Url, size: u64, mut take: impl FnMut(&[u8])) -> Result<u64> {
    let object = Object { size, ..Object::default() };
    for piece in store.pieces(url, &object, 0..size) {
        piece?.iter().for_each(|chunk| take(chunk));
    }
    Ok(size)
}
