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
    description: "Metadata, readiness and tensor inference, for Triton clients.",
    dialect: Dialect::KServe,
    prefix: Some("/v2/"),
    routes: &[
        get!("/v2", "server", kserve::server, "Describe the server").response::<kserve::ServerMetadata>(
            "Name, version and extensions.",
            r#"{"extensions": ["binary_tensor_data", "model_configuration", "model_repository"], "name": "kivu", "version": "0.2.0"}"#,
        ),
        HEALTH.at("/v2/health/live", "v2_health_live"),
        HEALTH.at("/v2/health/ready", "v2_health_ready"),
        post!("/v2/repository/index", "index", kserve::index, "List the models")
            .description("The body may be empty; `{\"ready\": true}` lists only loaded models.")
            .response::<Vec<kserve::IndexEntry>>(
                "The served models, and whether they are loaded.",
                r#"[{"name": "minilm", "state": "READY", "version": "1"}]"#,
            ),
        post!("/v2/repository/models/{model}/load", "load", kserve::load, "Load a model")
            .responds("Loaded; no body."),
        post!("/v2/repository/models/{model}/unload", "unload", kserve::unload, "Take a model out of memory")
            .description(
                "Only for models that are loaded on demand. Requests in progress keep the model, and the next one loads \
                 it again.",
            )
            .responds("Unloaded; no body."),
        METADATA,
        READY,
        CONFIG,
        INFER,
        METADATA.at("/v2/models/{model}/versions/{version}", "v2_models_model_versions_version"),
        READY.at("/v2/models/{model}/versions/{version}/ready", "v2_models_model_versions_version_ready"),
        CONFIG
            .at("/v2/models/{model}/versions/{version}/config", "v2_models_model_versions_version_config"),
        INFER.at("/v2/models/{model}/versions/{version}/infer", "v2_models_model_versions_version_infer"),
    ],
};

pub const HEALTH: Route = get!(
    "/health",
    "health",
    info::health,
    "Check that the server is up and its models are loaded"
)
.open()
.responds("Healthy; no body.");

const METADATA: Route =
    get!("/v2/models/{model}", "metadata", kserve::metadata, "Describe a model's tensors")
        .response::<kserve::ModelMetadata>(
            "Names, types and shapes; -1 is any length.",
            r#"{"inputs": [{"datatype": "BYTES", "name": "TEXT", "shape": [-1, 1]}], "name": "minilm", "outputs": [{"datatype": "FP32", "name": "embedding", "shape": [-1, 384]}], "platform": "kivu", "versions": ["1"]}"#,
        );

const READY: Route = get!(
    "/v2/models/{model}/ready",
    "model_ready",
    kserve::model_ready,
    "Check that a model is ready"
)
.responds("Ready; no body.");

const CONFIG: Route =
    get!("/v2/models/{model}/config", "config", kserve::config, "Describe a model as Triton's configuration")
        .response::<kserve::ModelConfig>(
            "Names, types and dimensions; -1 is any length.",
            r#"{"backend": "kivu", "input": [{"data_type": "TYPE_STRING", "dims": [-1, 1], "name": "TEXT"}], "max_batch_size": 0, "name": "minilm", "output": [{"data_type": "TYPE_FP32", "dims": [-1, 384], "name": "embedding"}], "platform": "kivu"}"#,
        );

const INFER: Route = post!("/v2/models/{model}/infer", "infer", kserve::infer, "Run a model on tensors")
    .description(
        "Tensors are sent in the JSON, or as binary data after it; `inference-header-content-length` is then the JSON's \
         length in bytes.",
    )
    .request::<InferRequest>(r#"{"inputs": [{"data": ["What is deep learning?"], "datatype": "BYTES", "name": "TEXT", "shape": [1, 1]}]}"#)
    .response::<InferResponse<'static>>(
        "The output, in the JSON or as binary data after it.",
        r#"{"model_name": "minilm", "model_version": "1", "outputs": [{"data": [0.6, 0.8], "datatype": "FP32", "name": "embedding", "shape": [1, 2]}]}"#,
    )
    .or_binary()
    .runs(Runs::Model);
