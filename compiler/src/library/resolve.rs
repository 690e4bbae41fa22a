//! Resolves model names, for commands, `kivu.toml` and programs that embed Kivu.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use super::{
    hub::RepositoryName,
    model_library::{self, ModelLibrary, NamedModel, Options, Outcome, Tools},
    onnx_runtime,
};
use crate::RECIPES;
use kivu::{
    Error, Result,
    address::shown_value,
    cloud::Cloud,
    config::{Config, EngineChoice},
    error::quoted,
    model::Model,
    names::similar,
    repository::{Manifest, bundle::MANIFEST, s3::Url},
};

/// The bundle or the model that a name refers to.
pub enum Location {
    /// A bundle's path or URL, or a folder with bundles.
    Bundle(PathBuf),
    /// A model to build on demand.
    Model(NamedModel),
}

impl Location {
    /// Resolves a name in this order: an S3 URL, a path, a bundle built without `--out` that matches the options,
    /// a built-in recipe, a hub repository.
    pub fn of(named: &Path, options: &Options, config: &Config) -> Result<Self> {
        if Url::of(named).is_some() {
            if options.select_bundles() {
                return Err(Error::config(format!(
                    "task, precision and allowed keys have no effect on `{}`, whose bundles are built already",
                    named.display()
                ))
                .with_hint("leave the options out"));
            }
            return Ok(Self::Bundle(named.to_owned()));
        }
        let text = named.to_string_lossy();
        if text.contains("://") && !RepositoryName::is_name(&text) {
            return Err(unknown("a bundle", named).with_hint(
                "repositories may be at `hf://` or `https://huggingface.co/` addresses, and bundles at `s3://`",
            ));
        }
        if named.exists() {
            let is_recipe = named.is_file()
                && named
                    .extension()
                    .is_some_and(|extension| extension == "toml");
            let is_source = [
                "config.json",
                "modules.json",
                "gliner_config.json",
                "adapter_config.json",
            ]
            .iter()
            .any(|file| named.join(file).is_file())
                && !named.join(MANIFEST).exists();
            if is_recipe || is_source {
                return Ok(Self::Model(NamedModel::Path(named.to_owned())));
            }
            options.require(named)?;
            return Ok(Self::Bundle(named.to_owned()));
        }
        let bundle = config.find_bundle(named.to_owned());
        let is_known = bundle != named;
        // A bundle runs in any engine.
        let options = Options {
            engine: EngineChoice::Auto,
            ..options.clone()
        };
        if is_known && (options == Options::default() || options.complies(&bundle)) {
            return Ok(Self::Bundle(bundle));
        }
        match model(named)? {
            Some(model) => Ok(Self::Model(model)),
            None if is_known => Err(Error::config(format!(
                "`{}` was built with other options, in `{}`",
                named.display(),
                bundle.display()
            ))
            .with_hint("build it again, or omit `--task`, `--precision` and `--allow`")),
            None => Ok(Self::Bundle(named.to_owned())),
        }
    }
}

/// The recipe or repository with this name, if any.
pub fn model(named: &Path) -> Result<Option<NamedModel>> {
    let text = named.to_str().unwrap_or_default();
    // A path to a missing recipe.
    if text.ends_with(".toml") {
        return Ok(None);
    }
    if let Some(recipe) = RECIPES.iter().find(|recipe| recipe.name == text) {
        return Ok(Some(NamedModel::Recipe(recipe)));
    }
    if let Some((id, revision)) = text
        .split_once('@')
        .filter(|(id, _)| RepositoryName::is_name(id))
    {
        // Fails with the error for an invalid revision.
        return Ok(Some(NamedModel::Repository(
            format!("{id}@{revision}").parse()?,
        )));
    }
    Ok(text.parse().ok().map(NamedModel::Repository))
}

/// The model that the bundle at `path` was built from, as far as that is known: a folder or a recipe, an embedded recipe,
/// or a hub repository's commit.
pub fn origin(path: &Path, manifest: &Manifest, config: &Config) -> Result<Option<NamedModel>> {
    let models = ModelLibrary::new(config);
    if let Some(source) = models.source_of(path) {
        return Ok(Some(NamedModel::Path(source)));
    }
    if let Some(name) = models.name_of(path).map(PathBuf::from) {
        return if name.is_absolute() {
            Ok(Some(NamedModel::Path(name)))
        } else {
            model(&name)
        };
    }
    if let Some(recipe) = RECIPES.iter().find(|recipe| recipe.name == manifest.name) {
        return Ok(Some(NamedModel::Recipe(recipe)));
    }
    let from = &manifest.source.from;
    if from.contains('@') {
        model(Path::new(from))
    } else {
        Ok(None)
    }
}

/// Finds a bundle by name; `None` if it must be built first.
pub fn find(named: &Path, options: &Options, config: &Config) -> Result<Option<PathBuf>> {
    match Location::of(named, options, config)? {
        Location::Bundle(path) => require(path, config).map(Some),
        Location::Model(model) => ModelLibrary::new(config).find(&model, options),
    }
}

/// Replaces the configuration's names by bundles; `false` if one must be built first.
pub fn find_all(config: &mut Config, options: &Options) -> Result<bool> {
    let mut are_found = true;
    for index in 0..config.models.len() {
        match find(&config.models[index].path, options, config)? {
            Some(path) => config.models[index].path = path,
            None => are_found = false,
        }
    }
    Ok(are_found)
}

/// Finds a bundle by name, or builds it.
pub fn resolve(named: &Path, options: &Options, tools: &Tools<'_>) -> Result<Outcome> {
    match Location::of(named, options, tools.config)? {
        Location::Bundle(path) => require(path, tools.config).map(Outcome::Known),
        Location::Model(model) => ModelLibrary::new(tools.config).build(&model, options, tools),
    }
}

/// Opens a model in the configuration, a bundle by path or URL, or a model by name; without a name, the first one in the
/// configuration. `resolve` finds or builds a bundle by name.
pub fn open(
    name: Option<&str>,
    config: &mut Config,
    cloud: &Cloud,
    resolve: impl Fn(&Path, &Config) -> Result<PathBuf>,
) -> Result<Model> {
    if let Some(name) = name {
        let path = Path::new(name);
        let is_configured = config
            .models
            .iter()
            .any(|model| model.name.as_deref() == Some(name));
        let is_bundle = Url::of(path).is_some() || path.join(MANIFEST).is_file();
        let is_named = config.models.is_empty() || RepositoryName::is_name(name) || path.exists();
        if is_configured {
            config
                .models
                .retain(|model| model.name.as_deref() == Some(name));
            config.aliases.retain(|_, model| model == name);
        } else if is_bundle || is_named {
            return Model::open(&resolve(path, config)?, config, cloud);
        }
    }
    for index in 0..config.models.len() {
        config.models[index].path = resolve(&config.models[index].path, config)?;
    }
    let mut models = Model::open_all(config, cloud)?;
    let known = models.iter().map(|model| model.name.clone()).collect();
    let index = models
        .iter()
        .position(|model| name.is_none_or(|name| model.name == name));
    let unknown = || Error::UnknownModel {
        name: name.unwrap_or_default().to_owned(),
        known,
    };
    index
        .map(|index| models.swap_remove(index))
        .ok_or_else(unknown)
}

/// Loads a model for a program: a hub repository, a recipe's name, a folder with weights or a bundle, or `s3://…` in the store
/// of `cloud`.
///
/// A model that is not built yet is downloaded and built first, which takes seconds to minutes; later loads find its
/// bundle in the configured `home`. [`Model`]'s methods run it.
///
/// # Errors
/// The model is unknown, cannot be downloaded or built, or its bundle is damaged. The message says what to do.
///
/// # Examples
/// ```no_run
/// # let home = tempfile::tempdir()?;
/// use kivu::{Deadline, cloud::Cloud, config::Config, task::embedding::EmbeddingParameters};
/// use kivu_compiler::library::model_library::Options;
///
/// # let name = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/tiny-static");
/// # let home = home.path().to_owned();
/// let config = Config { home, ..Config::default() };
/// let model = kivu_compiler::load(name, &Options::of(&config), &config, &Cloud::default())?;
/// let embedder = model.embedder(&EmbeddingParameters::default())?;
///
/// let runtime = tokio::runtime::Runtime::new()?;
/// let texts = vec!["The ferry leaves at seven.".into(), "A cat sat on the mat.".into()];
/// let found = runtime.block_on(embedder.run(texts, Deadline::none()))?;
/// assert_eq!(found.vectors.len(), 2);
/// assert!(found.vectors[0].dense.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load(name: &str, options: &Options, config: &Config, cloud: &Cloud) -> Result<Model> {
    let runtime = || onnx_runtime::load(config, |_| {}, &());
    let tools = Tools {
        config,
        runtime: &runtime,
        progress: &(),
    };
    let resolve = |named: &Path, _: &Config| Ok(resolve(named, options, &tools)?.into_path());
    open(
        Some(name),
        &mut Config {
            engine: options.engine,
            ..config.clone()
        },
        cloud,
        resolve,
    )
}

/// Refuses a single word that is not a known name. Errors about paths are reported when the path is read.
fn require(path: PathBuf, config: &Config) -> Result<PathBuf> {
    let is_word = path.components().count() == 1
        && !path.is_absolute()
        && path.to_str().is_some_and(is_plain);
    if !is_word || path.exists() || Url::of(&path).is_some() {
        return Ok(path);
    }
    let name = path.to_string_lossy();
    let built = ModelLibrary::new(config).list();
    let folders = model_library::folders(&config.bundles());
    let names = built.iter().map(|entry| Cow::from(&entry.name));
    let names = names.chain(
        folders
            .iter()
            .filter_map(|path| Some(path.file_name()?.to_string_lossy())),
    );
    let names: Vec<_> = names
        .chain(RECIPES.iter().map(|recipe| recipe.name.into()))
        .collect();
    let hint = match similar(&name, names.iter().map(AsRef::as_ref)) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => "`kivu models` lists the models on this machine".to_owned(),
    };
    Err(unknown("a bundle", &path).with_hint(hint))
}

/// Error for a name that is not `expected`, a recipe or a hub repository.
pub fn unknown(expected: &str, named: &Path) -> Error {
    let recipes: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    Error::config(format!(
        "expected {expected}, a recipe ({}) or a Hugging Face hub repository as ORG/NAME, but \
         found `{}`",
        quoted(&recipes),
        shown_value(&named.to_string_lossy())
    ))
}

fn is_plain(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}
