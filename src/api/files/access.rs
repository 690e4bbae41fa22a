//! Who may use which files.

use std::{fmt::Display, sync::Arc};

use axum::{
    extract::{FromRequestParts, Query},
    http::{StatusCode, request::Parts},
};

use super::{Files, ListQuery};
use crate::{
    api::{app::App, auth::Caller, rejection::Rejection},
    backend::Deadline,
    error::{Error, Result},
};

/// A caller as the owner of files.
#[derive(Clone, Debug)]
pub(in crate::api) struct Owner {
    /// Folder name.
    pub(in crate::api) folder: String,
    /// The models that the caller may use; all if there are none.
    pub(in crate::api) models: Vec<String>,
}

impl Owner {
    /// The owner of a caller's files. Callers without a key share theirs.
    pub(in crate::api) fn of(caller: Option<&Caller>) -> Self {
        let text = caller.map_or_else(
            || "anyone".to_owned(),
            |caller| format!("key {}", caller.name),
        );
        // Names may differ in case only, which some file systems ignore.
        let folder = blake3::hash(text.as_bytes()).to_hex()[..32].to_owned();
        Self {
            folder,
            models: caller.map_or_else(Vec::new, |caller| caller.models.clone()),
        }
    }
}

/// A request's access to its caller's files.
#[derive(Clone)]
pub(in crate::api) struct Access {
    pub(in crate::api) files: Arc<Files>,
    pub(in crate::api) owner: Owner,
    pub(in crate::api) deadline: Deadline,
}

impl Access {
    /// Runs blocking work.
    pub(in crate::api) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files, &Owner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let Self {
            files,
            owner,
            deadline,
        } = self.clone();
        deadline
            .bound(self.files.threads.run(move || work(&files, &owner)))
            .await
    }

    /// Runs the last work of a request, which may have taken longer than others.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let files = Arc::clone(&self.files);
        self.files.threads.run(move || work(&files)).await
    }
}

impl FromRequestParts<Arc<App>> for Access {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Rejection> {
        let Some(files) = app.files.clone() else {
            let message = format!("no route `{}`: `files.folder` is not set", parts.uri.path());
            return Err(Rejection::new(StatusCode::NOT_FOUND, message));
        };
        let owner = parts
            .extensions
            .get::<Owner>()
            .cloned()
            .unwrap_or_else(|| Owner::of(None));
        let deadline = Deadline::within(app.limits.timeout());
        let deadline = parts
            .extensions
            .get::<Deadline>()
            .map_or(deadline, |platform| deadline.or_earlier(*platform));
        Ok(Self {
            files,
            owner,
            deadline,
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ListQuery {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let query = Query::<Self>::from_request_parts(parts, state).await;
        let Query(query) = query.map_err(|_| {
            Error::invalid(
                "expected the parameters `after`, `limit` (a number), `order` (`asc` or `desc`) and `purpose`, each at \
                 most once, but found others",
            )
        })?;
        Ok(query)
    }
}

/// The rejection for an id that the caller has no object for, also if another caller has one.
pub(in crate::api) fn unknown(kind: impl Display, id: &str) -> Rejection {
    Rejection::new(StatusCode::NOT_FOUND, format!("unknown {kind} `{id}`"))
}
