//! Engines for data, and Lambda's runtime client for Python, with the Python package in their processes.

use std::{path::Path, process::Command};

use crate::{
    built::MINILM,
    python::package,
    tools::{interpreter, root, succeed},
};

fn rows_equal_batch(python: &Path, engines: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    package(folder.path());
    let mut tests = Command::new(python);
    tests
        .arg(root().join("tests/engines/test_engines.py"))
        .args(engines);
    tests
        .env("TEST_BUNDLE", root().join(MINILM))
        .env("TEST_KIVU", env!("CARGO_BIN_EXE_kivu"));
    succeed(tests.env("TEST_PACKAGE", folder.path()));
}

#[test]
fn engines_return_what_batch_jobs_return() {
    let Some(python) = interpreter("TEST_ENGINES", "ray") else {
        return;
    };
    rows_equal_batch(&python, &["Columns", "DuckDB", "Daft", "Ray"]);
}

/// `make engines` sets the variable: Spark takes long to install.
#[test]
fn spark_returns_what_batch_jobs_return() {
    if std::env::var_os("TEST_SPARK").is_none() {
        crate::skips::unsupported("`make engines` tests Spark");
        return;
    }
    let Some(python) = interpreter("TEST_SPARK", "pyspark") else {
        return;
    };
    rows_equal_batch(&python, &["Spark"]);
}

#[test]
fn the_python_function_answers_lambdas_runtime_client() {
    let Some(python) = interpreter("TEST_ENGINES", "awslambdaric") else {
        return;
    };
    let (function, packages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    package(packages.path());
    std::fs::copy(
        root().join("examples/python-lambda/app.py"),
        function.path().join("app.py"),
    )
    .unwrap();
    std::os::unix::fs::symlink(root().join(MINILM), function.path().join("model")).unwrap();
    let mut check = Command::new(python);
    check
        .arg(root().join("tests/lambda/python_function.py"))
        .arg(function.path());
    succeed(check.arg(packages.path()));
}
