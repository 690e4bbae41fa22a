//! The first request of each model, before a snapshot is taken of the process.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::header::CONTENT_TYPE,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tower_service::Service;

use super::{app::App, example};
use crate::router;
use kivu::{Error, Result, config::Limits, model::Catalog};

/// Answers an example request with each model in `catalog`, so that its weights are in memory, and code and allocator have run
/// once; then forgets what it measured, and closes the connections to fleets.
///
/// # Errors
/// A model in this process cannot respond.
pub async fn warm_up(catalog: &Arc<Catalog>, limits: &Limits) -> Result<()> {
    let mut router = router(App::of_catalog(Arc::clone(catalog), limits.clone()));
    for entry in catalog.entries().iter() {
        let name = utf8_percent_encode(&entry.name, NON_ALPHANUMERIC);
        let request = Request::post(format!("/models/{name}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(example::body(&entry.manifest)))
            .map_err(|error| Error::inference_because("cannot make an example request", error))?;
        // The error type has no values.
        let Ok(response) = router.call(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await;
        let has_fleet = entry.with_model(|model| {
            model.pipeline.forget();
            model.pipeline.has_fleet()
        });
        if !status.is_success() {
            let body = body.unwrap_or_default();
            let message = format!(
                "`{}` cannot answer an example request: {status}, {}",
                entry.name,
                String::from_utf8_lossy(&body)
            );
            // Limits may be too low for the example, and fleets may start later.
            if status.is_client_error() || has_fleet == Some(true) {
                tracing::warn!("{message}; its first request will take longer");
            } else {
                return Err(Error::model(message));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::models;

    #[tokio::test]
    async fn every_task_has_an_example_that_its_models_answer() {
        let catalog = Arc::new(Catalog::of_models(models().unwrap()));
        warm_up(&catalog, &Limits::default()).await.unwrap();
        let none = Limits {
            body_bytes: 1,
            ..Limits::default()
        };
        warm_up(&catalog, &none).await.unwrap();
    }
}
