//! Amazon Bedrock's route.

use crate::{
    dialects::{
        Dialect,
        bedrock::{self, BedrockRequest, BedrockResponse},
    },
    service::route::{Api, Route, RouteMethod, Runs, post},
};

pub const BEDROCK: Api = Api {
    name: "Amazon Bedrock",
    description: "Embeddings and ranking with the AWS SDKs, in the formats of Titan and Cohere models.",
    dialect: Dialect::Bedrock,
    prefix: Some("/model/"),
    routes: &[
        INVOKE,
        INVOKE.at("/model/{model}/{resource}/invoke", "bedrock_invoke_arn").summary(
            "Run a model, as Bedrock does, by an ARN whose slash is not encoded, as API Gateway sends it",
        ),
    ],
};

const INVOKE: Route =
    post!("/model/{model}/invoke", "bedrock_invoke", bedrock::invoke, "Run a model, as Bedrock does")
        .description(
            "The body's fields select its format: `inputText` is Titan's, `texts` and `inputs` are Cohere Embed's, \
             `query` and `documents` are those of the ranking models.",
        )
        .requests::<BedrockRequest>(&[
            ("Titan", r#"{"inputText": "What is deep learning?", "embeddingTypes": ["float"]}"#),
            ("Cohere Embed", r#"{"texts": ["What is deep learning?"], "input_type": "search_query"}"#),
            ("ranking", r#"{"query": "egg", "documents": ["hen", "car"], "top_n": 1, "api_version": 2}"#),
        ])
        .responses::<BedrockResponse>(
            "Titan's vector, Cohere's vectors, or the ranked documents.",
            &[
                (
                    "Titan",
                    r#"{"embedding": [-0.0679, -0.0329, 0.0216, 0.0002], "embeddingsByType": {"float": [-0.0679, -0.0329, 0.0216, 0.0002]}, "inputTextTokenCount": 7}"#,
                ),
                (
                    "Cohere Embed",
                    r#"{"id": "a5e5d0a2-6a7d-4a3e-8a39-d5e5c77e7d6a", "texts": ["What is deep learning?"], "embeddings": [[-0.0679, -0.0329, 0.0216, 0.0002]], "response_type": "embeddings_floats"}"#,
                ),
                ("ranking", r#"{"results": [{"index": 0, "relevance_score": 0.72}]}"#),
            ],
        )
        .runs(Runs::Model);
