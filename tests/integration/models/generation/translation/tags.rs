//! MADLAD-400: a tag in front of the text selects the target language.

use std::{fs, path::Path};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use kivu::{config::Limits, model::Model, pipeline::Task, repository::manifest::Precision};
use kivu_http::{App, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    classification::fast_text::identifying_model,
    messages::{answer, ask},
    models::{build_request, fixtures, open_for, request, runtime},
};

const TEXT: &str = "The cat sits on the mat.";

/// The pipeline's translation of [`TEXT`] with a tag, for all requests here the longest.
fn expected(tag: &str) -> String {
    let golden = fs::read(fixtures().join("goldens/tiny-madlad.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let calls = golden["pipelines"].as_array().unwrap();
    let call = calls
        .iter()
        .find(|call| call["inputs"] == format!("{tag} {TEXT}"))
        .unwrap();
    assert_eq!(call["parameters"], json!({"max_new_tokens": 24}));
    call["output"][0]["translation_text"]
        .as_str()
        .unwrap()
        .trim()
        .to_owned()
}

/// The fixture, which generates as many tokens as in the golden by default.
fn translator(folder: &Path) -> Option<Model> {
    let runtime = runtime()?;
    let source = folder.join("tiny-madlad");
    crate::copies::copy(&fixtures().join("models/tiny-madlad"), &source);
    let path = source.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["task_specific_params"] = json!({"translation": {"max_new_tokens": 24}});
    fs::write(path, config.to_string()).unwrap();
    let out = folder.join("built");
    build_request(
        &request(source, out.clone(), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap();
    Some(crate::models::serve(&out).unwrap())
}

#[tokio::test]
async fn a_target_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = translator(folder.path()) else {
        return;
    };
    assert_eq!(model.manifest.task, Task::Translation);
    let app = router(App::new(
        vec![model],
        Limits {
            texts: 8,
            ..Limits::default()
        },
    ));
    let [portuguese, german] = ["<2pt>", "<2de>"].map(expected);
    assert_ne!(portuguese, german);

    let translation = |text: &str, source: &str, target: &str| json!({"text": text, "src_lang": source, "tgt_lang": target, "truncated": false});
    for (languages, text, source) in [
        (json!({"tgt_lang": "Portuguese"}), TEXT, ""),
        (json!({"tgt_lang": "pt-BR"}), TEXT, ""),
        (json!({"tgt_lang": "pt", "src_lang": "English"}), TEXT, "en"),
        // The text's tag takes precedence.
        (
            json!({"tgt_lang": "de"}),
            "<2pt> The cat sits on the mat.",
            "",
        ),
        (
            json!({"model": "tiny-madlad"}),
            "<2pt>The cat sits on the mat.",
            "",
        ),
    ] {
        let mut body = languages.clone();
        body["inputs"] = json!(text);
        let (status, mut found) = ask(&app, "/translate", body).await;
        assert_eq!(status, StatusCode::OK, "{found}");
        assert!(
            found["translations"][0]
                .as_object_mut()
                .unwrap()
                .remove("score")
                .is_some(),
            "{found}"
        );
        assert_eq!(
            found["translations"][0],
            translation(&portuguese, source, "pt"),
            "{languages} {text}"
        );
    }
    let both = json!({"inputs": [TEXT, format!("<2de> {TEXT}")], "tgt_lang": "pt"});
    let (_, found) = ask(&app, "/translate", both).await;
    let languages_and_texts =
        [0, 1].map(|text| ["tgt_lang", "text"].map(|key| found["translations"][text][key].clone()));
    assert_eq!(
        languages_and_texts,
        [["pt", &portuguese], ["de", &german]].map(|pair| pair.map(|it| json!(it)))
    );

    let body = json!({"inputs": TEXT, "parameters": {"tgt_lang": "de"}});
    let (_, found) = ask(&app, "/models/tiny-madlad", body).await;
    assert_eq!(found, json!([{"translation_text": german}]));
    let (_, found) = ask(
        &app,
        "/translate",
        json!({"q": TEXT, "source": "auto", "target": "de"}),
    )
    .await;
    let nothing = json!({"confidence": 0.0, "language": ""});
    assert_eq!(
        found,
        json!({"translatedText": german, "detectedLanguage": nothing})
    );
    let (_, found) = ask(
        &app,
        "/v2/translate",
        json!({"text": [TEXT], "target_lang": "DE"}),
    )
    .await;
    assert_eq!(found["translations"][0]["text"], german);
    assert_eq!(found["translations"][0]["detected_source_language"], "");

    let request = Request::get("/languages").body(Body::empty()).unwrap();
    let (_, languages) = answer(app.clone().oneshot(request).await.unwrap()).await;
    let english = languages
        .as_array()
        .unwrap()
        .iter()
        .find(|language| language["code"] == "en")
        .unwrap();
    assert_eq!(english["name"], "English");
    assert_eq!(
        english["targets"],
        json!(["ceb", "de", "pt", "yue", "zh", "zh_Latn"])
    );

    let refusal = async |path: &str, body: Value| {
        let (status, body) = ask(&app, path, body).await;
        format!("{}: {}", status.as_u16(), body["error"].as_str().unwrap())
    };
    let inputs = |more: Value| {
        let mut body = json!({"inputs": TEXT});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let refusals = [
        refusal("/translate", inputs(json!({}))).await,
        refusal("/translate", inputs(json!({"src_lang": "en"}))).await,
        refusal("/translate", inputs(json!({"tgt_lang": "Portugese"}))).await,
        refusal(
            "/translate",
            inputs(json!({"tgt_lang": "de", "src_lang": "Klingon"})),
        )
        .await,
        refusal("/translate", json!({"inputs": format!("<2fr> {TEXT}")})).await,
        refusal("/tokenize", inputs(json!({}))).await,
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    422: expected the language to translate to in `tgt_lang`, but found none
    422: expected `tgt_lang` in addition to `src_lang`, but found none
    422: expected a language of the model in `tgt_lang`, but found `Portugese`; the nearest is `pt` (portuguese)
    422: expected a language of the model in `src_lang`, but found `Klingon`; it has `ceb`, `de`, `en`, `pt`, `yue`, `zh`, `zh_Latn`
    422: expected a language of the model in `tgt_lang`, but found `fr`; it has `ceb`, `de`, `en`, `pt`, `yue`, `zh`, `zh_Latn`
    422: `tgt_lang` is missing: a special token depends on the language; set it, or set `add_special_tokens` to false
    ");
}

#[tokio::test]
async fn a_tag_is_among_the_tokens_of_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = translator(folder.path()) else {
        return;
    };
    let app = router(App::new(vec![model], Limits::default()));
    let golden = fs::read(fixtures().join("goldens/tiny-madlad.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let entry = golden["tokenized"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["text"] == "<2pt> The cat sits.");
    let ids = entry.unwrap()["ids"].as_array().unwrap();
    let tokens = async |body: Value| {
        let (status, tokens) = ask(&app, "/tokenize", body).await;
        assert_eq!(status, StatusCode::OK, "{tokens}");
        tokens[0].as_array().unwrap().clone()
    };
    let added = tokens(json!({"inputs": "The cat sits.", "tgt_lang": "pt"})).await;
    assert_eq!(
        added.iter().map(|token| &token["id"]).collect::<Vec<_>>(),
        ids.iter().collect::<Vec<_>>()
    );
    let written = tokens(json!({"inputs": "<2pt> The cat sits."})).await;
    let own = tokens(json!({"inputs": "The cat sits.", "add_special_tokens": false})).await;
    for (all, offset) in [(added, 0), (written, 6)] {
        let (special, text): (Vec<Value>, Vec<Value>) =
            all.into_iter().partition(|token| token["special"] == true);
        assert_eq!(
            special
                .iter()
                .map(|token| &token["text"])
                .collect::<Vec<_>>(),
            ["▁", "<2pt>", "</s>"]
        );
        assert!(special.iter().all(|token| token["start"].is_null()));
        assert_eq!(text.len(), own.len());
        assert_eq!(text[0]["id"], own[0]["id"]);
        // The first is the space before the text.
        for (token, expected) in text.iter().zip(&own).skip(1) {
            assert_eq!(
                [&token["id"], &token["text"]],
                [&expected["id"], &expected["text"]]
            );
            assert_eq!(
                token["stop"].as_u64(),
                expected["stop"].as_u64().map(|stop| stop + offset)
            );
        }
        assert_eq!(text[0]["start"], offset);
    }
}

/// The model reads languages that it is not told.
#[tokio::test]
async fn identified_languages_need_not_be_the_model_s() {
    let folder = tempfile::tempdir().unwrap();
    let Some(identifying) = identifying_model(folder.path()) else {
        return;
    };
    let Some(model) = translator(folder.path()) else {
        return;
    };
    let app = router(App::new(
        vec![model, identifying],
        Limits {
            texts: 8,
            ..Limits::default()
        },
    ));
    let texts = json!([
        "Le chat dort sur le canapé et la porte est ouverte.",
        "O gato.",
        " "
    ]);
    let (status, found) = ask(
        &app,
        "/translate",
        json!({"inputs": texts, "tgt_lang": "de"}),
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{found}");
    let sources = [0, 1].map(|text| found["translations"][text]["src_lang"].clone());
    assert_eq!(sources, ["", "pt"]);
    let (_, found) = ask(&app, "/translate", json!({"q": texts, "target": "de"})).await;
    let languages = [0, 1].map(|text| found["detectedLanguage"][text]["language"].clone());
    assert_eq!(languages, ["fr", "pt"]);
}

#[test]
fn recipes_name_no_pair() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recipe = folder.path().join("recipe.toml");
    let source = fixtures().join("models/tiny-madlad");
    let languages = "[languages]\nsource = \"en\"\ntarget = \"pt\"\n";
    let text = format!(
        "name = 'madlad'\ntask = 'translation'\n[source]\nfolder = '{}'\n{languages}",
        source.display()
    );
    fs::write(&recipe, text).unwrap();
    let refusal =
        build_request(&request(recipe, folder.path().join("out"), None), runtime).unwrap_err();
    insta::assert_snapshot!(refusal.chain().rsplit(": ").next().unwrap(), @"the model's tokenizer has language tags; requests select the language");
    // The same model, by instruction of the caller.
    let texts = open_for(Task::TextToText, "tiny-madlad", folder.path(), runtime).unwrap();
    assert_eq!(texts.manifest.task, Task::TextToText);
}
