//! Each external crate is used in one place only, so that replacing or upgrading it changes that place only.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// External crates, as paths begin with them, and the files and folders that may use them.
const BOUNDARIES: &[(&str, &[&str])] = &[
    ("ort::", &["src/backend/onnx/"]),
    (
        "kivu_engine::",
        &[
            "src/backend/native/",
            "src/backend/processor.rs",
            "src/backend/similarity.rs",
            "src/config.rs",
            "src/config/choice.rs",
            "compiler/src/",
        ],
    ),
    ("tokenizers::", &["src/tokenizer/"]),
    // `source.rs`: only tests.
    (
        "safetensors::",
        &["compiler/src/weights.rs", "compiler/src/encoder/source.rs"],
    ),
    ("arrow_array::", &["src/batch/"]),
    ("arrow_data::", &["src/batch/"]),
    ("arrow_schema::", &["src/batch/"]),
    ("aws_config::", &["src/repository/s3/", "src/aws/"]),
    ("aws_sdk_dynamodb::", &["src/aws/"]),
    ("aws_sdk_eventbridge::", &["src/aws/"]),
    ("aws_credential_types::", &["src/aws/"]),
    ("aws_sdk_s3vectors::", &["src/aws/"]),
    ("aws_sigv4::", &["src/aws/"]),
    ("aws_smithy_http_client::", &["src/aws/"]),
    ("aws_smithy_runtime_api::", &["src/aws/"]),
    ("aws_smithy_types::", &["src/aws/"]),
    ("aws_sdk_s3::", &["src/repository/s3/"]),
    ("aws_sdk_secretsmanager::", &["src/aws/"]),
    ("aws_sdk_sqs::", &["src/aws/"]),
    ("parquet::", &["src/batch/rows/"]),
    (
        "prost::",
        &[
            "compiler/src/onnx/",
            "src/onnx_proto.rs",
            "compiler/src/sentencepiece/",
            "src/backend/onnx/external_weights.rs",
            "src/backend/triton/fuzzing.rs",
            "src/backend/triton/messages.rs",
            "src/backend/triton/grpc.rs",
            "src/batch/kpl.rs",
        ],
    ),
    ("md5::", &["src/batch/kpl.rs"]),
    ("js_sys::", &["wasm/src/"]),
    ("napi::", &["node/src/"]),
    ("pyo3::", &["python/src/"]),
    (
        "regex::",
        &["src/tokenizer/", "src/pipeline/seq2seq/unknown_text.rs"],
    ),
    ("yada::", &["src/tokenizer/"]),
    ("zstd::", &["src/batch/compression.rs"]),
    ("wasm_bindgen::", &["wasm/src/"]),
    (
        "zip::",
        &["compiler/src/fetch.rs", "compiler/src/pickle/mod.rs"],
    ),
    ("lambda_http::", &["functions/"]),
    ("indicatif::", &["cli/src/terminal.rs"]),
    (
        "hyper_rustls::",
        &[
            "compiler/src/hub/connect.rs",
            "src/telemetry/otlp/client.rs",
        ],
    ),
    (
        "hyper_util::",
        &[
            "src/backend/triton/connect.rs",
            "compiler/src/hub/connect.rs",
            "cli/src/connections.rs",
            "cli/src/ps.rs",
            "src/telemetry/otlp/client.rs",
        ],
    ),
    ("tokio_postgres::", &["src/batch/sink/"]),
    (
        "tokio_rustls::",
        &[
            "src/backend/triton/connect.rs",
            "src/batch/sink/postgres_tls.rs",
            "src/certificates.rs",
            "compiler/src/hub/connect.rs",
            "src/telemetry/otlp/client.rs",
        ],
    ),
    ("tonic::", &["src/backend/triton/grpc.rs"]),
    ("tonic_prost::", &["src/backend/triton/grpc.rs"]),
    ("metrics::", &["src/telemetry/"]),
    ("opentelemetry::", &["src/telemetry/otlp/"]),
    ("opentelemetry_http::", &["src/telemetry/otlp/"]),
    ("opentelemetry_otlp::", &["src/telemetry/otlp/"]),
    ("opentelemetry_sdk::", &["src/telemetry/otlp/"]),
    ("subtle::", &["src/api/auth/"]),
    (
        "axum::",
        &[
            "src/api/",
            "cli/src/connections.rs",
            "cli/src/ps.rs",
            "functions/",
        ],
    ),
    (
        "hyper::",
        &[
            "compiler/src/hub/client.rs",
            "cli/src/connections.rs",
            "cli/src/unread_body.rs",
        ],
    ),
    (
        "http_body::",
        &[
            "functions/api/streaming.rs",
            "src/api/observe.rs",
            "src/api/permit_body.rs",
            "src/backend/triton/connect.rs",
        ],
    ),
    ("lambda_runtime_api_client::", &["functions/"]),
    (
        "rustix::",
        &[
            "compiler/src/hub/mod.rs",
            "compiler/src/scratch.rs",
            "cli/src/lib.rs",
            "src/regular_file.rs",
            "src/repository/folder.rs",
        ],
    ),
];

/// All files with this extension in a folder and its subfolders.
pub(crate) fn sources(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let sources = entries.flat_map(|path| {
        if path.is_dir() {
            sources(&path, extension)
        } else {
            vec![path]
        }
    });
    sources
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

/// A file's text without its tests, which may use any crate.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default()
}

/// Whether a line has a path that begins with the crate.
fn uses(line: &str, name: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices(name).any(|(at, _)| {
        !code[..at]
            .ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
    })
}

/// Files that may open files without `regular_file`: for writing, in `/proc`, or as streams.
const OPENERS: &[&str] = &[
    // Only tests.
    "src/batch/corruption.rs",
    "src/batch/input.rs",
    "src/batch/local_storage.rs",
    "src/batch/location.rs",
    "src/batch/output_file.rs",
    "compiler/src/hub/cache.rs",
    "compiler/src/hub/download.rs",
    "compiler/src/named.rs",
    "compiler/src/scratch.rs",
    // Creates a new file.
    "cli/src/init.rs",
    "cli/src/interrupt.rs",
    "src/config/memory.rs",
    "src/fuzzing.rs",
    "src/regular_file.rs",
    "src/repository/remote/pull.rs",
];

/// A FIFO in place of a file would block the program.
#[test]
fn files_of_users_are_opened_as_regular_files() {
    let root = Path::new(crate::ROOT);
    let openers = [
        "File::open(",
        "File::options(",
        "OpenOptions::new(",
        "fs::read(",
        "fs::read_to_string(",
        "fs::copy(",
    ];
    let mut found = Vec::new();
    let folders = [
        "src",
        "bindings/src",
        "compiler/src",
        "cli/src",
        "node/src",
        "python/src",
    ];
    for file in folders
        .iter()
        .flat_map(|folder| sources(&root.join(folder), "rs"))
    {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        if without_tests(&text).lines().any(|line| {
            openers
                .iter()
                .any(|opener| uses(&line.replace("std::fs::", "fs::"), opener))
        }) {
            found.push(name);
        }
    }
    found.sort();
    let outside: Vec<_> = found
        .iter()
        .filter(|file| !OPENERS.contains(&file.as_str()))
        .collect();
    assert!(
        outside.is_empty(),
        "expected `regular_file::open` or `read`, but found other functions in {outside:?}"
    );
    let unused: Vec<_> = OPENERS
        .iter()
        .filter(|file| !found.iter().any(|name| name == *file))
        .collect();
    assert!(unused.is_empty(), "remove {unused:?} from the list");
}

#[test]
fn external_crates_are_used_within_their_boundaries() {
    let root = Path::new(crate::ROOT);
    let files: Vec<(String, String)> = [
        "src",
        "bindings/src",
        "compiler/src",
        "cli/src",
        "functions",
        "node/src",
        "python/src",
        "wasm/src",
    ]
    .iter()
    .flat_map(|folder| sources(&root.join(folder), "rs"))
    .map(|file| {
        let text = fs::read_to_string(&file).unwrap();
        (
            file.strip_prefix(root).unwrap().display().to_string(),
            without_tests(&text).to_owned(),
        )
    })
    .collect();
    for (name, places) in BOUNDARIES {
        let users = files
            .iter()
            .filter(|(_, text)| text.lines().any(|line| uses(line, name)));
        let users: Vec<&str> = users.map(|(file, _)| file.as_str()).collect();
        assert!(
            !users.is_empty(),
            "`{name}` is not used any more: remove it from the list"
        );
        let outside: Vec<_> = users
            .iter()
            .filter(|file| !places.iter().any(|place| file.starts_with(place)))
            .collect();
        assert!(
            outside.is_empty(),
            "expected `{name}` only in {places:?}, but found it in {outside:?}"
        );
    }
}
