//! Clients from their own packages, and the Lambda emulator. `make test` sets the variables that name them; without
//! them these tests are skipped.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kivu::repository::manifest::Precision;

use crate::{
    models::{build_request, fixtures, request, runtime},
    serving::{Server, alone, bundle, kivu},
};

/// The path in an environment variable. Prints a note if it is not set.
pub(crate) fn tool(variable: &str) -> Option<PathBuf> {
    let tool = env::var_os(variable).map(PathBuf::from);
    if tool.is_none() {
        crate::skips::missing(variable);
    }
    tool
}

pub(crate) fn root() -> PathBuf {
    Path::new(crate::ROOT).canonicalize().unwrap()
}

/// A Lambda function's program or a package's native module, compiled if it is not up to date.
pub(crate) fn compiled(name: &str) -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--workspace", "--lib", "--bins"])
        .current_dir(crate::ROOT);
    assert!(
        outside_of_cargo(&mut build).status().unwrap().success(),
        "`{name}` cannot be compiled"
    );
    Path::new(env!("CARGO_BIN_EXE_kivu")).with_file_name(name)
}

/// Removes the variables that `cargo test` sets for tests. If a command runs cargo with them, crates whose build scripts
/// depend on one are compiled again with all crates above them, and once more by the next cargo without them.
fn outside_of_cargo(command: &mut Command) -> &mut Command {
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command
}

pub(crate) fn succeed(command: &mut Command) {
    let _alone = alone();
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
}

pub(crate) const MINILM: &str = ".kivu/bundles/minilm";

/// A folder with bundles: the ones that `make test` builds, `ner`, which labels tokens, `ner-labels`, which takes
/// labels from requests, `summary`, and models without dense vectors. The last ones have names that sort after the
/// others, since a task's first model is the default.
pub(crate) fn all_bundles() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for bundle in fs::read_dir(root().join(".kivu/bundles")).unwrap() {
        let bundle = bundle.unwrap();
        symlink(bundle.path(), folder.path().join(bundle.file_name())).unwrap();
    }
    let runtime = runtime().expect("`make test` installs ONNX Runtime");
    for (name, fixture) in [
        ("ner", "tiny-bert-ner"),
        ("ner-labels", "tiny-gliner"),
        ("summary", "tiny-bart"),
        ("vectors-colbert", "tiny-colbert-stanford"),
        ("vectors-m3", "tiny-bge-m3"),
        ("vectors-splade", "tiny-splade-bert"),
    ] {
        let source = fixtures().join("models").join(fixture);
        let mut request = request(source, folder.path().join(name), Some(Precision::Fp32));
        request.name = Some(name.into());
        build_request(&request, runtime).unwrap();
    }
    folder
}

/// Scripts that use the clients.
const CLIENTS: [&str; 2] = [
    "tests/clients/test_clients.py",
    "tests/clients/test_tasks.py",
];

#[test]
fn published_clients_work_unchanged() {
    let Some(python) = tool("TEST_PYTHON") else {
        return;
    };
    let bundles = all_bundles();
    let server = Server::wait(kivu(bundles.path()).stderr(Stdio::null()).spawn().unwrap());
    for script in CLIENTS {
        let mut tests = Command::new(&python);
        tests.arg(root().join(script));
        tests.env("TEST_URL", format!("http://{}", server.address));
        succeed(tests.env("TEST_GOLDENS", fixtures().join("goldens/minilm.json")));
    }
}

/// Frameworks get `/embed` vectors from a model with prompts and ranges.
#[test]
fn frameworks_work_unchanged() {
    let Some(python) = tool("TEST_FRAMEWORKS") else {
        return;
    };
    let has_frameworks = Command::new(&python)
        .args(["-c", "import haystack"])
        .stderr(Stdio::null())
        .status();
    if !has_frameworks.is_ok_and(|status| status.success()) {
        crate::skips::unsupported("haystack-ai needs Python 3.11");
        return;
    }
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
    let Some(python) = tool("TEST_FRAMEWORKS") else {
        return;
    };
    let has_guards = Command::new(&python)
        .args(["-c", "import nemoguardrails"])
        .stderr(Stdio::null())
        .status();
    if !has_guards.is_ok_and(|status| status.success()) {
        crate::skips::unsupported("nemoguardrails needs Python 3.11");
        return;
    }
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

/// A script that starts the Lambda emulator on a free port with a function that serves `models`, in
/// `variable`'s Python environment.
fn emulated(variable: &str, script: &str, models: &str) -> Option<Command> {
    let (python, cargo_lambda) = (tool(variable)?, tool("TEST_CARGO_LAMBDA")?);
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut command = Command::new(python);
    // The emulator runs `cargo run`.
    outside_of_cargo(&mut command);
    command
        .current_dir(root())
        .args([script.as_ref(), cargo_lambda.as_os_str()])
        .args(["--port", &port.to_string()])
        .arg(format!(
            "--env=KIVU_MODELS={}",
            root().join(models).display()
        ))
        .arg("--env=KIVU_AUTH__MODE=none")
        .arg(format!(
            "--env=KIVU_HOME={}",
            root().join(".kivu").display()
        ));
    Some(command)
}

#[test]
fn the_api_function_accepts_all_event_formats() {
    let Some(mut invoke) = emulated("TEST_PYTHON", "tests/lambda/invoke.py", MINILM) else {
        return;
    };
    succeed(invoke.arg(root().join("tests/lambda")));
}

/// Responses above 6 MB, errors, and clients that disconnect, with a runtime API that checks the stream.
#[test]
fn the_api_function_streams_responses() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut streaming = Command::new("python3");
    streaming
        .current_dir(root())
        .args(["-B", "tests/lambda/streaming.py"]);
    succeed(streaming.arg(compiled("api")).arg(bundle));
}

/// Responses of all kinds around Lambda's limit, with a runtime API that checks their sizes.
#[test]
fn the_api_function_refuses_responses_that_lambda_would() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut check = Command::new("python3");
    check
        .current_dir(root())
        .args(["-B", "tests/lambda/long_responses.py"]);
    succeed(check.arg(compiled("api")).arg(bundle));
}

#[test]
fn the_batch_function_accepts_all_event_formats() {
    let Some(mut invoke) = emulated("TEST_S3_PYTHON", "tests/lambda/invoke_batch.py", MINILM)
    else {
        return;
    };
    succeed(&mut invoke);
}

#[test]
fn published_clients_work_with_the_function() {
    let Some(mut gateway) = emulated("TEST_PYTHON", "tests/lambda/gateway.py", ".kivu/bundles")
    else {
        return;
    };
    succeed(
        gateway
            .args(CLIENTS)
            .env("TEST_GOLDENS", fixtures().join("goldens/minilm.json")),
    );
}
