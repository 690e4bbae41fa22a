//! Whole bundles, from text to text, compared with the `translation` pipeline in `transformers`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use kivu::{
    backend::{Deadline, onnx::Runtime},
    model::{Model, Pipeline},
    pipeline::{
        generation::GenerationOptions,
        seq2seq::{RequestedLanguages, Seq2SeqOptions, Seq2SeqPipeline, SpecialTokens, Split},
    },
    repository::manifest::Precision,
};
use kivu_compiler::Request;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::models::{build_request, fixtures, open, request, runtime, serve};

#[derive(Deserialize)]
struct Goldens {
    pipelines: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    inputs: Value,
    parameters: Map<String, Value>,
    output: Vec<Value>,
}

/// Options for a pipeline call; the pipeline has its own defaults.
fn options(mut parameters: Map<String, Value>) -> Seq2SeqOptions {
    let mut language = |name: &str| {
        parameters
            .remove(name)
            .and_then(|code| code.as_str().map(str::to_owned))
    };
    let (source, target) = (language("src_lang"), language("tgt_lang"));
    let truncate = parameters.remove("truncation").is_some();
    parameters.entry("num_beams").or_insert(4.into());
    let generation: GenerationOptions = serde_json::from_value(Value::Object(parameters)).unwrap();
    Seq2SeqOptions {
        source,
        target,
        split: Some(if truncate {
            Split::Never
        } else {
            Split::WhenLong
        }),
        truncate,
        clean_up_spaces: false,
        generation,
        max_sentences: 100,
    }
}

async fn translate(pipeline: &Seq2SeqPipeline, call: &Call) -> Vec<String> {
    let texts = match &call.inputs {
        Value::String(text) => vec![text.clone()],
        texts => serde_json::from_value(texts.clone()).unwrap(),
    };
    let deadline = Deadline::within(Duration::from_secs(30));
    let translations = pipeline
        .generate(texts, &options(call.parameters.clone()), deadline)
        .await
        .unwrap();
    translations
        .texts
        .into_iter()
        .flatten()
        .map(|translation| translation.text)
        .collect()
}

#[tokio::test]
async fn bundles_translate_as_the_pipeline_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Without the multi-target model: the pipeline lets it guess, but Kivu requires a language.
    for name in [
        "tiny-m2m100",
        "tiny-nllb",
        "tiny-marian",
        "tiny-mbart",
        "tiny-mbart50",
    ] {
        let source = fixtures().join("models").join(name);
        let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
        let Pipeline::Translation(pipeline) = &model.pipeline else {
            panic!("{name} translates")
        };
        let goldens =
            std::fs::read(fixtures().join("goldens").join(format!("{name}.json"))).unwrap();
        let goldens: Goldens = serde_json::from_slice(&goldens).unwrap();
        assert_eq!(goldens.pipelines.len(), 5);
        for call in &goldens.pipelines {
            // Translations do not end with the space before a word that is cut off.
            let expected = call
                .output
                .iter()
                .map(|answer| answer["translation_text"].as_str().unwrap().trim());
            let expected: Vec<&str> = expected.collect();
            assert_eq!(
                translate(pipeline, call).await,
                expected,
                "{name} {:?}",
                call.parameters
            );
        }
    }
}

#[tokio::test]
async fn a_text_may_begin_with_the_code_of_its_target() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-marian-multi");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let Pipeline::Translation(pipeline) = &model.pipeline else {
        panic!("the model translates")
    };
    let golden = std::fs::read(fixtures().join("goldens/tiny-marian-multi.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let tokens = |text: &str, target| {
        let languages = RequestedLanguages {
            source: None,
            target,
        };
        let tokens = pipeline
            .tokens(text, SpecialTokens::Added, languages)
            .unwrap();
        tokens.iter().map(|token| token.id).collect::<Vec<_>>()
    };
    let texts = golden["tokenized"].as_array().unwrap().iter();
    let texts = texts.filter(|case| case["text"].as_str().unwrap().starts_with(">>por<<"));
    let mut count = 0;
    for case in texts {
        let text = case["text"].as_str().unwrap();
        for target in [None, Some("por"), Some("French")] {
            assert_eq!(
                Value::from(tokens(text, target)),
                case["ids"],
                "{text} to {target:?}"
            );
        }
        count += 1;
    }
    assert!(count >= 4, "{count} texts");
    // An unknown code is part of the text.
    let found = tokens(">>xxx<< cat", Some("por"));
    assert_eq!((found[0], found.len() > 3), (2, true), "{found:?}");
}

/// The folder in which `make test` stores downloads.
fn cache() -> PathBuf {
    fixtures().join("../../.kivu")
}

/// A recipe's bundle in fp32, as a served model; `None` if its package is not downloaded.
fn student(direction: &str, folder: &Path, runtime: Runtime) -> Option<Model> {
    let source = fixtures().join(format!("../../models/translate-{direction}.toml"));
    let recipe = std::fs::read_to_string(&source).unwrap();
    let sha256 = recipe
        .lines()
        .find_map(|line| line.strip_prefix("sha256 = "))
        .unwrap()
        .trim_matches('"');
    if !cache().join("packages").join(sha256).is_dir() {
        crate::skips::missing("the package of the translation models");
        return None;
    }
    let out = folder.join(direction);
    let request = Request {
        cache: cache(),
        ..request(source, out.clone(), Some(Precision::Fp32))
    };
    build_request(&request, runtime).unwrap();
    Some(serve(&out).unwrap())
}

#[tokio::test]
async fn bergamot_models_translate_as_the_reference_engine() {
    let Some(runtime) = runtime() else { return };
    let goldens = std::fs::read(fixtures().join("goldens/bergamot.json")).unwrap();
    let goldens: Value = serde_json::from_slice(&goldens).unwrap();
    for direction in ["en-pt", "pt-en"] {
        let folder = tempfile::tempdir().unwrap();
        let Some(model) = student(direction, folder.path(), runtime) else {
            return;
        };
        let Pipeline::Translation(pipeline) = &model.pipeline else {
            panic!("a student translates")
        };
        let pairs: Vec<(String, String)> =
            serde_json::from_value(goldens[direction].clone()).unwrap();
        assert_eq!(pairs.len(), 200);
        let (texts, expected): (Vec<String>, Vec<String>) = pairs.into_iter().unzip();
        // The engine's native call reads a text as one sentence.
        let options = Seq2SeqOptions {
            split: Some(Split::Never),
            max_sentences: texts.len(),
            ..options(Map::from_iter([("num_beams".to_owned(), 1.into())]))
        };
        let deadline = Deadline::within(Duration::from_secs(300));
        let found = pipeline.generate(texts, &options, deadline).await.unwrap();
        let found = found
            .texts
            .into_iter()
            .flatten()
            .map(|translation| translation.text);
        let others: Vec<_> = found
            .zip(&expected)
            .filter(|(found, expected)| found != *expected)
            .collect();
        assert!(
            others.is_empty(),
            "{direction}: {} of 200 are others: {others:#?}",
            others.len()
        );
    }
}
