//! The route of the client in the package `gliner2`.

use crate::{
    dialects::Dialect,
    service::route::{Api, Route, RouteMethod, Runs, post},
    tasks::extraction::{self, ExtractionRequest, ExtractionResponse},
};

pub const GLINER2: Api = Api {
    name: "GLiNER2",
    dialect: Dialect::Jina,
    prefix: None,
    routes: &[post!("/gliner-2", "extract", extraction::extract)
        .request::<ExtractionRequest>()
        .response::<ExtractionResponse>()
        .runs(Runs::ModelWithUsage)],
};
