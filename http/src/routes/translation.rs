//! Kivu's own routes, and translation as in DeepL and LibreTranslate.

use schemars::JsonSchema;

use kivu::pipeline::redaction::placeholders::Restored;

use crate::{
    bodies::response::OneOrMany,
    dialects::{
        Dialect,
        translators::{self, DeepLRequest, LibreTranslateRequest, LibreTranslateResponse},
    },
    service::route::{Api, Route, RouteMethod, Runs, get, post},
    tasks::{
        detection::{self, DetectRequest, DetectedLanguage},
        restoration::{self, RestoreRequest},
        translation::{TranslateRequest, TranslateResponse},
    },
};

pub const DEEPL: Api = Api {
    name: "DeepL",
    description: "Translation in DeepL's API.",
    dialect: Dialect::Cohere,
    prefix: None,
    routes: &[
        post!("/v2/translate", "deepl_translate", translators::deepl, "Translate texts, as DeepL does")
            .request::<DeepLRequest>(r#"{"text": ["How are you?"], "target_lang": "PT"}"#)
            .response::<translators::DeepLResponse>(
                "The translations, in input order.",
                r#"{"translations": [{"detected_source_language": "EN", "text": "Como você está?", "billed_characters": 12}]}"#,
            )
            .runs(Runs::Model),
        get!(
            "/v2/languages",
            "deepl_languages",
            translators::deepl_languages,
            "List the languages, as DeepL does"
        )
        .query::<LanguageSide>("type", "`source` (default) or `target` languages.")
        .response::<Vec<translators::DeepLLanguage>>(
            "Source or target languages.",
            r#"[{"language": "EN", "name": "English"}]"#,
        ),
    ],
};

pub const LIBRE_TRANSLATE: Api = Api {
    name: "LibreTranslate",
    description: "Language identification and translation languages in LibreTranslate's API; `/translate` takes its requests.",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        get!(
            "/languages",
            "libre_languages",
            translators::languages,
            "List the languages, as LibreTranslate does"
        )
        .response::<Vec<translators::SourceLanguage>>(
            "Source languages, with their target languages.",
            r#"[{"code": "en", "name": "English", "targets": ["pt"]}]"#,
        ),
        post!(
            "/detect",
            "detect",
            detection::detect,
            "Identify a text's language, as LibreTranslate does"
        )
        .request::<DetectRequest>(r#"{"q": "Good morning!"}"#)
        .response::<Vec<DetectedLanguage>>(
            "Possible languages, the most likely first.",
            r#"[{"confidence": 91.5, "language": "en"}]"#,
        )
        .runs(Runs::ModelWithUsage),
    ],
};

pub const KIVU: Api = Api {
    name: "Kivu",
    description: "Translation with all its options, and originals in place of placeholders.",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        post!("/translate", "translate", translators::translate, "Translate texts")
        .requests::<AnyTranslateRequest>(&[
            (
                "Kivu's own",
                r#"{"inputs": ["Good morning!"], "model": "translate-en-pt", "src_lang": "en", "tgt_lang": "pt"}"#,
            ),
            ("LibreTranslate's", r#"{"q": "How are you?", "source": "en", "target": "pt"}"#),
        ])
        .response::<AnyTranslateResponse>(
            "The best translation per text.",
            r#"{"model": "translate-en-pt", "translations": [{"src_lang": "en", "text": "Bom dia!", "tgt_lang": "pt", "truncated": false}], "usage": {"input_tokens": 4, "output_tokens": 4}}"#,
        )
        .runs(Runs::ModelWithUsage),
        post!("/restore", "restore", restoration::restore, "Put originals back into texts")
            .description(
                "The mapping is from a response with `redact`, or the key is that request's: the server stores neither. \
                 Unknown placeholders stay, and are counted. No model runs.",
            )
            .request::<RestoreRequest>(
                r#"{"inputs": "Dear [PERSON_1], thank you.", "redact_mapping": {"[PERSON_1]": "Sarah"}}"#,
            )
            .response::<OneOrMany<Restored>>(
                "The text with its originals, or for a list of texts a list.",
                r#"{"text": "Dear Sarah, thank you.", "restored": 1, "unknown": 0}"#,
            ),
    ],
};

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum LanguageSide {
    Source,
    Target,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(
    dead_code,
    clippy::large_enum_variant,
    reason = "only its schema is used"
)]
enum AnyTranslateRequest {
    Own(TranslateRequest),
    LibreTranslate(LibreTranslateRequest),
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum AnyTranslateResponse {
    Own(TranslateResponse<'static>),
    LibreTranslate(LibreTranslateResponse),
}
