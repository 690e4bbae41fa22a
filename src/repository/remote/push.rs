//! Uploading a bundle to S3, in parallel parts; an interrupted upload is resumed.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{BLAKE3, LATEST, digest_in};
use crate::repository::{
    Bundle, Meter,
    bundle::MANIFEST,
    manifest,
    s3::{Condition, Multipart, Object, Part, Store, Url},
    sealed,
};
use kivu_base::{Error, Result, hexadecimal::hex, locked, regular_file};

/// Part size in bytes. S3 accepts 10,000 parts, which is 80 GB per file.
const PART_BYTES: u64 = 8 * 1024 * 1024;
/// Parts that are uploaded at once.
const PARALLEL: usize = 4;

/// Uploads a local bundle to `PREFIX/NAME/DIGEST/` and points `latest` to it; `false` if all its files existed.
///
/// - The manifest is written last; a bundle without one cannot be opened.
/// - Existing files are skipped; an existing bundle's missing files are uploaded.
/// - `notes` is a local folder for the upload state, for resuming it.
///
/// # Errors
/// - An object that `push` did not write: a `latest` without a digest, or another file instead of the manifest.
/// - Another process changed `latest` during the push; it is not overwritten.
pub fn push(
    store: &Arc<dyn Store>,
    bundle: &Bundle,
    prefix: &Url,
    notes: &Path,
    meter: &dyn Meter,
) -> Result<bool> {
    let name = prefix.join(&bundle.manifest().name);
    let (place, latest) = (name.join(bundle.digest()), name.join(LATEST));
    let before = store.read(&latest)?;
    if let Some((bytes, _)) = &before {
        digest_in(bytes, &latest)?;
    }
    let manifest = place.join(MANIFEST);
    let has_manifest = match store.read(&manifest)? {
        None => false,
        Some((bytes, _)) if hex(&Sha256::digest(&bytes)) == bundle.digest() => true,
        Some(_) => {
            return Err(
                Error::config(format!("`{manifest}` is not the bundle's manifest"))
                    .with_hint("choose another prefix, or remove it"),
            );
        }
    };
    let mut is_new = send_files(store, bundle, &place, notes, meter)?;
    if !has_manifest {
        let path = bundle.path(MANIFEST);
        let text = regular_file::read(&path).map_err(Error::cannot("read", path.display()))?;
        // If another process wrote it first, it is the same manifest, since its digest is in its URL.
        store.put(&manifest, text.into(), &Condition::IsAbsent)?;
        is_new = true;
    }
    let condition = match &before {
        None => Condition::IsAbsent,
        Some((digest, _)) if digest == bundle.digest() => return Ok(is_new),
        Some((_, object)) => Condition::IsStill(object.etag.clone()),
    };
    if store
        .put(&latest, bundle.digest().to_owned().into(), &condition)?
        .is_none()
    {
        let now = store.read(&latest)?;
        if now.is_none_or(|(digest, _)| digest != bundle.digest()) {
            return Err(Error::config(format!(
                "another process changed `{latest}` during the push"
            ))
            .with_hint(format!(
                "the bundle is at `{place}`: push it again to point `latest` to it"
            )));
        }
    }
    Ok(is_new)
}

/// A file that is being uploaded.
struct Upload<'a> {
    file: &'a manifest::File,
    source: File,
    target: Url,
    note: Note,
}

/// Uploads the files that the store lacks; `false` if there are none.
fn send_files(
    store: &Arc<dyn Store>,
    bundle: &Bundle,
    place: &Url,
    notes: &Path,
    meter: &dyn Meter,
) -> Result<bool> {
    let mut missing = Vec::new();
    for file in &bundle.manifest().files {
        let target = place.join(&file.name);
        if !is_stored(store, file, &target)? {
            missing.push((file, target));
        }
    }
    if missing.is_empty() {
        return Ok(false);
    }
    bundle.verify()?;
    meter.begin("push", missing.iter().map(|(file, _)| file.size).sum());
    let mut sending = Vec::new();
    for (file, target) in missing {
        let path = bundle.path(&file.name);
        let source = regular_file::open(&path).map_err(Error::cannot("read", path.display()))?;
        let note = Note::take_up(store, notes, &target, file)?;
        meter.advance(note.uploaded_bytes());
        sending.push(Upload {
            file,
            source,
            target,
            note,
        });
    }
    let mut parts: Vec<(usize, i32)> = Vec::new();
    for (place, sending) in sending.iter().enumerate() {
        parts.extend(
            sending
                .note
                .missing(sending.file)
                .map(|number| (place, number)),
        );
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((place, number)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            sending[*place]
                .send_part(store, *number, meter)
                .inspect_err(|_| {
                    // Stops the other workers.
                    next.store(parts.len(), Ordering::Relaxed);
                })?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err(Error::model("uploading the bundle panicked"));
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(panicked))
    })?;
    sending
        .into_iter()
        .try_for_each(|sending| sending.finish(store))?;
    Ok(true)
}

/// Whether the store has the complete file. Reads the contents, since a damaged object may still have the right
/// metadata.
fn is_stored(store: &Arc<dyn Store>, file: &manifest::File, target: &Url) -> Result<bool> {
    let is_same = |object: &Object| {
        object.size == file.size && object.metadata.get(BLAKE3) == Some(&file.blake3)
    };
    let Some(object) = store.head(target)?.filter(is_same) else {
        return Ok(false);
    };
    let mut hash = blake3::Hasher::new();
    for piece in store.pieces(target, &object, 0..object.size)? {
        for chunk in piece? {
            hash.update(&chunk);
        }
    }
    Ok(hash.finalize().to_hex().as_str() == file.blake3)
}

impl Upload<'_> {
    fn send_part(&self, store: &Arc<dyn Store>, number: i32, meter: &dyn Meter) -> Result<()> {
        let start = (number as u64 - 1) * PART_BYTES;
        let mut bytes = vec![0; PART_BYTES.min(self.file.size - start) as usize];
        self.source
            .read_exact_at(&mut bytes, start)
            .map_err(Error::io(format!("cannot read `{}`", self.file.name)))?;
        let size = bytes.len() as u64;
        match store.upload(&self.note.upload, number, bytes.into())? {
            Some(part) => self.note.add(part)?,
            // Another process that pushes this bundle has completed the upload.
            None if is_stored(store, self.file, &self.target)? => {}
            None => return Err(self.lost()),
        }
        meter.advance(size);
        Ok(())
    }

    fn finish(self, store: &Arc<dyn Store>) -> Result<()> {
        let parts = self.note.parts();
        // Another process that pushes this bundle writes the same bytes, so that an existing object may be replaced.
        let is_done = store.complete(&self.note.upload, &parts, &Condition::None)?;
        self.note.forget();
        if is_done || is_stored(store, self.file, &self.target)? {
            Ok(())
        } else {
            Err(self.lost())
        }
    }

    fn lost(&self) -> Error {
        self.note.forget();
        Error::model(format!(
            "the server no longer has the upload of `{}`",
            self.target
        ))
        .with_hint("push the bundle again")
    }
}

/// Upload state, in a local file.
struct Note {
    path: PathBuf,
    upload: Multipart,
    parts: Mutex<Vec<Part>>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    upload: Multipart,
    part_bytes: u64,
    parts: Vec<Part>,
}

impl Written {
    /// Note contents. A damaged note is ignored.
    fn encode(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::model_because("the upload state cannot be written", error))?;
        Ok(sealed::seal(&text))
    }

    fn parse(note: &[u8]) -> Option<Self> {
        serde_json::from_slice(sealed::open(note)?).ok()
    }
}

impl Note {
    /// Resumes an earlier attempt's upload, or begins one.
    fn take_up(
        store: &Arc<dyn Store>,
        notes: &Path,
        target: &Url,
        file: &manifest::File,
    ) -> Result<Self> {
        let path = notes.join(format!(
            "{}.json",
            blake3::hash(target.to_string().as_bytes()).to_hex()
        ));
        let written = regular_file::read(&path)
            .ok()
            .and_then(|note| Written::parse(&note));
        if let Some(Written {
            upload,
            part_bytes: PART_BYTES,
            parts,
        }) = written
            && store.has_upload(&upload)?
        {
            return Ok(Self {
                path,
                upload,
                parts: Mutex::new(parts),
            });
        }
        let upload = store.begin(target, BLAKE3, &file.blake3)?;
        Ok(Self {
            path,
            upload,
            parts: Mutex::default(),
        })
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = locked(&self.parts).clone();
        parts.sort_by_key(|part| part.number);
        parts
    }

    /// The uploaded bytes.
    fn uploaded_bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.size).sum()
    }

    /// Part numbers that are not uploaded; an empty file has one empty part.
    fn missing(&self, file: &manifest::File) -> impl Iterator<Item = i32> + use<> {
        let known: Vec<i32> = self.parts().iter().map(|part| part.number).collect();
        (1..=file.size.div_ceil(PART_BYTES).max(1) as i32)
            .filter(move |number| !known.contains(number))
    }

    fn add(&self, part: Part) -> Result<()> {
        let mut parts = locked(&self.parts);
        parts.push(part);
        let written = Written {
            upload: self.upload.clone(),
            part_bytes: PART_BYTES,
            parts: parts.clone(),
        };
        let text = written.encode()?;
        let failed = || Error::cannot("write", self.path.display());
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed())?;
        // Another process may push the same bundle.
        let mut note = NamedTempFile::new_in(folder).map_err(failed())?;
        note.write_all(&text).map_err(failed())?;
        note.persist(&self.path)
            .map(drop)
            .map_err(|refused| failed()(refused.error))
    }

    fn forget(&self) {
        // A leftover note is ignored, since its upload does not exist.
        let _ = fs::remove_file(&self.path);
    }
}
