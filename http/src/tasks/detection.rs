//! Identifies languages: LibreTranslate's `/detect`, and source languages that a translation request does not name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bodies::{
        inputs,
        rejection::ApiResult,
        request::{Context, FormOrJson, from_known},
        response::with_usage,
    },
    fields::known,
    service::models::caller_models::CallerModels,
};
use kivu::{
    Error, Result,
    json::Content,
    model::Pipeline,
    pipeline::{Input, Task, Usage, classification::scores::descending, seq2seq::identified_code},
    repository::{Manifest, TaskSettings},
    task::{TruncationParameters, classification::ClassificationParameters},
};

/// Other languages than the best are listed from this confidence on, in percent.
const MIN_CONFIDENCE: f64 = 1.0;

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `q`")]
pub struct DetectRequest {
    /// The text.
    #[schemars(with = "String")]
    q: Content,
}

/// A text's language.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DetectedLanguage {
    /// In percent.
    pub confidence: f64,
    /// ISO 639 code.
    pub language: String,
}

/// Whether a model identifies languages.
fn identifies(own: &Manifest) -> bool {
    own.task == Task::TextClassification
        && matches!(&own.settings, TaskSettings::Classification(own) if own.identifies_languages)
}

/// Whether a served model identifies languages.
pub fn is_available(models: &CallerModels) -> bool {
    models
        .list()
        .iter()
        .any(|model| identifies(&model.manifest))
}

/// Each text's possible languages, the most likely first: the only one, or those with at least [`MIN_CONFIDENCE`].
pub async fn identify(
    context: &Context,
    texts: Vec<String>,
) -> Result<(Vec<Vec<DetectedLanguage>>, Usage)> {
    if !is_available(&context.models) {
        return Err(Error::invalid(
            "expected a served model that identifies languages, but found none",
        )
        .with_hint("`models/text-language.toml` is a recipe for one"));
    }
    let (_, pipeline) = context
        .pipeline(
            None,
            Task::TextClassification,
            &[&identifies],
            Pipeline::classification,
        )
        .await?;
    let truncation = TruncationParameters {
        truncate: Some(true),
        ..TruncationParameters::default()
    };
    let parameters = ClassificationParameters {
        truncation,
        ..ClassificationParameters::default()
    };
    let classifier = parameters.prepare(pipeline, &context.scope())?;
    let labels = classifier.labels();
    let codes: Vec<String> = labels
        .iter()
        .map(|label| identified_code(label, labels))
        .collect();
    let scores = classifier
        .run(
            texts.into_iter().map(Input::Text).collect(),
            context.deadline,
        )
        .await?;
    Ok((
        scores
            .rows
            .iter()
            .map(|row| candidates(&codes, row))
            .collect(),
        scores.usage,
    ))
}

/// A text's possible languages. Labels for several scripts of a language count together.
fn candidates(codes: &[String], scores: &[f32]) -> Vec<DetectedLanguage> {
    let mut by_code: BTreeMap<&str, f32> = BTreeMap::new();
    for (code, score) in codes.iter().zip(scores) {
        *by_code.entry(code).or_default() += score;
    }
    let (codes, scores): (Vec<&str>, Vec<f32>) = by_code.into_iter().unzip();
    let language = |place: usize| DetectedLanguage {
        confidence: (f64::from(scores[place]) * 10_000.0)
            .round()
            .clamp(0.0, 10_000.0)
            / 100.0,
        language: codes[place].to_owned(),
    };
    let all = descending(&scores).into_iter().map(language).enumerate();
    let likely = all.take_while(|(rank, found)| *rank == 0 || found.confidence >= MIN_CONFIDENCE);
    likely.map(|(_, found)| found).collect()
}

/// Identify a text's language
pub async fn detect(FormOrJson(context, body): FormOrJson) -> ApiResult {
    let body: DetectRequest = from_known(body, known("LibreTranslate.detect")?)?;
    if !body.q.is_text() {
        return Err(Error::invalid("expected `q` to be a string")
            .with_hint("send one request per text")
            .into());
    }
    let texts = inputs::texts("q", body.q, &context.texts)?;
    let (mut found, usage) = identify(&context, texts).await?;
    Ok(with_usage(&context, &found.remove(0), &usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_listed_by_confidence() {
        let found = |codes: &[&str], scores: &[f32]| {
            let codes: Vec<String> = codes
                .iter()
                .map(|code| identified_code(code, &[]))
                .collect();
            let found = candidates(&codes, scores);
            found
                .into_iter()
                .map(|found| (found.language, found.confidence))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found(&["en", "fr", "de"], &[0.25, 0.745_04, 0.004]),
            [("fr".to_owned(), 74.5), ("en".to_owned(), 25.0)]
        );
        // The best is always listed.
        assert_eq!(
            found(&["en", "fr"], &[0.001, 0.002]),
            [("fr".to_owned(), 0.2)]
        );
        let scripts = ["eng_Latn", "zho_Hans", "zho_Hant"];
        assert_eq!(
            found(&scripts, &[0.4, 0.3, 0.3]),
            [("zh".to_owned(), 60.0), ("en".to_owned(), 40.0)]
        );
    }
}
