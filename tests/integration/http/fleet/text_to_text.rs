//! Summaries, other texts and mBART translations on a fleet, with the models that `kivu triton` writes.

use std::fs;

use kivu::{
    config::{ModelConfig, Policy},
    pipeline::Task,
    repository::{Bundle, triton::write},
};
use serde_json::json;

use super::{
    app_of, model, post,
    server::{Triton, bundle, packages},
    translation::{check_log, options, there},
};
use crate::{models::runtime, pipelines::compare_with_pipelines};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_on_the_fleet_generate_the_texts_of_the_pipelines_of_transformers() {
    let (Some(packages), Some(runtime)) = (packages(), runtime()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let models = [
        ("tiny-bart", Task::Summarization),
        ("tiny-t5", Task::TextToText),
        // Its decoder starts with the target token, which the program gets as an option.
        ("tiny-mbart", Task::Translation),
    ];
    let models =
        models.map(|(name, task)| (name, task, bundle(task, name, folder.path(), runtime)));
    for (_, task, bundle) in &models {
        assert_eq!(
            write(&Bundle::open(bundle).unwrap(), &repository, &options()).unwrap(),
            [task.to_string()]
        );
    }
    let triton = Triton::start(&packages, &repository);
    for (name, task, bundle) in &models {
        let path = format!("/models/{task}");
        let mut texts = json!({
            "inputs": ["The cat sits on the mat.", "Where is the station?\n\nOver there.", "x"],
            "parameters": {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12},
        });
        if *task == Task::Translation {
            let parameters = texts["parameters"].as_object_mut().unwrap();
            parameters.extend([
                ("src_lang".to_owned(), "de".into()),
                ("tgt_lang".to_owned(), "fr".into()),
            ]);
        }
        let here = post(&app_of(ModelConfig::from(bundle.clone())), &path, &texts).await;
        assert_eq!(
            (here.status, here.backend()),
            (200, "onnx"),
            "{}",
            here.body
        );
        // Models on a fleet need neither graphs nor weights.
        for graph in ["encoder.onnx", "decoder.onnx", "weights.bin"] {
            fs::remove_file(bundle.join(graph)).unwrap();
        }
        for url in triton.urls() {
            let fleet = app_of(model(bundle, Policy::Fleet, &task.to_string(), &[&url]));
            let found = post(&fleet, &path, &texts).await;
            assert_eq!(
                (found.status, found.backend()),
                (200, "triton"),
                "{}",
                found.body
            );
            assert_eq!(found.body, here.body, "{name} at {url}");
        }
        if *task == Task::Translation {
            continue;
        }
        let pipeline = there(bundle, &task.to_string(), &triton.urls()[1]);
        let wrong = compare_with_pipelines(name, &pipeline, *task).await;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    check_log(&triton);
}
