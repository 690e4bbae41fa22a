//! One HTTP router for every dialect, on a laptop and behind API Gateway.

mod auth;
mod content_encoding;
mod dialect;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/readers/api.rs"]
pub(crate) mod fuzzing;
mod hugging_face;
mod inputs;
mod kserve;
mod models;
mod openai;
mod openapi;
mod page;
mod permit_body;
mod rejection;
mod request;
mod rerank;
mod startup;
mod tei;
mod translate;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use tokio::sync::Semaphore;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{auth::Asking, dialect::Dialect, openapi::at, rejection::Rejection};
pub use self::{
    auth::{BindScope, GatewayVerified, Guard, make_key},
    startup::LazyRouter,
};
use crate::{
    backend::routing::Location,
    config::Limits,
    error::{Error, Result},
    model::{Model, Pipeline},
    pipeline::{
        Task, classification::ClassificationPipeline, embedding::EmbeddingPipeline, ranking::RankingPipeline,
        zero_shot::ZeroShotPipeline,
    },
    telemetry::{self, Prometheus, trace::Trace},
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Says where a model ran, in every answer of one.
const BACKEND: HeaderName = HeaderName::from_static("x-backend");
/// Longer ids than this are replaced: they go into the log.
const LONGEST_REQUEST_ID: usize = 128;

/// What every request can see: the models and the bounds.
#[derive(Debug)]
pub struct App {
    models: Vec<Model>,
    limits: Limits,
    permits: Arc<Semaphore>,
    guard: Guard,
    prometheus: Option<Prometheus>,
    has_page: bool,
    /// What `/openapi.json` answers, written when it is first asked for.
    document: OnceLock<String>,
}

impl App {
    /// Serves `models`, within `limits`, to everybody.
    pub fn new(models: Vec<Model>, limits: Limits) -> Self {
        let permits = Arc::new(Semaphore::new(limits.requests.min(Semaphore::MAX_PERMITS)));
        Self {
            models,
            limits,
            permits,
            guard: Guard::default(),
            prometheus: None,
            has_page: true,
            document: OnceLock::new(),
        }
    }

    /// The same for those whom `guard` lets through.
    #[must_use]
    pub fn with_guard(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }

    /// The same with a page of what is counted.
    #[must_use]
    pub fn with_metrics(self, prometheus: Prometheus) -> Self {
        Self { prometheus: Some(prometheus), ..self }
    }

    /// The same with the page at `/`, or without it.
    #[must_use]
    pub fn with_page(self, has_page: bool) -> Self {
        Self { has_page, ..self }
    }

    /// The model called `name`, or the first that there is.
    fn model(&self, name: Option<&str>) -> Result<&Model> {
        match name {
            None => self.models.first(),
            Some(name) => self.models.iter().find(|model| model.name == name),
        }
        .ok_or_else(|| Error::UnknownModel {
            name: name.unwrap_or_default().to_owned(),
            known: self.models.iter().map(|model| model.name.clone()).collect(),
        })
    }

    /// The model called `name`, which must be for `task`, or the first that is.
    fn pipeline<'a, P>(
        &'a self,
        name: Option<&str>,
        task: Task,
        pick: impl Fn(&'a Pipeline) -> Option<&'a P>,
    ) -> Result<(&'a Model, &'a P)> {
        if name.is_none() {
            let mut models = self.models.iter();
            let found = models.find_map(|model| Some((model, pick(&model.pipeline)?)));
            return found
                .ok_or_else(|| Error::invalid(format!("expected a model for `{task}`, but none is served")));
        }
        let model = self.model(name)?;
        let pipeline = pick(&model.pipeline).ok_or_else(|| {
            Error::invalid(format!(
                "expected a model for `{task}`, but `{}` is for `{}`",
                model.name, model.manifest.task
            ))
        })?;
        Ok((model, pipeline))
    }

    fn embedding(&self, name: Option<&str>) -> Result<(&Model, &EmbeddingPipeline)> {
        self.pipeline(name, Task::FeatureExtraction, |pipeline| match pipeline {
            Pipeline::Embedding(pipeline) => Some(pipeline),
            _ => None,
        })
    }

    fn classification(&self, name: Option<&str>) -> Result<(&Model, &ClassificationPipeline)> {
        self.pipeline(name, Task::TextClassification, |pipeline| match pipeline {
            Pipeline::Classification(pipeline) => Some(pipeline),
            _ => None,
        })
    }

    fn zero_shot(&self, name: Option<&str>) -> Result<(&Model, &ZeroShotPipeline)> {
        self.pipeline(name, Task::ZeroShotClassification, |pipeline| match pipeline {
            Pipeline::ZeroShot(pipeline) => Some(pipeline),
            _ => None,
        })
    }

    fn ranking(&self, name: Option<&str>) -> Result<(&Model, &RankingPipeline)> {
        self.pipeline(name, Task::TextRanking, |pipeline| match pipeline {
            Pipeline::Ranking(pipeline) => Some(pipeline),
            _ => None,
        })
    }
}

/// The router of every dialect.
///
/// Its errors are responses: client mistakes are told to the client and not logged; our own faults are logged
/// once, with their causes, and told without them.
pub fn router(app: App) -> Router {
    let app = Arc::new(app);
    Router::from(routes())
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

/// Every route, with what the document says of it.
fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(page::page_or_health, tei::default_task))
        .routes(routes!(page::docs))
        .routes(routes!(openapi::openapi))
        .routes(routes!(tei::health))
        .routes(at("/ping", routes!(tei::health)))
        .routes(routes!(tei::info::info))
        .routes(routes!(metrics))
        .routes(routes!(tei::embedding::embed))
        .routes(routes!(tei::embedding::embed_all))
        .routes(routes!(tei::embedding::similarity))
        .routes(routes!(tei::classify::predict))
        .routes(routes!(tei::classify::rerank))
        .routes(routes!(translate::translate))
        .routes(routes!(tei::tokens::tokenize))
        .routes(routes!(tei::tokens::decode))
        .routes(routes!(models::list))
        .routes(routes!(hugging_face::infer))
        .routes(routes!(rerank::jina))
        .routes(routes!(rerank::cohere))
        .routes(routes!(kserve::server))
        .routes(at("/v2/health/live", routes!(tei::health)))
        .routes(at("/v2/health/ready", routes!(tei::health)))
        .routes(routes!(kserve::index))
        .routes(routes!(kserve::metadata))
        .routes(routes!(kserve::model_ready))
        .routes(routes!(kserve::config))
        .routes(routes!(kserve::infer))
        .routes(at("/v2/models/{model}/versions/{version}", routes!(kserve::metadata)))
        .routes(at("/v2/models/{model}/versions/{version}/ready", routes!(kserve::model_ready)))
        .routes(at("/v2/models/{model}/versions/{version}/config", routes!(kserve::config)))
        .routes(at("/v2/models/{model}/versions/{version}/infer", routes!(kserve::infer)))
        .routes(routes!(openai::embeddings))
        .routes(routes!(openai::models))
        .routes(routes!(openai::model))
}

/// A router whose routes begin with `prefix`, if there is one.
pub fn below(prefix: Option<&str>, router: Router) -> Router {
    match prefix {
        Some(prefix) => Router::new().nest(prefix, router),
        None => router,
    }
}

/// What was counted, as Prometheus reads it
#[utoipa::path(get, path = "/metrics", tag = "server", responses((
    status = 200, description = "Counters and times.", body = String, content_type = "text/plain; charset=utf-8",
    example = "kivu_requests_total 7"
)))]
async fn metrics(State(app): State<Arc<App>>) -> Response {
    match &app.prometheus {
        Some(prometheus) => prometheus.page().into_response(),
        None => {
            let message = "no counters here; those of a function are in CloudWatch, in the namespace `Kivu`";
            in_dialect("/metrics", Rejection::new(StatusCode::NOT_FOUND, message))
        }
    }
}

async fn no_route(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("no route `{path}`; the documentation lists those that there are");
    in_dialect(path, Rejection::new(StatusCode::NOT_FOUND, message))
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("`{path}` does not take {}", request.method());
    in_dialect(path, Rejection::new(StatusCode::METHOD_NOT_ALLOWED, message))
}

/// A rejection in the shape of the dialect that a path belongs to.
fn in_dialect(path: &str, rejection: Rejection) -> Response {
    Dialect::of(path).respond(rejection)
}

/// Gives every request an id, asks who sends it, and writes one line into the log, which says what was done and
/// never what was said.
async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(&mut request);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let asking = Asking {
        method: &method,
        path: &path,
        headers: request.headers(),
        is_vouched: request.extensions().get::<GatewayVerified>().is_some(),
    };
    let trace = Trace::read(|name| request.headers().get(name)?.to_str().ok());
    let trace_id = trace.as_ref().map(|trace| trace.id.clone());
    let (mut response, caller, refused) = match app.guard.admit(asking).await {
        Ok(caller) => (Trace::follow(trace, run(&app, request, next)).await, caller, None),
        Err(refusal) => (in_dialect(&path, refusal.rejection), None, Some(refusal.why)),
    };
    let (status, took) = (response.status(), started.elapsed());
    telemetry::answered(status.as_u16(), took);
    let ms = took.as_micros() as f64 / 1000.0;
    let (id_text, status) = (id.to_str().unwrap_or_default(), status.as_u16());
    if let Some(rejection) = response.extensions_mut().remove::<Rejection>().filter(Rejection::is_ours) {
        let cause = rejection.chain();
        tracing::error!(id = id_text, %method, path, status, ms, caller, trace = trace_id, cause, "request failed");
    } else {
        tracing::info!(id = id_text, %method, path, status, ms, caller, trace = trace_id, refused, "request");
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Answers a request if there is a place for it among those under way.
async fn run(app: &App, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    // Asking how the server is costs nothing, and a server that is busy is not ill.
    let permit = match *request.method() {
        Method::GET => None,
        _ => match Arc::clone(&app.permits).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => return in_dialect(&path, Error::Overloaded { limit: app.limits.requests }.into()),
        },
    };
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
        in_dialect(&path, Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed"))
    });
    match permit {
        Some(permit) => permit_body::hold(permit, response),
        None => response,
    }
}

/// Says in an answer where its model ran.
fn name_backend(response: &mut Response, place: Location) {
    let name = match place {
        Location::Local => "onnx",
        Location::Remote => "triton",
    };
    response.headers_mut().insert(BACKEND, HeaderValue::from_static(name));
}

/// The id that the caller gave, or a new one.
fn request_id(request: &mut Request) -> HeaderValue {
    let given = request.headers().get(REQUEST_ID).filter(|id| {
        (1..=LONGEST_REQUEST_ID).contains(&id.len())
            && id.to_str().is_ok_and(|id| id.chars().all(|c| c.is_ascii_graphic()))
    });
    let id = given.cloned().or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).ok());
    let id = id.unwrap_or_else(|| HeaderValue::from_static("unknown"));
    request.headers_mut().insert(REQUEST_ID, id.clone());
    id
}
