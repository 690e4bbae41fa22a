//! The clients that users have, from their own packages, and the Lambda emulator. `make test` names both by
//! environment variables; without these the tests say that they skip.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    models::{fixtures, runtime},
    serving::{Server, kivu},
};

/// The program that an environment variable names.
pub(crate) fn tool(variable: &str) -> Option<PathBuf> {
    let tool = env::var_os(variable).map(PathBuf::from);
    if tool.is_none() {
        eprintln!("skipped: {variable} is not set; `make test` sets it");
    }
    tool
}

pub(crate) fn root() -> PathBuf {
    fixtures().join("../..").canonicalize().unwrap()
}

fn bundle() -> PathBuf {
    root().join(".kivu/bundles/minilm")
}

pub(crate) fn succeed(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
}

#[test]
fn the_clients_that_people_have_work_unchanged() {
    let Some(python) = tool("TEST_PYTHON") else { return };
    runtime().expect("`make test` installs ONNX Runtime");
    let server = Server::wait(kivu(&root().join(".kivu/bundles")).stderr(Stdio::null()).spawn().unwrap());
    for script in ["test_clients.py", "test_tasks.py"] {
        let mut tests = Command::new(&python);
        tests.arg(root().join("tests/clients").join(script));
        tests.env("TEST_URL", format!("http://{}", server.address));
        succeed(tests.env("TEST_GOLDENS", fixtures().join("goldens/minilm.json")));
    }
}

#[test]
fn the_function_answers_every_form_of_event() {
    let (Some(python), Some(cargo_lambda)) = (tool("TEST_PYTHON"), tool("TEST_CARGO_LAMBDA")) else { return };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut invoke = Command::new(python);
    invoke
        .current_dir(root())
        .args(["tests/lambda/invoke.py".as_ref(), cargo_lambda.as_os_str(), "tests/lambda".as_ref()])
        .args(["--port", &port.to_string()])
        .args(["--env", &format!("KIVU_MODELS={}", bundle().display())])
        .args(["--env", "KIVU_AUTH__MODE=none"])
        .args(["--env", &format!("KIVU_HOME={}", root().join(".kivu").display())]);
    succeed(&mut invoke);
}
