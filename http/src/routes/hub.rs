//! The model hub's route.

use crate::{
    dialects::Dialect,
    service::route::{Api, Route, RouteMethod, Runs, post},
    tasks::{
        self,
        task_schemas::{HubRequest, TaskResponse},
    },
};

pub const HUB: Api = Api {
    name: "model hub",
    dialect: Dialect::Tei,
    prefix: Some("/models/"),
    routes: &[
        TASK,
        TASK.at("/models/{model}/{resource}", "task_of_organization"),
    ],
};

const TASK: Route = post!("/models/{model}", "task", tasks::infer)
    .request::<HubRequest>()
    .response::<TaskResponse>()
    .runs(Runs::ModelWithUsage);
