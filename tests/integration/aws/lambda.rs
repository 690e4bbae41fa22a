//! The functions in the Lambda emulator, and with a runtime API that checks their responses.

use std::process::Command;

use crate::{
    built::{MINILM, compiled, outside_of_cargo},
    server::bundle,
    tools::{free_ports, root, succeed, tool},
};

/// A script that starts the Lambda emulator on a free port with a function that serves `models`, in
/// `variable`'s Python environment.
fn emulated(variable: &str, script: &str, models: &str) -> Option<Command> {
    let (python, cargo_lambda) = (tool(variable)?, tool("TEST_CARGO_LAMBDA")?);
    let [port] = free_ports();
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
        .arg("tests/lambda/streaming.py");
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
        .arg("tests/lambda/long_responses.py");
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
    succeed(gateway.args([
        "tests/clients/test_clients.py",
        "tests/clients/test_tasks.py",
    ]));
}
