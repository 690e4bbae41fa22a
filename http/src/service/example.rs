//! Example requests, for `kivu serve` to print and for measurements to send.

use kivu::{
    pipeline::{
        Task,
        seq2seq::{Directions, LanguagePair, RequestedLanguages},
    },
    repository::Manifest,
};

/// A valid JSON body for `/models/NAME`.
pub fn body(manifest: &Manifest) -> String {
    let body = match manifest.task {
        Task::FeatureExtraction => r#"{"inputs": "What is deep learning?"}"#,
        Task::TextClassification => r#"{"inputs": "I like it"}"#,
        Task::TokenClassification if manifest.settings.labels().is_none() => {
            r#"{"inputs": "My name is Sarah and I live in London", "parameters": {"labels": ["person", "city"]}}"#
        }
        Task::TokenClassification => r#"{"inputs": "My name is Sarah and I live in London"}"#,
        Task::ZeroShotClassification => {
            r#"{"inputs": "The app crashes", "parameters": {"candidate_labels": ["bug", "billing"]}}"#
        }
        Task::TextRanking => r#"{"inputs": {"query": "egg", "texts": ["hen", "car"]}}"#,
        Task::Translation => return translation(manifest),
        Task::Summarization | Task::TextToText => {
            r#"{"inputs": "The bridge was closed on Monday. Engineers had found cracks in one of its pillars."}"#
        }
    };
    body.to_owned()
}

/// A translation request, with languages if the model has several.
fn translation(manifest: &Manifest) -> String {
    let inputs = "Where is the station?";
    let directions = manifest
        .settings
        .seq2seq()
        .map(|settings| Directions::new(&settings.languages));
    match directions.filter(|directions| directions.find(RequestedLanguages::default()).is_err()) {
        Some(directions) => {
            let LanguagePair { source, target } = directions.example_pair();
            let parameters = format!(r#"{{"src_lang": "{source}", "tgt_lang": "{target}"}}"#);
            format!(r#"{{"inputs": "{inputs}", "parameters": {parameters}}}"#)
        }
        None => format!(r#"{{"inputs": "{inputs}"}}"#),
    }
}
