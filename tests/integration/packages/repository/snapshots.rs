//! Everything in the functions that has state is accounted for: environments that are restored from one snapshot must not share
//! it, or it is the same in all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use regex::Regex;

use crate::{source_files::sources, tools::root};

/// The crates in the functions.
const LINKED: [&str; 15] = [
    "aws/src",
    "base/src",
    "core/src",
    "engine/src",
    "fleet/src",
    "functions/api",
    "functions/batch",
    "http/src",
    "jobs/src",
    "onnx/src",
    "parquet/src",
    "sinks/src",
    "src",
    "telemetry/src",
    "text/src",
];

/// What has state: values that are made once or changed later, unless they are another's, generators of random numbers, and
/// points in time in fields.
const STATE: &str = r"(?m)(?:^|[^&\w])(?:OnceLock|LazyLock|OnceCell|SetOnce|Mutex|RwLock)<|\bAtomic(?:Bool|[IU]\w+)\b|thread_local!|\bfastrand::|\bUuid::new_v4|\bgetrandom::|^ *(?:pub )?\w+: (?:Option<)?(?:Instant|SystemTime|Timestamp)>?,$";

/// The rows of the table in `docs/design.md`, with the files that have such state.
const RENEWED: [(&str, &[&str]); 7] = [
    (
        "random numbers",
        &[
            "base/src/random.rs",
            "core/src/pipeline/generation/beam_search.rs",
            "core/src/pipeline/generation/logits_processors.rs",
            "core/src/pipeline/generation/sampler.rs",
            "http/src/auth/keyring.rs",
            "http/src/bodies/request.rs",
            "http/src/dialects/chat.rs",
            "http/src/dialects/cohere.rs",
            "http/src/dialects/openai.rs",
            "http/src/dialects/score.rs",
            "http/src/dialects/vllm.rs",
            "http/src/tasks/ranking.rs",
            "jobs/src/job/identity.rs",
            "jobs/src/output/local_storage.rs",
            "jobs/src/output/s3_storage.rs",
            "src/repository/folder.rs",
            "src/repository/remote/pull.rs",
        ],
    ),
    (
        "connections, credentials, breakers, measured speeds",
        &[
            "aws/src/store/mod.rs",
            "core/src/backend/routing.rs",
            "core/src/backend/speed.rs",
            "core/src/pipeline/encoder/executor.rs",
            "core/src/pipeline/seq2seq/remote.rs",
            "fleet/src/client.rs",
            "fleet/src/endpoint.rs",
            "fleet/src/lib.rs",
            "fleet/src/pool.rs",
            "fleet/src/retry.rs",
        ],
    ),
    (
        "keys, quotas, clients of services, exporters",
        &[
            "aws/src/service.rs",
            "aws/src/signed_http.rs",
            "functions/api/main.rs",
            "functions/batch/main.rs",
            "http/src/auth/keys.rs",
            "http/src/auth/quotas.rs",
            "http/src/auth/rate.rs",
            "http/src/bodies/body_memory.rs",
            "http/src/service/app.rs",
            "http/src/service/startup.rs",
            "telemetry/src/otlp/client.rs",
            "telemetry/src/otlp/metrics.rs",
            "telemetry/src/otlp/mod.rs",
            "telemetry/src/otlp/spans.rs",
        ],
    ),
    ("instructions", &["engine/src/kernel/instruction_set.rs"]),
    (
        "models",
        &[
            "core/src/backend/native/caller.rs",
            "core/src/backend/native/workers.rs",
            "core/src/pipeline/classification/label_vectors.rs",
            "engine/src/kernel/amx.rs",
            "engine/src/run/mod.rs",
            "src/model/catalog/budget.rs",
            "src/model/catalog/entry.rs",
            "src/model/catalog/loads.rs",
            "src/model/catalog/refresh.rs",
            "src/model/catalog/shared.rs",
            "src/model/listing.rs",
        ],
    ),
    (
        "constants",
        &[
            "core/src/backend/processor.rs",
            "core/src/pipeline/redaction/patterns.rs",
            "core/src/pipeline/redaction/placeholders.rs",
            "core/src/pipeline/seq2seq/unknown_text.rs",
            "engine/src/panels.rs",
            "engine/src/rotary.rs",
            "http/src/fields/mod.rs",
            "http/src/page/mod.rs",
            "onnx/src/library.rs",
            "text/src/models/cl100k.rs",
            "text/src/words.rs",
        ],
    ),
    (
        "requests and jobs",
        &[
            "base/src/json/budget.rs",
            "core/src/backend/mod.rs",
            "core/src/backend/scripted.rs",
            "core/src/observer.rs",
            "core/src/pipeline/encoder/encoding.rs",
            "core/src/pipeline/entities/mod.rs",
            "http/src/bodies/context.rs",
            "http/src/bodies/inputs.rs",
            "http/src/service/models/used_models.rs",
            "jobs/src/events/distributed_map.rs",
            "jobs/src/events/handler.rs",
            "jobs/src/events/parts.rs",
            "jobs/src/events/row_function.rs",
            "jobs/src/events/streams.rs",
            "jobs/src/input/compression.rs",
            "jobs/src/input/opened.rs",
            "jobs/src/job/mod.rs",
            "jobs/src/job/process.rs",
            "jobs/src/output/checkpoint.rs",
            "jobs/src/output/progress_object.rs",
            "parquet/src/source.rs",
            "src/repository/hashes.rs",
            "src/repository/remote/push.rs",
            "telemetry/src/request.rs",
            "telemetry/src/stages.rs",
        ],
    ),
];

#[test]
fn state_is_renewed_after_a_restore_or_needs_not_be() {
    let state = Regex::new(STATE).unwrap();
    let mut known = BTreeMap::new();
    let design = fs::read_to_string(root().join("docs/design.md")).unwrap();
    for (row, files) in RENEWED {
        assert!(
            design.contains(&format!("| {row} |")),
            "`{row}` in docs/design.md"
        );
        known.extend(files.iter().map(|file| ((*file).to_owned(), row)));
    }
    let has_state = |file: &Path| {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        state.is_match(&code.collect::<Vec<_>>().join("\n"))
    };
    let files = LINKED
        .iter()
        .flat_map(|folder| sources(&root().join(folder), "rs"));
    let is_test = |file: &Path| {
        let name = file.file_stem().unwrap();
        name == "tests"
            || name == "generated_tests"
            || file.components().any(|part| part.as_os_str() == "tests")
    };
    let files = files.filter(|file| !is_test(file) && has_state(file));
    let found: BTreeSet<_> = files
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    let unknown: Vec<_> = found
        .iter()
        .filter(|file| !known.contains_key(*file))
        .collect();
    assert!(
        unknown.is_empty(),
        "expected the state in {unknown:?} in `RENEWED`, but found it nowhere; decide how a restored function renews it"
    );
    let gone: Vec<_> = known.keys().filter(|file| !found.contains(*file)).collect();
    assert!(gone.is_empty(), "no state is left in {gone:?}");
}
