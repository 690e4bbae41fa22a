//! The route of the client in the package `gliner2`.

use crate::{
    dialects::Dialect,
    service::route::{Api, Route, RouteMethod, Runs, post},
    tasks::extraction::{self, ExtractionRequest, ExtractionResponse},
};

pub const GLINER2: Api = Api {
    name: "GLiNER2",
    description: "Extraction by a schema.",
    dialect: Dialect::Jina,
    prefix: None,
    routes: &[post!(
        "/gliner-2",
        "extract",
        extraction::extract,
        "Extract structures, relations, entities and labels"
    )
    .requests::<ExtractionRequest>(&[
        (
            "several tasks",
            r#"{"schema": {"classifications": [{"labels": ["good", "bad"], "task": "mood"}], "entities": ["person", "city"], "relations": ["lives_in"]}, "text": "Sarah likes to live in London.", "threshold": 0.5}"#,
        ),
        (
            "structures",
            r#"{"include_confidence": true, "schema": {"order": ["item::str", "size::[small|large]::str"]}, "task": "extract_json", "text": ["A large tea, please."]}"#,
        ),
    ])
    .responses::<ExtractionResponse>(
        "The values of each name in the schema.",
        &[
            (
                "several tasks",
                r#"{"result": {"entities": {"person": ["Sarah"], "city": ["London"]}, "mood": "good", "relation_extraction": {"lives_in": [["Sarah", "London"]]}}}"#,
            ),
            (
                "structures",
                r#"{"result": [{"order": [{"item": {"text": "tea", "confidence": 0.94}, "size": {"text": "large", "confidence": 0.91}}]}]}"#,
            ),
        ],
    )
    .runs(Runs::ModelWithUsage)],
};
