//! Each foreign crate is spoken to in one place, so that replacing it, or its version, changes that place only.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A crate, as it is written in paths, and where it may be.
const DOORS: &[(&str, &[&str])] = &[
    ("ort::", &["src/backend/onnx/"]),
    ("tokenizers::", &["src/tokenizer/"]),
    ("safetensors::", &["src/build/weights.rs"]),
    ("arrow_array::", &["src/batch/"]),
    ("arrow_schema::", &["src/batch/"]),
    ("aws_config::", &["src/repository/s3/", "src/secrets.rs"]),
    ("aws_sdk_s3::", &["src/repository/s3/"]),
    ("aws_sdk_secretsmanager::", &["src/secrets.rs"]),
    ("parquet::", &["src/batch/rows/"]),
    (
        "prost::",
        &[
            "src/build/onnx/",
            "src/onnx_proto.rs",
            "src/build/sentencepiece/",
            "src/backend/onnx/weights.rs",
            "src/backend/triton/messages.rs",
            "src/backend/triton/grpc.rs",
        ],
    ),
    ("yada::", &["src/tokenizer/"]),
    ("zstd::", &["src/batch/compression.rs"]),
    ("zip::", &["src/build/fetch.rs"]),
    ("lambda_http::", &["functions/"]),
    ("indicatif::", &["src/cli/progress.rs"]),
    (
        "hyper_util::",
        &[
            "src/backend/triton/connect.rs",
            "src/backend/triton/http.rs",
            "src/cli/bench/server.rs",
            "src/cli/connections.rs",
        ],
    ),
    ("tokio_rustls::", &["src/backend/triton/connect.rs"]),
    ("tonic::", &["src/backend/triton/grpc.rs"]),
    ("tonic_prost::", &["src/backend/triton/grpc.rs"]),
    ("metrics::", &["src/telemetry/"]),
    ("utoipa::openapi::", &["src/api/openapi/"]),
    ("utoipa_axum::", &["src/api/mod.rs", "src/api/openapi/"]),
    ("subtle::", &["src/api/auth/"]),
    ("axum::", &["src/api/", "src/cli/bench/server.rs", "src/cli/connections.rs", "functions/"]),
    ("hyper::", &["src/cli/connections.rs"]),
    ("http_body::", &["src/api/permit_body.rs"]),
    ("rustix::", &["src/build/scratch.rs", "src/cli/mod.rs", "src/cli/serve.rs", "src/repository/folder.rs"]),
];

/// The files of a folder, and those of the folders in it, by the ends of their names.
pub(crate) fn sources(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources = entries.flat_map(|path| if path.is_dir() { sources(&path, extension) } else { vec![path] });
    sources.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Whether a line of code names the crate, at the beginning of a path.
fn names(line: &str, door: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices(door).any(|(at, _)| {
        !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
    })
}

#[test]
fn every_foreign_crate_has_one_door() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files: Vec<PathBuf> =
        ["src", "functions"].iter().flat_map(|folder| sources(&root.join(folder), "rs")).collect();
    let mut elsewhere = Vec::new();
    for (door, places) in DOORS {
        let mut is_used = false;
        for file in &files {
            let name = file.strip_prefix(root).unwrap().display().to_string();
            let named = fs::read_to_string(file).unwrap().lines().any(|line| names(line, door));
            is_used |= named;
            if named && !places.iter().any(|place| name.starts_with(place)) {
                elsewhere.push(format!("{door} in {name}"));
            }
        }
        assert!(is_used, "{door} is used nowhere: the list is out of date");
    }
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");
}
