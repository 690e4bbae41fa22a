//! Kivu's own routes, and translation as in DeepL and LibreTranslate.

use schemars::JsonSchema;

use kivu::{json_schemas::Either, pipeline::redaction::placeholders::Restored};

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
    dialect: Dialect::Cohere,
    prefix: None,
    routes: &[
        post!("/v2/translate", "deepl_translate", translators::deepl)
            .request::<DeepLRequest>()
            .response::<translators::DeepLResponse>()
            .runs(Runs::Model),
        get!(
            "/v2/languages",
            "deepl_languages",
            translators::deepl_languages
        )
        .query::<LanguageSide>("type")
        .response::<Vec<translators::DeepLLanguage>>(),
    ],
};

pub const LIBRE_TRANSLATE: Api = Api {
    name: "LibreTranslate",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        get!("/languages", "libre_languages", translators::languages)
            .response::<Vec<translators::SourceLanguage>>(),
        post!("/detect", "detect", detection::detect)
            .request::<DetectRequest>()
            .response::<Vec<DetectedLanguage>>()
            .runs(Runs::ModelWithUsage),
    ],
};

pub const KIVU: Api = Api {
    name: "Kivu",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        post!("/translate", "translate", translators::translate)
            .request::<Either<TranslateRequest, LibreTranslateRequest>>()
            .response::<Either<TranslateResponse<'static>, LibreTranslateResponse>>()
            .runs(Runs::ModelWithUsage),
        post!("/restore", "restore", restoration::restore)
            .request::<RestoreRequest>()
            .response::<OneOrMany<Restored>>(),
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
