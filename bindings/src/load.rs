//! Loads models by name, as commands do.

use std::{num::NonZeroUsize, path::PathBuf};

use kivu::{
    Model, Result,
    cloud::Cloud,
    config::{Config, EngineChoice},
    repository::manifest::Precision,
};
use kivu_compiler::{RequestedTask, library::model_library::Options};
use serde::Deserialize;

use crate::json::read;

/// A model's name, and how it is built and opened.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    options: LoadOptions,
}

/// Options for loading a model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct LoadOptions {
    task: Option<RequestedTask>,
    precision: Option<Precision>,
    engine: Option<EngineChoice>,
    threads: Option<NonZeroUsize>,
    home: Option<PathBuf>,
    config: Option<PathBuf>,
    allow: Vec<String>,
}

impl Source {
    /// A model with options in JSON.
    pub fn new(name: String, options: &str) -> Result<Self> {
        Ok(Self {
            name,
            options: read(options)?,
        })
    }

    /// The name that the model is loaded by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Loads the model, and builds it first if it is not built. `cloud` has the store for `s3://` URLs.
    pub fn load(&self, cloud: fn(&Config) -> Cloud) -> Result<Model> {
        let LoadOptions {
            task,
            precision,
            engine,
            threads,
            home,
            config,
            allow,
        } = self.options.clone();
        let mut config = Config::load(config.as_deref(), &Config::variables()?)?;
        config.home = home.unwrap_or(config.home);
        config.threads = threads.or(config.threads);
        config.check_threads()?;
        let options = Options {
            task: task.map(|requested| requested.task),
            is_sparse: task.is_some_and(|requested| requested.is_sparse),
            precision,
            engine: engine.unwrap_or(config.engine),
            allow,
        };
        kivu_compiler::load(&self.name, &options, &config, &cloud(&config))
    }
}
