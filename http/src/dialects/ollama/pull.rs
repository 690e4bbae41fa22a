//! Ollama's `/api/pull`: fetches a model, with its progress as lines of JSON.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
    thread,
};

use axum::{
    Json,
    body::{Body, Bytes},
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
};
use futures::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bodies::{
        inputs::one_value,
        rejection::{ApiResult, Rejection},
        request::{Context, OllamaCall, RequestBody},
    },
    service::{app::App, models::pull::FetchProgress},
};
use kivu::{Error, backend::Deadline};

/// The last line's status.
const SUCCESS: &str = "success";
/// The error of a fetch that panicked.
const FAILED: &str = "fetching the model failed; the server's log has the cause";

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `model`")]
pub struct OllamaPullRequest {
    /// A hub repository, as `ORG/NAME` or `ORG/NAME@REVISION`, or a recipe.
    model: Option<String>,
    /// The older name for `model`.
    name: Option<String>,
    /// Whether the response reports the progress; true by default.
    stream: Option<bool>,
}

impl RequestBody for OllamaPullRequest {
    const FIELDS: &str = "Ollama.pull";
}

/// A line of the response; the last one has the status `success` or an error.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaPullProgress")]
pub struct Line {
    /// What is done at the moment, or `success`.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// What is downloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
    /// Why the model could not be fetched or built.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Whether the server is at fault.
    #[serde(skip)]
    #[schemars(skip)]
    has_panicked: bool,
}

impl Line {
    fn status(status: impl Into<String>) -> Self {
        Self {
            status: Some(status.into()),
            ..Self::default()
        }
    }

    fn error(message: String) -> Self {
        Self {
            error: Some(message),
            ..Self::default()
        }
    }

    fn is_success(&self) -> bool {
        self.status.as_deref() == Some(SUCCESS)
    }

    fn of(progress: FetchProgress) -> Self {
        match progress {
            FetchProgress::Stage(stage) => Self::status(stage),
            FetchProgress::Bytes {
                name,
                total,
                completed,
            } => Self {
                digest: Some(name.clone()),
                total: Some(total),
                completed: Some(completed),
                ..Self::status(format!("pulling {name}"))
            },
        }
    }

    fn bytes(&self) -> Bytes {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }
}

/// Fetch a model, as Ollama does
pub async fn pull(OllamaCall(context, body): OllamaCall<OllamaPullRequest>) -> ApiResult {
    let given = |name: Option<String>| name.filter(|name| !name.is_empty());
    let name = one_value([("model", given(body.model)), ("name", given(body.name))])?;
    let name = name.ok_or_else(|| Error::invalid("expected a model in `model`, but found none"))?;
    let lines = start(&context, name)?;
    if body.stream.unwrap_or(true) {
        let lines = lines
            .into_stream()
            .map(|line| Ok::<_, std::convert::Infallible>(line.bytes()));
        return Ok((
            [(CONTENT_TYPE, "application/x-ndjson")],
            Body::from_stream(lines),
        )
            .into_response());
    }
    let mut last = Line::default();
    while let Ok(line) = lines.recv_async().await {
        last = line;
    }
    match last.error {
        None if last.is_success() => Ok(Json(last).into_response()),
        Some(message) if !last.has_panicked => Err(Error::unavailable(message).into()),
        _ => Err(Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, FAILED)),
    }
}

/// Begins to fetch a model. It goes on if the client disconnects, and a later request finds the model.
fn start(context: &Context, name: String) -> ApiResult<flume::Receiver<Line>> {
    let (sender, lines) = flume::unbounded();
    let app = &context.app;
    if context.models.find(Some(&name)).is_ok() {
        let _ = sender.send(Line::status(SUCCESS));
        return Ok(lines);
    }
    let Some(fetcher) = app.fetcher.clone().filter(|_| app.catalog.is_on_demand()) else {
        return Err(Error::invalid(format!(
            "expected a model that this server has, but found `{}`",
            name.escape_debug()
        ))
        .with_hint("`kivu serve --load on-demand` fetches others from the Hugging Face Hub")
        .into());
    };
    // A caller with a list of models may fetch those.
    if !context.models.allow(&name) {
        return Err(context.models.unknown(&name).into());
    }
    fetcher
        .check(&name)
        .map_err(|error| Error::invalid(error.message()))?;
    let overloaded = |_| {
        Rejection::from(Error::Overloaded {
            limit: 1,
            unit: "pulls",
        })
    };
    let permit = Arc::clone(&app.pulls)
        .try_acquire_owned()
        .map_err(overloaded)?;
    let (app, handle) = (Arc::clone(app), tokio::runtime::Handle::current());
    let work = move || {
        let fetched = || {
            let report = |progress| drop(sender.send(Line::of(progress)));
            let path = fetcher.fetch(&name, &report)?;
            Ok::<_, Error>(handle.block_on(serve(&app, &name, path)))
        };
        let last = match catch_unwind(AssertUnwindSafe(fetched)) {
            Ok(Ok(last)) => last,
            Ok(Err(error)) => {
                tracing::error!(model = name, error = error.chain(), "cannot pull");
                Line::error(match error {
                    // The name's fault.
                    Error::Invalid { message } => message.to_string(),
                    _ => format!("`{name}` could not be fetched; the server's log has the cause"),
                })
            }
            // The panic is in the log.
            Err(_) => Line {
                has_panicked: true,
                ..Line::error(FAILED.to_owned())
            },
        };
        // The client may fetch the next model at once.
        drop(permit);
        let _ = sender.send(last);
    };
    let failed = Error::io("cannot start a thread that fetches a model");
    thread::Builder::new()
        .name("pull".to_owned())
        .spawn(work)
        .map_err(failed)?;
    Ok(lines)
}

/// Serves the fetched bundle from now on. Another model may have its name.
async fn serve(app: &App, name: &str, path: PathBuf) -> Line {
    app.catalog.add(path.clone());
    app.catalog
        .refresh(Deadline::within(app.limits.timeout()))
        .await;
    if app.catalog.has_bundle(&path) {
        return Line::status(SUCCESS);
    }
    Line::error(format!(
        "`{name}` was fetched, but it cannot be served; the server's log has the cause"
    ))
}
