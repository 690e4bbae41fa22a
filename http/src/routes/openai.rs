//! OpenAI's routes, with NVIDIA's for entities and ranking, vLLM's for labels and scores, llama.cpp's, and Jina's for ranking.

use crate::{
    dialects::{
        Dialect,
        chat::{self, ChatCompletion, ChatRequest},
        llama_cpp::{self, ContentEmbedding, ContentRequest},
        openai::{self, EmbeddingsRequest, EmbeddingsResponse},
        score::{self, ScoreRequest, ScoreResponse},
        vllm::{self, LabelsRequest, LabelsResponse},
    },
    routes::tei,
    service::route::{Api, Route, RouteMethod, Runs, get, post},
    tasks::ranking::{self, DocumentsRequest, JinaResponse, PassagesRequest, PassagesResponse},
};

pub const OPENAI: Api = Api {
    name: "OpenAI",
    dialect: Dialect::OpenAi,
    prefix: Some("/v1/"),
    routes: &[
        EMBEDDINGS,
        EMBEDDINGS.at("/embeddings", "tei_embeddings"),
        CHAT,
        RANKING,
        LABELS,
        LABELS.at("/v1/classify", "v1_classify"),
        SCORE,
        SCORE.at("/score", "score"),
        get!("/v1/models", "models", openai::models).response::<openai::ModelList>(),
        MODEL,
        MODEL.at("/v1/models/{model}/{resource}", "model_of_organization"),
    ],
};

pub const LLAMA_CPP: Api = Api {
    name: "llama.cpp",
    dialect: Dialect::OpenAi,
    prefix: None,
    routes: &[
        post!("/embedding", "llama_cpp_embedding", llama_cpp::embedding)
            .request::<ContentRequest>()
            .response::<Vec<ContentEmbedding>>()
            .runs(Runs::Model),
        RERANKING,
        RERANKING.at("/v1/reranking", "llama_cpp_v1_reranking"),
    ],
};

const RERANKING: Route = tei::RERANK.at("/reranking", "llama_cpp_reranking");

pub const JINA: Api = Api {
    name: "Jina",
    dialect: Dialect::Jina,
    prefix: None,
    routes: &[post!("/v1/rerank", "jina", ranking::jina)
        .request::<DocumentsRequest>()
        .response::<JinaResponse<'static>>()
        .runs(Runs::Model)],
};

const MODEL: Route =
    get!("/v1/models/{model}", "model", openai::model).response::<openai::ModelEntry>();

const CHAT: Route = post!(
    "/v1/chat/completions",
    "chat_completions",
    chat::completions
)
.request::<ChatRequest>()
.response::<ChatCompletion<'static>>()
.runs(Runs::Model);

const RANKING: Route = post!("/v1/ranking", "ranking", ranking::nvidia)
    .request::<PassagesRequest>()
    .response::<PassagesResponse>()
    .runs(Runs::Model);

const LABELS: Route = post!("/classify", "classify", vllm::classify)
    .request::<LabelsRequest>()
    .response::<LabelsResponse<'static>>()
    .runs(Runs::ModelWithUsage);

const SCORE: Route = post!("/v1/score", "v1_score", score::score)
    .request::<ScoreRequest>()
    .response::<ScoreResponse<'static>>()
    .runs(Runs::ModelWithUsage);

const EMBEDDINGS: Route = post!("/v1/embeddings", "embeddings", openai::embeddings)
    .request::<EmbeddingsRequest>()
    .response::<EmbeddingsResponse<'static>>()
    .runs(Runs::Model);
