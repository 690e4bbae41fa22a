//! KServe v2 routes, and health checks.

use crate::{
    dialects::{
        Dialect,
        kserve::{self, InferRequest, InferResponse},
    },
    service::{
        info,
        route::{Api, Route, RouteMethod, Runs, get, post},
    },
};

pub const KSERVE: Api = Api {
    name: "KServe v2",
    dialect: Dialect::KServe,
    prefix: Some("/v2/"),
    routes: &[
        get!("/v2", "server", kserve::server).response::<kserve::ServerMetadata>(),
        HEALTH.at("/v2/health/live", "v2_health_live"),
        HEALTH.at("/v2/health/ready", "v2_health_ready"),
        post!("/v2/repository/index", "index", kserve::index).response::<Vec<kserve::IndexEntry>>(),
        post!("/v2/repository/models/{model}/load", "load", kserve::load),
        post!(
            "/v2/repository/models/{model}/unload",
            "unload",
            kserve::unload
        ),
        METADATA,
        READY,
        CONFIG,
        INFER,
        METADATA.at(
            "/v2/models/{model}/versions/{version}",
            "v2_models_model_versions_version",
        ),
        READY.at(
            "/v2/models/{model}/versions/{version}/ready",
            "v2_models_model_versions_version_ready",
        ),
        CONFIG.at(
            "/v2/models/{model}/versions/{version}/config",
            "v2_models_model_versions_version_config",
        ),
        INFER.at(
            "/v2/models/{model}/versions/{version}/infer",
            "v2_models_model_versions_version_infer",
        ),
    ],
};

pub const HEALTH: Route = get!("/health", "health", info::health).open();

const METADATA: Route =
    get!("/v2/models/{model}", "metadata", kserve::metadata).response::<kserve::ModelMetadata>();

const READY: Route = get!(
    "/v2/models/{model}/ready",
    "model_ready",
    kserve::model_ready
);

const CONFIG: Route =
    get!("/v2/models/{model}/config", "config", kserve::config).response::<kserve::ModelConfig>();

const INFER: Route = post!("/v2/models/{model}/infer", "infer", kserve::infer)
    .request::<InferRequest>()
    .response::<InferResponse<'static>>()
    .or_binary()
    .runs(Runs::Model);
