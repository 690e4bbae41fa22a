//! Cohere's routes.

use crate::{
    dialects::{
        Dialect,
        cohere::{self, CohereEmbedRequest},
    },
    service::route::{Api, Route, RouteMethod, Runs, post},
    tasks::ranking::{self, CohereResponse, DocumentsRequest},
};

pub const COHERE: Api = Api {
    name: "Cohere",
    description: "Embeddings and ranking in Cohere's API.",
    dialect: Dialect::Cohere,
    prefix: None,
    routes: &[
        post!("/v1/embed", "cohere_embed_v1", cohere::embed_v1, "Embed texts, as Cohere's first version does")
            .request::<CohereEmbedRequest>(r#"{"model": "minilm", "texts": ["What is deep learning?"]}"#)
            .response::<cohere::EmbedResponse>(
                "The vectors, by type if the request names types.",
                r#"{"id": "a5e5d0a2-6a7d-4a3e-8a39-d5e5c77e7d6a", "texts": ["What is deep learning?"], "embeddings": [[-0.0679, -0.0329, 0.0216, 0.0002]], "response_type": "embeddings_floats", "meta": {"api_version": {"version": "1"}, "billed_units": {"input_tokens": 7}}}"#,
            )
            .runs(Runs::Model),
        post!("/v2/embed", "cohere_embed", cohere::embed, "Embed texts, as Cohere does")
            .request::<CohereEmbedRequest>(r#"{"model": "minilm", "texts": ["What is deep learning?"], "input_type": "search_query", "embedding_types": ["float", "binary"]}"#)
            .response::<cohere::EmbedResponse>(
                "The vectors by type.",
                r#"{"id": "a5e5d0a2-6a7d-4a3e-8a39-d5e5c77e7d6a", "texts": ["What is deep learning?"], "embeddings": {"binary": [[-117, 43]], "float": [[-0.0679, -0.0329, 0.0216, 0.0002]]}, "response_type": "embeddings_by_type", "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7}}}"#,
            )
            .runs(Runs::Model),
        post!("/v2/rerank", "cohere", ranking::cohere, "Rank documents by a query")
            .request::<DocumentsRequest>(r#"{"documents": ["hen", "car"], "model": "rank", "query": "egg", "top_n": 1}"#)
            .response::<CohereResponse>(
                "The documents' positions and scores, the highest score first.",
                r#"{"id": "3a1f…", "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}, "tokens": {"input_tokens": 12}}, "results": [{"index": 0, "relevance_score": 0.72}]}"#,
            )
            .runs(Runs::Model),
    ],
};
