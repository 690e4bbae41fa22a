//! Translation: our own route `/translate`, and the hub's body and answer.

use std::{sync::Arc, time::Instant};

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    App, inputs,
    openapi::schemas,
    request,
    tei::{Answer, usage::with_usage},
};
use crate::{
    backend::Deadline,
    error::{Error, Result, quoted},
    model::{Model, Pipeline},
    pipeline::{
        Task,
        generation::GenerationOptions,
        translation::{
            RequestedLanguages, Split, Translation, TranslationOptions, TranslationPipeline, Translations,
        },
    },
};

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
struct TranslateRequest {
    #[schema(schema_with = schemas::texts)]
    inputs: Value,
    /// The model's name; the first that translates between the languages if there is none.
    model: Option<String>,
    /// The language of the texts, by the model's names, a code or an English name.
    src_lang: Option<String>,
    tgt_lang: Option<String>,
    split: Option<Split>,
    truncate: Option<bool>,
    clean_up_tokenization_spaces: Option<bool>,
    #[serde(default, deserialize_with = "request::object")]
    generate_parameters: Option<GenerationOptions>,
}

#[derive(Serialize, ToSchema)]
struct TranslateAnswer<'a> {
    model: &'a str,
    translations: Vec<TextAnswer<'a>>,
    #[schema(value_type = Object)]
    usage: Value,
}

/// What became of a text: the best translation, and all of them where several were asked for.
#[derive(Serialize, ToSchema)]
#[schema(as = TranslatedText)]
struct TextAnswer<'a> {
    text: &'a str,
    src_lang: &'a str,
    tgt_lang: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f32>,
    truncated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<Alternative<'a>>,
}

#[derive(Serialize, ToSchema)]
struct Alternative<'a> {
    text: &'a str,
    score: Option<f32>,
}

/// Texts in another language
#[utoipa::path(
    post, path = "/translate", tag = "Kivu",
    request_body(content = TranslateRequest, example = json!({
        "model": "translate-en-pt", "inputs": ["Good morning!"], "src_lang": "en", "tgt_lang": "pt"
    })),
    responses((
        status = 200, description = "The best translation of each text.", body = TranslateAnswer<'static>,
        example = json!({
            "model": "translate-en-pt",
            "translations": [{ "text": "Bom dia!", "src_lang": "en", "tgt_lang": "pt", "truncated": false }],
            "usage": { "input_tokens": 4, "output_tokens": 4 }
        })
    ))
)]
pub(super) async fn translate(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline): (TranslateRequest, _) = request::read(&app, request).await?;
    let texts = inputs::texts("inputs", body.inputs, app.limits.texts)?;
    let characters = characters(&texts);
    let wanted = RequestedLanguages { source: body.src_lang.as_deref(), target: body.tgt_lang.as_deref() };
    let (model, pipeline) = choose(&app, body.model.as_deref(), wanted)?;
    let options = TranslationOptions {
        source: body.src_lang,
        target: body.tgt_lang,
        split: Some(body.split.unwrap_or(Split::Sentences)),
        truncate: body.truncate.unwrap_or(app.limits.truncate),
        clean_up_spaces: body.clean_up_tokenization_spaces.unwrap_or(false),
        generation: body.generate_parameters.unwrap_or_default(),
        max_sentences: app.limits.texts,
    };
    let translations = pipeline.translate(texts, &options, deadline).await?;
    Ok(with_usage(&answer(model, &translations), &translations.usage, characters, started))
}

fn answer<'a>(model: &'a Model, translations: &'a Translations) -> TranslateAnswer<'a> {
    let Translations { texts, pairs, usage } = translations;
    let texts = texts.iter().zip(pairs).enumerate().map(|(place, (texts, pair))| {
        let alternative = |other: &'a Translation| Alternative { text: &other.text, score: other.score };
        TextAnswer {
            text: texts.first().map_or("", |best| &best.text),
            src_lang: &pair.source,
            tgt_lang: &pair.target,
            score: texts.first().and_then(|best| best.score),
            truncated: usage.truncated.contains(&place),
            alternatives: if texts.len() > 1 { texts.iter().map(alternative).collect() } else { Vec::new() },
        }
    });
    TranslateAnswer {
        model: &model.name,
        translations: texts.collect(),
        usage: json!({ "input_tokens": usage.tokens, "output_tokens": usage.generated }),
    }
}

/// The model called `name`, or the first that translates between the languages that are wanted.
fn choose<'a>(
    app: &'a App,
    name: Option<&str>,
    wanted: RequestedLanguages<'_>,
) -> Result<(&'a Model, &'a TranslationPipeline)> {
    let all: Vec<_> = app.models.iter().filter_map(|model| Some((model, pick(&model.pipeline)?))).collect();
    if name.is_some() || all.len() < 2 {
        return app.pipeline(name, Task::Translation, pick);
    }
    all.iter()
        .find(|(_, pipeline)| pipeline.directions().has(wanted))
        .copied()
        .ok_or_else(|| none(&all, wanted))
}

/// The error of languages that no model translates between.
fn none(all: &[(&Model, &TranslationPipeline)], wanted: RequestedLanguages<'_>) -> Error {
    let has = |side: RequestedLanguages<'_>| all.iter().any(|(_, pipeline)| pipeline.directions().has(side));
    let (source, target) =
        (RequestedLanguages { target: None, ..wanted }, RequestedLanguages { source: None, ..wanted });
    // A name that none of them knows is most likely misspelt: the model with the most languages tells the nearest.
    let unknown = [(source, target), (target, source)].into_iter().find(|(side, _)| !has(*side));
    if let Some((_, other)) = unknown {
        let directions = all.iter().map(|(_, pipeline)| pipeline.directions());
        let most =
            directions.filter(|directions| directions.has(other)).max_by_key(|directions| directions.count());
        if let Some(error) = most.and_then(|most| most.find(wanted).err()) {
            return error;
        }
    }
    let shown = |name: Option<&str>| match name {
        Some(name) => format!("`{}`", name.chars().take(40).collect::<String>().escape_debug()),
        None => "any language".to_owned(),
    };
    let names: Vec<&str> = all.iter().map(|(model, _)| model.name.as_str()).collect();
    Error::invalid(format!(
        "expected a model that translates from {} to {}, but found none among {}",
        shown(wanted.source),
        shown(wanted.target),
        quoted(&names)
    ))
}

fn pick(pipeline: &Pipeline) -> Option<&TranslationPipeline> {
    match pipeline {
        Pipeline::Translation(pipeline) => Some(pipeline),
        _ => None,
    }
}

fn characters(texts: &[String]) -> usize {
    texts.iter().map(|text| text.chars().count()).sum()
}

/// What the hub's clients send.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
#[schema(as = TranslationRequest)]
pub(super) struct HubRequest {
    #[schema(schema_with = schemas::texts)]
    inputs: Value,
    #[serde(default, deserialize_with = "request::object")]
    parameters: Option<HubParameters>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = TranslationParameters)]
struct HubParameters {
    src_lang: Option<String>,
    tgt_lang: Option<String>,
    clean_up_tokenization_spaces: Option<bool>,
    truncation: Option<HubTruncation>,
    #[serde(default, deserialize_with = "request::object")]
    generate_parameters: Option<GenerationOptions>,
}

/// The ways of the hub to say whether a text is cut: those of a single text come down to two.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Truncation)]
enum HubTruncation {
    DoNotTruncate,
    LongestFirst,
    OnlyFirst,
    OnlySecond,
}

/// One object a text, as the pipeline `translation` of `transformers` answers; a list of them a text where several
/// translations of several texts are wanted.
pub(super) async fn answer_hub(
    app: &App,
    name: Option<&str>,
    body: HubRequest,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    let is_single = body.inputs.is_string();
    let texts = inputs::texts("inputs", body.inputs, app.limits.texts)?;
    let characters = characters(&texts);
    let parameters = body.parameters.unwrap_or_default();
    let (_, pipeline) = app.pipeline(name, Task::Translation, pick)?;
    let (split, truncate) = match parameters.truncation {
        Some(HubTruncation::LongestFirst | HubTruncation::OnlyFirst) => (Some(Split::Never), true),
        Some(HubTruncation::DoNotTruncate | HubTruncation::OnlySecond) => (None, false),
        None => (None, app.limits.truncate),
    };
    let options = TranslationOptions {
        source: parameters.src_lang,
        target: parameters.tgt_lang,
        split,
        truncate,
        clean_up_spaces: parameters.clean_up_tokenization_spaces.unwrap_or(false),
        generation: parameters.generate_parameters.unwrap_or_default(),
        max_sentences: app.limits.texts,
    };
    let translations = pipeline.translate(texts, &options, deadline).await?;
    let of_text = |texts: &Vec<Translation>| {
        texts.iter().map(|text| json!({ "translation_text": text.text })).collect::<Vec<_>>()
    };
    let lists: Vec<Vec<Value>> = translations.texts.iter().map(of_text).collect();
    let is_flat = is_single || lists.iter().all(|list| list.len() == 1);
    let answer: Value = if is_flat {
        lists.into_iter().flatten().collect()
    } else {
        lists.into_iter().map(Value::from).collect()
    };
    Ok(with_usage(&answer, &translations.usage, characters, started))
}
