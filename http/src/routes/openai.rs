//! OpenAI's routes, with NVIDIA's for entities, vLLM's for labels and scores, llama.cpp's, and Jina's for ranking.

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
    tasks::ranking::{self, DocumentsRequest, JinaResponse},
};

pub const OPENAI: Api = Api {
    name: "OpenAI",
    description: "Embeddings in the OpenAI, Voyage and Jina APIs, entities in NVIDIA's form, and labels and scores in vLLM's.",
    dialect: Dialect::OpenAi,
    prefix: Some("/v1/"),
    routes: &[
        EMBEDDINGS,
        EMBEDDINGS.at("/embeddings", "tei_embeddings").summary("Embed texts, as `/v1/embeddings` does"),
        CHAT,
        LABELS,
        LABELS.at("/v1/classify", "v1_classify"),
        SCORE,
        SCORE.at("/score", "score"),
        get!("/v1/models", "models", openai::models, "List the models").response::<openai::ModelList>(
            "The served models.",
            r#"{"data": [{"created": 0, "id": "minilm", "object": "model", "owned_by": "kivu"}], "object": "list"}"#,
        ),
        get!("/v1/models/{model}", "model", openai::model, "Describe a model")
            .response::<openai::ModelEntry>(
                "The model is served.",
                r#"{"created": 0, "id": "minilm", "object": "model", "owned_by": "kivu"}"#,
            ),
    ],
};

pub const LLAMA_CPP: Api = Api {
    name: "llama.cpp",
    description: "Embeddings and ranking under the paths of llama.cpp's server, which also has `/v1/embeddings`.",
    dialect: Dialect::OpenAi,
    prefix: None,
    routes: &[
        post!(
            "/embedding",
            "llama_cpp_embedding",
            llama_cpp::embedding,
            "Embed texts, as llama.cpp does"
        )
        .request::<ContentRequest>(r#"{"content": "What is deep learning?"}"#)
        .response::<Vec<ContentEmbedding>>(
            "Unit-length vectors, in input order, each in a list.",
            r#"[{"index": 0, "embedding": [[-0.0679, -0.0329, 0.0216, 0.0002]]}]"#,
        )
        .runs(Runs::Model),
        RERANKING,
        RERANKING.at("/v1/reranking", "llama_cpp_v1_reranking"),
    ],
};

const RERANKING: Route = tei::RERANK
    .at("/reranking", "llama_cpp_reranking")
    .summary("Rank texts or documents by a query, as `/rerank` does");

pub const JINA: Api = Api {
    name: "Jina",
    description: "Ranking in the Jina and Voyage APIs.",
    dialect: Dialect::Jina,
    prefix: None,
    routes: &[post!("/v1/rerank", "jina", ranking::jina, "Rank documents by a query")
        .request::<DocumentsRequest>(r#"{"documents": ["hen", "car"], "model": "rank", "query": "egg", "top_n": 1}"#)
        .response::<JinaResponse<'static>>(
            "The documents and their scores, the highest score first.",
            r#"{"model": "rank", "object": "list", "results": [{"document": {"text": "hen"}, "index": 0, "relevance_score": 0.72}], "usage": {"prompt_tokens": 12, "total_tokens": 12}}"#,
        )
        .runs(Runs::Model)],
};

const CHAT: Route = post!(
    "/v1/chat/completions",
    "chat_completions",
    chat::completions,
    "Find entities, in the form of chat completions"
)
.request::<ChatRequest>(
    r#"{"flat_ner": true, "labels": ["first_name", "city"], "messages": [{"content": "My name is Sarah and I live in London", "role": "user"}], "threshold": 0.5}"#,
)
.response::<ChatCompletion<'static>>(
    "The entities as JSON in the message's content, as in NVIDIA's service for GLiNER.",
    r#"{"choices": [{"finish_reason": "stop", "index": 0, "message": {"content": "{\"total_entities\":1,\"entities\":[{\"text\":\"Sarah\",\"label\":\"first_name\",\"start\":11,\"end\":16,\"score\":0.98}],\"tagged_text\":\"My name is [Sarah](first_name) and I live in London\"}", "role": "assistant"}}], "created": 1790000000, "id": "chatcmpl-6a4e3b0c", "model": "gliner", "object": "chat.completion", "usage": {"completion_tokens": 0, "prompt_tokens": 17, "total_tokens": 17}}"#,
)
.runs(Runs::Model);

const LABELS: Route = post!("/classify", "classify", vllm::classify, "Classify texts, in vLLM's form")
    .request::<LabelsRequest>(r#"{"input": ["I like you"], "model": "sentiment"}"#)
    .response::<LabelsResponse<'static>>(
        "Each text's best label, with the scores of all labels.",
        r#"{"created": 1790000000, "data": [{"index": 0, "label": "positive", "num_classes": 2, "probs": [0.032, 0.968]}], "id": "classify-6a4e3b0c", "model": "sentiment", "object": "list", "usage": {"prompt_tokens": 5, "total_tokens": 5}}"#,
    )
    .runs(Runs::ModelWithUsage);

const SCORE: Route = post!("/v1/score", "v1_score", score::score, "Score texts by a query, in vLLM's form")
    .request::<ScoreRequest>(r#"{"model": "rank", "text_1": "egg", "text_2": ["hen", "car"]}"#)
    .response::<ScoreResponse<'static>>(
        "A score per text, in input order.",
        r#"{"created": 1790000000, "data": [{"index": 0, "object": "score", "score": 0.72}, {"index": 1, "object": "score", "score": 0.61}], "id": "score-6a4e3b0c", "model": "rank", "object": "list", "usage": {"prompt_tokens": 12, "total_tokens": 12}}"#,
    )
    .runs(Runs::ModelWithUsage);

const EMBEDDINGS: Route = post!("/v1/embeddings", "embeddings", openai::embeddings, "Embed texts")
    .request::<EmbeddingsRequest>(r#"{"dimensions": 4, "input": "What is deep learning?", "model": "minilm"}"#)
    .response::<EmbeddingsResponse<'static>>(
        "Unit-length vectors, in input order.",
        r#"{"data": [{"embedding": [-0.865, -0.419, 0.275, 0.003], "index": 0, "object": "embedding"}], "model": "minilm", "object": "list", "usage": {"prompt_tokens": 7, "total_tokens": 7}}"#,
    )
    .runs(Runs::Model);
