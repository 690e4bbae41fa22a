//! Ollama's routes.

use crate::{
    dialects::{
        Dialect,
        ollama::{
            self, OllamaEmbedRequest, OllamaEmbeddingsRequest,
            models::{self, OllamaShowRequest},
            pull::{self, OllamaPullRequest},
        },
    },
    service::route::{Api, Route, RouteMethod, Runs, get, post},
};

pub const OLLAMA: Api = Api {
    name: "Ollama",
    dialect: Dialect::Tei,
    prefix: Some("/api/"),
    routes: &[
        post!("/api/embed", "ollama_embed", ollama::embed)
            .request::<OllamaEmbedRequest>()
            .response::<ollama::EmbedResponse<'static>>()
            .runs(Runs::Model),
        post!("/api/embeddings", "ollama_embeddings", ollama::embeddings)
            .request::<OllamaEmbeddingsRequest>()
            .response::<ollama::EmbeddingsResponse>()
            .runs(Runs::Model),
        get!("/api/tags", "ollama_tags", models::tags).response::<models::Tags>(),
        post!("/api/show", "ollama_show", models::show)
            .request::<OllamaShowRequest>()
            .response::<models::ShowResponse>(),
        get!("/api/ps", "ollama_ps", models::processes).response::<models::Processes>(),
        post!("/api/pull", "ollama_pull", pull::pull)
            .request::<OllamaPullRequest>()
            .response_in::<pull::Line>("application/x-ndjson"),
        get!("/api/version", "ollama_version", models::version).response::<models::Version>(),
    ],
};
