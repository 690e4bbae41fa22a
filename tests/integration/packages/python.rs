//! The Python package, in an interpreter with the frameworks that it adapts to.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kivu::{pipeline::Task, repository::manifest::Precision};

use crate::{
    built::compiled,
    bundles::all_bundles,
    models::{build_request, fixtures, library_path, request, runtime},
    server::{Server, kivu},
    tools::{interpreter, root, succeed},
};

/// Makes the package as a wheel installs it, with the module for tests.
pub(crate) fn package(folder: &Path) {
    let package = folder.join("kivuml");
    fs::create_dir_all(&package).unwrap();
    for file in fs::read_dir(root().join("python/kivuml"))
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        if file.is_file() {
            fs::copy(&file, package.join(file.file_name().unwrap())).unwrap();
        }
    }
    fs::copy(
        compiled("libkivu_python.so"),
        package.join("_native.abi3.so"),
    )
    .unwrap();
}

/// Bundles for every task, with `prompts`, a model with prompts for queries and documents, `rank-cross`, a CrossEncoder,
/// `tasks`, a model with adapters for tasks, and `extract`, a model that reads schemas.
pub(crate) fn bundles() -> tempfile::TempDir {
    let folder = all_bundles();
    let runtime = runtime().expect("`make test` installs ONNX Runtime");
    for (name, fixture) in [
        ("vectors-static", "tiny-static"),
        ("prompts", "tiny-bert"),
        ("rank-cross", "tiny-bert-rank"),
        ("tasks", "tiny-jina-v3"),
        ("extract", "tiny-gliner2"),
    ] {
        let source = fixtures().join("models").join(fixture);
        let mut request = request(source, folder.path().join(name), Some(Precision::Fp32));
        request.name = Some(name.into());
        request.task = (name == "extract").then_some(Task::TokenClassification);
        build_request(&request, runtime).unwrap();
    }
    folder
}

#[test]
fn the_package_returns_what_the_server_returns() {
    let Some(python) = interpreter("TEST_FRAMEWORKS", "haystack") else {
        return;
    };
    let (folder, bundles) = (tempfile::tempdir().unwrap(), bundles());
    package(folder.path());
    let server = Server::wait(kivu(bundles.path()).stderr(Stdio::null()).spawn().unwrap());
    let program = PathBuf::from(env!("CARGO_BIN_EXE_kivu"));
    let mut tests = Command::new(python);
    tests.arg(root().join("tests/python/test_module.py"));
    tests.env("TEST_URL", format!("http://{}", server.address));
    tests
        .env("TEST_BUNDLES", bundles.path())
        .env("TEST_KIVU", program)
        .env("TEST_PACKAGE", folder.path());
    succeed(tests.env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default()));
}
