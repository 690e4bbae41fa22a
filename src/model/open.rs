//! Opens models from files, with the fleets that they run on.

use std::{collections::BTreeMap, path::Path, thread, time::Duration};

use super::{
    Model, Pipeline,
    listing::{Bundles, none_found},
    load::load,
    loaded::{Listed, Loaded, Placement},
    memory::{self, LongestText},
};
use crate::{cloud::Cloud, repository::Manifest};
use kivu_base::{
    Error, Result,
    config::{Config, ModelConfig, Policy},
};
use kivu_core::backend::{Deadline, native};

/// Timeout for the fleet's model description at startup; if it expires, the first request fetches the description.
const FLEET_TIMEOUT: Duration = Duration::from_secs(1);

impl Model {
    /// Opens all models in configuration order; those at `s3://` URLs from the store in `cloud`. Models share the weights from
    /// equal files.
    pub fn open_all(config: &Config, cloud: &Cloud) -> Result<Vec<Self>> {
        native::use_instructions(config.instructions)?;
        let listed = Bundles::new(cloud).list(config, &mut Err)?;
        if listed.is_empty() {
            return Err(none_found());
        }
        let mut shared: Vec<(Placement, Loaded)> = Vec::new();
        let mut models: Vec<Self> = Vec::new();
        for one in &listed {
            let placement = placement(&one.config, config, &one.manifest, &one.name)?;
            let known = shared.iter().position(|(known, _)| *known == placement);
            let index = known.unwrap_or(shared.len());
            if known.is_none() {
                let loaded = load(&one.bundle, config, &placement)?;
                shared.push((placement, loaded));
            }
            let (placement, loaded) = &shared[index];
            models.push(Self::new_checked(one, config, placement, loaded.clone())?);
        }
        memory::warn(
            models.iter().filter_map(Self::longest_text),
            config.memory_limit,
        );
        Ok(models)
    }

    /// Opens one bundle: a local folder, or `s3://BUCKET/PREFIX` in the store of `cloud`. Requests for other models are not in `config`'s way:
    /// its models and aliases are left out.
    ///
    /// To load a model by its name in the Hugging Face hub, use `load` in the crate `kivu-compiler`.
    ///
    /// # Errors
    /// There is no bundle, or more than one; or it is damaged, or for an engine that this machine lacks.
    ///
    /// # Examples
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use kivu::{Model, cloud::Cloud, config::Config};
    ///
    /// let model = Model::open(Path::new("my-model"), &Config::default(), &Cloud::default())?;
    /// println!("{} is for {}", model.name, model.manifest.task);
    /// # Ok::<(), kivu::Error>(())
    /// ```
    pub fn open(bundle: &Path, config: &Config, cloud: &Cloud) -> Result<Self> {
        let models = vec![bundle.to_owned().into()];
        let config = Config {
            models,
            aliases: BTreeMap::new(),
            ..config.clone()
        };
        let mut models = Self::open_all(&config, cloud)?;
        match models.len() {
            1 => Ok(models.remove(0)),
            found => Err(Error::config(format!(
                "expected one bundle in `{}`, but found {found}",
                bundle.display()
            ))
            .with_hint("name one of them")),
        }
    }

    /// Opens one model of a list.
    pub fn open_listed(listed: &Listed, config: &Config) -> Result<Self> {
        let placement = placement(&listed.config, config, &listed.manifest, &listed.name)?;
        let loaded = load(&listed.bundle, config, &placement)?;
        Self::new_checked(listed, config, &placement, loaded)
    }

    /// A model that fits its fleet.
    fn new_checked(
        listed: &Listed,
        config: &Config,
        placement: &Placement,
        loaded: Loaded,
    ) -> Result<Self> {
        let model = Self::new(listed, config, placement, loaded)?;
        check_fleet(&model.name, &model.pipeline)?;
        Ok(model)
    }

    fn longest_text(&self) -> Option<LongestText<'_>> {
        let (model, tokens) = (&self.name, self.pipeline.max_tokens());
        self.max_input_memory.map(|bytes| LongestText {
            model,
            tokens,
            bytes,
        })
    }
}

/// Where the model `name` runs.
fn placement(
    model: &ModelConfig,
    config: &Config,
    manifest: &Manifest,
    name: &str,
) -> Result<Placement> {
    let policy = model.policy(&config.fleet);
    let local = Placement::local(manifest);
    // Only Kivu reads shortlists, and models that have one are small.
    if manifest
        .settings
        .seq2seq()
        .is_some_and(|settings| settings.shortlist.is_some())
    {
        if policy == Policy::Fleet {
            return Err(Error::config(format!(
                "the policy `fleet` is not supported for `{name}`: models with a shortlist do not run on a fleet; set `local` or `auto`"
            )));
        }
        return Ok(local);
    }
    if policy == Policy::Local {
        // The default, `auto`, is also for no fleet.
        let default = match config.fleet.policy {
            Policy::Fleet => Policy::Fleet,
            _ => Policy::Local,
        };
        if model.policy.unwrap_or(default) != Policy::Local {
            return Err(Error::config(format!(
                "expected servers for `{name}`, whose policy needs a fleet, but found none"
            ))
            .with_hint("set `fleet.urls`"));
        }
        return Ok(local);
    }
    let remote_name = model.remote.clone().unwrap_or_else(|| name.to_owned());
    Ok(Placement {
        policy,
        fleet: model.fleet(&config.fleet),
        remote_name,
        ..local
    })
}

/// Refuses a model on the fleet that does not fit the bundle. A fleet that does not respond is not an error.
fn check_fleet(name: &str, pipeline: &Pipeline) -> Result<()> {
    if !pipeline.has_fleet() {
        return Ok(());
    }
    // On another thread, since the caller may or may not be in a runtime.
    let check = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(Error::io("cannot start a runtime"))?;
        runtime.block_on(pipeline.check_fleet(Deadline::within(FLEET_TIMEOUT)))
    };
    let checked = thread::scope(|scope| scope.spawn(check).join());
    let checked = checked.unwrap_or_else(|_| Err(Error::model("the check panicked")));
    checked
        .map_err(|error| Error::model_because(format!("`{name}` cannot run on the fleet"), error))
}
