//! Models built by name, once, into the user's cache folder: embedded recipes, Hugging Face hub repositories, and
//! folders with weights.
//!
//! `HOME/models/NAME/VERSION/BUNDLE`, where VERSION is the compiler's and BUNDLE begins with the id of the model's
//! files. `refs` maps revisions to ids, so that a built model starts without a connection to the hub.

use std::{
    cmp::Reverse,
    fmt,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    time::SystemTime,
};

use sha2::{Digest, Sha256};

use super::{
    external_bundles::{ExternalBundles, built},
    hub::{self, Fetched, RepositoryName},
};
use crate::{
    Built, LoadRuntime, Progress, Request, build_from,
    files::io as files,
    plan::{
        path_id::{canonical, path_id},
        recipes::EmbeddedRecipe,
        scratch::Scratch,
    },
    quality::Samples,
};
use kivu::{
    Error, Result,
    backend::Engine,
    config::{Config, EngineChoice},
    hexadecimal::hex,
    pipeline::Task,
    regular_file,
    repository::{
        Bundle,
        bundle::MANIFEST,
        folder::Destination,
        manifest::{Manifest, Precision},
    },
};

/// Compiler version; bundles depend on it.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// File with a model's name.
const NAME: &str = "name";
/// Locked while a model is built.
const LOCK: &str = "lock";
/// Folder with revision ids.
const REFS: &str = "refs";
/// Commit and hash digits in folder names.
const ID_DIGITS: usize = 12;

/// A model that can be built by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedModel {
    /// An embedded recipe.
    Recipe(&'static EmbeddedRecipe),
    /// A hub repository.
    Repository(RepositoryName),
    /// A recipe or a folder with weights.
    Path(PathBuf),
}

/// Restrictions on a model's bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The required task, if any.
    pub task: Option<Task>,
    /// Whether the task's vectors have to be sparse.
    pub is_sparse: bool,
    /// The required precision, if any.
    pub precision: Option<Precision>,
    /// The target engine for an encoder.
    pub engine: EngineChoice,
    /// Keys in the model's files that the build ignores at the user's risk.
    pub allow: Vec<String>,
}

impl Options {
    /// The configured engine, for any task and precision.
    pub fn of(config: &Config) -> Self {
        Self {
            engine: config.engine,
            ..Self::default()
        }
    }

    /// Whether the bundle at `path` is valid and complies with the options.
    pub fn complies(&self, path: &Path) -> bool {
        let Ok(bundle) = Bundle::open(path) else {
            return false;
        };
        let manifest = bundle.manifest();
        self.contradiction(manifest).is_none()
            && match self.engine {
                EngineChoice::Auto => true,
                EngineChoice::Native => manifest.engine == Engine::Native,
                EngineChoice::Onnx => manifest.engine == Engine::Onnx,
            }
    }

    /// Refuses the bundle at `path`, or a bundle in this folder, if it was built with other options. Any engine runs it.
    /// Errors about unreadable bundles are reported when they are opened.
    pub fn require(&self, path: &Path) -> Result<()> {
        let bundles = match path.join(MANIFEST).exists() {
            _ if !self.select_bundles() => Vec::new(),
            true => vec![path.to_owned()],
            false => folders(path),
        };
        for path in bundles {
            let Ok(bundle) = Bundle::open(&path) else {
                continue;
            };
            if let Some((expected, found)) = self.contradiction(bundle.manifest()) {
                return Err(Error::config(format!(
                    "expected {expected} of the bundle in `{}`, but found {found}",
                    path.display()
                ))
                .with_hint(
                    "leave the option out, or name the folder or the hub repository that the model \
                     can be built from",
                ));
            }
        }
        Ok(())
    }

    /// Whether there may be bundles that do not comply, whatever the engine.
    pub fn select_bundles(&self) -> bool {
        self.task.is_some() || self.precision.is_some() || !self.allow.is_empty()
    }

    /// The first option that a bundle contradicts, and what the bundle has instead.
    fn contradiction(&self, manifest: &Manifest) -> Option<(String, String)> {
        let differs = |name: &str, expected: &dyn fmt::Display, found: &dyn fmt::Display| {
            Some((format!("the {name} `{expected}`"), format!("`{found}`")))
        };
        let precision = manifest.weights.precision;
        let has_sparse = manifest
            .settings
            .embedding()
            .is_some_and(|settings| settings.sparse.is_some());
        match (self.task, self.precision) {
            (Some(task), _) if task != manifest.task => differs("task", &task, &manifest.task),
            _ if self.is_sparse && !has_sparse => {
                Some(("sparse vectors".to_owned(), "none".to_owned()))
            }
            (_, Some(wanted)) if wanted != precision => differs("precision", &wanted, &precision),
            _ => {
                let missing = self
                    .allow
                    .iter()
                    .find(|key| !manifest.allowed.contains(key))?;
                Some((format!("the allowed key `{missing}`"), "none".to_owned()))
            }
        }
    }
}

/// Resources for builds by name.
pub struct Tools<'a> {
    /// Has the home folder, the engine, and access to the hub.
    pub config: &'a Config,
    /// Loads ONNX Runtime.
    pub runtime: LoadRuntime<'a>,
    /// Observes builds and downloads.
    pub progress: &'a dyn Progress,
}

/// A bundle built by name.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Model name.
    pub name: String,
    /// The model's newest bundle.
    pub bundle: Bundle,
    /// The bundle's folder.
    pub path: PathBuf,
    /// Compiler version.
    pub version: String,
    /// Build time.
    pub built: SystemTime,
}

/// Outcome of [`ModelLibrary::build`].
#[derive(Debug)]
pub enum Outcome {
    /// The bundle existed.
    Known(PathBuf),
    /// The bundle was built, at this path.
    Built(PathBuf, Box<Built>),
}

impl Outcome {
    /// The bundle's folder.
    pub fn into_path(self) -> PathBuf {
        match self {
            Self::Known(path) | Self::Built(path, _) => path,
        }
    }
}

/// All bundles built by name.
#[derive(Clone, Debug)]
pub struct ModelLibrary {
    root: PathBuf,
    are_for_comparison: bool,
}

impl ModelLibrary {
    /// The bundles in the configured `home`.
    pub fn new(config: &Config) -> Self {
        Self {
            root: config.home.join("models"),
            are_for_comparison: false,
        }
    }

    /// Bundles that are only compared with others: a model's name does not refer to them, and their quality has no floor.
    pub fn for_comparison(config: &Config) -> Self {
        Self {
            root: config.home.join("comparisons"),
            are_for_comparison: true,
        }
    }

    /// Finds a model's newest bundle that complies with the options; `None` if there is none from this version.
    pub fn find(&self, model: &NamedModel, options: &Options) -> Result<Option<PathBuf>> {
        let Some(id) = self.id(model)? else {
            return Ok(None);
        };
        let folder = self.folder(model)?;
        let mut bundles = self.bundles(&folder.join(VERSION), &id);
        bundles.extend(ExternalBundles::read(&folder).and_then(|elsewhere| elsewhere.find(&id)));
        bundles.sort_by_key(|(built, _)| Reverse(*built));
        Ok(bundles
            .into_iter()
            .find(|(_, path)| options.complies(path))
            .map(|(_, path)| path))
    }

    /// Lets [`find`](Self::find) return a bundle built from a folder or a recipe into another folder. `id` is the
    /// source's [`path_id`] before the build.
    pub fn add_elsewhere(
        &self,
        source: &Path,
        id: &str,
        bundle: &Bundle,
        path: &Path,
    ) -> Result<()> {
        let folder = files::create_folder(&self.folder(&NamedModel::Path(source.to_owned()))?)?;
        ExternalBundles::new(source, id, bundle, path)?.write(&folder)
    }

    /// The folder or recipe that the bundle at `path` was built from, if [`add_elsewhere`](Self::add_elsewhere) has
    /// recorded it.
    pub fn source_of(&self, path: &Path) -> Option<PathBuf> {
        let path = path.canonicalize().ok()?;
        folders(&self.root)
            .iter()
            .find_map(|folder| ExternalBundles::read(folder)?.source_of(&path))
    }

    /// The name of the model whose bundle is at `path`, among bundles built by name.
    pub fn name_of(&self, path: &Path) -> Option<String> {
        let (path, root) = (path.canonicalize().ok()?, self.root.canonicalize().ok()?);
        let folder = path.parent()?.parent()?;
        let name = regular_file::read_to_string(&folder.join(NAME)).ok()?;
        (folder.parent()? == root).then_some(name)
    }

    /// Builds a model unless there is a bundle. Processes that build the same model wait for each other.
    pub fn build(
        &self,
        model: &NamedModel,
        options: &Options,
        tools: &Tools<'_>,
    ) -> Result<Outcome> {
        let (folder, _lock) = self.locked_folder(model, tools)?;
        match self.find(model, options)? {
            Some(path) => Ok(Outcome::Known(path)),
            None => self.build_in(&folder, model, options, tools),
        }
    }

    /// Builds a model's newest commit, unless there is a bundle of it.
    pub fn build_newest(
        &self,
        model: &NamedModel,
        options: &Options,
        tools: &Tools<'_>,
    ) -> Result<Outcome> {
        let (folder, _lock) = self.locked_folder(model, tools)?;
        self.build_in(&folder, model, options, tools)
    }

    /// The model's folder, in which no other process builds until the file is dropped.
    fn locked_folder(&self, model: &NamedModel, tools: &Tools<'_>) -> Result<(PathBuf, File)> {
        let folder = files::create_folder(&self.folder(model)?)?;
        let lock = lock(&folder, tools.progress)?;
        Ok((folder, lock))
    }

    fn build_in(
        &self,
        folder: &Path,
        model: &NamedModel,
        options: &Options,
        tools: &Tools<'_>,
    ) -> Result<Outcome> {
        let source = Prepared::new(model, folder, tools)?;
        let out = folder
            .join(VERSION)
            .join(bundle_name(&source.id[..ID_DIGITS], options));
        // Before the build, so that `kivu rm` finds a bundle whose process is killed.
        files::write(&folder.join(NAME), model.name().as_bytes())?;
        let outcome = if Bundle::open(&out)
            .and_then(|bundle| bundle.verify())
            .is_ok()
        {
            Outcome::Known(out)
        } else {
            // A damaged bundle in this folder is one of Kivu's own.
            if out.is_dir() && Destination::new(&out).is_err() {
                fs::remove_dir_all(&out).map_err(Error::cannot("remove", out.display()))?;
            }
            let request = Request {
                is_for_comparison: self.are_for_comparison,
                ..source.request(out.clone(), options, tools)
            };
            let built = source.build(&request, tools)?;
            Outcome::Built(out, Box::new(built))
        };
        if let (
            NamedModel::Repository(name),
            Some(Fetched {
                is_complete: true, ..
            }),
        ) = (model, &source.fetched)
        {
            let path = folder.join(REFS).join(&name.revision);
            files::create_folder(path.parent().unwrap_or(folder))?;
            files::write(&path, source.id.as_bytes())?;
        }
        Ok(outcome)
    }

    /// All bundles, by name.
    pub fn list(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for model in folders(&self.root) {
            let Ok(name) = regular_file::read_to_string(&model.join(NAME)) else {
                continue;
            };
            for version in folders(&model)
                .into_iter()
                .filter(|folder| !folder.ends_with(REFS))
            {
                for (built, path) in self.bundles(&version, "") {
                    let Ok(bundle) = Bundle::open(&path) else {
                        continue;
                    };
                    let version = version
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned();
                    entries.push(Entry {
                        name: name.clone(),
                        bundle,
                        path,
                        version,
                        built,
                    });
                }
            }
        }
        entries.sort_by(|left, right| {
            left.name
                .cmp(&right.name)
                .then(right.built.cmp(&left.built))
        });
        entries
    }

    /// Removes all bundles with this name, whatever their revision; returns their size in bytes.
    pub fn remove(&self, name: &str) -> Result<Option<u64>> {
        let name = name.split('@').next().unwrap_or(name);
        let mut removed = None;
        for folder in folders(&self.root) {
            let found = regular_file::read_to_string(&folder.join(NAME)).ok();
            // The file with the name may be damaged.
            let is_named = folder
                .file_name()
                .is_some_and(|folder| *folder == *name.replace('/', "--"));
            if is_named || found.is_some_and(|found| found == name) {
                let lock = lock_file(&folder)?;
                match lock.try_lock() {
                    Ok(()) => {}
                    Err(TryLockError::WouldBlock) => {
                        return Err(Error::config(format!("another process builds `{name}`"))
                            .with_hint("try again later"));
                    }
                    Err(TryLockError::Error(error)) => return Err(cannot_lock(&folder)(error)),
                }
                let bytes: u64 = folders(&folder)
                    .iter()
                    .flat_map(|version| self.bundles(version, ""))
                    .fold(0, |sum, (_, path)| {
                        sum + Bundle::open(&path).map_or(0, |bundle| size(bundle.manifest()))
                    });
                fs::remove_dir_all(&folder).map_err(Error::cannot("remove", folder.display()))?;
                *removed.get_or_insert(0) += bytes;
            }
        }
        Ok(removed)
    }

    fn folder(&self, model: &NamedModel) -> Result<PathBuf> {
        Ok(self.root.join(match model {
            NamedModel::Recipe(recipe) => recipe.name.to_owned(),
            NamedModel::Repository(name) => name.folder(),
            NamedModel::Path(path) => {
                let path = canonical(path)?;
                let hash = hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()));
                format!("_{}", &hash[..ID_DIGITS])
            }
        }))
    }

    /// Id of a model's files; `None` for a repository that was never built.
    fn id(&self, model: &NamedModel) -> Result<Option<String>> {
        match model {
            NamedModel::Recipe(recipe) => Ok(Some(recipe_id(recipe))),
            NamedModel::Path(path) => path_id(path).map(Some),
            NamedModel::Repository(name) => {
                let path = self.folder(model)?.join(REFS).join(&name.revision);
                let id = regular_file::read_to_string(&path).ok();
                let id = id.filter(|id| id.len() >= ID_DIGITS && id.is_ascii());
                Ok(id.or_else(|| name.is_commit().then(|| name.revision.clone())))
            }
        }
    }

    /// Bundles in a folder with names that begin with an id, newest first.
    fn bundles(&self, folder: &Path, id: &str) -> Vec<(SystemTime, PathBuf)> {
        let id = &id[..id.len().min(ID_DIGITS)];
        let has_id = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(id.as_bytes()))
        };
        let timed = |path: PathBuf| Some((built(&path)?, path));
        let mut bundles: Vec<_> = folders(folder)
            .into_iter()
            .filter(has_id)
            .filter_map(timed)
            .collect();
        bundles.sort_by_key(|(built, _)| Reverse(*built));
        bundles
    }
}

/// A model's source, on this machine.
struct Prepared {
    /// The commit, or a hash.
    id: String,
    name: Option<String>,
    path: PathBuf,
    fetched: Option<Fetched>,
    /// The recipe's files.
    _scratch: Option<Scratch>,
}

impl Prepared {
    fn new(model: &NamedModel, scratch: &Path, tools: &Tools<'_>) -> Result<Self> {
        let local = |id, path| Self {
            id,
            name: None,
            path,
            fetched: None,
            _scratch: None,
        };
        Ok(match model {
            NamedModel::Recipe(recipe) => {
                let scratch = Scratch::new_in(scratch)?;
                let path = recipe.write(scratch.path())?;
                Self {
                    _scratch: Some(scratch),
                    ..local(recipe_id(recipe), path)
                }
            }
            NamedModel::Path(path) => local(path_id(path)?, path.clone()),
            NamedModel::Repository(name) => {
                let fetched = hub::fetch(name, &tools.config.hub, tools.progress)?;
                let found = local(fetched.id.clone(), fetched.folder.clone());
                Self {
                    name: Some(name.short().to_owned()),
                    fetched: Some(fetched),
                    ..found
                }
            }
        })
    }

    fn request(&self, out: PathBuf, options: &Options, tools: &Tools<'_>) -> Request {
        Request {
            source: self.path.clone(),
            out,
            name: self.name.clone(),
            task: options.task,
            is_sparse: options.is_sparse,
            precision: options.precision,
            engine: options.engine,
            allow: options.allow.clone(),
            samples: Samples::default(),
            is_for_comparison: false,
            cache: tools.config.home.clone(),
        }
    }

    fn build(&self, request: &Request, tools: &Tools<'_>) -> Result<Built> {
        build_from(
            request,
            self.fetched.as_ref(),
            tools.runtime,
            tools.progress,
        )
    }
}

/// Builds a model into the caller's folder.
pub fn build_into(
    out: PathBuf,
    name: Option<String>,
    model: &NamedModel,
    samples: Samples,
    options: &Options,
    tools: &Tools<'_>,
) -> Result<Built> {
    let destination = Destination::new(&out)?;
    let source = Prepared::new(model, destination.parent(), tools)?;
    let request = source.request(out, options, tools);
    let request = Request {
        name: name.or(request.name),
        samples,
        ..request
    };
    source.build(&request, tools)
}

impl NamedModel {
    /// The name without a revision.
    fn name(&self) -> String {
        match self {
            Self::Recipe(recipe) => recipe.name.to_owned(),
            Self::Repository(name) => name.id.clone(),
            Self::Path(path) => canonical(path)
                .unwrap_or_else(|_| path.clone())
                .display()
                .to_string(),
        }
    }
}

/// A bundle's file size in bytes.
pub fn size(manifest: &Manifest) -> u64 {
    manifest.files.iter().map(|file| file.size).sum()
}

fn lock_file(folder: &Path) -> Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join(LOCK));
    file.map_err(cannot_lock(folder))
}

fn cannot_lock(folder: &Path) -> impl FnOnce(std::io::Error) -> Error {
    Error::cannot("lock", folder.display())
}

/// Waits until no other process builds the model.
fn lock(folder: &Path, progress: &dyn Progress) -> Result<File> {
    let file = lock_file(folder)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            progress.stage("wait for another process that builds the model", 1)
        }
        Err(TryLockError::Error(error)) => return Err(cannot_lock(folder)(error)),
    }
    file.lock().map_err(cannot_lock(folder))?;
    Ok(file)
}

/// A bundle's folder name.
fn bundle_name(id: &str, options: &Options) -> String {
    let task = options.task.map(|task| format!("-{task}"));
    let sparse = options.is_sparse.then(|| "-sparse".to_owned());
    let precision = options.precision.map(|precision| format!("-{precision}"));
    let engine = match options.engine {
        EngineChoice::Auto => None,
        EngineChoice::Native => Some("-native".to_owned()),
        EngineChoice::Onnx => Some("-onnx".to_owned()),
    };
    let allow = match &options.allow[..] {
        [] => None,
        // They are texts of any length.
        keys => Some(format!(
            "-allow-{}",
            &hex(&Sha256::digest(keys.join("\n")))[..ID_DIGITS]
        )),
    };
    [Some(id.to_owned()), task, sparse, precision, engine, allow]
        .into_iter()
        .flatten()
        .collect()
}

fn recipe_id(recipe: &EmbeddedRecipe) -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in recipe.files {
        hash.update(name);
        hash.update(bytes);
    }
    hex(&hash.finalize())
}

/// The folders in a folder, without hidden ones.
pub fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .map(|entry| entry.path())
        .collect()
}
