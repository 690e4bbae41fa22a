//! Files of users are opened as regular files, and external crates are used in few places where no crate of Kivu is their
//! wall.

use std::{fs, path::Path};

use crate::source_files::{CRATES, sources};

/// External crates, as paths begin with them, and the only files and folders that may use them, in crates with several
/// purposes.
const BOUNDARIES: &[(&str, &[&str])] = &[
    (
        "kivu_engine::",
        &[
            "base/src/config/",
            "compiler/src/",
            "core/src/backend/native/",
            "core/src/backend/processor.rs",
            "core/src/backend/similarity.rs",
        ],
    ),
    // `source.rs`: only tests.
    (
        "safetensors::",
        &[
            "compiler/src/files/weights.rs",
            "compiler/src/encoder/source.rs",
        ],
    ),
    (
        "prost::",
        &[
            "base/src/onnx_proto.rs",
            "compiler/src/onnx/",
            "compiler/src/tokenizers/sentencepiece/",
            "fleet/src/wire/",
            "jobs/src/events/kinesis_aggregation.rs",
        ],
    ),
    ("md5::", &["jobs/src/events/kinesis_aggregation.rs"]),
    ("zstd::", &["jobs/src/input/compression.rs"]),
    (
        "zip::",
        &["compiler/src/library/pip.rs", "compiler/src/files/pickle/"],
    ),
    ("indicatif::", &["cli/src/terminal.rs"]),
    (
        "regex::",
        &[
            "text/src/",
            "compiler/src/files/lora.rs",
            "core/src/pipeline/redaction/patterns.rs",
            "core/src/pipeline/redaction/placeholders.rs",
            "core/src/pipeline/seq2seq/unknown_text.rs",
        ],
    ),
    ("aes_gcm_siv::", &["core/src/pipeline/redaction/key.rs"]),
    (
        "hyper_rustls::",
        &[
            "compiler/src/library/hub/connect.rs",
            "telemetry/src/otlp/client.rs",
        ],
    ),
    (
        "hyper_util::",
        &[
            "cli/src/server/",
            "compiler/src/library/hub/connect.rs",
            "fleet/src/connect.rs",
            "telemetry/src/otlp/client.rs",
        ],
    ),
    (
        "tokio_rustls::",
        &[
            "base/src/certificates.rs",
            "compiler/src/library/hub/connect.rs",
            "fleet/src/connect.rs",
            "sinks/src/postgres_tls.rs",
            "telemetry/src/otlp/client.rs",
        ],
    ),
    ("subtle::", &["http/src/auth/"]),
    ("axum::", &["cli/src/server/", "http/src/"]),
    (
        "hyper::",
        &["cli/src/server/", "compiler/src/library/hub/client.rs"],
    ),
    (
        "http_body::",
        &[
            "fleet/src/connect.rs",
            "http/src/bodies/permit_body.rs",
            "http/src/service/observe.rs",
        ],
    ),
    (
        "rustix::",
        &[
            "base/src/regular_file/posix.rs",
            "cli/src/lib.rs",
            "compiler/src/library/hub/mod.rs",
            "compiler/src/plan/scratch.rs",
            "src/repository/folder.rs",
        ],
    ),
];

/// A file's text without its tests, which may use any crate.
fn without_tests(file: &Path) -> String {
    if file.ends_with("tests.rs") {
        return String::new();
    }
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next();
    code.unwrap_or_default().to_owned()
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
    "jobs/src/input/opened.rs",
    "jobs/src/output/local_storage.rs",
    "jobs/src/input/location.rs",
    "jobs/src/output/output_file.rs",
    "compiler/src/library/hub/cache.rs",
    "compiler/src/library/hub/download.rs",
    "compiler/src/library/model_library.rs",
    "compiler/src/plan/scratch.rs",
    // Create new files.
    "cli/src/setup/init.rs",
    "cli/src/interrupt.rs",
    "base/src/config/memory.rs",
    "base/src/regular_file.rs",
    "base/src/regular_file/posix.rs",
    "src/repository/remote/pull.rs",
];

/// A FIFO in place of a file would block the program.
#[test]
fn files_of_users_are_opened_as_regular_files() {
    let root = Path::new(crate::tools::ROOT);
    let openers = [
        "File::open(",
        "File::options(",
        "OpenOptions::new(",
        "fs::read(",
        "fs::read_to_string(",
        "fs::copy(",
    ];
    let mut found = Vec::new();
    for file in CRATES
        .iter()
        .flat_map(|folder| sources(&root.join(folder), "rs"))
    {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        if without_tests(&file).lines().any(|line| {
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
    let root = Path::new(crate::tools::ROOT);
    let files: Vec<(String, String)> = CRATES
        .iter()
        .flat_map(|folder| sources(&root.join(folder), "rs"))
        .map(|file| {
            (
                file.strip_prefix(root).unwrap().display().to_string(),
                without_tests(&file),
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
