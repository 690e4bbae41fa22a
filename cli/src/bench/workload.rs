//! Texts as a request body, and as the rows that the model runs for it.

use serde_json::{Value, json};

use kivu::{
    Result,
    pipeline::Task,
    repository::{Manifest, TaskSettings},
    tokenizer::{Encoding, Side, Tokenizer, Truncation, WindowOptions},
};

/// Query for ranking requests, and labels for zero-shot requests.
const QUERY: &str = "How do computers learn?";
const LABELS: [&str; 5] = ["science", "sport", "cooking", "politics", "music"];

/// Builds a request body.
pub fn body(manifest: &Manifest, texts: &[&str]) -> Value {
    match manifest.task {
        Task::TextRanking => json!({ "inputs": { "query": QUERY, "texts": texts } }),
        Task::ZeroShotClassification => {
            json!({ "inputs": texts, "parameters": { "candidate_labels": LABELS } })
        }
        _ if matches!(manifest.settings, TaskSettings::ZeroShotEntities(_)) => {
            // By default, these models refuse long texts.
            let truncate = true;
            json!({ "inputs": texts, "parameters": { "candidate_labels": LABELS, "truncate": truncate } })
        }
        _ => json!({ "inputs": texts }),
    }
}

/// A request's rows: one per text, and for models that read pairs, one per text and query or label.
pub fn rows(manifest: &Manifest, tokenizer: &Tokenizer, texts: &[&str]) -> Result<Vec<Encoding>> {
    let limit = manifest.max_tokens().unwrap_or(usize::MAX);
    if let TaskSettings::ZeroShotEntities(settings) = &manifest.settings {
        let prompt = settings.prompt(&LABELS.map(str::to_owned), tokenizer)?;
        let options = WindowOptions {
            stride: None,
            truncation: Truncation::At(Side::Right),
            max_windows: 1,
            begin_at_words: false,
        };
        let windows = texts
            .iter()
            .map(|text| tokenizer.word_windows(text, &prompt, limit, options));
        let windows = windows.collect::<Result<Vec<_>>>()?.into_iter().flatten();
        return Ok(windows.map(|window| window.encoding).collect());
    }
    if let TaskSettings::LabelScores(settings) = &manifest.settings {
        let labels = LABELS.map(str::to_owned);
        return texts
            .iter()
            .map(|text| settings.encode(tokenizer, text, &labels, limit))
            .collect();
    }
    let seconds: &[&str] = match (manifest.task, &manifest.settings) {
        (Task::TextRanking, TaskSettings::Classification(_)) => &[QUERY],
        (Task::ZeroShotClassification, TaskSettings::Classification(_)) => &LABELS,
        _ => {
            return texts
                .iter()
                .map(|text| tokenizer.encode(text, limit, Truncation::At(Side::Right)))
                .collect();
        }
    };
    let pairs = texts
        .iter()
        .flat_map(|text| seconds.iter().map(|second| [*text, *second]));
    pairs
        .map(|pair| tokenizer.encode_pair(pair, limit, Truncation::OnlyFirst))
        .collect()
}
