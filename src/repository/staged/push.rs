//! Sending a bundle to S3: in parts side by side, going on where an earlier attempt stopped.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{BLAKE3, LATEST, digest_in};
use crate::{
    error::{Error, Result},
    repository::{
        Bundle, Meter,
        bundle::{MANIFEST, hex},
        manifest,
        s3::{Condition, Multipart, Part, Store, Url},
    },
};

/// What one request sends. S3 takes 10,000 parts: files of up to 80 GB.
const PART_BYTES: u64 = 8 * 1024 * 1024;
/// Requests under way at once.
const PARALLEL: usize = 4;

/// What came of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The bundle was sent.
    Sent,
    /// It was there already.
    Known,
}

/// Sends `bundle`, a folder of this machine, to `<prefix>/<name>/<digest>/` and lets `latest` name it.
///
/// - What is written is readable only once the manifest is there, which comes last.
/// - Objects that no push wrote are an error: a `latest` that holds no digest, another file in place of the manifest.
/// - Of a bundle that is there, files that are missing are sent again.
/// - Where `latest` was moved by somebody else meanwhile, it stays as they left it, and that is an error.
/// - `notes` is a folder for remembering what was sent, should this be interrupted.
pub fn push(store: &Store, bundle: &Bundle, prefix: &Url, notes: &Path, meter: &dyn Meter) -> Result<Pushed> {
    let name = prefix.join(&bundle.manifest().name);
    let (place, latest) = (name.join(bundle.digest()), name.join(LATEST));
    let before = store.read(&latest)?;
    if let Some((bytes, _)) = &before {
        digest_in(bytes, &latest)?;
    }
    let manifest = place.join(MANIFEST);
    let is_there = match store.read(&manifest)? {
        None => false,
        Some((bytes, _)) if hex(&Sha256::digest(&bytes)) == bundle.digest() => true,
        Some(_) => {
            return Err(Error::config(format!(
                "expected the manifest of the bundle at `{manifest}`, but found another file; choose another prefix"
            )));
        }
    };
    let mut pushed = send_files(store, bundle, &place, notes, meter)?;
    if !is_there {
        let path = bundle.path(MANIFEST);
        let text = fs::read(&path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        // Somebody else may have written the same; it is the same, since its digest is in its name.
        store.put(&manifest, text, &Condition::IsAbsent, &BTreeMap::new())?;
        pushed = Pushed::Sent;
    }
    let condition = match &before {
        None => Condition::IsAbsent,
        Some((digest, _)) if digest == bundle.digest() => return Ok(pushed),
        Some((_, object)) => Condition::IsStill(object.etag.clone()),
    };
    if store.put(&latest, bundle.digest().to_owned(), &condition, &BTreeMap::new())?.is_none() {
        let now = store.read(&latest)?;
        if now.is_none_or(|(digest, _)| digest != bundle.digest()) {
            return Err(Error::config(format!(
                "expected `{latest}` to stay as it was during the push, but somebody else moved it; \
                 the bundle is at `{place}`: push it again to move `latest` to it"
            )));
        }
    }
    Ok(pushed)
}

/// A file on its way, and what the server has of it.
struct Sending<'a> {
    file: &'a manifest::File,
    source: File,
    target: Url,
    note: Note,
}

/// Sends the files that the server lacks.
fn send_files(
    store: &Store,
    bundle: &Bundle,
    place: &Url,
    notes: &Path,
    meter: &dyn Meter,
) -> Result<Pushed> {
    let mut missing = Vec::new();
    for file in &bundle.manifest().files {
        let target = place.join(&file.name);
        if !is_there(store, file, &target)? {
            missing.push((file, target));
        }
    }
    if missing.is_empty() {
        return Ok(Pushed::Known);
    }
    bundle.verify(&[])?;
    meter.begin("push", missing.iter().map(|(file, _)| file.size).sum());
    let mut sending = Vec::new();
    for (file, target) in missing {
        let path = bundle.path(&file.name);
        let source = File::open(&path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        let note = Note::take_up(store, notes, &target, file)?;
        meter.advance(note.known());
        sending.push(Sending { file, source, target, note });
    }
    let mut parts: Vec<(usize, i32)> = Vec::new();
    for (place, sending) in sending.iter().enumerate() {
        parts.extend(sending.note.missing(sending.file).map(|number| (place, number)));
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((place, number)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            sending[*place].send_part(store, *number, meter).inspect_err(|_| {
                // The others need not begin anything more.
                next.store(parts.len(), Ordering::Relaxed);
            })?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err(Error::model("sending the bundle panicked"));
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(panicked))
    })?;
    sending.into_iter().try_for_each(|sending| sending.finish(store))?;
    Ok(Pushed::Sent)
}

/// Whether the server has the file, whole.
fn is_there(store: &Store, file: &manifest::File, target: &Url) -> Result<bool> {
    let object = store.head(target, None)?;
    Ok(object
        .is_some_and(|object| object.size == file.size && object.metadata.get(BLAKE3) == Some(&file.blake3)))
}

impl Sending<'_> {
    fn send_part(&self, store: &Store, number: i32, meter: &dyn Meter) -> Result<()> {
        let start = (number as u64 - 1) * PART_BYTES;
        let mut bytes = vec![0; PART_BYTES.min(self.file.size - start) as usize];
        self.source
            .read_exact_at(&mut bytes, start)
            .map_err(Error::io(format!("cannot read `{}`", self.file.name)))?;
        let size = bytes.len() as u64;
        let part = store.upload(&self.note.upload, number, bytes)?.ok_or_else(|| self.forgotten())?;
        self.note.add(part)?;
        meter.advance(size);
        Ok(())
    }

    fn finish(self, store: &Store) -> Result<()> {
        let parts = self.note.parts();
        // Whoever else sends this bundle sends the same bytes: what is there may be replaced by it.
        let is_done = store.complete(&self.note.upload, &parts, &Condition::None)?;
        self.note.forget();
        if is_done || is_there(store, self.file, &self.target)? { Ok(()) } else { Err(self.forgotten()) }
    }

    fn forgotten(&self) -> Error {
        self.note.forget();
        Error::model(format!(
            "the server no longer knows of the upload of `{}`; push the bundle again",
            self.target
        ))
    }
}

/// What is remembered on this machine of a file that is being sent.
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

impl Note {
    /// What an earlier attempt left, or the beginning of a new one.
    fn take_up(store: &Store, notes: &Path, target: &Url, file: &manifest::File) -> Result<Self> {
        let path = notes.join(format!("{}.json", blake3::hash(target.to_string().as_bytes()).to_hex()));
        let written = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Written>(&text).ok());
        if let Some(Written { upload, part_bytes: PART_BYTES, parts }) = written
            && store.knows(&upload)?
        {
            return Ok(Self { path, upload, parts: Mutex::new(parts) });
        }
        let metadata = BTreeMap::from([(BLAKE3.to_owned(), file.blake3.clone())]);
        Ok(Self { path, upload: store.begin(target, &metadata)?, parts: Mutex::default() })
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        parts.sort_by_key(|part| part.number);
        parts
    }

    /// The bytes that the server has.
    fn known(&self) -> u64 {
        self.parts().iter().map(|part| part.size).sum()
    }

    /// The numbers of the parts that it lacks; an empty file is one empty part.
    fn missing(&self, file: &manifest::File) -> impl Iterator<Item = i32> + use<> {
        let known: Vec<i32> = self.parts().iter().map(|part| part.number).collect();
        (1..=file.size.div_ceil(PART_BYTES).max(1) as i32).filter(move |number| !known.contains(number))
    }

    fn add(&self, part: Part) -> Result<()> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.push(part);
        let written = Written { upload: self.upload.clone(), part_bytes: PART_BYTES, parts: parts.clone() };
        let text = serde_json::to_vec(&written)
            .map_err(|error| Error::model_because("what was sent cannot be noted", error))?;
        let failed = || Error::io(format!("cannot write `{}`", self.path.display()));
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed())?;
        let scratch = self.path.with_extension("new");
        fs::write(&scratch, text).and_then(|()| fs::rename(&scratch, &self.path)).map_err(failed())
    }

    fn forget(&self) {
        // A note of an upload that is over is found out when it is taken up.
        let _ = fs::remove_file(&self.path);
    }
}
