//! `kivu rm`: removes models from this machine.

use std::{
    fs,
    path::{Component, Path},
    process::ExitCode,
};

use clap::Args;

use crate::examples::examples;
use crate::terminal::print;
use kivu::{Error, Result, config::Config, repository::folder};
use kivu_compiler::{
    BUNDLE_FILES,
    library::{
        hub::{self, RepositoryName},
        model_library::ModelLibrary,
    },
};

/// Remove models from this machine
///
/// `kivu models` lists the names. All of a model's bundles are removed.
#[derive(Debug, Args)]
#[command(after_help = examples("rm"))]
pub struct Arguments {
    /// Model name
    #[arg(value_name = "NAME", required = true)]
    models: Vec<String>,
    /// Also remove files downloaded from the hub, which other programs may use
    #[arg(long)]
    weights: bool,
}

pub fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
    for name in &arguments.models {
        let mut removed = remove_named(name, config)?;
        if removed.is_none() {
            removed = remove_bundle(name, config)?;
        }
        // A model that was built from a folder has its path as name.
        if removed.is_none()
            && let Ok(path) = fs::canonicalize(name)
        {
            removed = remove_named(&path.display().to_string(), config)?;
        }
        if arguments.weights
            && let Ok(repository) = name.parse::<RepositoryName>()
        {
            let weights = hub::remove(&repository, &config.hub)?;
            removed = removed.map_or(weights, |bytes| Some(bytes + weights.unwrap_or(0)));
        }
        let bytes = removed.ok_or_else(|| {
            Error::config(format!(
                "expected the name of a model on this machine, but found `{name}`"
            ))
            .with_hint("`kivu models` lists them")
        })?;
        print(&format!("removed {name}, {:.1} MB", bytes as f64 / 1e6))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes all bundles built by this name; returns their size in bytes.
fn remove_named(name: &str, config: &Config) -> Result<Option<u64>> {
    let removed = ModelLibrary::new(config).remove(name)?;
    let compared = ModelLibrary::for_comparison(config).remove(name)?;
    Ok(removed.map_or(compared, |bytes| Some(bytes + compared.unwrap_or(0))))
}

/// Removes a bundle built without `--out`; returns its size in bytes.
fn remove_bundle(name: &str, config: &Config) -> Result<Option<u64>> {
    let mut components = Path::new(name).components();
    let (Some(Component::Normal(name)), None) = (components.next(), components.next()) else {
        return Ok(None);
    };
    let folder = config.bundles().join(name);
    if !folder.is_dir() {
        return Ok(None);
    }
    folder::remove_bundle(&folder, &BUNDLE_FILES).map(Some)
}
