//! Traces, metrics and the log for slow requests, with a collector that reads OpenTelemetry's own messages.

use std::process::Command;

use crate::{
    live::{function, root, succeed, tool},
    models::library_path,
    serving::bundle,
};

#[test]
fn traces_and_metrics_are_received_over_otlp() {
    let (Some(python), Some((_folder, bundle))) = (tool("TEST_TELEMETRY"), bundle()) else { return };
    let mut test = Command::new(python);
    test.current_dir(root())
        .args(["-B", "tests/telemetry/test_otlp.py"])
        .env("TEST_KIVU", env!("CARGO_BIN_EXE_kivu"))
        .env("TEST_FUNCTION", function("api"))
        .env("TEST_BUNDLE", bundle)
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default());
    succeed(&mut test);
}
