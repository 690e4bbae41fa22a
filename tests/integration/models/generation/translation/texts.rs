//! Whole bundles, from text to text, compared with the `translation` pipeline in `transformers`.

use std::time::Duration;

use kivu::{
    backend::Deadline,
    model::Pipeline,
    pipeline::{
        generation::GenerationOptions,
        seq2seq::{RequestedLanguages, Seq2SeqOptions, Seq2SeqPipeline, Split},
    },
    repository::manifest::Precision,
    tokenizer::SpecialTokens,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::models::{fixtures, open, runtime};

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
