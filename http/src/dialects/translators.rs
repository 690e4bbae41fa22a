//! Translation in LibreTranslate's (`/translate`, `/languages`) and DeepL's API (`/v2/translate`, `/v2/languages`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    Json,
    extract::{Request, State},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    bodies::{
        body::{self, ReadBody},
        inputs,
        rejection::ApiResult,
        request::{Context, FormOrJson, from_known},
        response::{OneOrMany, by_model, with_usage},
    },
    fields::known,
    service::{app::App, models::caller_models::CallerModels},
    tasks::{
        detection::{self, DetectedLanguage},
        translation::{
            Translations, possible_sources, translate_identified, translate_own, translate_texts,
        },
    },
};
use kivu::{
    Error, Result,
    error::quoted,
    json::Content,
    json_schemas::{Digit, Texts},
    pipeline::{
        generation::GenerationOptions,
        seq2seq::{GeneratedText, LanguagePair, ListedLanguage, RequestedLanguages, Split},
    },
    task::text_to_text::TextToTextParameters,
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `q`")]
pub struct LibreTranslateRequest {
    /// The texts to translate: one, or a list.
    #[schemars(with = "Texts")]
    q: Content,
    /// The source language; `auto` if a served model identifies languages, or all models for the target have the same.
    source: Option<String>,
    /// The target language.
    #[schemars(required)]
    target: Option<String>,
    /// Number of alternative translations per text.
    #[schemars(with = "Option<Digit>")]
    alternatives: Option<Value>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `text`")]
pub struct DeepLRequest {
    /// The texts to translate: one, or a list.
    #[schemars(with = "Texts")]
    text: Content,
    /// The source language; may be missing if a served model identifies languages, or all models for the target have the
    /// same.
    source_lang: Option<String>,
    /// The target language.
    #[schemars(required)]
    target_lang: Option<String>,
    /// `0` for texts that are one sentence each.
    split_sentences: Option<String>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
pub struct LibreTranslateResponse {
    /// The translation, or a list if `q` is one.
    translated_text: OneOrMany<String>,
    /// Further translations of each text, if `alternatives` asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    alternatives: Option<OneOrMany<Vec<String>>>,
    /// The language of each text, if `source` is `auto` or missing; with confidence 0 if the models have only one for the
    /// target, and for blank texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    detected_language: Option<OneOrMany<DetectedLanguage>>,
}

#[derive(Serialize, JsonSchema)]
pub struct DeepLResponse {
    /// A translation per text, in order.
    translations: Vec<DeepLTranslation>,
}

#[derive(Serialize, JsonSchema)]
struct DeepLTranslation {
    /// The text's characters.
    billed_characters: usize,
    /// The source language's code in capitals, whether it was given or identified.
    detected_source_language: String,
    /// The translation.
    text: String,
}

/// A language of texts, and the languages that they can be translated to.
#[derive(Serialize, JsonSchema)]
pub struct SourceLanguage {
    /// The code in requests.
    code: String,
    /// The name in English.
    name: String,
    /// Codes of the languages that it can be translated to.
    targets: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct DeepLLanguage {
    /// The code in requests, in capitals.
    language: String,
    /// The name in English.
    name: String,
    /// Only for target languages.
    #[serde(skip_serializing_if = "Option::is_none")]
    supports_formality: Option<bool>,
}

/// A request's languages, and its field names for them.
struct LanguageRequest {
    source: Option<String>,
    target: Option<String>,
    fields: [&'static str; 2],
}

impl LanguageRequest {
    /// Renames fields in an error to this API's names.
    fn rename(&self, error: Error) -> Error {
        match error {
            Error::Invalid { message } => {
                let [source, target] = self.fields;
                Error::invalid(
                    message
                        .replace("src_lang", source)
                        .replace("tgt_lang", target),
                )
            }
            other => other,
        }
    }

    /// Translates texts; their language is identified if texts in several languages can be translated to the target.
    async fn translate<'a>(
        &self,
        context: &'a Context,
        texts: Vec<String>,
        split: Split,
        generation: GenerationOptions,
    ) -> Result<Translations<'a>> {
        let (source, target) = (self.source.as_deref(), self.target.as_deref());
        let [source_field, target_field] = self.fields;
        if target.is_none() {
            return Err(Error::invalid(format!(
                "expected a language in `{target_field}`, but found none"
            )));
        }
        let sources =
            possible_sources(context, None, RequestedLanguages { source, target }).await?;
        let parameters = TextToTextParameters {
            src_lang: self.source.clone(),
            tgt_lang: self.target.clone(),
            split: Some(split),
            generate_parameters: Some(generation),
            ..TextToTextParameters::default()
        };
        let has_several = sources.listed.len() > 1;
        let found = match detection::is_available(&context.models) {
            true if has_several => {
                translate_identified(context, None, parameters, texts, &sources).await
            }
            false if has_several && !sources.is_optional => {
                let listed = sources.listed.iter().take(8);
                let codes: Vec<_> = listed.map(|language| &language.code).collect();
                Err(Error::invalid(format!(
                    "`{source_field}` is missing: no served model identifies languages"
                ))
                .with_hint(format!(
                    "there are {} of them, such as {}",
                    sources.listed.len(),
                    quoted(&codes)
                )))
            }
            _ => translate_texts(context, None, parameters, texts).await,
        };
        found.map_err(|error| self.rename(error))
    }
}

/// Translate texts: Kivu's own request, or LibreTranslate's with `q`
pub async fn translate(FormOrJson(context, body): FormOrJson) -> ApiResult {
    let has = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    let is_named = |name: &&str| body.get(*name).is_some();
    let names_libres = ["q", "source", "target", "alternatives"]
        .iter()
        .any(is_named);
    let (form, others) = match has("q") || names_libres && !has("inputs") {
        true => ("q", ["inputs", "src_lang", "tgt_lang"]),
        false => ("inputs", ["source", "target", "alternatives"]),
    };
    if let Some(other) = others.into_iter().find(|name| has(name)) {
        return Err(Error::invalid(format!(
            "`{other}` and `{form}` belong to different forms of the request, but found both"
        ))
        .with_hint(
            "LibreTranslate's form has `q`, `source` and `target`, Kivu's own `inputs`, `src_lang` \
             and `tgt_lang`",
        )
        .into());
    }
    match form {
        "q" => {
            libre_translate(
                &context,
                from_known(body, known("LibreTranslate.translate")?)?,
            )
            .await
        }
        _ => translate_own(&context, from_known(body, known("kivu.translate")?)?).await,
    }
}

async fn libre_translate(context: &Context, body: LibreTranslateRequest) -> ApiResult {
    const MAX_ALTERNATIVES: u64 = 9;
    let is_single = body.q.is_text();
    let texts = inputs::texts("q", body.q, &context.texts)?;
    let count = match &body.alternatives {
        None | Some(Value::Null) => 0,
        Some(count) => {
            let number = count.as_u64().or_else(|| count.as_str()?.parse().ok());
            number.filter(|number| *number <= MAX_ALTERNATIVES).ok_or_else(|| {
                Error::invalid(format!(
                    "expected `alternatives` from 0 to {MAX_ALTERNATIVES}, but found another value"
                ))
            })?
        }
    };
    let generation = match usize::try_from(count).unwrap_or(0) {
        0 => GenerationOptions::default(),
        count => GenerationOptions {
            num_beams: Some(count + 1),
            num_return_sequences: Some(count + 1),
            ..GenerationOptions::default()
        },
    };
    let source = body.source.filter(|source| source != "auto");
    let names_source = source.is_some();
    let wanted = LanguageRequest {
        source,
        target: body.target,
        fields: ["source", "target"],
    };
    let found = wanted
        .translate(context, texts, Split::Sentences, generation)
        .await?;
    let of_rank = |ranks: fn(Vec<GeneratedText>) -> Value| {
        let texts = found.texts.iter().cloned().map(ranks).collect();
        json!(OneOrMany::new(texts, is_single))
    };
    let mut answer =
        json!({ "translatedText": of_rank(|ranks| json!(ranks.first().map(|best| &best.text))) });
    if !names_source {
        let language = |(place, pair): (usize, &LanguagePair)| {
            let identified = found
                .identified
                .as_ref()
                .and_then(|languages| languages[place].clone());
            let only = || DetectedLanguage {
                confidence: 0.0,
                language: ListedLanguage::new(&pair.source).code,
            };
            identified.unwrap_or_else(only)
        };
        let languages = found.pairs.iter().enumerate().map(language).collect();
        answer["detectedLanguage"] =
            json!(OneOrMany::<DetectedLanguage>::new(languages, is_single));
    }
    if count > 0 {
        // Beams with other tokens may have the same text.
        answer["alternatives"] = of_rank(|ranks| {
            let mut texts: Vec<String> = Vec::new();
            for other in ranks {
                if !texts.contains(&other.text) {
                    texts.push(other.text);
                }
            }
            texts.into_iter().skip(1).collect()
        });
    }
    Ok(with_usage(context, &answer, &found.usage))
}

/// Translate texts, as DeepL does
pub async fn deepl(FormOrJson(context, body): FormOrJson) -> ApiResult {
    let body: DeepLRequest = from_known(body, known("DeepL.translate")?)?;
    let texts = inputs::texts("text", body.text, &context.texts)?;
    let split = match body.split_sentences.as_deref() {
        Some("0") => Split::WhenLong,
        None | Some("1") => Split::Sentences,
        Some(_) => {
            return Err(Error::invalid(
                "expected `split_sentences` `0` or `1`, but found another value",
            )
            .with_hint("leave it out")
            .into());
        }
    };
    let characters: Vec<usize> = texts.iter().map(|text| text.chars().count()).collect();
    let (source, target) = (body.source_lang, body.target_lang);
    let wanted = LanguageRequest {
        source,
        target,
        fields: ["source_lang", "target_lang"],
    };
    let found = wanted
        .translate(&context, texts, split, GenerationOptions::default())
        .await?;
    let translations = found.texts.iter().zip(&found.pairs).zip(characters);
    let translations = translations.map(|((ranks, pair), characters)| DeepLTranslation {
        billed_characters: characters,
        detected_source_language: ListedLanguage::new(&pair.source).code.to_uppercase(),
        text: ranks
            .first()
            .map_or_else(String::new, |best| best.text.clone()),
    });
    let answer = DeepLResponse {
        translations: translations.collect(),
    };
    Ok(by_model(&answer, &found.usage))
}

/// Target languages per source language, over all models.
fn directions(models: &CallerModels) -> BTreeMap<ListedLanguage, BTreeSet<ListedLanguage>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for directions in models.list().iter().filter_map(|model| model.directions()) {
        let (sources, targets) = directions.listed();
        for source in sources {
            let is_target = |target: &&ListedLanguage| {
                target.code != source.code && directions.translates(&source, target)
            };
            all.entry(source.clone())
                .or_default()
                .extend(targets.iter().filter(is_target).cloned());
        }
    }
    all
}

/// List the languages, as LibreTranslate does
pub async fn languages(models: CallerModels) -> Json<Vec<SourceLanguage>> {
    let language = |(source, targets): (ListedLanguage, BTreeSet<ListedLanguage>)| SourceLanguage {
        code: source.code,
        name: source.name,
        targets: targets.into_iter().map(|target| target.code).collect(),
    };
    Json(directions(&models).into_iter().map(language).collect())
}

/// List the languages, as DeepL does: those of texts, or those of translations with `type=target`
pub async fn deepl_languages(
    State(app): State<Arc<App>>,
    request: Request,
) -> ApiResult<Json<Vec<DeepLLanguage>>> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    // The client for Python sends a form with its GET request.
    let ReadBody {
        context,
        bytes: form,
        ..
    } = body::read(&app, request).await?;
    let fields = form_urlencoded::parse(query.as_bytes()).chain(form_urlencoded::parse(&form));
    let mut found = None;
    for (_, kind) in fields.filter(|(name, _)| name == "type") {
        let is_target = match &*kind {
            "source" => false,
            "target" => true,
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(Error::invalid(format!(
                    "expected `type` to be `source` or `target`, but found `{}`",
                    other.escape_debug()
                ))
                .into());
            }
        };
        if found
            .replace(is_target)
            .is_some_and(|first| first != is_target)
        {
            return Err(
                Error::invalid("expected one `type`, but found `source` and `target`").into(),
            );
        }
    }
    let is_target = found.unwrap_or(false);
    let directions = directions(&context.models);
    let languages: BTreeSet<&ListedLanguage> = match is_target {
        true => directions.values().flatten().collect(),
        false => directions.keys().collect(),
    };
    let language = |language: &ListedLanguage| DeepLLanguage {
        language: language.code.to_uppercase(),
        name: language.name.clone(),
        supports_formality: is_target.then_some(false),
    };
    Ok(Json(languages.into_iter().map(language).collect()))
}
