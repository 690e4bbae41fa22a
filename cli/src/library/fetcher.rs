//! Fetches and builds models for a server's `/api/pull`.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Mutex,
};

use super::resolve::load_runtime;
use kivu::{Result, config::Config, locked, repository::Meter};
use kivu_compiler::{
    Progress,
    library::{
        model_library::{ModelLibrary, NamedModel, Options, Tools},
        resolve,
    },
};
use kivu_http::{FetchModel, FetchProgress};

/// Parts of a download that are reported.
const PARTS: u64 = 100;

/// Fetches hub repositories and recipes by name; never paths, which would be the client's choice.
#[derive(Debug)]
pub struct Fetcher {
    pub config: Config,
    pub options: Options,
}

impl FetchModel for Fetcher {
    fn check(&self, name: &str) -> Result<()> {
        named(name).map(drop)
    }

    fn fetch(&self, name: &str, report: &(dyn Fn(FetchProgress) + Sync)) -> Result<PathBuf> {
        let model = named(name)?;
        report(FetchProgress::Stage("pulling manifest".to_owned()));
        let progress = Reported {
            report,
            transfer: Mutex::new(Transfer::default()),
        };
        let runtime = || load_runtime(&self.config);
        let tools = Tools {
            config: &self.config,
            runtime: &runtime,
            progress: &progress,
        };
        let outcome = ModelLibrary::new(&self.config).build(&model, &self.options, &tools)?;
        Ok(outcome.into_path())
    }
}

/// The recipe or repository with this name.
fn named(name: &str) -> Result<NamedModel> {
    let name = Path::new(name.strip_suffix(":latest").unwrap_or(name));
    let unknown = || {
        resolve::unknown("a model", name).with_hint("`GET /models` lists the models of this server")
    };
    resolve::model(name)?.ok_or_else(unknown)
}

/// Passes progress on.
struct Reported<'a> {
    report: &'a (dyn Fn(FetchProgress) + Sync),
    transfer: Mutex<Transfer>,
}

#[derive(Clone, Debug, Default)]
struct Transfer {
    name: String,
    total: u64,
    completed: u64,
    /// Parts that were reported.
    parts: u64,
}

impl fmt::Debug for Reported<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.transfer.fmt(f)
    }
}

impl Progress for Reported<'_> {
    fn stage(&self, name: &str, _: usize) {
        (self.report)(FetchProgress::Stage(name.to_owned()));
    }

    fn step(&self) {}
}

impl Meter for Reported<'_> {
    fn begin(&self, name: &str, total: u64) {
        self.update(|transfer| {
            *transfer = Transfer {
                name: name.to_owned(),
                total,
                ..Transfer::default()
            }
        });
    }

    fn advance(&self, bytes: u64) {
        self.update(|transfer| transfer.completed += bytes);
    }
}

impl Reported<'_> {
    fn update(&self, update: impl FnOnce(&mut Transfer)) {
        let mut transfer = locked(&self.transfer);
        update(&mut transfer);
        let parts = (transfer.completed * PARTS)
            .checked_div(transfer.total)
            .unwrap_or(PARTS);
        if transfer.completed == 0 || parts > transfer.parts {
            transfer.parts = parts;
            let Transfer {
                name,
                total,
                completed,
                ..
            } = transfer.clone();
            (self.report)(FetchProgress::Bytes {
                name,
                total,
                completed,
            });
        }
    }
}
