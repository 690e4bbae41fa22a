//! The models that a request's caller may use.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{Extensions, request::Parts},
};

use super::{app::App, auth::Caller, rejection::Rejection};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    model::{Catalog, Entry},
};

/// Names of models that a caller may use. A request has them as an extension once it is admitted.
#[derive(Clone, Debug)]
pub(super) enum AllowedModels {
    All,
    Named(Arc<[String]>),
}

impl AllowedModels {
    /// The models that a key's line names; all if it names none.
    pub(super) fn of_key(names: Vec<String>) -> Self {
        match names.is_empty() {
            true => Self::All,
            false => Self::Named(names.into()),
        }
    }

    /// The models of an admitted request's caller. Callers without a key may use all.
    pub(super) fn of_caller(caller: Option<&Caller>) -> Self {
        caller.map_or(Self::All, |caller| Self::of_key(caller.models.clone()))
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|one| one == name),
        }
    }
}

/// The server's models that a caller may use; all others are unknown to it. Handlers find models only here: as an
/// argument, or in a request's [`Context`](super::request::Context).
#[derive(Clone, Debug)]
pub(super) struct CallerModels {
    catalog: Arc<Catalog>,
    allowed: AllowedModels,
}

impl CallerModels {
    pub(super) fn new(app: &App, allowed: AllowedModels) -> Self {
        Self {
            catalog: Arc::clone(&app.catalog),
            allowed,
        }
    }

    /// The models for a request with these extensions. Fails for requests that were not admitted, such as those to open
    /// routes.
    pub(super) fn of_request(app: &App, extensions: &Extensions) -> Result<Self> {
        let allowed = extensions.get().cloned();
        let allowed = allowed.ok_or_else(|| {
            Error::config("no access to models: the request's credentials were not checked")
        })?;
        Ok(Self::new(app, allowed))
    }

    /// Whether the caller may use a model with this name.
    pub(super) fn allow(&self, name: &str) -> bool {
        self.allowed.has(name)
    }

    /// All of them, in configuration order.
    pub(super) fn list(&self) -> Vec<Arc<Entry>> {
        self.catalog
            .entries()
            .iter()
            .filter(|entry| self.allow(&entry.name))
            .cloned()
            .collect()
    }

    /// Looks up a model by name; `None` selects the first one.
    pub(super) fn find(&self, name: Option<&str>) -> Result<Arc<Entry>> {
        let models = self.list();
        let Some(name) = name else {
            return models.first().cloned().ok_or(Error::NoModel);
        };
        let found = find(&models, name).map(|(model, _)| Arc::clone(model));
        found.ok_or_else(|| self.unknown(name))
    }

    /// Looks up a model by name. New models are looked for before a name is unknown.
    pub(super) async fn find_new(
        &self,
        name: Option<&str>,
        deadline: Deadline,
    ) -> Result<Arc<Entry>> {
        match self.find(name) {
            Err(Error::UnknownModel { .. }) if self.catalog.is_on_demand() => {
                self.catalog.refresh(deadline).await;
                self.find(name)
            }
            found => found,
        }
    }

    /// The prompt in an embedding model's name, as in `minilm:query`: for clients that cannot send it otherwise.
    pub(super) fn named_prompt(&self, name: Option<&str>) -> Option<String> {
        find(&self.list(), name?)?.1.map(str::to_owned)
    }

    /// The error for a name that none of them has.
    pub(super) fn unknown(&self, name: &str) -> Error {
        Error::UnknownModel {
            name: name.to_owned(),
            known: self.list().iter().map(|model| model.name.clone()).collect(),
        }
    }
}

impl FromRequestParts<Arc<App>> for CallerModels {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Rejection> {
        Self::of_request(app, &parts.extensions).map_err(Rejection::from)
    }
}

/// Looks up a model by name or alias, with the prompt after its name. Ollama clients add `:latest` to names.
fn find<'a>(models: &'a [Arc<Entry>], name: &str) -> Option<(&'a Arc<Entry>, Option<&'a str>)> {
    let is_named = |model: &Entry, name: &str| {
        model.name == name || model.manifest.aliases.iter().any(|alias| alias == name)
    };
    let named = |name: &str| models.iter().find(|model| is_named(model, name));
    if let Some(model) = named(name) {
        return Some((model, None));
    }
    let (name, suffix) = name.rsplit_once(':')?;
    let model = named(name)?;
    if suffix == "latest" {
        return Some((model, None));
    }
    Some((
        model,
        model.settings()?.embedding()?.prompt_name(suffix).ok()?,
    ))
}
