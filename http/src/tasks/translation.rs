//! Translation: `POST /translate`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::detection::{self, DetectedLanguage, identify};
use crate::bodies::{inputs, rejection::ApiResult, request::Context, response::with_usage};
use kivu::{
    Error, Result,
    error::{at_text, quoted},
    json::{Content, flattened},
    json_schemas::{Object, Texts},
    model::{Entry, Model, Pipeline},
    pipeline::{
        Task, Usage,
        seq2seq::{
            Directions, GeneratedText, GeneratedTexts, LanguagePair, ListedLanguage,
            RequestedLanguages, Seq2SeqPipeline, Split,
        },
    },
    repository::Manifest,
    task::text_to_text::TextToTextParameters,
};

/// Texts to translate, in Kivu's own form. Languages are the model's own names, codes or English names. A source language
/// that is not named is identified, if a served model identifies languages.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct TranslateRequest {
    /// The texts to translate: one, or a list.
    #[schemars(with = "Texts")]
    inputs: Content,
    /// Model name; the default is the first model that translates between the languages.
    model: Option<String>,
    #[serde(flatten, deserialize_with = "flattened")]
    parameters: TextToTextParameters,
}

#[derive(Serialize, JsonSchema)]
pub struct TranslateResponse<'a> {
    /// The first text's model.
    model: &'a str,
    /// A translation per text, in order.
    translations: Vec<TranslatedText<'a>>,
    /// `input_tokens` and `output_tokens`.
    #[schemars(with = "Object")]
    usage: Value,
}

/// A text's best translation, and all of them if several were requested.
#[derive(Serialize, JsonSchema)]
struct TranslatedText<'a> {
    /// The best translation.
    text: &'a str,
    /// Only if models differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    /// The source language's code; empty if it was neither named nor identified, and the model does not need it.
    src_lang: &'a str,
    /// The target language's code.
    tgt_lang: &'a str,
    /// Log-probability by length of `text`, with beam search.
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f32>,
    /// Whether the text was longer than the model reads, and its end is missing.
    truncated: bool,
    /// All translations with their scores, if several were requested, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<Alternative<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct Alternative<'a> {
    /// A translation.
    text: &'a str,
    /// Log-probability by length; `null` without beam search.
    score: Option<f32>,
}

/// Translates texts for a request in Kivu's own format.
pub async fn translate_own(context: &Context, body: TranslateRequest) -> ApiResult {
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let mut parameters = body.parameters;
    parameters.split = parameters.split.or(Some(Split::Sentences));
    let model = body.model.as_deref();
    let sources = possible_sources(context, model, parameters.languages()).await?;
    // Without a target language, the first model decides.
    let is_open = sources.listed.len() > 1 && (parameters.tgt_lang.is_some() || model.is_some());
    let translations = match is_open && detection::is_available(&context.models) {
        true => translate_identified(context, model, parameters, texts, &sources).await?,
        false => translate_texts(context, model, parameters, texts).await?,
    };
    Ok(with_usage(
        context,
        &response(&translations),
        &translations.usage,
    ))
}

/// Translated texts, which may be in several languages.
pub struct Translations<'a> {
    /// For each text, the best translation first.
    pub texts: Vec<Vec<GeneratedText>>,
    pub pairs: Vec<LanguagePair>,
    /// The model for each text.
    models: Vec<&'a str>,
    /// The language of each text, if the request named none; `None` for blank texts.
    pub identified: Option<Vec<Option<DetectedLanguage>>>,
    pub usage: Usage,
}

/// What languages texts may be in.
#[derive(Default)]
pub struct PossibleSources {
    /// The languages of texts in a request that does not name one; empty if it does.
    pub listed: BTreeSet<ListedLanguage>,
    /// Whether a model translates texts without being told their language.
    pub is_optional: bool,
}

/// The languages of texts in a request that does not name one.
pub async fn possible_sources(
    context: &Context,
    model: Option<&str>,
    wanted: RequestedLanguages<'_>,
) -> Result<PossibleSources> {
    if wanted.source.is_some() {
        return Ok(PossibleSources::default());
    }
    let models = match model {
        Some(name) => vec![context.entry(Some(name)).await?],
        None => context.models.list(),
    };
    let all = models.iter().filter_map(|model| model.directions());
    let all: Vec<&Directions> = all.filter(|directions| directions.has(wanted)).collect();
    Ok(PossibleSources {
        listed: all
            .iter()
            .flat_map(|directions| directions.listed().0)
            .collect(),
        is_optional: all.iter().any(|directions| !directions.needs_source()),
    })
}

/// Translates texts in one language with one model.
pub async fn translate_texts<'a>(
    context: &'a Context,
    model: Option<&str>,
    parameters: TextToTextParameters,
    texts: Vec<String>,
) -> Result<Translations<'a>> {
    let (model, pipeline) = choose(context, model, parameters.languages()).await?;
    let found = parameters
        .prepare(pipeline, &context.scope())
        .run(texts, context.deadline)
        .await?;
    let GeneratedTexts {
        texts,
        pairs,
        usage,
    } = found;
    Ok(Translations {
        models: vec![&model.name; texts.len()],
        texts,
        pairs,
        identified: None,
        usage,
    })
}

/// Identifies the language of each text, and translates the texts in each language with the first model that can. Blank
/// texts have no language, and are translated as if they were in the first of `sources`. An identified language that is not
/// among `sources` is not passed on if it is optional.
pub async fn translate_identified<'a>(
    context: &'a Context,
    model: Option<&str>,
    parameters: TextToTextParameters,
    texts: Vec<String>,
    sources: &PossibleSources,
) -> Result<Translations<'a>> {
    let count = texts.len();
    let is_blank: Vec<bool> = texts.iter().map(|text| text.trim().is_empty()).collect();
    let with_letters = texts
        .iter()
        .zip(&is_blank)
        .filter(|(_, is_blank)| !**is_blank);
    let with_letters: Vec<String> = with_letters.map(|(text, _)| text.clone()).collect();
    let (found, mut usage) = match with_letters.is_empty() {
        true => Default::default(),
        false => identify(context, with_letters).await?,
    };
    let mut found = found
        .into_iter()
        .map(|languages| languages.into_iter().next());
    let identified: Vec<Option<DetectedLanguage>> = is_blank
        .iter()
        .map(|is_blank| {
            if *is_blank {
                None
            } else {
                found.next().flatten()
            }
        })
        .collect();
    let default = sources.listed.first().map_or("", |language| &language.code);
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, language) in identified.iter().enumerate() {
        groups
            .entry(
                language
                    .as_ref()
                    .map_or(default, |language| &language.language),
            )
            .or_default()
            .push(place);
    }
    let mut texts: Vec<Option<String>> = texts.into_iter().map(Some).collect();
    let mut translated: Vec<Option<(Vec<GeneratedText>, LanguagePair, &str)>> = vec![None; count];
    let mut truncated = Vec::new();
    for (code, places) in &groups {
        let is_told =
            !sources.is_optional || sources.listed.iter().any(|language| language.code == *code);
        let src_lang = is_told.then(|| (*code).to_owned());
        let parameters = TextToTextParameters {
            src_lang,
            ..parameters.clone()
        };
        let own = places
            .iter()
            .filter_map(|place| texts[*place].take())
            .collect();
        let found = translate_texts(context, model, parameters, own).await;
        let found = found.map_err(|error| match &identified[places[0]] {
            Some(language) => untranslatable(error, language, places[0], count),
            None => error,
        })?;
        truncated.extend(
            found
                .usage
                .truncated
                .iter()
                .filter_map(|place| places.get(*place)),
        );
        usage = found.usage.after(&usage);
        let rows = found.texts.into_iter().zip(found.pairs).zip(found.models);
        for (place, ((texts, pair), model)) in places.iter().zip(rows) {
            translated[*place] = Some((texts, pair, model));
        }
    }
    truncated.sort_unstable();
    let mut all = Translations {
        texts: Vec::with_capacity(count),
        pairs: Vec::with_capacity(count),
        models: Vec::with_capacity(count),
        identified: Some(identified),
        usage: Usage { truncated, ..usage },
    };
    for (texts, pair, model) in translated.into_iter().flatten() {
        all.texts.push(texts);
        all.pairs.push(pair);
        all.models.push(model);
    }
    Ok(all)
}

/// The error for a text in a language that is not translated to the target.
fn untranslatable(error: Error, language: &DetectedLanguage, place: usize, count: usize) -> Error {
    let DetectedLanguage {
        confidence,
        language,
    } = language;
    match error {
        Error::Invalid { message } => at_text(
            Error::invalid(format!(
                "expected a text in a language that can be translated, but found `{language}` \
                 ({confidence} % sure)"
            ))
            .with_hint(format!(
                "name the language in `src_lang` if it is another: {message}"
            )),
            place,
            count,
        ),
        other => other,
    }
}

fn response<'a>(translations: &'a Translations<'a>) -> TranslateResponse<'a> {
    let Translations {
        texts,
        pairs,
        models,
        usage,
        ..
    } = translations;
    let first = models.first().copied().unwrap_or_default();
    let is_same = models.iter().all(|model| *model == first);
    let texts =
        texts
            .iter()
            .zip(pairs)
            .zip(models)
            .enumerate()
            .map(|(index, ((texts, pair), model))| {
                let alternative = |other: &'a GeneratedText| Alternative {
                    text: &other.text,
                    score: other.score,
                };
                TranslatedText {
                    text: texts.first().map_or("", |best| &best.text),
                    model: (!is_same).then_some(*model),
                    src_lang: &pair.source,
                    tgt_lang: &pair.target,
                    score: texts.first().and_then(|best| best.score),
                    truncated: usage.truncated.contains(&index),
                    alternatives: if texts.len() > 1 {
                        texts.iter().map(alternative).collect()
                    } else {
                        Vec::new()
                    },
                }
            });
    TranslateResponse {
        model: first,
        translations: texts.collect(),
        usage: json!({ "input_tokens": usage.tokens, "output_tokens": usage.generated }),
    }
}

/// Looks up a model; without a name, the first that translates between the languages.
async fn choose<'a>(
    context: &'a Context,
    name: Option<&str>,
    wanted: RequestedLanguages<'_>,
) -> Result<(&'a Model, &'a Seq2SeqPipeline)> {
    let models = context.models.list();
    let all: Vec<_> = models
        .iter()
        .filter_map(|model| Some((model, model.directions()?)))
        .collect();
    let name = match name {
        None if all.len() > 1 => {
            // Without a source language, a model that does not need it.
            let is_enough = |directions: &Directions| {
                wanted.source.is_none() && wanted.target.is_some() && !directions.needs_source()
            };
            let able = || all.iter().filter(|(_, directions)| directions.has(wanted));
            let first = able()
                .find(|(_, directions)| is_enough(directions))
                .or_else(|| able().next());
            let (entry, _) = first.ok_or_else(|| unsupported_languages(&all, wanted))?;
            Some(entry.name.as_str())
        }
        name => name,
    };
    let serves = |own: &Manifest| own.translation().is_some();
    context
        .pipeline(name, Task::Translation, &[&serves], Pipeline::translation)
        .await
}

/// The error for languages between which no model translates.
fn unsupported_languages(
    all: &[(&Arc<Entry>, &Directions)],
    wanted: RequestedLanguages<'_>,
) -> Error {
    /// More languages are not listed in the error.
    const MAX_LISTED: usize = 8;
    let is_supported =
        |side: RequestedLanguages<'_>| all.iter().any(|(_, directions)| directions.has(side));
    let (source, target) = (
        RequestedLanguages {
            target: None,
            ..wanted
        },
        RequestedLanguages {
            source: None,
            ..wanted
        },
    );
    let shown = |name: Option<&str>| match name {
        Some(name) => format!(
            "`{}`",
            name.chars().take(40).collect::<String>().escape_debug()
        ),
        None => "any language".to_owned(),
    };
    // A name unknown to all models is probably misspelt: the model with the most languages suggests the nearest.
    let sides = [
        (source, target, "src_lang", wanted.source),
        (target, source, "tgt_lang", wanted.target),
    ];
    let unknown = sides
        .into_iter()
        .enumerate()
        .find(|(_, (side, ..))| !is_supported(*side));
    if let Some((index, (_, other, field, name))) = unknown {
        let directions = all.iter().map(|(_, directions)| *directions);
        let codes: BTreeSet<&String> = directions
            .clone()
            .flat_map(|directions| directions.codes()[index])
            .collect();
        if codes.len() <= MAX_LISTED {
            return Error::invalid(format!(
                "expected a language of the models in `{field}`, but found {}",
                shown(name)
            ))
            .with_hint(format!(
                "they have {}",
                quoted(&codes.into_iter().collect::<Vec<_>>())
            ));
        }
        let most = directions
            .filter(|directions| directions.has(other))
            .max_by_key(|directions| directions.count());
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
