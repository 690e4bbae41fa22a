//! Summaries and other texts from texts, compared with the `summarization` and `text2text-generation`
//! pipelines in `transformers`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::http::StatusCode;
use kivu::{
    backend::Deadline,
    config::Limits,
    model::{Model, Pipeline},
    onnx::Runtime,
    pipeline::{
        Task,
        generation::GenerationOptions,
        seq2seq::{RequestedLanguages, Seq2SeqOptions, Seq2SeqPipeline},
    },
    repository::{
        Manifest,
        manifest::{Precision, Quality},
    },
    tokenizer::SpecialTokens,
};
use kivu_compiler::Request;
use kivu_http::{App, router};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    messages::ask,
    models::{build_request, fixtures, request, runtime, serve},
    pipelines::{calls, compare_with_pipelines, options},
};

const MODELS: [&str; 6] = [
    "tiny-bart",
    "tiny-pegasus",
    "tiny-t5",
    "tiny-flan-t5",
    "tiny-mt5",
    "tiny-madlad",
];

#[derive(Deserialize)]
struct Tokenized {
    text: String,
    ids: Vec<u32>,
}

/// Texts and their ids in a golden file.
fn tokenized(name: &str) -> Vec<Tokenized> {
    #[derive(Deserialize)]
    struct Golden {
        tokenized: Vec<Tokenized>,
    }
    let path = fixtures().join("goldens").join(format!("{name}.json"));
    let golden: Golden = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    golden.tokenized
}

/// A bundle for a task, as a served model.
fn built(name: &str, task: Option<Task>, folder: &Path, runtime: Runtime) -> Model {
    let out = folder.join(task.map_or(name.to_owned(), |task| format!("{name}-{task}")));
    let source = fixtures().join("models").join(name);
    build_request(
        &Request {
            task,
            ..request(source, out.clone(), Some(Precision::Fp32))
        },
        runtime,
    )
    .unwrap();
    serve(&out).unwrap()
}

fn pipeline(model: &Model) -> &Seq2SeqPipeline {
    match &model.pipeline {
        Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => pipeline,
        _ => panic!("{} generates texts", model.name),
    }
}

#[tokio::test]
async fn bundles_generate_the_texts_of_the_pipelines_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for name in MODELS {
        for task in [Task::Summarization, Task::TextToText, Task::Translation] {
            if calls(name)
                .iter()
                .any(|call| call.task.starts_with(&task.to_string()))
            {
                let model = built(name, Some(task), folder.path(), runtime);
                wrong.extend(compare_with_pipelines(name, pipeline(&model), task).await);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Version 5 of `transformers` says that T5's tables are tied, whatever its file has.
#[tokio::test]
async fn models_from_version_5_generate_the_same_texts() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let version = "5.23.0";
    for (name, fields) in [
        (
            "tiny-flan-t5",
            json!({"scale_decoder_outputs": false, "tie_word_embeddings": true, "transformers_version": version}),
        ),
        (
            "tiny-mt5",
            json!({"tie_word_embeddings": true, "transformers_version": version}),
        ),
    ] {
        let folder = folder.path().join(name);
        let (source, out) = (changed(name, &fields, &folder), folder.join("bundle"));
        let task = Some(Task::TextToText);
        let request = Request {
            task,
            ..request(source, out.clone(), Some(Precision::Fp32))
        };
        build_request(&request, runtime).unwrap();
        let model = serve(&out).unwrap();
        let wrong = compare_with_pipelines(name, pipeline(&model), Task::TextToText).await;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Models that were trained to summarize in one language, which their files name, or which is English.
#[tokio::test]
async fn mbart_generates_the_texts_of_the_pipelines_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-mbart", "tiny-mbart50"] {
        let model = built(name, Some(Task::Summarization), folder.path(), runtime);
        let golden = format!("{name}-summaries");
        let wrong = compare_with_pipelines(&golden, pipeline(&model), Task::Summarization).await;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[tokio::test]
async fn t5_translates_after_its_instructions() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let german = json!({"prefix": "translate English to German: ", "max_length": 300});
    let french = json!({"prefix": "translate German to French: ", "max_length": 300});
    let tasks = json!({"translation_en_to_de": german, "translation_de_to_fr": french});
    let source = changed(
        "tiny-t5",
        &json!({ "task_specific_params": tasks }),
        folder.path(),
    );
    let build = |source: &Path| {
        let out = folder.path().join("out");
        let task = Some(Task::Translation);
        build_request(
            &Request {
                task,
                ..request(source.to_owned(), out, Some(Precision::Fp32))
            },
            runtime,
        )
    };
    let bundle = build(&source).unwrap();
    let model = serve(&bundle.path("")).unwrap();
    let translate = async |source: &str, target: &str, text: &str| {
        let languages = (Some(source.to_owned()), Some(target.to_owned()));
        let generation = GenerationOptions {
            min_new_tokens: Some(8),
            ..GenerationOptions::default()
        };
        let options = Seq2SeqOptions {
            source: languages.0,
            target: languages.1,
            generation,
            ..options(Map::new())
        };
        let deadline = Deadline::within(Duration::from_secs(30));
        let found = pipeline(&model)
            .generate(vec![text.to_owned()], &options, deadline)
            .await;
        found.map(|mut found| found.texts.remove(0).remove(0).text)
    };
    // Each sentence in a too long text has its own instruction.
    let sentence = "The dog sleeps in the sun and the documents are nearest to it in meaning.";
    let one = translate("English", "German", sentence).await.unwrap();
    assert!(!one.is_empty());
    let all = translate("en", "de", &[sentence; 3].join(" "))
        .await
        .unwrap();
    assert_eq!(all, [&*one; 3].join(" "));
    assert_ne!(translate("de", "fr", sentence).await.unwrap(), one);
    let directions = pipeline(&model).directions();
    let (sources, targets) = directions.listed();
    let pairs = sources
        .iter()
        .flat_map(|source| targets.iter().map(move |target| (source, target)));
    let pairs: Vec<_> = pairs
        .filter(|(source, target)| directions.translates(source, target))
        .collect();
    let codes: Vec<_> = pairs
        .iter()
        .map(|(source, target)| (&*source.code, &*target.code))
        .collect();
    assert_eq!(codes, [("de", "fr"), ("en", "de")]);
    insta::assert_snapshot!(translate("en", "fr", "x").await.unwrap_err(), @"expected languages among `de to fr`, `en to de`, but found `en to fr`");
    insta::assert_snapshot!(translate("en", "pt", "x").await.unwrap_err(), @"expected a language of the model in `tgt_lang`, but found `pt`; it has `de`, `fr`");

    let mut tasks = tasks;
    tasks["translation_de_to_fr"]["num_beams"] = json!(2);
    let source = changed(
        "tiny-t5",
        &json!({ "task_specific_params": tasks }),
        folder.path(),
    );
    let error = build(&source).unwrap_err().chain();
    insta::assert_snapshot!(error.split_once("`: ").unwrap().1, @"`translation_en_to_de` and `translation_de_to_fr` of `task_specific_params` have different settings");
}

#[test]
fn ids_equal_those_of_the_tokenizers_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for name in MODELS {
        // Translation reads the tag in a text as its target.
        let task = (name == "tiny-madlad").then_some(Task::TextToText);
        let model = built(name, task, folder.path(), runtime);
        for Tokenized { text, ids } in tokenized(name) {
            let tokens =
                pipeline(&model).tokens(&text, SpecialTokens::Added, RequestedLanguages::default());
            let found: Vec<u32> = tokens.unwrap().iter().map(|token| token.id).collect();
            if found != ids {
                wrong.push(format!("{name} {text:?}: {found:?} in place of {ids:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Old models have only slow tokenizer files.
#[test]
fn byte_pairs_are_read_from_the_files_of_the_slow_tokenizer() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = changed("tiny-bart", &json!({}), folder.path());
    let file = source.join("tokenizer.json");
    let tokenizer: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    fs::remove_file(file).unwrap();
    fs::write(
        source.join("vocab.json"),
        tokenizer["model"]["vocab"].to_string(),
    )
    .unwrap();
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter();
    let merges = merges.map(|pair| {
        format!(
            "{} {}\n",
            pair[0].as_str().unwrap(),
            pair[1].as_str().unwrap()
        )
    });
    let build = |merges: String| {
        fs::write(
            source.join("merges.txt"),
            format!("#version: 0.2\n{merges}"),
        )
        .unwrap();
        build_request(
            &request(
                source.clone(),
                folder.path().join("out"),
                Some(Precision::Fp32),
            ),
            runtime,
        )
    };
    let bundle = build(merges.collect()).unwrap();
    let model = serve(&bundle.path("")).unwrap();
    for Tokenized { text, ids } in tokenized("tiny-bart") {
        let tokens =
            pipeline(&model).tokens(&text, SpecialTokens::Added, RequestedLanguages::default());
        let found: Vec<u32> = tokens.unwrap().iter().map(|token| token.id).collect();
        assert_eq!(found, ids, "{text:?}");
    }
    let error = build("ab\n".to_owned()).unwrap_err().chain();
    insta::assert_snapshot!(error.split_once("`: ").unwrap().1, @"expected two pieces in each line of `merges.txt`, but found `ab`");
}

/// A fixture copy with changed fields in its `config.json`.
fn changed(name: &str, fields: &Value, folder: &Path) -> PathBuf {
    let (source, copy) = (fixtures().join("models").join(name), folder.join("changed"));
    fs::create_dir_all(&copy).unwrap();
    for entry in fs::read_dir(&source).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    config
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    fs::write(copy.join("config.json"), config.to_string()).unwrap();
    copy
}

#[test]
fn other_heads_and_options_that_are_not_supported_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let refusal = |name: &str, fields: &Value| {
        let source = changed(name, fields, folder.path());
        let error = build_request(
            &request(source, folder.path().join("out"), Some(Precision::Fp32)),
            runtime,
        );
        let error = error.unwrap_err().chain();
        // Strips the folder, with which most errors begin.
        error
            .split_once("`: ")
            .map_or(error.clone(), |(_, rest)| rest.to_owned())
    };
    insta::assert_snapshot!(refusal("tiny-bart", &json!({"architectures": ["BartForQuestionAnswering"]})), @"expected a model of this family that generates texts (`…ForConditionalGeneration`), but found `BartForQuestionAnswering`, whose head is not supported");
    insta::assert_snapshot!(refusal("tiny-bart", &json!({"architectures": ["BartForSequenceClassification"]})), @"expected the weight `classification_head.dense.weight`, but found no such weight");
    insta::assert_snapshot!(refusal("tiny-t5", &json!({"architectures": ["T5ForTokenClassification"]})), @"expected a model of this family that generates texts (`…ForConditionalGeneration`), but found `T5ForTokenClassification`, whose head is not supported");
    insta::assert_snapshot!(refusal("tiny-t5", &json!({"dense_act_fn": "mish"})), @"expected an activation among `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`, `relu`, `swish`, `tanh`, but found `mish`");
    insta::assert_snapshot!(refusal("tiny-t5", &json!({"relative_attention_num_buckets": 7})), @"expected a `relative_attention_num_buckets` that 4 divides, and `relative_attention_max_distance` of more than half of it, but found 7 and 20");
    insta::assert_snapshot!(refusal("tiny-t5", &json!({"d_kv": usize::MAX})), @"expected `d_kv` from 1 to 2097152, but found 18446744073709551615");
    insta::assert_snapshot!(refusal("tiny-flan-t5", &json!({"is_gated_act": false})), @"expected the weight `encoder.block.0.layer.1.DenseReluDense.wi.weight`, but found no such weight");
    let task = Request {
        task: Some(Task::Translation),
        ..request(
            fixtures().join("models/tiny-flan-t5"),
            folder.path().join("out"),
            Some(Precision::Fp32),
        )
    };
    let error = build_request(&task, runtime).unwrap_err().chain();
    insta::assert_snapshot!(error.split_once("`: ").unwrap().1, @"expected `translation_…_to_…` with a `prefix` in `task_specific_params` of `config.json` for the task `translation`, but found none; use another task, and write the instruction before each text");
}

#[test]
fn int8_passes_the_quality_gate() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, task) in [
        ("tiny-bart", Task::Summarization),
        ("tiny-flan-t5", Task::TextToText),
    ] {
        let recipe = folder.path().join(format!("{name}.toml"));
        let source = fixtures().join("models").join(name);
        // Random weights leave many tokens equally likely.
        let text = format!(
            "name = '{name}'\ntask = '{task}'\n[source]\nfolder = '{}'\n[quality]\nsimilarity = 0.0\n\
             token_agreement = 0.8\n",
            source.display()
        );
        fs::write(&recipe, text).unwrap();
        let bundle = build_request(
            &request(recipe, folder.path().join(name), Some(Precision::Int8)),
            runtime,
        )
        .unwrap();
        let Some(Quality::Seq2Seq {
            token_agreement, ..
        }) = bundle.manifest().weights.quality
        else {
            panic!("{name} is measured")
        };
        assert!(token_agreement > 0.8, "{name}: {token_agreement}");
    }
}

#[test]
fn manifests_of_older_versions_are_read() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = built("tiny-t5", None, folder.path(), runtime);
    let text = model.manifest.to_text().unwrap();
    // Removes the hash in the first line.
    let (_, unsealed) = text.split_once('\n').unwrap();
    let older = unsealed
        .replace("format = 2", "format = 1")
        .replace("[settings.seq2seq", "[translation");
    assert_ne!(older, unsealed);
    assert_eq!(Manifest::parse(&older).unwrap(), model.manifest);
}

#[tokio::test]
async fn the_hub_route_and_kserve_name_texts_by_their_task() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let models = vec![
        built("tiny-bart", None, folder.path(), runtime),
        built("tiny-t5", None, folder.path(), runtime),
    ];
    let app = router(App::new(
        models,
        Limits {
            texts: 8,
            ..Limits::default()
        },
    ));
    let text = "The cat sits on the mat.";
    let short = json!({"inputs": text, "parameters": {"num_beams": 1, "max_new_tokens": 4}});
    let (status, summary) = ask(&app, "/models/tiny-bart", &short).await;
    assert_eq!(status, StatusCode::OK, "{summary}");
    let summary = summary[0]["summary_text"].as_str().unwrap().to_owned();
    // The same options in `parameters`; `generate_parameters` takes precedence.
    let own = json!({"generate_parameters": {"num_beams": 1, "max_new_tokens": 4}, "num_beams": 3});
    let (_, same) = ask(&app, "/", &json!({"inputs": [text], "parameters": own})).await;
    assert_eq!(same, json!([{ "summary_text": summary }]));
    let (_, generated) = ask(&app, "/models/tiny-t5", &short).await;
    assert!(generated[0]["generated_text"].is_string(), "{generated}");
    let tensor = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text]});
    let parameters = json!({"num_beams": 1, "max_new_tokens": 4});
    let body = json!({"inputs": [tensor], "parameters": parameters});
    let (_, tensors) = ask(&app, "/v2/models/tiny-bart/infer", &body).await;
    assert_eq!(tensors["outputs"][0]["name"], "summary");
    assert_eq!(tensors["outputs"][0]["data"], json!([summary]));

    let refusal = async |model: &str, body: &Value| {
        let (status, body) = ask(&app, &format!("/models/{model}"), body).await;
        format!("{} {}", status.as_u16(), body["error"].as_str().unwrap())
    };
    let long = text.repeat(20);
    for body in [
        json!({"inputs": long, "parameters": {"truncation": "do_not_truncate"}}),
        json!({"inputs": long, "parameters": {"truncate": false}}),
        json!({"inputs": long, "truncation": false}),
    ] {
        let expected =
            "413 the text has 303 tokens, but the model takes at most 64 tokens; set `truncate`";
        assert_eq!(refusal("tiny-bart", &body).await, expected, "{body}");
    }
    let languages = json!({"inputs": text, "parameters": {"src_lang": "en"}});
    insta::assert_snapshot!(refusal("tiny-t5", &languages).await, @"422 `src_lang` is not supported: the model does not translate");
    let unknown = json!({"inputs": text, "parameters": {"num_beams": 1, "generate_parameters": {"beams": 1}}});
    let refused = refusal("tiny-t5", &unknown).await;
    assert!(
        refused.starts_with(
            "422 unknown field `parameters.generate_parameters.beams`; known fields: "
        ),
        "{refused}"
    );
    let unknown = json!({"inputs": text, "parameters": {"num_beams": 2, "num_beam_groups": 2}});
    insta::assert_snapshot!(refusal("tiny-t5", &unknown).await, @"422 unknown option of the task or of `generate`: `parameters.num_beam_groups`; leave it out");
    let cut = json!({"inputs": text.repeat(20), "parameters": {"truncation": "only_first"}});
    assert_eq!(ask(&app, "/models/tiny-bart", &cut).await.0, StatusCode::OK);
}
