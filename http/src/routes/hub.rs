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
    description: "Every task in the model hub's inference API.",
    dialect: Dialect::Tei,
    prefix: Some("/models/"),
    routes: &[post!("/models/{model}", "task", tasks::infer, "Run a model")
        .requests::<HubRequest>(&[
            ("feature-extraction", r#"{"inputs": "What is deep learning?"}"#),
            ("text-classification", r#"{"inputs": ["I like it", "It broke"], "parameters": {"top_k": 1}}"#),
            ("text-ranking", r#"{"inputs": {"query": "egg", "texts": ["hen", "car"]}}"#),
            (
                "token-classification",
                r#"{"inputs": "My name is Sarah and I live in London", "parameters": {"aggregation_strategy": "first"}}"#,
            ),
            (
                "token-classification, redacted",
                r#"{"inputs": "My name is Sarah", "parameters": {"redact": true}}"#,
            ),
            (
                "token-classification, with labels",
                r#"{"inputs": "My name is Sarah and I live in London", "parameters": {"candidate_labels": ["person", "city"], "threshold": 0.5}}"#,
            ),
            ("translation", r#"{"inputs": "Good morning!"}"#),
            (
                "summarization",
                r#"{"inputs": "The bridge was closed on Monday. Engineers had found cracks in one of its pillars."}"#,
            ),
            ("text2text-generation", r#"{"inputs": "translate English to German: Good morning!"}"#),
            (
                "zero-shot-classification",
                r#"{"inputs": "The app crashes when I log in", "parameters": {"candidate_labels": ["bug", "billing"]}}"#,
            ),
        ])
        .responses::<TaskResponse>(
            "Depending on the task: vectors, labels with scores, entities, ranks, translations, summaries or other \
             texts.",
            &[
                ("text-classification", r#"[[{"label": "positive", "score": 0.968}]]"#),
                (
                    "token-classification",
                    r#"[{"entity_group": "PER", "score": 0.998, "word": "Sarah", "start": 11, "end": 16}, {"entity_group": "LOC", "score": 0.997, "word": "London", "start": 31, "end": 37}]"#,
                ),
                (
                    "token-classification, redacted",
                    r#"{"text": "My name is [PER]", "entities": [{"entity_group": "PER", "score": 0.998, "word": "Sarah", "start": 11, "end": 16}]}"#,
                ),
                ("translation", r#"[{"translation_text": "Bom dia!"}]"#),
                ("summarization", r#"[{"summary_text": "The bridge was closed since it had cracks."}]"#),
                ("text2text-generation", r#"[{"generated_text": "Guten Morgen!"}]"#),
                (
                    "zero-shot-classification",
                    r#"[{"label": "bug", "score": 0.909}, {"label": "billing", "score": 0.091}]"#,
                ),
            ],
        )
        .runs(Runs::ModelWithUsage)],
};
