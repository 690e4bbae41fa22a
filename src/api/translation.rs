//! Translation: `POST /translate`.

use std::{collections::BTreeSet, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{inputs, rejection::Reply, request::Context, response::with_usage};
use crate::{
    error::{Error, Result, quoted},
    json::{Content, flattened},
    json_schemas::{Object, Texts},
    model::{Entry, Model, Pipeline},
    pipeline::{
        Task,
        seq2seq::{Directions, GeneratedText, GeneratedTexts, RequestedLanguages, Seq2SeqPipeline, Split},
    },
    repository::TaskSettings,
    task::text_to_text::TextToTextParameters,
};

/// Texts to translate, in Kivu's own form. Languages are the model's own names, codes or English names.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct TranslateRequest {
    /// The texts to translate: one, or a list.
    #[schemars(with = "Texts")]
    inputs: Content,
    /// Model name; the default is the first model that translates between the languages.
    model: Option<String>,
    #[serde(flatten, deserialize_with = "flattened")]
    parameters: TextToTextParameters,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct TranslateResponse<'a> {
    model: &'a str,
    translations: Vec<TranslatedText<'a>>,
    #[schemars(with = "Object")]
    usage: Value,
}

/// A text's best translation, and all of them if several were requested.
#[derive(Serialize, JsonSchema)]
struct TranslatedText<'a> {
    text: &'a str,
    src_lang: &'a str,
    tgt_lang: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f32>,
    truncated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<Alternative<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct Alternative<'a> {
    text: &'a str,
    score: Option<f32>,
}

/// Translates texts for a request in Kivu's own format.
pub(super) async fn translate_own(context: &Context, body: TranslateRequest) -> Reply {
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let mut parameters = body.parameters;
    let (model, pipeline) = choose(context, body.model.as_deref(), parameters.languages()).await?;
    parameters.split = parameters.split.or(Some(Split::Sentences));
    let translations = parameters.prepare(pipeline, &context.scope()).run(texts, context.deadline).await?;
    Ok(with_usage(context, &response(model, &translations), &translations.usage))
}

fn response<'a>(model: &'a Model, translations: &'a GeneratedTexts) -> TranslateResponse<'a> {
    let GeneratedTexts { texts, pairs, usage } = translations;
    let texts = texts.iter().zip(pairs).enumerate().map(|(index, (texts, pair))| {
        let alternative = |other: &'a GeneratedText| Alternative { text: &other.text, score: other.score };
        TranslatedText {
            text: texts.first().map_or("", |best| &best.text),
            src_lang: &pair.source,
            tgt_lang: &pair.target,
            score: texts.first().and_then(|best| best.score),
            truncated: usage.truncated.contains(&index),
            alternatives: if texts.len() > 1 { texts.iter().map(alternative).collect() } else { Vec::new() },
        }
    });
    TranslateResponse {
        model: &model.name,
        translations: texts.collect(),
        usage: json!({ "input_tokens": usage.tokens, "output_tokens": usage.generated }),
    }
}

/// Looks up a model; without a name, the first that translates between the languages.
pub(super) async fn choose<'a>(
    context: &'a Context,
    name: Option<&str>,
    wanted: RequestedLanguages<'_>,
) -> Result<(&'a Model, &'a Seq2SeqPipeline)> {
    let models = context.app.models();
    let all: Vec<_> = models.iter().filter_map(|model| Some((model, model.directions()?))).collect();
    let serves = |own: &TaskSettings<'_>| own.translation().is_some();
    if name.is_some() || all.len() < 2 {
        return context.pipeline(name, Task::Translation, &[&serves], Pipeline::translation).await;
    }
    match all.iter().find(|(_, directions)| directions.has(wanted)) {
        Some((entry, _)) => {
            let name = Some(entry.name.as_str());
            context.pipeline(name, Task::Translation, &[&serves], Pipeline::translation).await
        }
        None => Err(unsupported_languages(&all, wanted)),
    }
}

/// The error for languages between which no model translates.
fn unsupported_languages(all: &[(&Arc<Entry>, &Directions)], wanted: RequestedLanguages<'_>) -> Error {
    /// More languages are not listed in the error.
    const MAX_LISTED: usize = 8;
    let is_supported = |side: RequestedLanguages<'_>| all.iter().any(|(_, directions)| directions.has(side));
    let (source, target) =
        (RequestedLanguages { target: None, ..wanted }, RequestedLanguages { source: None, ..wanted });
    let shown = |name: Option<&str>| match name {
        Some(name) => format!("`{}`", name.chars().take(40).collect::<String>().escape_debug()),
        None => "any language".to_owned(),
    };
    // A name unknown to all models is probably misspelt: the model with the most languages suggests the nearest.
    let sides = [(source, target, "src_lang", wanted.source), (target, source, "tgt_lang", wanted.target)];
    let unknown = sides.into_iter().enumerate().find(|(_, (side, ..))| !is_supported(*side));
    if let Some((index, (_, other, field, name))) = unknown {
        let directions = all.iter().map(|(_, directions)| *directions);
        let codes: BTreeSet<&String> =
            directions.clone().flat_map(|directions| directions.codes()[index]).collect();
        if codes.len() <= MAX_LISTED {
            return Error::invalid(format!(
                "expected a language of the models in `{field}`, but found {}; they have {}",
                shown(name),
                quoted(&codes.into_iter().collect::<Vec<_>>())
            ));
        }
        let most =
            directions.filter(|directions| directions.has(other)).max_by_key(|directions| directions.count());
        if let Some(error) = most.and_then(|most| most.find(wanted).err()) {
            return error;
        }
    }
    let names: Vec<&str> = all.iter().map(|(model, _)| model.name.as_str()).collect();
    Error::invalid(format!(
        "expected a model that translates from {} to {}, but found none among {}",
        shown(wanted.source),
        shown(wanted.target),
        quoted(&names)
    ))
}
