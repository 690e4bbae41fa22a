//! Translation on a fleet: a published article's model for one language, and the models that `kivu triton` writes, with
//! all `generate` options.

use std::{fs, path::Path, time::Duration};

use kivu::{
    backend::Deadline,
    cloud::Cloud,
    config::{Config, ModelConfig, Policy},
    model::{Model, Pipeline},
    pipeline::{
        Task,
        generation::GenerationOptions,
        seq2seq::{Seq2SeqOptions, Seq2SeqPipeline},
    },
    repository::{
        Bundle,
        triton::{Options, Runner, write},
    },
};
use serde_json::{Value, json};

use super::{
    agree, app_of, model, post,
    server::{Served, Triton, bundle, packages, parameters},
};
use crate::models::{fixtures, runtime};

/// The model from article 001.
pub(super) const TRANSLATOR: &str = "m2m100_translation_model";

pub(super) fn options() -> Options {
    Options {
        backend: Some(Runner::Python),
        max_batch_size: 8,
        instances: 1,
        tensorrt: false,
        text: false,
    }
}

/// Writes the model from article 001, which translates into one language, and one that accepts options.
pub(super) fn write_translator(repository: &Path, bundle: &Path, language: &str) {
    let opened = Bundle::open(bundle).unwrap();
    let names = write(&opened, repository, &options()).unwrap();
    let settings = opened.manifest().settings.seq2seq().unwrap();
    let kivu::pipeline::seq2seq::Languages::Tokens { codes, .. } = &settings.languages else {
        panic!("languages are tokens")
    };
    let more = parameters(&[("language", &codes[language].to_string())]);
    let program = Some("translation.py");
    Served {
        name: TRANSLATOR,
        program,
        bundle: Some(bundle),
        more: &more,
    }
    .write(repository);
    for name in ["generation.py", "generation.json"] {
        let [from, to] =
            [&names[0], TRANSLATOR].map(|model| repository.join(model).join("1").join(name));
        fs::copy(from, to).unwrap();
    }
}

/// `body` without scores, which the article's model does not return.
fn without_scores(mut body: Value) -> Value {
    for translation in body["translations"].as_array_mut().into_iter().flatten() {
        translation.as_object_mut().unwrap().remove("score");
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_translator_on_the_fleet_matches_the_local_one() {
    let (Some(packages), Some(runtime)) = (packages(), runtime()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let bundle = bundle(Task::Translation, "tiny-m2m100", folder.path(), runtime);
    write_translator(&repository, &bundle, "fr");
    let triton = Triton::start(&packages, &repository);
    let texts = [
        "The cat sits on the mat.",
        "Good morning! Where is the station?\n\nOver there.",
        "x",
    ];
    let ask = |target: &str, generation: Value| json!({ "inputs": texts, "src_lang": "en", "tgt_lang": target, "generate_parameters": generation });
    let here = app_of(ModelConfig::from(bundle.clone()));
    let plain = ask("fr", json!({}));
    let with_options = [
        ask("de", json!({ "num_beams": 1 })),
        ask(
            "el",
            json!({ "num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 9 }),
        ),
        ask(
            "fr",
            json!({ "no_repeat_ngram_size": 2, "suppress_tokens": [5], "early_stopping": "never" }),
        ),
    ];
    for url in triton.urls() {
        let own = app_of(model(&bundle, Policy::Fleet, "translation", &[&url]));
        for body in with_options.iter().chain([&plain]) {
            let (expected, found) = (
                post(&here, "/translate", body).await,
                post(&own, "/translate", body).await,
            );
            assert_eq!(
                (expected.status, expected.backend()),
                (200, "onnx"),
                "{}",
                expected.body
            );
            assert_eq!(
                (found.status, found.backend()),
                (200, "triton"),
                "{body}: {}",
                found.body
            );
            assert!(
                agree(&found.body, &expected.body),
                "{}, expected {}",
                found.body,
                expected.body
            );
        }
        // The program does not sample.
        let drawn = ask(
            "fr",
            json!({ "num_beams": 1, "do_sample": true, "seed": 7 }),
        );
        let refused = post(&own, "/translate", &drawn).await;
        assert_eq!(refused.status, 422);
        assert_eq!(
            refused.body["error"],
            "expected `do_sample` to be unset, since it cannot be set for the model on the fleet, but found `true`"
        );

        let [fleet, auto] = [Policy::Fleet, Policy::Auto]
            .map(|policy| app_of(model(&bundle, policy, TRANSLATOR, &[&url])));
        let expected = without_scores(post(&here, "/translate", &plain).await.body);
        for app in [&fleet, &auto] {
            let found = post(app, "/translate", &plain).await;
            assert_eq!(
                (found.status, found.backend()),
                (200, "triton"),
                "{}",
                found.body
            );
            assert!(
                agree(&found.body, &expected),
                "{}, expected {expected}",
                found.body
            );
        }
        // The model accepts no options: requests that need them are refused, or run in this process.
        for body in &with_options {
            let refused = post(&fleet, "/translate", body).await;
            assert_eq!(refused.status, 422, "{}", refused.body);
            let answered = post(&auto, "/translate", body).await;
            assert_eq!((answered.status, answered.backend()), (200, "onnx"));
            assert!(agree(
                &answered.body,
                &post(&here, "/translate", body).await.body
            ));
        }
        let refused = post(&fleet, "/translate", &ask("de", json!({}))).await;
        assert_eq!(
            refused.body["error"],
            "`tgt_lang` is not the language of the model on the fleet"
        );
        for _ in 0..2 {
            let answered = post(&auto, "/translate", &ask("de", json!({}))).await;
            assert_eq!(
                (answered.status, answered.backend()),
                (200, "onnx"),
                "{}",
                answered.body
            );
        }
        let refused = post(&fleet, "/translate", &ask("fr", json!({ "num_beams": 2 }))).await;
        assert_eq!(
            refused.body["error"],
            "expected `num_beams` to be `5`, since it cannot be set for the model on the fleet, but found `2`"
        );
    }
    check_log(&triton);
}

/// Fails if a program printed anything, or Triton reported a problem.
pub(super) fn check_log(triton: &Triton) {
    let log = triton.log();
    assert!(
        !log.contains("Traceback") && !log.to_lowercase().contains("warning:"),
        "{log}"
    );
}

/// A bundle's pipeline whose model runs only on a fleet, as `remote`.
pub(super) fn there(bundle: &Path, remote: &str, url: &str) -> Seq2SeqPipeline {
    let models = vec![model(bundle, Policy::Fleet, remote, &[url])];
    let mut models = Model::open_all(
        &Config {
            models,
            ..crate::models::config()
        },
        &Cloud::default(),
    )
    .unwrap();
    match models.remove(0).pipeline {
        Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => pipeline,
        _ => panic!("the bundle generates texts"),
    }
}

/// Compares every `generate` option with output from `transformers`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exported_translators_generate_like_transformers() {
    let (Some(packages), Some(runtime)) = (packages(), runtime()) else {
        return;
    };
    for name in ["tiny-m2m100", "tiny-marian"] {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("repository");
        let bundle = bundle(Task::Translation, name, folder.path(), runtime);
        write(&Bundle::open(&bundle).unwrap(), &repository, &options()).unwrap();
        let triton = Triton::start(&packages, &repository);
        // Models on a fleet need neither graphs nor weights.
        for graph in ["encoder.onnx", "decoder.onnx", "weights.bin"] {
            fs::remove_file(bundle.join(graph)).unwrap();
        }
        let pipeline = there(&bundle, "translation", &triton.urls()[1]);
        let goldens = fs::read(fixtures().join("goldens").join(format!("{name}.json"))).unwrap();
        let goldens: Value = serde_json::from_slice(&goldens).unwrap();
        let cases = goldens["generated"].as_array().unwrap();
        assert!(cases.len() > 50);
        for case in cases {
            let generation: GenerationOptions =
                serde_json::from_value(case["options"].clone()).unwrap();
            let options = Seq2SeqOptions {
                source: None,
                target: None,
                split: None,
                truncate: false,
                clean_up_spaces: false,
                generation,
                max_sentences: 100,
            };
            let sources: Vec<Vec<u32>> = serde_json::from_value(case["sources"].clone()).unwrap();
            let deadline = Deadline::within(Duration::from_secs(60));
            let found = pipeline
                .generate_ids(sources, &options, deadline)
                .await
                .unwrap();
            let start = goldens_start(&bundle);
            let with_start = |ids: &Value| {
                let ids: Vec<i64> = serde_json::from_value(ids.clone()).unwrap();
                std::iter::once(start).chain(ids).collect::<Vec<_>>()
            };
            let expected: Vec<Vec<Vec<i64>>> = case["sequences"]
                .as_array()
                .unwrap()
                .iter()
                .map(|texts| texts.as_array().unwrap().iter().map(with_start).collect())
                .collect();
            assert_eq!(found.rows, expected, "{name} {}", case["options"]);
        }
        check_log(&triton);
    }
}

fn goldens_start(bundle: &Path) -> i64 {
    let bundle = Bundle::open(bundle).unwrap();
    bundle
        .manifest()
        .settings
        .seq2seq()
        .unwrap()
        .generation
        .decoder_start_token_id
}

/// Concurrent requests form one batch, and an invalid one does not affect the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_do_not_affect_each_other() {
    let (Some(packages), Some(runtime)) = (packages(), runtime()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let bundle = bundle(Task::Translation, "tiny-m2m100", folder.path(), runtime);
    write(&Bundle::open(&bundle).unwrap(), &repository, &options()).unwrap();
    let triton = Triton::start(&packages, &repository);
    let app = app_of(model(
        &bundle,
        Policy::Fleet,
        "translation",
        &[&triton.urls()[1]],
    ));
    let here = app_of(ModelConfig::from(bundle));
    let bodies: Vec<Value> = (0..24)
        .map(|number| {
            let text = "the cat sits ".repeat(1 + number % 5);
            let target = ["fr", "de"][number % 2];
            json!({ "inputs": text, "src_lang": "en", "tgt_lang": target })
        })
        .collect();
    let answers =
        futures::future::join_all(bodies.iter().map(|body| post(&app, "/translate", body))).await;
    for (body, answer) in bodies.iter().zip(answers) {
        let expected = post(&here, "/translate", body).await;
        assert_eq!(
            (answer.status, answer.backend()),
            (200, "triton"),
            "{}",
            answer.body
        );
        assert!(
            agree(&answer.body, &expected.body),
            "{}, expected {}",
            answer.body,
            expected.body
        );
    }
    let execution = triton.ask("GET", "/v2/models/translation/stats").unwrap();
    let count = |name: &str| {
        let value = execution.split(&format!("\"{name}\":")).nth(1).unwrap();
        value
            .split([',', '}'])
            .next()
            .unwrap()
            .parse::<u32>()
            .unwrap()
    };
    assert!(
        count("execution_count") < 24,
        "none came together: {execution}"
    );
}

#[test]
fn exported_translators_contain_their_settings() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let bundle = bundle(Task::Translation, "tiny-marian", folder.path(), runtime);
    let bundle = Bundle::open(&bundle).unwrap();
    let repository = folder.path().join("repository");
    assert_eq!(
        write(&bundle, &repository, &options()).unwrap(),
        ["translation"]
    );
    let read = |name: &str| fs::read_to_string(repository.join("translation").join(name)).unwrap();
    insta::assert_snapshot!(read("config.pbtxt"), @r#"
    name: "translation"
    backend: "python"
    max_batch_size: 8
    input [ { name: "input_ids" data_type: TYPE_INT64 dims: [-1] allow_ragged_batch: true } ]
    input [ { name: "attention_mask" data_type: TYPE_INT64 dims: [-1] allow_ragged_batch: true } ]
    output [ { name: "generated_indices" data_type: TYPE_INT64 dims: [-1] } ]
    output [ { name: "sequences_scores" data_type: TYPE_FP32 dims: [1] } ]
    dynamic_batching { max_queue_delay_microseconds: 500 }
    instance_group [ { count: 1 kind: KIND_CPU } ]
    parameters { key: "generate_parameters" value { string_value: "bad_words_ids,begin_suppress_tokens,decoder_start_token_id,early_stopping,forced_bos_token_id,forced_eos_token_id,length_penalty,max_length,max_new_tokens,min_length,min_new_tokens,no_repeat_ngram_size,num_beams,num_return_sequences,renormalize_logits,repetition_penalty,suppress_tokens" } }
    "#);
    let generation: Value = serde_json::from_str(&read("1/generation.json")).unwrap();
    let settings = bundle.manifest().settings.seq2seq().unwrap();
    assert_eq!(
        generation["decoder_start_token_id"],
        json!(settings.generation.decoder_start_token_id)
    );
    assert_eq!(generation["longest"], json!(settings.max_positions + 1));
    let defaults = &settings.generation.defaults;
    assert_eq!(
        generation["defaults"]["num_beams"],
        json!(defaults.num_beams.unwrap_or(1))
    );
    assert_eq!(
        generation["defaults"]["bad_words_ids"],
        json!(defaults.bad_words_ids.clone().unwrap_or_default())
    );
    let mut files: Vec<_> = fs::read_dir(repository.join("translation/1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "decoder.onnx",
            "encoder.onnx",
            "generation.json",
            "generation.py",
            "model.py",
            "weights.bin"
        ]
    );
    let refused = |options: Options| {
        write(&bundle, &repository, &options)
            .unwrap_err()
            .to_string()
    };
    insta::assert_snapshot!(refused(Options { backend: Some(Runner::Onnx), ..options() }), @"`translation` generates texts, which needs the backend `python` without TensorRT");
    insta::assert_snapshot!(refused(Options { text: true, ..options() }), @"`--text` is not supported for `translation`: the program on the server takes token ids");
}
