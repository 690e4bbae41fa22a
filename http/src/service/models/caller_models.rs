//! The models that a request's caller may use.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{Extensions, request::Parts},
};

use crate::{auth::Caller, bodies::rejection::Rejection, service::app::App};
use kivu::{
    Error, Result,
    backend::Deadline,
    model::{Catalog, Entry},
};

/// Names of models that a caller may use. A request has them as an extension once it is admitted.
#[derive(Clone, Debug)]
pub enum AllowedModels {
    All,
    Named(Arc<[String]>),
}

impl AllowedModels {
    /// The models that a key's line names; all if it names none.
    pub fn of_key(names: Vec<String>) -> Self {
        match names.is_empty() {
            true => Self::All,
            false => Self::Named(names.into()),
        }
    }

    /// The models of an admitted request's caller. Callers without a key may use all.
    pub fn of_caller(caller: Option<&Caller>) -> Self {
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
/// argument, or in a request's [`Context`](crate::bodies::request::Context).
#[derive(Clone, Debug)]
pub struct CallerModels {
    catalog: Arc<Catalog>,
    allowed: AllowedModels,
}

impl CallerModels {
    pub fn new(app: &App, allowed: AllowedModels) -> Self {
        Self {
            catalog: Arc::clone(&app.catalog),
            allowed,
        }
    }

    /// The models for a request with these extensions. Fails for requests that were not admitted, such as those to open
    /// routes.
    pub fn of_request(app: &App, extensions: &Extensions) -> Result<Self> {
        let allowed = extensions.get().cloned();
        let allowed = allowed.ok_or_else(|| {
            Error::config("no access to models: the request's credentials were not checked")
        })?;
        Ok(Self::new(app, allowed))
    }

    /// Whether the caller may use a model with this name.
    pub fn allow(&self, name: &str) -> bool {
        self.allowed.has(name)
    }

    /// All of them, in configuration order.
    pub fn list(&self) -> Vec<Arc<Entry>> {
        self.catalog
            .entries()
            .iter()
            .filter(|entry| self.allow(&entry.name))
            .cloned()
            .collect()
    }

    /// Looks up a model by name; `None` selects the first one.
    pub fn find(&self, name: Option<&str>) -> Result<Arc<Entry>> {
        let models = self.list();
        let Some(name) = name else {
            return models.first().cloned().ok_or(Error::NoModel);
        };
        let found = find(&models, name).map(|(model, _)| Arc::clone(model));
        found.ok_or_else(|| self.unknown(name))
    }

    /// Looks up a model by name. New models are looked for before a name is unknown.
    pub async fn find_new(&self, name: Option<&str>, deadline: Deadline) -> Result<Arc<Entry>> {
        match self.find(name) {
            Err(Error::UnknownModel { .. }) if self.catalog.is_on_demand() => {
                self.catalog.refresh(deadline).await;
                self.find(name)
            }
            found => found,
        }
    }

    /// The prompt in an embedding model's name, as in `minilm:query`: for clients that cannot send it otherwise.
    pub fn named_prompt(&self, name: Option<&str>) -> Option<String> {
        find(&self.list(), name?)?.1.map(str::to_owned)
    }

    /// The error for a name that none of them has.
    pub fn unknown(&self, name: &str) -> Error {
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
    Some((model, model.manifest.embedding()?.prompt_name(suffix).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::models;
    use kivu::config::Limits;

    #[tokio::test]
    async fn a_restriction_holds_wherever_a_request_runs() {
        let app = Arc::new(App::new(models().unwrap(), Limits::default()));
        let only = AllowedModels::of_key(vec!["ranking".to_owned()]);
        let models = CallerModels::new(&app, only);
        let work = async move {
            let names: Vec<String> = models.list().iter().map(|one| one.name.clone()).collect();
            let first = models.find(None).map(|model| model.name.clone());
            let other = models
                .find(Some("embedding"))
                .map(|model| model.name.clone());
            (
                names,
                first,
                other,
                models.named_prompt(Some("embedding:query")),
            )
        };
        let (names, first, other, prompt) = tokio::spawn(work).await.unwrap();
        assert_eq!(
            (names, first.unwrap()),
            (vec!["ranking".to_owned()], "ranking".to_owned())
        );
        insta::assert_snapshot!(other.unwrap_err(), @"unknown model `embedding`; known models: `ranking`");
        assert_eq!(prompt, None);
        let all = CallerModels::new(&app, AllowedModels::of_caller(None));
        assert!(all.list().len() > 1);
        assert_eq!(
            all.named_prompt(Some("embedding:query")).as_deref(),
            Some("query")
        );
    }

    #[test]
    fn a_request_that_was_not_admitted_has_no_models() {
        let app = App::new(models().unwrap(), Limits::default());
        let error = CallerModels::of_request(&app, &Extensions::new()).unwrap_err();
        insta::assert_snapshot!(error, @"no access to models: the request's credentials were not checked");
    }
}
