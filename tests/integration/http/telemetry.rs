//! Traces, metrics and the log for slow requests, with a collector that reads OpenTelemetry's own messages.

use std::process::Command;

use crate::{
    built::{MINILM, compiled},
    models::library_path,
    server::bundle,
    tools::{root, succeed, tool},
};

#[test]
fn traces_and_metrics_are_received_over_otlp() {
    let (Some(python), Some((_folder, bundle))) = (tool("TEST_TELEMETRY"), bundle()) else {
        return;
    };
    let mut test = Command::new(python);
    test.current_dir(root())
        .arg("tests/telemetry/test_otlp.py")
        .env("TEST_KIVU", env!("CARGO_BIN_EXE_kivu"))
        .env("TEST_FUNCTION", compiled("api"))
        .env("TEST_BUNDLE", bundle)
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default());
    succeed(&mut test);
}

#[test]
fn the_dashboard_and_the_alerts_work_with_prometheus() {
    let (Some(python), Some(programs)) = (tool("TEST_TELEMETRY"), tool("TEST_PROMETHEUS")) else {
        return;
    };
    if programs.as_os_str().is_empty() {
        crate::skips::unsupported("Prometheus is not installed");
        return;
    }
    let mut test = Command::new(python);
    test.current_dir(root())
        .arg("tests/telemetry/test_dashboard.py")
        .env("TEST_KIVU", env!("CARGO_BIN_EXE_kivu"))
        .env("TEST_BUNDLE", root().join(MINILM))
        .env("TEST_PROMETHEUS", programs)
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default());
    succeed(&mut test);
}
