//! The bundles that a configuration names, with their models' names and aliases.

use std::{
    collections::HashMap,
    fs, iter,
    os::unix::fs::MetadataExt,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::loaded::Listed;
use crate::{
    cloud::Cloud,
    repository::{Bundle, bundle::MANIFEST, remote, s3::Url},
};
use kivu_base::{
    Error, Result,
    config::{Config, ModelConfig},
    error::quoted,
};

/// Manifests that are read from S3 at once.
const PARALLEL: usize = 16;

/// Finds bundles, and reads a manifest again only if it has changed.
#[derive(Debug)]
pub struct Bundles {
    cloud: Cloud,
    /// Bundles by path or URL, with a tag that changes with the manifest.
    known: HashMap<PathBuf, (String, Bundle)>,
}

/// Where a bundle is.
#[derive(Debug)]
struct Place {
    /// The folder or URL that names it.
    path: PathBuf,
    /// The folder or URL to open.
    open: PathBuf,
    /// A text that changes with the manifest; empty without one.
    tag: String,
}

/// Decides whether an error in one bundle ends the listing: `Ok` leaves the bundle out.
type OnError<'a> = &'a mut dyn FnMut(Error) -> Result<()>;

impl Bundles {
    pub fn new(cloud: &Cloud) -> Self {
        Self {
            cloud: cloud.clone(),
            known: HashMap::new(),
        }
    }

    /// All models in configuration order; those in a folder or below a URL are sorted by name.
    pub fn list(&mut self, config: &Config, on_error: OnError<'_>) -> Result<Vec<Listed>> {
        let mut listed: Vec<Listed> = Vec::new();
        for model in &config.models {
            let bundles = match self.bundles(model, on_error) {
                Ok(bundles) => bundles,
                Err(error) => {
                    on_error(error)?;
                    continue;
                }
            };
            for bundle in bundles {
                match self::listed(model, bundle, config, &listed) {
                    Ok(one) => listed.push(one),
                    Err(error) => on_error(error)?,
                }
            }
        }
        if let Err(error) = check_aliases(&listed, config) {
            on_error(error)?;
        }
        Ok(listed)
    }

    /// The bundle at a model's path, or the bundles in its folder.
    fn bundles(&mut self, model: &ModelConfig, on_error: OnError<'_>) -> Result<Vec<Bundle>> {
        let found: Vec<Place> = match Url::of(&model.path) {
            Some(url) => remote::list(&self.cloud.store()?, &url?)?
                .into_iter()
                .map(Place::from)
                .collect(),
            None => local(&model.path)?,
        };
        if model.name.is_some() && found.len() > 1 {
            let names: Vec<_> = found
                .iter()
                .map(|place| place.path.display().to_string())
                .collect();
            return Err(Error::config(format!(
                "expected one bundle for a model with a name, but found {}",
                quoted(&names)
            )));
        }
        let is_known = |place: &&Place| {
            self.known
                .get(&place.path)
                .is_some_and(|(tag, _)| *tag == place.tag && !tag.is_empty())
        };
        let new: Vec<&Place> = found.iter().filter(|place| !is_known(place)).collect();
        for (place, opened) in new.iter().zip(self.open(&new)) {
            match opened {
                Ok(bundle) => drop(
                    self.known
                        .insert(place.path.clone(), (place.tag.clone(), bundle)),
                ),
                Err(error) => {
                    // Without a manifest, there is none any more. With a damaged one, the older bundle keeps its name.
                    if place.tag.is_empty() {
                        self.known.remove(&place.path);
                    }
                    on_error(error)?;
                }
            }
        }
        Ok(found
            .iter()
            .filter_map(|place| Some(self.known.get(&place.path)?.1.clone()))
            .collect())
    }

    /// Opens bundles, in order: many in S3 at once.
    fn open(&self, places: &[&Place]) -> Vec<Result<Bundle>> {
        let open = |place: &Place| match Url::of(&place.open) {
            Some(url) => remote::open(&self.cloud.store()?, &url?),
            None => Bundle::open(&place.open),
        };
        let next = AtomicUsize::new(0);
        let work = || {
            let take = || {
                let index = next.fetch_add(1, Ordering::Relaxed);
                Some((index, *places.get(index)?))
            };
            iter::from_fn(take)
                .map(|(index, place)| (index, open(place)))
                .collect::<Vec<_>>()
        };
        let is_remote = places.iter().any(|place| Url::of(&place.open).is_some());
        let threads = if is_remote {
            PARALLEL.min(places.len())
        } else {
            1
        };
        let mut opened = thread::scope(|scope| {
            let threads: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut opened = work();
            opened.extend(
                threads
                    .into_iter()
                    .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))),
            );
            opened
        });
        opened.sort_by_key(|(index, _)| *index);
        opened.into_iter().map(|(_, bundle)| bundle).collect()
    }
}

impl From<remote::Found> for Place {
    fn from(found: remote::Found) -> Self {
        let [path, open] = [found.url, found.open].map(|url| PathBuf::from(url.to_string()));
        Self {
            path,
            open,
            tag: found.tag,
        }
    }
}

/// The error for a configuration without models.
pub fn none_found() -> Error {
    Error::config("expected at least one model, but found none").with_hint(
        "name one, such as a bundle or ORG/NAME of the Hugging Face hub, or set `models` in \
         `kivu.toml`",
    )
}

/// The bundles in a local folder, or the folder itself, with tags.
fn local(path: &Path) -> Result<Vec<Place>> {
    let folders = match path.join(MANIFEST).is_file() {
        true => Vec::new(),
        false => folders_with_manifest(path)?,
    };
    let mut folders = if folders.is_empty() {
        vec![path.to_owned()]
    } else {
        folders
    };
    folders.sort();
    let place = |path: PathBuf| Place {
        tag: tag(&path),
        open: path.clone(),
        path,
    };
    Ok(folders.into_iter().map(place).collect())
}

/// A text that changes when the manifest is written or replaced; empty without a manifest.
pub fn tag(folder: &Path) -> String {
    let Ok(found) = fs::metadata(folder.join(MANIFEST)) else {
        return String::new();
    };
    format!(
        "{} {} {} {} {}",
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime(),
        found.mtime_nsec()
    )
}

fn folders_with_manifest(path: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(path) else {
        return Ok(Vec::new());
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::cannot("read", path.display()))?;
        // Builds in progress are in hidden folders.
        if !entry.file_name().as_encoded_bytes().starts_with(b".")
            && entry.path().join(MANIFEST).is_file()
        {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

fn listed(
    model: &ModelConfig,
    bundle: Bundle,
    config: &Config,
    others: &[Listed],
) -> Result<Listed> {
    let mut manifest = bundle.manifest().clone();
    let name = model.name.clone().unwrap_or_else(|| manifest.name.clone());
    if others.iter().any(|known| known.name == name) {
        return Err(Error::config(format!(
            "expected a unique name for each model, but found `{name}` twice"
        ))
        .with_hint("set `name` in `kivu.toml`"));
    }
    // If two bundles come from one hub repository, the first has the repository's name.
    let repository = manifest.source.from.split('@').next().unwrap_or_default();
    if others.iter().any(|known| {
        known
            .manifest
            .aliases
            .iter()
            .any(|alias| alias == repository)
    }) {
        manifest.aliases.retain(|alias| alias != repository);
    }
    let of_config = config.aliases.iter().filter(|(_, model)| **model == name);
    manifest
        .aliases
        .extend(of_config.map(|(alias, _)| alias.clone()));
    Ok(Listed {
        name,
        manifest,
        bundle,
        config: model.clone(),
    })
}

/// Refuses aliases for unknown models, names shared by two models, and names that requests cannot use.
fn check_aliases(listed: &[Listed], config: &Config) -> Result<()> {
    let names: Vec<&str> = listed.iter().map(|model| model.name.as_str()).collect();
    if let Some((alias, name)) = config
        .aliases
        .iter()
        .find(|(_, name)| !names.contains(&name.as_str()))
    {
        return Err(Error::config(format!(
            "expected `aliases.{alias}` to be the name of a served model, {}, but found `{name}`",
            quoted(&names)
        )));
    }
    let mut known = names;
    for alias in listed.iter().flat_map(|model| &model.manifest.aliases) {
        if known.contains(&alias.as_str()) {
            return Err(Error::config(format!(
                "expected different aliases and names, but found `{alias}` twice"
            ))
            .with_hint("change `aliases` in `kivu.toml` or in the recipe"));
        }
        known.push(alias);
    }
    for name in &known {
        // `MODEL:ROLE` selects one of the model's prompts.
        let shadowed = name
            .split_once(':')
            .filter(|(model, _)| known.contains(model));
        if name.trim().is_empty() || shadowed.is_some() {
            return Err(Error::config(format!(
                "expected names and aliases other than \"\" and another name with a colon, but \
                 found `{name}`"
            ))
            .with_hint("change it in `kivu.toml` or in the recipe"));
        }
    }
    Ok(())
}
