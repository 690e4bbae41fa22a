//! Compares generated texts with the pipelines in `transformers`.

use std::{fs, time::Duration};

use kivu::{
    backend::Deadline,
    pipeline::{
        Task,
        seq2seq::{Seq2SeqOptions, Seq2SeqPipeline, Split},
    },
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::models::fixtures;

/// A pipeline call, and its whole result.
#[derive(Deserialize)]
pub(crate) struct Call {
    pub(crate) task: String,
    inputs: Value,
    parameters: Map<String, Value>,
    output: Value,
}

/// The calls in a golden file.
pub(crate) fn calls(name: &str) -> Vec<Call> {
    #[derive(Deserialize)]
    struct Golden {
        pipelines: Vec<Call>,
    }
    let path = fixtures().join("goldens").join(format!("{name}.json"));
    let golden: Golden = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    golden.pipelines
}

pub(crate) fn options(mut parameters: Map<String, Value>) -> Seq2SeqOptions {
    let truncate = parameters.remove("truncation").is_some();
    Seq2SeqOptions {
        source: None,
        target: None,
        split: truncate.then_some(Split::Never),
        truncate,
        clean_up_spaces: false,
        generation: serde_json::from_value(Value::Object(parameters)).unwrap(),
        max_sentences: 100,
    }
}

/// Compares a model's texts with the `transformers` pipelines, for every call for its task in the golden file `name`.
/// Returns the differences.
pub(crate) async fn compare_with_pipelines(
    name: &str,
    pipeline: &Seq2SeqPipeline,
    task: Task,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let key = match task {
        Task::Translation => "translation_text",
        Task::Summarization => "summary_text",
        _ => "generated_text",
    };
    // `translation_en_to_de` in the pipelines.
    let calls = calls(name)
        .into_iter()
        .filter(|call| call.task.starts_with(&task.to_string()));
    for Call {
        inputs,
        parameters,
        output,
        ..
    } in calls
    {
        let texts = match inputs {
            Value::String(text) => vec![text],
            texts => serde_json::from_value(texts).unwrap(),
        };
        let deadline = Deadline::within(Duration::from_secs(30));
        let found = pipeline
            .generate(texts, &options(parameters.clone()), deadline)
            .await
            .unwrap();
        // Translations have the white space around their sources instead of their own.
        let text = |text: &str| {
            if task == Task::Translation {
                text.trim()
            } else {
                text
            }
            .to_owned()
        };
        let found: Vec<String> = found
            .texts
            .iter()
            .flatten()
            .map(|found| text(&found.text))
            .collect();
        let expected = output.as_array().unwrap().iter();
        let expected: Vec<String> = expected
            .map(|found| text(found[key].as_str().unwrap()))
            .collect();
        if found != expected {
            wrong.push(format!(
                "{name} {task} {parameters:?}: {found:?} in place of {expected:?}"
            ));
        }
    }
    wrong
}
