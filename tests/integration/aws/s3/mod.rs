//! Bundles and jobs in S3, with a real S3 server and an emulator for queues and state machines. `make test` sets the
//! environment variable with their Python environment; without it, the tests are skipped.

mod bundles;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kivu::repository::manifest::Precision;

use crate::{
    built::compiled,
    models::{build_request, fixtures, library_path, request, runtime},
    server::alone,
};

/// Runs a script in `tests/s3` with the programs that cargo built and bundles for small models.
fn run(script: &str) {
    let Some(python) = env::var_os("TEST_S3_PYTHON") else {
        crate::skips::missing("TEST_S3_PYTHON");
        return;
    };
    let _alone = alone();
    let runtime = runtime().expect("`make test` installs ONNX Runtime");
    let folder = tempfile::tempdir().unwrap();
    let build_at = |source: PathBuf, precision| {
        let out = folder.path().join(source.file_stem().unwrap());
        build_request(&request(source, out.clone(), Some(precision)), runtime).unwrap();
        out
    };
    let model = |name: &str| fixtures().join("models").join(name);
    let build = |name| build_at(model(name), Precision::Fp32);
    // In int8, in which encoder and decoder share an embedding table; random weights lose more quality.
    let recipe = folder.path().join("translator.toml");
    let source = model("tiny-m2m100");
    let text = format!(
        "name = 'translator'\ntask = 'translation'\n[source]\nfolder = '{}'\n[quality]\nsimilarity = 0.5\ntoken_agreement = 0.5\n",
        source.display()
    );
    std::fs::write(&recipe, text).unwrap();
    let root = Path::new(crate::tools::ROOT);
    let mut tests = Command::new(python);
    tests
        .args(["-W", "ignore"])
        .arg(root.join("tests/s3").join(script))
        .env("PYTHONPATH", root.join("tests/lambda"))
        .env("TEST_KIVU", env!("CARGO_BIN_EXE_kivu"))
        .env("TEST_API", compiled("api"))
        .env("TEST_BATCH", compiled("batch"))
        .env(
            "TEST_ONNXRUNTIME",
            library_path().unwrap().canonicalize().unwrap(),
        )
        .env("TEST_BUNDLE", build("tiny-bert"))
        .env("TEST_CLASSIFIER", build("tiny-bert-sentiment"))
        .env("TEST_TRANSLATOR", build_at(recipe, Precision::Int8))
        .stdin(Stdio::null());
    let output = tests.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    // unittest lists the failures, each after a line of `=`, when all tests have ended.
    let failures = log.find("\n====").map_or(&*log, |start| &log[start..]);
    assert!(
        output.status.success(),
        "{script}\n{}{failures}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn bundles_go_to_s3_and_are_served_from_it() {
    run("test_staging.py");
}

#[test]
fn any_of_a_hundred_models_is_loaded_on_demand() {
    run("test_on_demand.py");
}

#[test]
fn jobs_survive_failures() {
    run("test_batch.py");
}

#[test]
fn jobs_are_watched_while_they_run() {
    run("test_progress.py");
}

#[test]
fn vectors_go_to_databases_and_indexes() {
    run("test_sinks.py");
}

#[test]
fn rows_of_warehouses_and_streams_are_answered() {
    run("test_rows.py");
}

#[test]
fn uploads_go_to_a_sink_or_are_requests() {
    run("test_uploads.py");
}

#[test]
fn the_function_survives_failures_of_other_services() {
    run("test_bad_days.py");
}

#[test]
fn the_function_works_with_queues_and_state_machines() {
    run("test_stack.py");
}
