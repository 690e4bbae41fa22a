//! TEI's routes, and the same ones under the paths of SageMaker and Vertex AI.

use crate::{
    bodies::{
        response::{OneOrMany, Prediction, Rank},
        vectors::Vector,
    },
    dialects::Dialect,
    service::{
        info,
        route::{Api, Route, RouteMethod, Runs, get, post},
    },
    tasks::{
        self, VertexRequest,
        classification::{self, PredictRequest},
        embedding::{self, EmbedRequest, SimilarityRequest, SparseValue, VectorsByKind},
        ranking::{self, JinaResponse, TextsOrDocuments},
        task_schemas::{DefaultRequest, TaskResponse, VertexResponse},
        tokens::{self, DecodeRequest, TokenizeRequest},
    },
};
use kivu::{json_schemas::Either, task::tokens::TextToken};

pub const TEI: Api = Api {
    name: "TEI",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        DEFAULT,
        post!("/decode", "decode", tokens::decode)
            .request::<DecodeRequest>()
            .response::<Vec<String>>(),
        post!("/embed", "embed", embedding::embed)
            .request::<EmbedRequest>()
            .response::<Either<Vec<Vector>, Vec<VectorsByKind>>>()
            .runs(Runs::ModelWithUsage),
        post!("/embed_all", "embed_all", embedding::embed_all)
            .request::<EmbedRequest>()
            .response::<Vec<Vec<Vec<f32>>>>()
            .runs(Runs::ModelWithUsage),
        post!("/embed_sparse", "embed_sparse", embedding::embed_sparse)
            .request::<EmbedRequest>()
            .response::<Vec<Vec<SparseValue>>>()
            .runs(Runs::ModelWithUsage),
        get!("/info", "info", info::info).response::<info::Info>(),
        post!("/predict", "predict", classification::predict)
            .request::<PredictRequest>()
            .response::<OneOrMany<Vec<Prediction<'static>>>>()
            .runs(Runs::ModelWithUsage),
        RERANK,
        post!("/similarity", "similarity", embedding::similarity)
            .request::<SimilarityRequest>()
            .response::<Vec<f32>>()
            .runs(Runs::ModelWithUsage),
        post!("/tokenize", "tokenize", tokens::tokenize)
            .request::<TokenizeRequest>()
            .response::<Vec<Vec<TextToken>>>(),
    ],
};

pub const RERANK: Route = post!("/rerank", "rerank", ranking::rerank)
    .request::<TextsOrDocuments>()
    .response::<Either<Vec<Rank<'static>>, JinaResponse<'static>>>()
    .runs(Runs::ModelWithUsage);

pub const PLATFORMS: Api = Api {
    name: "SageMaker and Vertex AI",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        DEFAULT.at("/invocations", "invocations"),
        post!("/vertex", "vertex", tasks::vertex)
            .request::<VertexRequest>()
            .response::<VertexResponse>()
            .runs(Runs::Model),
    ],
};

const DEFAULT: Route = post!("/", "default_task", tasks::default_task)
    .request::<DefaultRequest>()
    .response::<TaskResponse>()
    .runs(Runs::ModelWithUsage);
