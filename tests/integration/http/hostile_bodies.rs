//! Bodies that are made to keep a server busy: limits are checked before work, and connections are served meanwhile.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use kivu::{onnx::Runtime, pipeline::Task, repository::manifest::Precision};
use serde_json::{Value, json};

use crate::{
    models::{build_request, fixtures, request, runtime},
    server::{Server, alone, kivu},
};

/// The limit for an answer. Tests are not optimized, and other programs run beside them; a body whose work grows with
/// the square of its size takes minutes.
const MAX_ANSWER: Duration = Duration::from_secs(30);
/// The limit for a health check meanwhile.
const MAX_HEALTH: Duration = Duration::from_secs(2);
const MEGABYTE: usize = 1024 * 1024;
/// Just below the limit for bodies.
const LARGE: usize = 6 * MEGABYTE - 8 * 1024;

/// Fixtures by the names that they are served under, the first model last.
const MODELS: [(&str, &str, Option<Task>); 7] = [
    ("classifier", "tiny-bert-sentiment", None),
    (
        "gliner2",
        "tiny-gliner2-trained",
        Some(Task::TokenClassification),
    ),
    (
        "nli",
        "tiny-roberta-nli",
        Some(Task::ZeroShotClassification),
    ),
    ("rank", "tiny-bert-rank", None),
    ("tokens", "tiny-bert-ner", None),
    ("translation", "tiny-marian-multi", None),
    ("bert", "tiny-bert", None),
];

struct Case {
    path: &'static str,
    body: String,
    /// Whether the request is answered with a result.
    is_accepted: bool,
}

fn refused(path: &'static str, body: String) -> Case {
    Case {
        path,
        body,
        is_accepted: false,
    }
}

/// A list of about this many bytes; items have their number in the place of `#`.
fn list(item: &str, bytes: usize) -> String {
    if !item.contains('#') {
        return format!(
            "[{}{item}]",
            format!("{item},").repeat(bytes / (item.len() + 1) - 8)
        );
    }
    let mut list = "[".to_owned();
    for number in 0.. {
        if list.len() + item.len() + 8 > bytes {
            break;
        }
        let separator = if number > 0 { "," } else { "" };
        let _ = write!(
            list,
            "{separator}{}",
            item.replace('#', &number.to_string())
        );
    }
    list + "]"
}

/// A string of about this many bytes.
fn text(word: &str, bytes: usize) -> String {
    format!("\"{}\"", word.repeat(bytes / word.len()))
}

/// Bodies for routes with lists, of which some cost more than linear time if limits come after work.
#[expect(clippy::too_many_lines, reason = "a list")]
fn cases() -> Vec<Case> {
    let extract = |schema: String| {
        refused(
            "/gliner-2",
            format!(r#"{{"text": "a", "schema": {schema}}}"#),
        )
    };
    let hub = |path, parameters: String| {
        refused(
            path,
            format!(r#"{{"inputs": "a cat", "parameters": {parameters}}}"#),
        )
    };
    let one = |path, name: &str, value: String| refused(path, format!(r#"{{"{name}": {value}}}"#));
    let examples = list(r#"["x", "l0"]"#, MEGABYTE / 2).replace("l0", "l40000");
    let labels = list(r#""l#""#, MEGABYTE / 2);
    let name = text("n", MEGABYTE);
    let mut cases = vec![
        extract(format!(
            r#"{{"classifications": [{{"task": "t", "labels": {labels}, "examples": {examples}}}]}}"#
        )),
        extract(format!(
            r#"{{"structures": {{{name}: {}}}}}"#,
            list(r#"{"name": "f#"}"#, 2 * MEGABYTE)
        )),
        extract(format!(r#"{{"entities": {}}}"#, list(r#""e#""#, LARGE))),
        extract(format!(
            r#"{{"relations": {{"r": {}}}}}"#,
            text("long ", LARGE)
        )),
        extract(format!(
            r#"{{"structures": {{"s": [{{"name": "f", "choices": {}}}]}}}}"#,
            list(r#""c#""#, 2 * MEGABYTE)
        )),
        extract(format!(
            r#"{{"structures": {{"s": ["f::str::[{}]"]}}}}"#,
            "c|".repeat(MEGABYTE / 2)
        )),
        hub(
            "/models/gliner2",
            format!(r#"{{"candidate_labels": {}}}"#, list(r#""l#""#, LARGE)),
        ),
        hub(
            "/models/gliner2",
            format!(r#"{{"candidate_labels": {}}}"#, text("l,", LARGE)),
        ),
        hub(
            "/models/tokens",
            format!(r#"{{"ignore_labels": {}}}"#, list(r#""l#""#, LARGE)),
        ),
        hub(
            "/models/nli",
            format!(r#"{{"candidate_labels": {}}}"#, list(r#""l#""#, LARGE)),
        ),
        hub(
            "/models/nli",
            format!(
                r#"{{"candidate_labels": ["a"], "hypothesis_template": {}}}"#,
                text("{}", MEGABYTE)
            ),
        ),
        refused(
            "/v1/chat/completions",
            format!(
                r#"{{"messages": {}}}"#,
                list(r#"{"role": "system", "content": "a"}"#, LARGE)
            ),
        ),
        one("/v1/chat/completions", "labels", list(r#""l#""#, LARGE)),
        refused(
            "/v2/embed",
            format!(
                r#"{{"texts": ["a"], "embedding_types": {}}}"#,
                list(r#""float""#, LARGE)
            ),
        ),
        refused(
            "/model/bert/invoke",
            format!(
                r#"{{"inputText": "a", "embeddingTypes": {}}}"#,
                list(r#""float""#, LARGE)
            ),
        ),
        refused(
            "/v1/rerank",
            format!(
                r#"{{"query": "a", "documents": {}}}"#,
                list(r#"{"text": "d"}"#, LARGE)
            ),
        ),
        refused(
            "/rerank",
            format!(r#"{{"query": "a", "texts": {}}}"#, list(r#""d""#, LARGE)),
        ),
        one(
            "/v1/embeddings",
            "input",
            list("7", LARGE).replace("[7,", "[\"a\","),
        ),
        one("/v1/embeddings", "input", list("[7]", LARGE)),
        one("/decode", "ids", list("[7]", LARGE)),
        one("/decode", "ids", list("7", LARGE)),
        // Each is 128 spaces.
        one("/v1/embeddings", "input", list("58040", LARGE)),
        one("/tokenize", "inputs", list(r#""a""#, LARGE)),
        one("/vertex", "instances", list("{}", LARGE)),
        one("/api/embed", "input", list(r#""a""#, LARGE)),
        one(
            "/similarity",
            "inputs",
            format!(
                r#"{{"source_sentence": "a", "sentences": {}}}"#,
                list(r#""d""#, LARGE)
            ),
        ),
        refused(
            "/v2/models/bert/infer",
            format!(
                r#"{{"inputs": [{{"name": "TEXT", "datatype": "BYTES", "shape": {}, "data": ["a", "b"]}}]}}"#,
                list("1", LARGE)
            ),
        ),
        refused(
            "/v2/models/bert/infer",
            format!(
                r#"{{"inputs": [{{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}}], "outputs": {}}}"#,
                list(r#"{"name": "o#"}"#, LARGE)
            ),
        ),
        refused(
            "/translate",
            format!(r#"{{"inputs": "a", "tgt_lang": {}}}"#, text("long ", LARGE)),
        ),
        refused(
            "/v2/translate",
            format!(
                r#"{{"text": ["a"], "target_lang": {}}}"#,
                text("long ", LARGE)
            ),
        ),
    ];
    for name in [
        "suppress_tokens",
        "begin_suppress_tokens",
        "forced_eos_token_id",
    ] {
        cases.push(hub(
            "/models/translation",
            format!(r#"{{"tgt_lang": "fr", "{name}": {}}}"#, list("7", LARGE)),
        ));
    }
    let words = list("[7]", LARGE);
    cases.push(hub(
        "/models/translation",
        format!(r#"{{"generate_parameters": {{"bad_words_ids": {words}}}}}"#),
    ));
    let accepted = |path, body| Case {
        path,
        body,
        is_accepted: true,
    };
    let texts = format!("[{}]", vec![text("cat ", LARGE / 1024 - 8); 1024].join(","));
    cases.extend([
        accepted(
            "/embed",
            format!(r#"{{"inputs": {}}}"#, text("cat ", LARGE - 64)),
        ),
        accepted(
            "/models/classifier",
            format!(r#"{{"inputs": {}}}"#, text("cat", LARGE - 64)),
        ),
        accepted("/embed", format!(r#"{{"inputs": {texts}}}"#)),
    ]);
    cases
}

/// The names of a schema's fields, also in the schemas that it refers to.
fn fields(document: &Value, schema: &Value, found: &mut BTreeSet<String>) {
    if let Some(place) = schema["$ref"].as_str() {
        let place = document.pointer(place.trim_start_matches('#'));
        return fields(document, place.unwrap(), found);
    }
    for name in ["anyOf", "oneOf", "allOf"] {
        let parts = schema[name].as_array().into_iter().flatten();
        parts.for_each(|part| fields(document, part, found));
    }
    found.extend(
        schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone()),
    );
}

/// For each route and each field of its bodies, an example with a long list and one with a long string in that field.
fn sweep(document: &Value) -> Vec<(String, String)> {
    const BYTES: usize = 256 * 1024;
    let mut bodies = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let content = &methods["post"]["requestBody"]["content"]["application/json"];
        let examples = content["examples"].as_object().into_iter().flatten();
        let example = examples.map(|(_, example)| &example["value"]).next();
        let example = content.get("example").or(example);
        let Some(example) = example.and_then(Value::as_object) else {
            continue;
        };
        let mut names = BTreeSet::new();
        fields(document, &content["schema"], &mut names);
        for name in names {
            for value in [list(r#""a#""#, BYTES), text("word ", BYTES)] {
                let mut body = example.clone();
                body.insert(name.clone(), serde_json::from_str(&value).unwrap());
                bodies.push((path.replace("{model}", "bert"), json!(body).to_string()));
            }
        }
    }
    bodies
}

/// Sends a request; returns the status and how long the answer took.
fn ask(address: &str, request: &[u8]) -> (u16, Duration) {
    let started = Instant::now();
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(4 * MAX_ANSWER)).unwrap();
    // The server may answer before it has read everything.
    let _ = connection.write_all(request);
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    let status = String::from_utf8_lossy(&answer)
        .split(' ')
        .nth(1)
        .map(str::to_owned);
    let status = status.and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, started.elapsed())
}

fn post(address: &str, path: &str, body: &str) -> (u16, Duration) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    ask(address, format!("{head}{body}").as_bytes())
}

/// Runs `work` while the server's health is checked; returns the longest time that a check took.
fn watched<T>(address: &str, work: impl FnOnce() -> T) -> (T, Duration) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !is_done.load(Ordering::Relaxed) {
                let check = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
                let (status, took) = ask(address, check);
                assert_eq!(status, 200);
                longest = longest.max(took);
                thread::sleep(Duration::from_millis(5));
            }
            longest
        });
        let found = work();
        is_done.store(true, Ordering::Relaxed);
        (found, watch.join().unwrap())
    })
}

fn build(folder: &Path, runtime: Runtime) {
    for (name, fixture, task) in MODELS {
        let source = fixtures().join("models").join(fixture);
        let mut request = request(source, folder.join(name), Some(Precision::Fp32));
        (request.name, request.task) = (Some(name.to_owned()), task);
        build_request(&request, runtime).unwrap();
    }
}

#[test]
fn no_body_keeps_a_server_busy() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), runtime);
    let _alone = alone();
    // Nobody reads its log.
    let process = kivu(folder.path()).stderr(Stdio::null()).spawn().unwrap();
    let server = Server::wait(process);
    let address = server.address.as_str();
    for Case {
        path,
        body,
        is_accepted,
    } in cases()
    {
        let start: String = body.chars().take(80).collect();
        assert!(body.len() <= LARGE + 8 * 1024, "{path} {start}");
        // As many requests as the machine has processors.
        let both = || {
            thread::scope(|scope| {
                let sent = [(), ()].map(|()| scope.spawn(|| post(address, path, &body)));
                sent.map(|sent| sent.join().unwrap())
            })
        };
        let (answers, health) = watched(address, both);
        eprintln!("{path} {start}: {answers:?}, health {health:?}");
        assert!(health < MAX_HEALTH, "{path} {start}: {health:?}");
        for (status, took) in answers {
            assert_eq!(status == 200, is_accepted, "{path} {start}: {status}");
            assert!(
                is_accepted || (400..500).contains(&status),
                "{path} {start}: {status}"
            );
            assert!(is_accepted || took < MAX_ANSWER, "{path} {start}: {took:?}");
        }
    }
    let document = server
        .exchange(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let document = document.split_once("\r\n\r\n").unwrap().1;
    let bodies = sweep(&serde_json::from_str(document).unwrap());
    assert!(bodies.len() > 100, "{}", bodies.len());
    let send = || {
        for (path, body) in &bodies {
            let (status, took) = post(address, path, body);
            let start: String = body.chars().take(80).collect();
            assert!((200..500).contains(&status), "{path} {start}: {status}");
            assert!(took < MAX_ANSWER, "{path} {start}: {took:?}");
        }
    };
    let ((), health) = watched(address, send);
    assert!(health < MAX_HEALTH, "{health:?}");
}
