//! Fetching a bundle from S3 into a folder, atomically; an interrupted fetch is resumed.

use std::{
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::Path,
    sync::Arc,
};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::repository::{
    Bundle, Meter,
    bundle::{Home, MANIFEST},
    folder::{self, Destination, sibling},
    manifest,
    s3::{Object, Store, Url},
};
use kivu_base::{Error, Result, hexadecimal::hex};

/// Fetches `bundle` into the folder `out`; `false` if the folder already contains it.
///
/// Another bundle is replaced, any other folder is refused. Until it is complete, the bundle is in a folder next to
/// `out`, from which the next attempt resumes.
pub fn pull(bundle: &Bundle, out: &Path, meter: &dyn Meter) -> Result<bool> {
    if let Ok(known) = Bundle::open(out)
        && known.digest() == bundle.digest()
        && known.verify().is_ok()
    {
        return Ok(false);
    }
    let destination = Destination::new(out)?;
    let partial = destination.sibling(&format!("partial-{}", &bundle.digest()[..12]));
    folder::require_partial(&partial, &bundle.manifest().files)?;
    fetch(bundle, &partial, meter)?;
    destination.replace(&partial)?;
    Ok(true)
}

/// The bundle in the folder `cache`, fetched if necessary. Several processes may do this at the same time.
///
/// Its manifest is verified, and other files when they are read; [`refetch`] replaces damaged ones.
pub fn cached(bundle: &Bundle, cache: &Path) -> Result<Bundle> {
    match open_cached(bundle, cache) {
        Some(known) => Ok(known),
        None => refetch(bundle, cache),
    }
}

fn open_cached(bundle: &Bundle, cache: &Path) -> Option<Bundle> {
    Bundle::open(&cache.join(bundle.digest()))
        .ok()
        .filter(|known| known.digest() == bundle.digest())
}

/// Fetches the bundle into the folder `cache`, replacing a damaged one.
pub fn refetch(bundle: &Bundle, cache: &Path) -> Result<Bundle> {
    let folder = cache.join(bundle.digest());
    let unique = || sibling(&folder, &Uuid::new_v4().to_string());
    let partial = unique();
    let fetched = fetch(bundle, &partial, &()).and_then(|()| {
        // Another process may have fetched the same bundle first.
        let is_intact = || open_cached(bundle, cache).is_some_and(|known| known.verify().is_ok());
        if fs::rename(&partial, &folder).is_ok() || is_intact() {
            return Ok(());
        }
        let damaged = unique();
        let failed = || Error::cannot("replace the damaged bundle in", folder.display());
        fs::rename(&folder, &damaged).map_err(failed())?;
        let replaced = fs::rename(&partial, &folder);
        let _ = fs::remove_dir_all(&damaged);
        // Another process may have replaced it in between.
        if replaced.is_ok() || is_intact() {
            Ok(())
        } else {
            replaced.map_err(failed())
        }
    });
    // Later starts ignore whatever remains.
    let _ = fs::remove_dir_all(&partial);
    fetched?;
    Bundle::open(&folder)
}

/// Fetches all files into `folder`, the manifest last.
fn fetch(bundle: &Bundle, folder: &Path, meter: &dyn Meter) -> Result<()> {
    let Home::S3(store, url) = bundle.home() else {
        return Err(Error::config(format!(
            "expected a bundle in S3, but found `{}`",
            bundle.path("").display()
        )));
    };
    let files = &bundle.manifest().files;
    meter.begin("pull", files.iter().map(|file| file.size).sum());
    let create = |folder: &Path| {
        fs::create_dir_all(folder).map_err(Error::cannot("create", folder.display()))
    };
    create(folder)?;
    for file in files {
        let path = folder.join(&file.name);
        create(path.parent().unwrap_or(folder))?;
        fetch_file(store, &url.join(&file.name), file, &path, meter)?;
    }
    let path = folder.join(MANIFEST);
    let manifest = url.join(MANIFEST);
    let (text, _) = store.read(&manifest)?.ok_or_else(|| {
        Error::model(format!("`{manifest}` was deleted during the download"))
            .with_hint("run the command again")
    })?;
    if hex(&Sha256::digest(&text)) != bundle.digest() {
        return Err(Error::model(format!(
            "expected `{manifest}` to stay as it was during the download, but found another one"
        ))
        .with_hint("push the bundle again"));
    }
    fs::write(&path, text).map_err(Error::cannot("write", path.display()))
}

fn fetch_file(
    store: &Arc<dyn Store>,
    url: &Url,
    file: &manifest::File,
    path: &Path,
    meter: &dyn Meter,
) -> Result<()> {
    let failed = || Error::cannot("write", path.display());
    let target = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(path);
    let mut target = target.map_err(failed())?;
    let mut hash = blake3::Hasher::new();
    let mut known = hash.update_reader(&mut target).map_err(failed())?.count();
    meter.advance(known.min(file.size));
    let object = Object {
        size: file.size,
        ..Object::default()
    };
    loop {
        for piece in store.pieces(url, &object, known..file.size)? {
            for chunk in piece? {
                target.write_all(&chunk).map_err(failed())?;
                hash.update(&chunk);
                meter.advance(chunk.len() as u64);
            }
        }
        let digest = hash.finalize().to_hex();
        if digest.as_str() == file.blake3 {
            return Ok(());
        }
        if known == 0 {
            // The next attempt starts from the beginning.
            let _ = fs::remove_file(path);
            return Err(Error::model(format!(
                "expected `{url}` to have the BLAKE3 {}, but found {digest}",
                file.blake3
            ))
            .with_hint("the bundle is damaged: push it again"));
        }
        // An earlier attempt's part is damaged.
        target
            .set_len(0)
            .and_then(|()| target.seek(SeekFrom::Start(0)))
            .map_err(failed())?;
        (hash, known) = (blake3::Hasher::new(), 0);
    }
}
