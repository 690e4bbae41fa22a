//! fastText's classifiers: labels and probabilities equal to the C++ library's, and refusals of other and damaged models.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use kivu::{
    backend::{Engine, routing::Location},
    config::{EngineChoice, Limits},
    model::Model,
    pipeline::{Input, Task, classification::scores::ScoreFunction},
    repository::{Bundle, TaskSettings, manifest::Precision},
    task::{TruncationParameters, classification::ClassificationParameters},
    tokenizer::SpecialTokens,
};
use kivu_http::{App, router};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    embedding::goldens::deadline,
    messages::answer,
    models::{build_request, fixtures, request, runtime, serve, serve_in},
};

/// Added by fastText to each probability before its logarithm, so that its own probabilities may exceed 1.
const EPSILON: f32 = 1e-5;

#[derive(Deserialize)]
struct Case {
    text: String,
    scores: BTreeMap<String, f32>,
}

fn goldens<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    serde_json::from_slice(&fs::read(fixtures().join("goldens").join(name)).unwrap()).unwrap()
}

fn build(source: PathBuf, folder: &Path) -> Option<Bundle> {
    let name = source.file_name().unwrap().to_owned();
    Some(build_request(&request(source, folder.join(name), None), runtime()?).unwrap())
}

/// A served fixture whose labels are languages.
pub(crate) fn identifying_model(folder: &Path) -> Option<Model> {
    let bundle = build(fixtures().join("fast_text/hs.bin"), folder)?;
    Some(serve(&bundle.path("")).unwrap())
}

/// Compares a model's scores with fastText's.
async fn compare(model: &Model, cases: &[Case], tolerance: f32) {
    let truncation = TruncationParameters::default();
    let classifier = model
        .classifier(&ClassificationParameters {
            truncation,
            ..Default::default()
        })
        .unwrap();
    let texts = cases
        .iter()
        .map(|case| Input::Text(case.text.clone()))
        .collect();
    let found = classifier.run(texts, deadline()).await.unwrap();
    for (case, row) in cases.iter().zip(&found.rows) {
        let name: String = case.text.chars().take(30).collect();
        let mut best = ("", 0.0);
        for (label, score) in classifier.labels().iter().zip(row) {
            assert!((0.0..=1.0).contains(score), "{name:?}: {label} {score}");
            // Other labels have probabilities below the smallest in the file.
            let expected = case.scores.get(label).copied();
            let least = case
                .scores
                .values()
                .copied()
                .fold(1.0, f32::min)
                .max(2.0 * EPSILON);
            match expected {
                Some(expected) => {
                    let expected = expected.min(1.0);
                    assert!(
                        (score - expected).abs() <= tolerance,
                        "{name:?}: {label} {score}, not {expected}"
                    );
                }
                None => assert!(*score <= least + tolerance, "{name:?}: {label} {score}"),
            }
            if *score > best.1 {
                best = (label.as_str(), *score);
            }
        }
        let expected = case
            .scores
            .iter()
            .max_by(|left, right| left.1.total_cmp(right.1))
            .unwrap();
        assert_eq!(best.0, expected.0, "{name:?}");
    }
}

#[tokio::test]
async fn scores_are_fast_texts_in_both_engines() {
    let folder = tempfile::tempdir().unwrap();
    for (name, cases) in goldens::<BTreeMap<String, Vec<Case>>>("fast_text.json") {
        let Some(bundle) = build(fixtures().join("fast_text").join(&name), folder.path()) else {
            return;
        };
        let TaskSettings::Classification(settings) = &bundle.manifest().settings else {
            panic!("expected a classifier")
        };
        let is_softmax = settings.function == ScoreFunction::Softmax;
        assert_eq!(
            is_softmax,
            ["softmax.bin", "quantized-parts.ftz"].contains(&&*name)
        );
        assert!(settings.identifies_languages, "{name}");
        assert_eq!(bundle.manifest().name, name.split_once('.').unwrap().0);
        assert_eq!(bundle.manifest().weights.precision, Precision::Fp32);
        assert_eq!(bundle.manifest().task, Task::TextClassification);
        let open = |engine| serve_in(&bundle.path(""), engine).unwrap();
        let native = open(EngineChoice::Auto);
        assert_eq!(native.arithmetic.as_deref(), Some("fp32 (table)"));
        let tolerance = if is_softmax { EPSILON + 1e-6 } else { 2e-6 };
        compare(&native, &cases, tolerance).await;
        compare(&open(EngineChoice::Onnx), &cases, tolerance + EPSILON).await;
    }
}

/// The prefix of labels is an option of the training, which the file does not state.
#[tokio::test]
async fn words_that_are_labels_have_no_features_whatever_their_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (b"__label__", b"##label##");
    let mut bytes = fs::read(fixtures().join("fast_text/softmax.bin")).unwrap();
    for place in 0..bytes.len() - old.len() {
        if bytes[place..].starts_with(old) {
            bytes[place..place + old.len()].copy_from_slice(new);
        }
    }
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join("prefix.bin");
    fs::write(&path, bytes).unwrap();
    let Some(bundle) = build(path, folder.path()) else {
        return;
    };
    let model = serve(&bundle.path("")).unwrap();
    let ids = |text: &str| model.pipeline.tokenizer().ids(text).unwrap();
    assert_eq!(ids("O ##label##pt gato."), ids("O gato."));
    assert_ne!(ids("O ##label##xx gato."), ids("O gato."));
}

/// Texts in twelve languages, and odd ones. The model is built from its recipe by `make bundles`.
#[tokio::test]
async fn scores_of_the_model_for_176_languages_are_fast_texts() {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.kivu/bundles/text-language");
    if !bundle.join("manifest.toml").is_file() {
        return crate::skips::missing("the model `text-language` in `.kivu/bundles`");
    }
    let model = serve(&bundle).unwrap();
    compare(&model, &goldens::<Vec<Case>>("lid.176.json"), 2e-6).await;
}

#[tokio::test]
async fn tokens_are_features_with_places_in_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = identifying_model(folder.path()) else {
        return;
    };
    let tokenizer = model.pipeline.tokenizer();
    for text in [
        "Die Züge",
        "",
        "a\n\u{10ffff} 漢字",
        "x".repeat(300).as_str(),
    ] {
        let tokens = tokenizer.tokens(text, SpecialTokens::Added).unwrap();
        assert!(
            tokens
                .iter()
                .map(|token| token.id)
                .eq(tokenizer.ids(text).unwrap()),
            "{text:?}"
        );
        let characters: Vec<char> = text.chars().collect();
        for token in tokens {
            let (start, end) = token.span.unwrap();
            assert!(
                token
                    .text
                    .chars()
                    .eq(characters[start..end].iter().copied()),
                "{text:?}: {token:?}"
            );
        }
    }
    let refusal = tokenizer
        .encode_pair(["a", "b"], 100, kivu::tokenizer::Truncation::Off)
        .unwrap_err();
    insta::assert_snapshot!(refusal, @"expected a text, but found a pair of texts, which the model does not read; join them");
}

async fn post(app: Router, path: &str, kind: &str, body: String) -> (StatusCode, Value) {
    let request = Request::post(path)
        .header("content-type", kind)
        .body(Body::from(body))
        .unwrap();
    let response = app.oneshot(request).await.unwrap();
    answer(response).await
}

#[tokio::test]
async fn languages_are_detected_as_by_libre_translate() {
    const JSON: &str = "application/json";
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = identifying_model(folder.path()) else {
        return;
    };
    let app = router(App::new(vec![model], Limits::default()));
    let (status, found) = post(
        app.clone(),
        "/detect",
        JSON,
        json!({ "q": "O gato." }).to_string(),
    )
    .await;
    assert_eq!(
        (status, found),
        (
            StatusCode::OK,
            json!([
                { "confidence": 88.82, "language": "pt" }, { "confidence": 11.12, "language": "ko" }
            ])
        )
    );
    let form = "q=O+gato.&api_key=x".to_owned();
    let (_, found) = post(
        app.clone(),
        "/detect",
        "application/x-www-form-urlencoded",
        form,
    )
    .await;
    assert_eq!(found[0]["language"], "pt");
    let (_, found) = post(
        app.clone(),
        "/predict",
        JSON,
        json!({ "inputs": "O gato." }).to_string(),
    )
    .await;
    assert_eq!(found[0]["label"], "pt");
    assert_eq!(found.as_array().unwrap().len(), 12, "all labels");
    let mut errors = Vec::new();
    for body in [json!({ "q": "" }), json!({ "q": ["a", "b"] })] {
        let (status, found) = post(app.clone(), "/detect", JSON, body.to_string()).await;
        errors.push(format!(
            "{} {}",
            status.as_u16(),
            found["error"].as_str().unwrap()
        ));
    }
    let none = router(App::new(Vec::new(), Limits::default()));
    let (status, found) = post(none, "/detect", JSON, json!({ "q": "a" }).to_string()).await;
    errors.push(format!(
        "{} {}",
        status.as_u16(),
        found["error"].as_str().unwrap()
    ));
    insta::assert_snapshot!(errors.join("\n"), @"
    422 expected a text in `q`, but found an empty one
    422 expected `q` to be a string; send one request per text
    422 expected a served model that identifies languages, but found none; `models/text-language.toml` is a recipe for one
    ");
}

/// The error for a changed copy of a fixture, without its folder.
fn refusal(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(fixtures().join("fast_text/hs.bin")).unwrap();
    change(&mut bytes);
    let path = folder.path().join("model.bin");
    fs::write(&path, bytes).unwrap();
    let request = request(folder.path().to_owned(), folder.path().join("out"), None);
    let error = build_request(&request, runtime().unwrap()).unwrap_err();
    assert!(!folder.path().join("out").exists());
    error
        .chain()
        .replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn other_and_damaged_models_are_refused() {
    let Some(runtime) = runtime() else { return };
    let put = |place: usize, number: i32| {
        move |bytes: &mut Vec<u8>| {
            bytes[place..place + 4].copy_from_slice(&number.to_le_bytes());
        }
    };
    for (place, number, expected) in [
        (
            4,
            13,
            "expected a fastText model of version 11 or 12, but found version 13",
        ),
        (
            32,
            2,
            "expected a model that was trained with `-loss softmax` or `-loss hs`, but found `ns`",
        ),
        (
            32,
            4,
            "expected a model that was trained with `-loss softmax` or `-loss hs`, but found `ova`",
        ),
        (
            36,
            2,
            "expected a classifier (`fasttext supervised`), but found word vectors (`skipgram`)",
        ),
        (
            40,
            -1,
            "expected buckets of at least 0, but found -1; the file is damaged",
        ),
        (40, 0, "expected `buckets` above 0 for n-grams, but found 0"),
        (40, 601, "and 601 n-grams, but found"),
        (48, 99, "expected `max_length` of at most 16, but found 99"),
        (
            64,
            i32::MAX,
            "expected 2147483647 entries in the dictionary, but found",
        ),
        (
            72,
            -1,
            "expected labels of at least 0, but found -1; the file is damaged",
        ),
    ] {
        let refusal = refusal(put(place, number));
        assert!(refusal.contains(expected), "{refusal}");
    }
    let refusals = [
        refusal(|bytes| bytes.push(0)),
        refusal(|bytes| {
            let place = bytes.len() - 4;
            bytes[place..].copy_from_slice(&f32::NAN.to_le_bytes());
        }),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    cannot read `model.bin`: expected a fastText model, but found 1 bytes after its end; the file is damaged
    cannot read `model.bin`: expected finite weights, but found NaN
    ");
    for length in (8..31_000).step_by(701) {
        let refusal = refusal(|bytes| bytes.truncate(length));
        assert!(
            refusal.contains("the file is damaged") || refusal.contains("expected"),
            "{length}: {refusal}"
        );
    }

    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut kivu_compiler::Request)| {
        let mut request = request(
            fixtures().join("fast_text"),
            folder.path().join("out"),
            None,
        );
        change(&mut request);
        let error = build_request(&request, runtime).unwrap_err().chain();
        error.replace(&fixtures().display().to_string(), "[fixtures]")
    };
    let file = fixtures().join("fast_text/hs.bin");
    insta::assert_snapshot!(refused(&|_| {}), @r#"expected one fastText model in `[fixtures]/fast_text`, but found ["hs.bin", "quantized-parts.ftz", "quantized.ftz", "softmax.bin"]; build one of these files"#);
    insta::assert_snapshot!(refused(&|request| {
        request.source.clone_from(&file);
        request.precision = Some(Precision::Int8);
    }), @"expected `--precision fp32` for a fastText model, but found `int8`; `fasttext quantize` makes models smaller");
    insta::assert_snapshot!(refused(&|request| {
        request.source.clone_from(&file);
        request.task = Some(Task::TextRanking);
    }), @"expected `text-classification` for a fastText model, but found `text-ranking`");
}

#[test]
fn a_recipe_decides_whether_labels_are_languages() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    fs::create_dir(&source).unwrap();
    fs::copy(fixtures().join("fast_text/hs.bin"), source.join("hs.bin")).unwrap();
    let recipe = folder.path().join("recipe.toml");
    let build = |line: &str, task: &str, from: &str| {
        let text =
            format!("name = \"x\"\ntask = \"{task}\"\n{line}\n[source]\nfolder = {from:?}\n");
        fs::write(&recipe, text).unwrap();
        build_request(
            &request(recipe.clone(), folder.path().join("out"), None),
            runtime,
        )
    };
    let identifies = |bundle: Bundle| matches!(&bundle.manifest().settings, TaskSettings::Classification(own) if own.identifies_languages);
    assert!(identifies(
        build("", "text-classification", "model").unwrap()
    ));
    assert!(!identifies(
        build(
            "identifies_languages = false",
            "text-classification",
            "model"
        )
        .unwrap()
    ));
    let other = fixtures().join("models/tiny-bert").display().to_string();
    let refusal = build("identifies_languages = true", "feature-extraction", &other).unwrap_err();
    insta::assert_snapshot!(refusal, @"`identifies_languages` is only for recipes with the task `text-classification`");
}

#[tokio::test]
async fn the_native_engine_serves_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = identifying_model(folder.path()) else {
        return;
    };
    let classifier = model
        .classifier(&ClassificationParameters::default())
        .unwrap();
    let found = classifier
        .run(vec![Input::from("The keys.")], deadline())
        .await
        .unwrap();
    assert_eq!(found.usage.location, Location::Local(Engine::Native));
    assert!(found.usage.tokens > 10);
}
