//! Bundles in S3: `PREFIX/NAME/DIGEST/` with the files and the manifest, which is written last, and
//! `PREFIX/NAME/latest`, which contains a digest.

mod pull;
mod push;

use std::{str, sync::Arc};

use super::{
    bundle::{Bundle, Home, MANIFEST},
    s3::{Store, Url},
};
use kivu_base::{Error, Result};

pub use self::{
    pull::{cached, pull, refetch},
    push::push,
};

/// Name of the object with the newest bundle's digest.
const LATEST: &str = "latest";
/// Metadata key for the BLAKE3 of an object's contents.
const BLAKE3: &str = "blake3";

/// Opens the bundle at `url`, which is `…/NAME` for the latest one, or `…/NAME/DIGEST`.
pub fn open(store: &Arc<dyn Store>, url: &Url) -> Result<Bundle> {
    let home = if is_digest(url.name()) {
        url.clone()
    } else {
        url.join(&latest(store, url)?)
    };
    let (bytes, _) = store.read(&home.join(MANIFEST))?.ok_or_else(|| {
        Error::model(format!(
            "expected a bundle at `{home}`, but found no `{MANIFEST}`"
        ))
        .with_hint("`kivu push` writes it last")
    })?;
    let text = str::from_utf8(&bytes)
        .map_err(|error| Error::model_because(format!("`{home}` is not a bundle"), error))?;
    let bundle = Bundle::parse(text, Home::S3(Arc::clone(store), home.clone()), &home)?;
    if bundle.digest() != home.name() {
        return Err(Error::model(format!(
            "expected the manifest at `{home}` to have the SHA-256 in its URL, but found {}",
            bundle.digest()
        ))
        .with_hint("remove it and push the bundle again"));
    }
    Ok(bundle)
}

/// A bundle that [`list`] found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its URL, `…/NAME` or `…/NAME/DIGEST`.
    pub url: Url,
    /// The URL to open, which has the digest if it is known.
    pub open: Url,
    /// A text that changes when a newer bundle is pushed.
    pub tag: String,
}

/// The bundles at `url`: a bundle, or all bundles whose names follow it, sorted.
pub fn list(store: &Arc<dyn Store>, url: &Url) -> Result<Vec<Found>> {
    if is_digest(url.name()) {
        return Ok(vec![Found {
            url: url.clone(),
            open: url.clone(),
            tag: url.name().to_owned(),
        }]);
    }
    let place = url.join(LATEST);
    if let Some((bytes, _)) = store.read(&place)? {
        let tag = digest_in(&bytes, &place)?;
        return Ok(vec![Found {
            url: url.clone(),
            open: url.join(&tag),
            tag,
        }]);
    }
    let folder = url.join("");
    let bundle = |(key, tag): (String, String)| {
        let name = key
            .strip_prefix(&folder.key)?
            .strip_suffix(LATEST)?
            .strip_suffix('/')?;
        let is_name = !name.is_empty() && !name.contains('/');
        is_name.then(|| Found {
            url: url.join(name),
            open: url.join(name),
            tag,
        })
    };
    let found: Vec<_> = store
        .list_tags(&folder)?
        .into_iter()
        .filter_map(bundle)
        .collect();
    if found.is_empty() {
        // Fails, with an error that suggests what to do.
        latest(store, url)?;
    }
    Ok(found)
}

/// Newest digest of the bundle `name`, from the object [`LATEST`].
fn latest(store: &Arc<dyn Store>, name: &Url) -> Result<String> {
    let place = name.join(LATEST);
    let (bytes, _) = store.read(&place)?.ok_or_else(|| {
        Error::model(format!(
            "expected a bundle at `{name}`, but found no `{LATEST}`"
        ))
        .with_hint("`kivu push` puts bundles there")
    })?;
    digest_in(&bytes, &place)
}

/// Parses a [`LATEST`] object.
fn digest_in(bytes: &[u8], place: &Url) -> Result<String> {
    let digest = String::from_utf8_lossy(bytes).trim().to_owned();
    if is_digest(&digest) {
        return Ok(digest);
    }
    Err(Error::model(format!(
        "expected a digest in `{place}`, but found {} bytes of other data",
        bytes.len()
    ))
    .with_hint("remove it and push the bundle again"))
}

fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
