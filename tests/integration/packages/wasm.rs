//! Bundles in memory, and the npm package for WebAssembly, in Node.js, Chromium and workerd. `make wasm-test` makes it.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use bytes::Bytes;
use kivu::{
    Deadline, Model,
    config::EngineChoice,
    model::IncomingModel,
    pipeline::Task,
    repository::{
        bundle::{MANIFEST, loaded_files},
        manifest::Precision,
    },
    task::embedding::EmbeddingParameters,
};

use crate::{
    models::{build_request, fixtures, request_without_floor, runtime, serve},
    server::{Server, kivu},
    tools::{root, succeed},
};

#[tokio::test]
async fn bundles_in_memory_have_the_bits_of_folders() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let build_for = |name: &str, precision, engine| {
        let (source, out) = (
            fixtures().join("models").join(name),
            folder.path().join(format!("{name}-{precision}")),
        );
        let mut request = request_without_floor(
            Task::FeatureExtraction,
            &source,
            out.clone(),
            Some(precision),
        );
        request.engine = engine;
        let bundle = build_request(&request, runtime).unwrap();
        let read = |name: &str| fs::read(out.join(name)).unwrap();
        let files = loaded_files(bundle.manifest())
            .map(|file| (file.name.clone(), read(&file.name).into()));
        (
            out.clone(),
            fs::read_to_string(out.join(MANIFEST)).unwrap(),
            files.collect::<BTreeMap<_, Bytes>>(),
        )
    };
    let build = |name: &str, precision| build_for(name, precision, EngineChoice::Auto);
    for name in ["tiny-static", "tiny-bert"] {
        let (out, manifest, files) = build(name, Precision::Int8);
        let vectors = async |model: Model| {
            let embedder = model.embedder(&EmbeddingParameters::default()).unwrap();
            let texts = ["a cat", "the ferry leaves at seven"]
                .map(Into::into)
                .into();
            embedder.run(texts, Deadline::none()).await.unwrap().vectors
        };
        let opened = Model::from_memory(&manifest, files.clone()).unwrap();
        let expected = vectors(serve(&out).unwrap()).await;
        assert_eq!(vectors(opened).await, expected, "{name}");
        assert_eq!(
            vectors(arrived(&manifest, &files).unwrap()).await,
            expected,
            "{name}"
        );
        for (file, contents) in &files {
            let refused = |files| {
                Model::from_memory(&manifest, files)
                    .unwrap_err()
                    .to_string()
            };
            let mut cut = files.clone();
            cut.insert(file.clone(), contents.slice(1..));
            assert!(
                arrived(&manifest, &cut)
                    .unwrap_err()
                    .to_string()
                    .contains("the bundle is damaged"),
                "{file}"
            );
            assert!(refused(cut).contains("the bundle is damaged"), "{file}");
            let mut long = files.clone();
            long.insert(file.clone(), [contents, &b"!"[..]].concat().into());
            let found = format!(
                "bytes, but found {}; the bundle is damaged",
                contents.len() + 1
            );
            assert!(
                arrived(&manifest, &long)
                    .unwrap_err()
                    .to_string()
                    .contains(&found),
                "{file}"
            );
            let mut missing = files.clone();
            missing.remove(file);
            assert!(
                refused(missing).starts_with(&format!("expected `{file}` among the files of "))
            );
        }
    }
    let (_, manifest, files) = build_for("tiny-bert", Precision::Fp32, EngineChoice::Onnx);
    let refused = Model::from_memory(&manifest, files)
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(refused, @"expected a bundle for the native engine, but found that `tiny-bert` is for ONNX Runtime; build it with `--engine native`");
    // Before any file arrives.
    assert_eq!(
        IncomingModel::new(&manifest).unwrap_err().to_string(),
        refused
    );
    let (_, manifest, files) = build("tiny-bert", Precision::Int8);
    let (_, edited) = manifest.split_once('\n').unwrap();
    let size = format!("size = {}", files["weights.bin"].len());
    let refused =
        IncomingModel::new(&edited.replace(&size, "size = 9223372036854775807")).unwrap_err();
    insta::assert_snapshot!(refused, @"expected files with at most 9223372036854775800 bytes, but found that `weights.bin` has 9223372036854775807");
}

/// A model whose files arrive in short pieces.
fn arrived(manifest: &str, files: &BTreeMap<String, Bytes>) -> kivu::Result<Model> {
    let mut incoming = IncomingModel::new(manifest)?;
    let names: Vec<String> = incoming.required().map(|file| file.name.clone()).collect();
    for name in names {
        for piece in files[&name].chunks(1000) {
            incoming.fill(&name, piece.len(), |free| {
                free.copy_from_slice(&piece[..free.len()])
            })?;
        }
    }
    incoming.open()
}

/// The bundles that `make bundles` has built, and a fixture for each other task, for the native engine.
fn bundles() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for bundle in fs::read_dir(root().join(".kivu/bundles")).unwrap() {
        let bundle = bundle.unwrap();
        symlink(bundle.path(), folder.path().join(bundle.file_name())).unwrap();
    }
    let runtime = runtime().expect("`make wasm-test` installs ONNX Runtime");
    for (name, fixture, task) in [
        ("ner", "tiny-bert-ner", Task::TokenClassification),
        ("ner-labels", "tiny-gliner", Task::TokenClassification),
        (
            "vectors-colbert",
            "tiny-colbert-stanford",
            Task::FeatureExtraction,
        ),
        (
            "vectors-splade",
            "tiny-splade-bert",
            Task::FeatureExtraction,
        ),
        ("vectors-static", "tiny-static", Task::FeatureExtraction),
    ] {
        let (source, out) = (
            fixtures().join("models").join(fixture),
            folder.path().join(name),
        );
        let mut request = request_without_floor(task, &source, out.clone(), Some(Precision::Int8));
        request.name = Some(name.into());
        build_request(&request, runtime).unwrap();
        fs::remove_file(out.with_extension("toml")).unwrap();
    }
    folder
}

/// A command that runs a test program in Node.js, unless a variable that it needs is not set.
fn program(name: &str, variables: &[&str]) -> Option<Command> {
    for variable in ["TEST_WASM"].iter().chain(variables) {
        if env::var_os(variable).is_none() {
            crate::skips::unsupported(format_args!("{variable}; `make wasm-test` sets it"));
            return None;
        }
    }
    let mut tests = Command::new("node");
    tests
        .arg("--expose-gc")
        .arg(root().join("tests/wasm").join(name));
    Some(tests)
}

/// Runs a test program next to a server with the same bundles.
fn run(mut tests: Command, bundles: &Path) {
    let server = Server::wait(kivu(bundles).stderr(Stdio::null()).spawn().unwrap());
    tests
        .env("TEST_URL", format!("http://{}", server.address))
        .env("TEST_BUNDLES", bundles);
    succeed(&mut tests);
}

#[test]
fn the_package_returns_what_the_server_returns() {
    let bundles = bundles();
    for module in ["kivuml.wasm", "kivuml-relaxed.wasm"] {
        let Some(mut tests) = program("package.test.mjs", &[]) else {
            return;
        };
        tests.env("TEST_MODULE", module);
        run(tests, bundles.path());
    }
}

#[test]
fn models_run_in_a_browser() {
    let Some(tests) = program("browser.test.mjs", &["TEST_CHROMIUM"]) else {
        return;
    };
    run(tests, bundles().path());
}

#[test]
fn the_worker_answers_with_little_memory() {
    let Some(tests) = program("workerd.test.mjs", &["TEST_WORKERD"]) else {
        return;
    };
    run(tests, bundles().path());
}
