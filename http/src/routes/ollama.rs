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
    description: "Embeddings and models in Ollama's API.",
    dialect: Dialect::Tei,
    prefix: Some("/api/"),
    routes: &[
        post!("/api/embed", "ollama_embed", ollama::embed, "Embed texts, as Ollama does")
            .request::<OllamaEmbedRequest>(r#"{"model": "minilm", "input": "What is deep learning?"}"#)
            .response::<ollama::EmbedResponse<'static>>(
                "Unit-length vectors, in input order.",
                r#"{"model": "minilm", "embeddings": [[-0.0679, -0.0329, 0.0216, 0.0002]], "total_duration": 1253061, "load_duration": 0, "prompt_eval_count": 7}"#,
            )
            .runs(Runs::Model),
        post!(
            "/api/embeddings",
            "ollama_embeddings",
            ollama::embeddings,
            "Embed a text, as in earlier Ollama versions"
        )
        .request::<OllamaEmbeddingsRequest>(r#"{"model": "minilm", "prompt": "What is deep learning?"}"#)
        .response::<ollama::EmbeddingsResponse>(
            "The vector.",
            r#"{"embedding": [-0.0679, -0.0329, 0.0216, 0.0002]}"#,
        )
        .runs(Runs::Model),
        get!("/api/tags", "ollama_tags", models::tags, "List the models, as Ollama does")
            .response::<models::Tags>(
                "All models.",
                r#"{"models": [{"name": "minilm", "model": "minilm", "size": 23900000, "digest": "2f17d28004ee", "details": {"parent_model": "", "format": "onnx", "family": "bert", "families": ["bert"], "parameter_size": "", "quantization_level": "int8"}}]}"#,
            ),
        post!("/api/show", "ollama_show", models::show, "Describe a model, as Ollama does")
            .request::<OllamaShowRequest>(r#"{"model": "minilm"}"#)
            .response::<models::ShowResponse>(
                "The model.",
                r#"{"details": {"parent_model": "", "format": "onnx", "family": "bert", "families": ["bert"], "parameter_size": "", "quantization_level": "int8"}, "model_info": {"general.architecture": "bert", "bert.context_length": 256, "bert.embedding_length": 384}, "capabilities": ["embedding"]}"#,
            ),
        get!("/api/ps", "ollama_ps", models::processes, "List the loaded models, as Ollama does")
            .response::<models::Processes>(
                "The models in memory.",
                r#"{"models": [{"name": "minilm", "model": "minilm", "size": 23900000, "digest": "2f17d28004ee", "details": {"parent_model": "", "format": "onnx", "family": "bert", "families": ["bert"], "parameter_size": "", "quantization_level": "int8"}, "expires_at": "9999-12-31T23:59:59Z", "size_vram": 0, "context_length": 256}]}"#,
            ),
        post!("/api/pull", "ollama_pull", pull::pull, "Fetch a model, as Ollama does")
            .description(
                "Only servers that load models on demand and may use the Hugging Face Hub fetch models that they do not \
                 have. The progress is one object per line.",
            )
            .request::<OllamaPullRequest>(r#"{"model": "BAAI/bge-small-en-v1.5"}"#)
            .response_of::<pull::Line>("application/x-ndjson", "The progress; the last line says whether it succeeded.", Some(r#"{"status": "success"}"#)),
        get!("/api/version", "ollama_version", models::version, "Return the version")
            .response::<models::Version>("Kivu's version.", r#"{"version": "0.1.0"}"#),
    ],
};
