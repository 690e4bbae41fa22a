//! Whole bundles, from text to text, against the pipeline `translation` of `transformers`.

use std::time::Duration;

use kivu::{
    backend::Deadline,
    model::Pipeline,
    pipeline::{
        generation::GenerationOptions,
        translation::{Split, TranslationOptions, TranslationPipeline},
    },
    repository::manifest::Precision,
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

/// The options of a call of the pipeline, which has defaults of its own.
fn options(mut parameters: Map<String, Value>) -> TranslationOptions {
    let mut language = |name: &str| parameters.remove(name).and_then(|code| code.as_str().map(str::to_owned));
    let (source, target) = (language("src_lang"), language("tgt_lang"));
    let truncate = parameters.remove("truncation").is_some();
    parameters.entry("num_beams").or_insert(4.into());
    let generation: GenerationOptions = serde_json::from_value(Value::Object(parameters)).unwrap();
    TranslationOptions {
        source,
        target,
        split: Some(if truncate { Split::Never } else { Split::WhenLong }),
        truncate,
        clean_up_spaces: false,
        generation,
        most_sentences: 100,
    }
}

async fn translate(pipeline: &TranslationPipeline, call: &Call) -> Vec<String> {
    let texts = match &call.inputs {
        Value::String(text) => vec![text.clone()],
        texts => serde_json::from_value(texts.clone()).unwrap(),
    };
    let deadline = Deadline::within(Duration::from_secs(30));
    let translations = pipeline.translate(texts, &options(call.parameters.clone()), deadline).await.unwrap();
    translations.texts.into_iter().flatten().map(|translation| translation.text).collect()
}

#[tokio::test]
async fn bundles_translate_as_the_pipeline_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-m2m100", "tiny-nllb", "tiny-marian", "tiny-marian-multi"] {
        let source = fixtures().join("models").join(name);
        let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
        let Pipeline::Translation(pipeline) = &model.pipeline else { panic!("{name} translates") };
        let goldens = std::fs::read(fixtures().join("goldens").join(format!("{name}.json"))).unwrap();
        let goldens: Goldens = serde_json::from_slice(&goldens).unwrap();
        assert_eq!(goldens.pipelines.len(), 5);
        for call in &goldens.pipelines {
            let expected: Vec<&str> =
                call.output.iter().map(|answer| answer["translation_text"].as_str().unwrap()).collect();
            assert_eq!(translate(pipeline, call).await, expected, "{name} {:?}", call.parameters);
        }
    }
}
