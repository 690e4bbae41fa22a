//! Resolves model names in command lines and `kivu.toml`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{
    onnx_runtime, quality,
    terminal::{Progress, print_aside},
};
use kivu::{
    config::{Config, EngineChoice, InstructionSet, parse_instructions},
    error::{Error, Result, quoted},
    pipeline::Task,
    repository::{bundle::MANIFEST, manifest::Precision, s3::Url},
};
use kivu_compiler::{
    RECIPES,
    hub::RepositoryName,
    named::{NamedModel, NamedModels, Options, Outcome, Tools, size},
};

/// Options for models that a command builds.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Options for models that are built")]
pub(super) struct BuildArguments {
    /// The task [default: as in the model's files]
    #[arg(long)]
    pub(super) task: Option<Task>,
    /// The weights' number format [default: as in an earlier build or in the recipe, or int8; int8-blocks if an
    /// encoder's int8 quality is below the floor]
    #[arg(long)]
    pub(super) precision: Option<Precision>,
    /// The engine for local encoders [default: as in kivu.toml, or auto]
    #[arg(long)]
    pub(super) engine: Option<EngineChoice>,
    /// The native engine's instructions: avx512-vnni, avx-vnni, avx2, neon-i8mm, neon-dotprod or portable [default: as
    /// in kivu.toml, or the fastest that this processor has]
    #[arg(long, value_name = "SET", value_parser = parse_instructions)]
    pub(super) instructions: Option<InstructionSet>,
    /// Build the model as if its files did not have this key, although it may change results; repeatable
    #[arg(long, value_name = "KEY")]
    pub(super) allow: Vec<String>,
}

impl BuildArguments {
    /// With the configured engine, unless the command has one.
    pub(super) fn options(self, config: &Config) -> Options {
        let Self { task, precision, engine, allow, .. } = self;
        Options { task, precision, engine: engine.unwrap_or(config.engine), allow }
    }
}

/// What a name refers to.
pub(super) enum Location {
    /// A bundle's path or URL, or a folder with bundles.
    Bundle(PathBuf),
    /// A model to build on demand.
    Model(NamedModel),
}

impl Location {
    /// Resolves a name in this order: an S3 URL, a path, a bundle built without `--out` that matches the options,
    /// a built-in recipe, a hub repository.
    pub(super) fn of(named: &Path, options: &Options, config: &Config) -> Result<Self> {
        if Url::of(named).is_some() {
            return Ok(Self::Bundle(named.to_owned()));
        }
        if named.exists() {
            let is_recipe = named.is_file() && named.extension().is_some_and(|extension| extension == "toml");
            let is_source = ["config.json", "modules.json", "gliner_config.json"]
                .iter()
                .any(|file| named.join(file).is_file())
                && !named.join(MANIFEST).exists();
            return Ok(match is_recipe || is_source {
                true => Self::Model(NamedModel::Path(named.to_owned())),
                false => Self::Bundle(named.to_owned()),
            });
        }
        let bundle = config.find_bundle(named.to_owned());
        let is_known = bundle != named;
        // A bundle runs in any engine.
        let options = Options { engine: EngineChoice::Auto, ..options.clone() };
        if is_known && (options == Options::default() || options.complies(&bundle)) {
            return Ok(Self::Bundle(bundle));
        }
        match model(named)? {
            Some(model) => Ok(Self::Model(model)),
            None if is_known => Err(Error::config(format!(
                "expected `{}` to have been built with these options, but found others in `{}`; build it again, or omit \
                 `--task`, `--precision` and `--allow`",
                named.display(),
                bundle.display()
            ))),
            None => Ok(Self::Bundle(named.to_owned())),
        }
    }
}

/// The recipe or repository with this name, if any.
pub(super) fn model(named: &Path) -> Result<Option<NamedModel>> {
    let text = named.to_str().unwrap_or_default();
    // A path to a missing recipe.
    if text.ends_with(".toml") {
        return Ok(None);
    }
    if let Some(recipe) = RECIPES.iter().find(|recipe| recipe.name == text) {
        return Ok(Some(NamedModel::Recipe(recipe)));
    }
    if let Some((id, revision)) = text.split_once('@').filter(|(id, _)| RepositoryName::is_name(id)) {
        // Fails with the error for an invalid revision.
        return Ok(Some(NamedModel::Repository(format!("{id}@{revision}").parse()?)));
    }
    Ok(text.parse().ok().map(NamedModel::Repository))
}

/// Finds a bundle by name; `None` if it must be built first.
pub(super) fn find(named: &Path, options: &Options, config: &Config) -> Result<Option<PathBuf>> {
    match Location::of(named, options, config)? {
        Location::Bundle(path) => require(path).map(Some),
        Location::Model(model) => NamedModels::new(config).find(&model, options),
    }
}

/// Finds a bundle by name, or builds it.
pub(super) fn resolve(named: &Path, options: &Options, config: &Config) -> Result<PathBuf> {
    let model = match Location::of(named, options, config)? {
        Location::Bundle(path) => return require(path),
        Location::Model(model) => model,
    };
    let models = NamedModels::new(config);
    if let Some(path) = models.find(&model, options)? {
        return Ok(path);
    }
    let progress = Progress::default();
    let runtime = || onnx_runtime::load(config);
    let tools = Tools { config, runtime: &runtime, progress: &progress };
    let outcome = models.build(&model, options, false, &tools);
    progress.clear();
    let outcome = outcome?;
    if let Outcome::Built(_, built) = &outcome {
        let manifest = built.bundle.manifest();
        print_aside(&format!(
            "built `{}` ({}, {}, {:.1} MB); {}",
            manifest.name,
            manifest.task,
            manifest.weights.precision,
            size(manifest) as f64 / 1e6,
            quality::text(manifest.weights.quality)
        ));
        if !built.other_tasks.is_empty() {
            let others: Vec<String> = built.other_tasks.iter().map(|task| format!("--task {task}")).collect();
            print_aside(&format!("note: `{}` can also be served with {}", manifest.name, quoted(&others)));
        }
    }
    Ok(outcome.into_path())
}

/// Replaces the configuration's names by bundles; `false` if one must be built first.
pub(super) fn find_all(config: &mut Config, options: &Options) -> Result<bool> {
    let mut are_found = true;
    for index in 0..config.models.len() {
        match find(&config.models[index].path, options, config)? {
            Some(path) => config.models[index].path = path,
            None => are_found = false,
        }
    }
    Ok(are_found)
}

/// Replaces the configuration's names by bundles, and builds the missing ones.
pub(super) fn resolve_all(config: &mut Config, options: &Options) -> Result<()> {
    for index in 0..config.models.len() {
        config.models[index].path = resolve(&config.models[index].path, options, config)?;
    }
    Ok(())
}

/// Refuses a single word that is not a known name. Errors about paths are reported when the path is read.
fn require(path: PathBuf) -> Result<PathBuf> {
    let is_word =
        path.components().count() == 1 && !path.is_absolute() && path.to_str().is_some_and(is_plain);
    if !is_word || path.exists() || Url::of(&path).is_some() {
        return Ok(path);
    }
    Err(unknown("a bundle", &path, "`kivu models` lists the models on this machine"))
}

/// Error for a name that is not `expected`, a recipe or a hub repository.
pub(super) fn unknown(expected: &str, named: &Path, hint: &str) -> Error {
    let recipes: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    Error::config(format!(
        "expected {expected}, a recipe ({}) or a Hugging Face hub repository as ORG/NAME, but found `{}`; {hint}",
        quoted(&recipes),
        named.display()
    ))
}

fn is_plain(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}
