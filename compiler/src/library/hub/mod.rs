//! Hugging Face hub models, downloaded into `huggingface_hub`'s cache.
//!
//! The `hf-hub` crate is not used: it neither resumes downloads nor checks SHA-256, and brings more than 100 crates.
//! These files need two small crates beyond Kivu's other dependencies.

mod cache;
pub mod client;
mod connect;
mod download;
pub mod repository_name;
mod selection;

use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use rustix::fs::statvfs;
use sha2::{Digest, Sha256};
use tokio::runtime::Builder;

pub use self::repository_name::RepositoryName;
use self::{
    cache::{RepositoryCache, verify},
    client::{Hub, HubFile, Listing},
    download::Snapshot,
    selection::{Paths, base},
};
use kivu::{Error, Result, config::HubConfig, hexadecimal::hex, repository::Meter};

/// Maximum size for a download without a progress bar, in bytes.
const MAX_SMALL_BYTES: u64 = 1 << 20;
/// Maximum number of concurrent downloads.
const CONCURRENCY: usize = 4;

/// The file that determines an embedding model's vectors.
const MODULES: &str = "modules.json";
/// A file in every repository; only full repository downloads include it.
const OF_WHOLE_DOWNLOADS: &str = ".gitattributes";

/// A repository with its files in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Identifies the files: the commit, or a hash if they come from several repositories or are not all known.
    pub id: String,
    /// Whether all files in the repositories are known. Another program may have downloaded only some.
    pub is_complete: bool,
    /// The name and the commit, as `ORG/NAME@COMMIT`.
    pub origin: String,
    /// The commit's full hash.
    pub commit: String,
    /// The model's folder.
    pub folder: PathBuf,
    /// The adapter's folder, if the repository has one; `folder` is its base's.
    pub adapter: Option<PathBuf>,
    /// The folder with the encoder's tokenizer and config, if they are in another repository.
    pub encoder: Option<PathBuf>,
}

/// Downloads the repository files that a build needs. Existing files are verified.
///
/// # Errors
/// If the repository does not exist, cannot be read, or has no model that Kivu supports, or if a file does not have its
/// hash.
pub fn fetch(name: &RepositoryName, config: &HubConfig, meter: &dyn Meter) -> Result<Fetched> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime
        .map_err(Error::io("cannot start a runtime"))?
        .block_on(async {
            let (fetched, others) = fetch_one(name, RepositoryPart::Model, config, meter).await?;
            if let Some(encoder) = others.encoder {
                let (encoder, _) =
                    fetch_one(&encoder.parse()?, RepositoryPart::Settings, config, meter).await?;
                return Ok(Fetched {
                    encoder: Some(encoder.folder.clone()),
                    ..fetched.with(&encoder)
                });
            }
            let Some(base) = others.base else {
                return Ok(fetched);
            };
            let (base, others) =
                fetch_one(&base.parse()?, RepositoryPart::Model, config, meter).await?;
            if others.base.is_some() {
                return Err(Error::model(format!(
                    "`{}` is an adapter, not a model",
                    base.origin
                )));
            }
            let (folder, adapter) = (base.folder.clone(), Some(fetched.folder.clone()));
            Ok(Fetched {
                folder,
                adapter,
                ..fetched.with(&base)
            })
        })
}

/// Removes a repository's files from the cache; returns their size in bytes, `None` if there are none.
pub fn remove(name: &RepositoryName, config: &HubConfig) -> Result<Option<u64>> {
    RepositoryCache::new(&config.cache, name).remove()
}

/// Which repository files are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepositoryPart {
    Model,
    /// Without weights.
    Settings,
}

/// The other repositories that a model needs, by name.
struct Others {
    /// The adapter's base model.
    base: Option<String>,
    /// The encoder's repository, if it has files that the model's lacks.
    encoder: Option<String>,
}

impl Fetched {
    /// The files of a repository alone; the commit is the id of all its files.
    fn new(name: &RepositoryName, id: String, commit: String, folder: PathBuf) -> Self {
        Self {
            is_complete: id == commit,
            id,
            origin: format!("{}@{commit}", name.id),
            commit,
            folder,
            adapter: None,
            encoder: None,
        }
    }

    /// A model with files from a second repository, whose branch may move independently.
    fn with(self, other: &Self) -> Self {
        Self {
            id: hex(&Sha256::digest(format!("{}\n{}", self.id, other.id))),
            is_complete: self.is_complete && other.is_complete,
            ..self
        }
    }
}

async fn fetch_one(
    name: &RepositoryName,
    part: RepositoryPart,
    config: &HubConfig,
    meter: &dyn Meter,
) -> Result<(Fetched, Others)> {
    let cache = RepositoryCache::new(&config.cache, name);
    if config.offline {
        return downloaded(name, part, &cache).and_then(|found| {
            found.ok_or_else(|| {
                Error::config(format!(
                    "no `{name}` in `{}`, and HF_HUB_OFFLINE is set",
                    config.cache.display()
                ))
                .with_hint("unset it to download the model")
            })
        });
    }
    let hub = Hub::new(config)?;
    let listing = match hub.list(name).await {
        Err(error @ Error::Unavailable { .. }) => {
            // Earlier downloads may suffice.
            let Ok(Some(found)) = downloaded(name, part, &cache) else {
                return Err(error);
            };
            tracing::warn!("using files of `{name}` that were downloaded earlier: {error}");
            return Ok(found);
        }
        listing => listing?,
    };
    let Listing { commit, files, .. } = &listing;
    let snapshot = Snapshot {
        hub: &hub,
        name,
        commit,
        cache: &cache,
        meter,
    };
    let folder = cache.snapshot(commit);
    let paths = Paths(files.iter().map(|file| file.path.as_str()).collect());
    let of = |paths: Vec<String>| {
        files
            .iter()
            .filter(move |file| paths.contains(&file.path))
            .collect::<Vec<_>>()
    };

    // Small files, which determine which others are needed.
    let (large, small): (Vec<_>, _) = of(paths.settings())
        .into_iter()
        .partition(|file| is_large(file));
    fetch_files(
        &Snapshot {
            meter: &(),
            ..snapshot
        },
        &small,
    )
    .await?;
    let (base, weights) = base_and_weights(&paths, part, &folder, name)?;
    let encoder = paths
        .encoder(&folder)?
        .filter(|_| part == RepositoryPart::Model);
    let rest = [large, of(weights)].concat();
    let missing: u64 = rest
        .iter()
        .filter(|file| !cache.blob(&file.hash).exists())
        .map(|file| file.size)
        .sum();
    if missing > 0 {
        require_space(&config.cache, missing)?;
        meter.begin(
            &format!("fetch {name}"),
            rest.iter().map(|file| file.size).sum(),
        );
        fetch_files(&snapshot, &rest).await?;
    } else {
        fetch_files(
            &Snapshot {
                meter: &(),
                ..snapshot
            },
            &rest,
        )
        .await?;
    }
    // Written last: a listed commit's files are complete.
    cache.store_listing(&listing)?;
    cache.store_commit(name, commit)?;
    let fetched = Fetched::new(name, commit.clone(), commit.clone(), folder);
    Ok((fetched, Others { base, encoder }))
}

/// An adapter's base, and the repository's weight files. `folder` has the settings files.
fn base_and_weights(
    paths: &Paths<'_>,
    part: RepositoryPart,
    folder: &Path,
    name: &RepositoryName,
) -> Result<(Option<String>, Vec<String>)> {
    Ok(match paths.is_adapter() {
        _ if part == RepositoryPart::Settings => (None, Vec::new()),
        true => (Some(base(folder, name)?), paths.adapter_weights(name)?),
        false => (None, paths.weights(folder, name)?),
    })
}

/// Whether a settings file is downloaded with the weights: vocabularies, which do not decide on other files.
fn is_large(file: &HubFile) -> bool {
    file.size > MAX_SMALL_BYTES
        && !file.path.ends_with("config.json")
        && !file.path.ends_with(".index.json")
}

async fn fetch_files(snapshot: &Snapshot<'_>, files: &[&HubFile]) -> Result<()> {
    stream::iter(files)
        .map(|file| snapshot.fetch(file))
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await
}

/// Earlier downloads, verified; `None` if the commit is not in the cache.
fn downloaded(
    name: &RepositoryName,
    part: RepositoryPart,
    cache: &RepositoryCache,
) -> Result<Option<(Fetched, Others)>> {
    let Some(commit) = cache.commit(name) else {
        return Ok(None);
    };
    let listing = match cache.listing(&commit) {
        Some(listing) => listing,
        None => match of_other_program(name, &commit, cache)? {
            Some(listing) => listing,
            None => return Ok(None),
        },
    };
    let folder = cache.snapshot(&commit);
    let paths = Paths(
        listing
            .files
            .iter()
            .map(|file| file.path.as_str())
            .collect(),
    );
    let verify = |needed: &[String]| {
        let mut files = listing
            .files
            .iter()
            .filter(|file| needed.contains(&file.path));
        files.try_for_each(|file| verify(&folder.join(&file.path), &file.hash))
    };
    verify(&paths.settings())?;
    let (base, weights) = base_and_weights(&paths, part, &folder, name)?;
    verify(&weights)?;
    let encoder = paths
        .encoder(&folder)?
        .filter(|_| part == RepositoryPart::Model);
    let fetched = Fetched::new(name, listing.id(), commit, folder);
    Ok(Some((fetched, Others { base, encoder })))
}

/// Files in a snapshot that another program downloaded; `None` if there are none.
///
/// # Errors
/// Files that decide on the results may be missing.
fn of_other_program(
    name: &RepositoryName,
    commit: &str,
    cache: &RepositoryCache,
) -> Result<Option<Listing>> {
    let folder = cache.snapshot(commit);
    let found = cache::files(&folder)?;
    if found.is_empty() {
        return Ok(None);
    }
    let paths = Paths(found.iter().map(String::as_str).collect());
    let is_known = paths.has(MODULES)
        || paths.has(OF_WHOLE_DOWNLOADS)
        || cache.is_known_absent(commit, MODULES);
    if !is_known && paths.may_need_modules(&folder)? {
        return Err(Error::config(format!(
            "expected all files of `{name}` in `{}`, but found another program's download, which \
             may have left out `{MODULES}`",
            folder.display()
        ))
        .with_hint(format!(
            "connect to the hub once, or run `hf download {}`",
            name.id
        )));
    }
    tracing::warn!("`{name}` was downloaded by another program, which may have left out files");
    let file = |path: String| {
        let hash = cache::blob_hash(&folder.join(&path))?;
        Ok(HubFile {
            path,
            size: 0,
            hash,
        })
    };
    let files = found.into_iter().map(file).collect::<Result<_>>()?;
    Ok(Some(Listing {
        commit: commit.to_owned(),
        files,
        is_whole: false,
    }))
}

/// Refuses a download larger than the free disk space.
fn require_space(cache: &Path, bytes: u64) -> Result<()> {
    let existing = cache.ancestors().find(|folder| folder.exists());
    // Some file systems do not report their free space.
    let Some(Ok(found)) = existing.map(statvfs) else {
        return Ok(());
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free == 0 && found.f_blocks == 0 || free >= bytes {
        return Ok(());
    }
    Err(Error::config(format!(
        "expected {:.1} MB of free space in `{}`, but found {:.1}",
        bytes as f64 / 1e6,
        cache.display(),
        free as f64 / 1e6
    ))
    .with_hint("free some, or set HF_HOME to a folder on another disk"))
}
