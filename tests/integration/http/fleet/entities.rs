//! Zero-shot entities on a fleet, with the model that `kivu triton` writes.

use kivu::{
    config::{ModelConfig, Policy},
    pipeline::Task,
    repository::{Bundle, triton::write},
};
use serde_json::json;

use super::{
    agree, app_of, model, post,
    server::{Triton, bundle, packages},
    translation::{check_log, options},
};
use crate::models::runtime;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_on_the_fleet_are_those_of_the_local_model() {
    let (Some(packages), Some(runtime)) = (packages(), runtime()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let task = Task::TokenClassification;
    let bundle = bundle(task, "tiny-gliner", folder.path(), runtime);
    let names = write(&Bundle::open(&bundle).unwrap(), &repository, &options()).unwrap();
    assert_eq!(names, [task.to_string()]);
    let triton = Triton::start(&packages, &repository);
    // One batch, with different word and token counts.
    let body = json!({
        "inputs": ["My name is Wolfgang and I live in Berlin", " ", "x", "unaffordablenesses of Bob"],
        "parameters": {"labels": ["person", "city", "e-mail address"], "threshold": 0.2, "flat": false},
    });
    let path = format!("/models/{task}");
    let here = post(&app_of(ModelConfig::from(bundle.clone())), &path, &body).await;
    assert_eq!(
        (here.status, here.backend()),
        (200, "native"),
        "{}",
        here.body
    );
    assert!(
        here.body[0]
            .as_array()
            .is_some_and(|entities| entities.len() > 3),
        "{}",
        here.body
    );
    for url in triton.urls() {
        let fleet = app_of(model(&bundle, Policy::Fleet, &task.to_string(), &[&url]));
        let found = post(&fleet, &path, &body).await;
        assert_eq!(
            (found.status, found.backend()),
            (200, "triton"),
            "{}",
            found.body
        );
        assert!(
            agree(&found.body, &here.body),
            "{}, expected {}",
            found.body,
            here.body
        );
    }
    check_log(&triton);
}
