//! Clients and frameworks from their own packages.

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use kivu::repository::manifest::Precision;

use crate::{
    bundles::all_bundles,
    models::{build_request, fixtures, request, runtime},
    server::{Server, kivu},
    tools::{interpreter, root, succeed, tool},
};

#[test]
fn published_clients_work_unchanged() {
    let Some(python) = tool("TEST_PYTHON") else {
        return;
    };
    let bundles = all_bundles();
    let server = Server::wait(kivu(bundles.path()).stderr(Stdio::null()).spawn().unwrap());
    for script in [
        "tests/clients/test_clients.py",
        "tests/clients/test_tasks.py",
    ] {
        let mut tests = Command::new(&python);
        tests.arg(root().join(script));
        succeed(tests.env("TEST_URL", format!("http://{}", server.address)));
    }
}

/// Frameworks get `/embed` vectors from a model with prompts and ranges.
#[test]
fn frameworks_work_unchanged() {
    let Some(python) = interpreter("TEST_FRAMEWORKS", "haystack") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(
        fixtures().join("models/tiny-bert"),
        folder.path().join("tiny"),
        None,
    );
    request.name = Some("tiny".into());
    build_request(
        &request,
        runtime().expect("`make test` installs ONNX Runtime"),
    )
    .unwrap();
    for (name, fixture, precision) in [
        ("languages", "fast_text/hs.bin", None),
        ("ner-labels", "models/tiny-gliner", Some(Precision::Fp32)),
        (
            "ner-encoded-labels",
            "models/tiny-gliner-bi",
            Some(Precision::Fp32),
        ),
    ] {
        let mut request = self::request(
            fixtures().join(fixture),
            folder.path().join(name),
            precision,
        );
        request.name = Some(name.into());
        build_request(
            &request,
            runtime().expect("`make test` installs ONNX Runtime"),
        )
        .unwrap();
    }
    for name in ["rank", "translate-en-pt"] {
        symlink(
            root().join(".kivu/bundles").join(name),
            folder.path().join(name),
        )
        .unwrap();
    }
    let config = folder.path().join("kivu.toml");
    fs::write(
        &config,
        "[aliases]
        text-embedding-3-small = 'tiny'
        'amazon.titan-embed-text-v2:0' = 'tiny'
        'cohere.embed-multilingual-v3' = 'tiny'
        'cohere.rerank-v3-5:0' = 'rank'",
    )
    .unwrap();
    let mut serve = kivu(folder.path());
    let server = Server::wait(
        serve
            .env("KIVU_CONFIG", config)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut tests = Command::new(python);
    tests.arg(root().join("tests/frameworks/test_frameworks.py"));
    succeed(tests.env("TEST_URL", format!("http://{}", server.address)));
}

/// NeMo Guardrails asks for entities and for labels, without a model that generates texts.
#[test]
fn guards_of_nemo_guardrails_work_unchanged() {
    let Some(python) = interpreter("TEST_FRAMEWORKS", "nemoguardrails") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for (name, fixture) in [
        ("entities", "models/tiny-gliner"),
        ("guard", "models/tiny-bert-sentiment"),
    ] {
        let mut request = request(
            fixtures().join(fixture),
            folder.path().join(name),
            Some(Precision::Fp32),
        );
        request.name = Some(name.into());
        build_request(
            &request,
            runtime().expect("`make test` installs ONNX Runtime"),
        )
        .unwrap();
    }
    let server = Server::wait(kivu(folder.path()).stderr(Stdio::null()).spawn().unwrap());
    let mut tests = Command::new(python);
    tests.arg(root().join("tests/frameworks/test_guards.py"));
    succeed(tests.env("TEST_URL", format!("http://{}", server.address)));
}

#[test]
fn clients_of_a_fleet_find_their_tensor_names() {
    let Some(python) = tool("TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for name in ["zst", "ensemble"] {
        let recipe = fixtures().join(format!("recipes/{name}.toml"));
        let request = request(recipe, folder.path().join(name), None);
        build_request(
            &request,
            runtime().expect("`make test` installs ONNX Runtime"),
        )
        .unwrap();
    }
    let server = Server::wait(kivu(folder.path()).stderr(Stdio::null()).spawn().unwrap());
    let mut tests = Command::new(python);
    tests.arg(root().join("tests/clients/test_tensor_names.py"));
    succeed(tests.env("TEST_URL", format!("http://{}", server.address)));
}
