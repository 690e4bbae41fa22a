//! A search over all outputs for originals and keys: responses with errors, logs, metrics, spans, reports and messages.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use kivu::{onnx::Runtime, pipeline::Task, repository::manifest::Precision};
use serde_json::{Map, Value, json};

use crate::{
    models::{build_request, fixtures, library_path, request, runtime},
    server::{Server, alone, kivu},
};

/// A name and an address, both with a word that nothing else has.
const ORIGINAL: &str = "Ann Quatrebras, ann@quatrebras.example";
const MARK: &str = "quatrebras";
/// A key, and a word that it has.
const KEY: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";
const KEY_MARK: &str = "5ec2e75ec2e7";

/// Fixtures by the names that they are served under.
const MODELS: [(&str, &str, Option<Task>); 8] = [
    ("bert", "tiny-bert", None),
    ("classifier", "tiny-bert-sentiment", None),
    ("filter", "tiny-privacy-filter", None),
    ("gliner", "tiny-gliner", None),
    (
        "nli",
        "tiny-roberta-nli",
        Some(Task::ZeroShotClassification),
    ),
    ("rank", "tiny-bert-rank", None),
    ("tokens", "tiny-bert-ner", None),
    ("translation", "tiny-marian-multi", None),
];

/// Fields with names of models, prompts, tasks, languages, outputs, patterns or options. Errors repeat an unknown name.
const NAMES: [&str; 14] = [
    "generate_parameters",
    "input_type",
    "model",
    "model_name",
    "model_version",
    "outputs",
    "parameters",
    "patterns",
    "prompt_name",
    "schema",
    "source_lang",
    "target_lang",
    "task",
    "transition_biases",
];

fn has_mark(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_lowercase();
    text.contains(MARK) || text.contains(KEY_MARK)
}

/// Panics with what has a mark.
fn search(what: &str, text: impl AsRef<[u8]>) {
    let text = text.as_ref();
    assert!(!has_mark(text), "{what}: {}", String::from_utf8_lossy(text));
}

fn build(folder: &Path, runtime: Runtime, names: &[&str]) {
    for (name, fixture, task) in MODELS.iter().filter(|(name, ..)| names.contains(name)) {
        let source = fixtures().join("models").join(fixture);
        let mut request = request(source, folder.join(name), Some(Precision::Fp32));
        (request.name, request.task) = (Some((*name).to_owned()), *task);
        build_request(&request, runtime).unwrap();
    }
}

/// A receiver for OTLP; returns its URL, and what it has received.
fn collector() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let received = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&received);
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, all) = (connection.unwrap(), Arc::clone(&all));
            thread::spawn(move || {
                let _ = connection.set_read_timeout(Some(Duration::from_secs(60)));
                let mut buffer = vec![0; 64 * 1024];
                let mut request = Vec::new();
                while let Ok(count @ 1..) = connection.read(&mut buffer) {
                    request.extend_from_slice(&buffer[..count]);
                    let text = String::from_utf8_lossy(&request).to_lowercase();
                    let length = text.split_once("content-length: ");
                    let length: Option<usize> =
                        length.and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok());
                    let head = request.windows(4).position(|end| end == b"\r\n\r\n");
                    if let (Some(head), Some(length)) = (head, length)
                        && request.len() >= head + 4 + length
                    {
                        let _ =
                            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                        all.lock().unwrap().append(&mut request);
                    }
                }
            });
        }
    });
    (url, received)
}

/// A schema's fields, with the fields of objects in them.
fn fields(document: &Value, schema: &Value) -> BTreeMap<String, Value> {
    if let Some(place) = schema["$ref"].as_str() {
        let place = document.pointer(place.trim_start_matches('#'));
        return fields(document, place.unwrap());
    }
    let mut found = BTreeMap::new();
    for name in ["anyOf", "oneOf", "allOf"] {
        for part in schema[name].as_array().into_iter().flatten() {
            found.extend(fields(document, part));
        }
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(name.clone(), inner.clone());
    }
    found
}

/// Values of several types with marks: texts, keys, and names of fields.
fn marked_values() -> Vec<Value> {
    vec![
        json!(ORIGINAL),
        json!(KEY),
        json!(&KEY[1..]),
        json!([ORIGINAL]),
        json!([ORIGINAL, ORIGINAL, 7]),
        json!([[ORIGINAL, [ORIGINAL]]]),
        json!({ ORIGINAL: ORIGINAL }),
        json!({ ORIGINAL: 7 }),
        json!({ "[PERSON_1]": [ORIGINAL] }),
        json!({ "text": { ORIGINAL: KEY } }),
        json!([{ "text": ORIGINAL, ORIGINAL: null, "name": ORIGINAL }]),
    ]
}

/// An example whose texts are originals.
fn with_originals(value: &Value) -> Value {
    match value {
        Value::String(text) if text.contains(' ') => json!(ORIGINAL),
        Value::Array(items) => items.iter().map(with_originals).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), with_originals(value)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// Bodies by path: each route's examples with originals, and the same with marked values in each field.
fn bodies(document: &Value) -> Vec<(String, String, String)> {
    let mut bodies = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let content = &methods["post"]["requestBody"]["content"]["application/json"];
        let examples = content["examples"].as_object().into_iter().flatten();
        let examples: Vec<&Value> = examples
            .map(|(_, example)| &example["value"])
            .chain(content.get("example"))
            .collect();
        let path = path.replace("{version}", "1").replace("{resource}", "a");
        let models: Vec<&str> = match path.contains("{model}") {
            true => MODELS.iter().map(|(name, ..)| *name).collect(),
            false => vec![""],
        };
        for model in models {
            let path = path.replace("{model}", model);
            let mut add = |field: &str, body: &Value| {
                bodies.push((path.clone(), field.to_owned(), body.to_string()));
            };
            for example in examples.iter().map(|example| with_originals(example)) {
                add("", &example);
            }
            let Some(example) = examples.first().map(|example| with_originals(example)) else {
                continue;
            };
            for (name, schema) in fields(document, &content["schema"]) {
                for value in marked_values() {
                    let mut body = example.clone();
                    body[&name] = value;
                    add(&name, &body);
                }
                for inner in fields(document, &schema).into_keys() {
                    for value in marked_values() {
                        let mut body = example.clone();
                        body[&name] = json!({ &inner: value });
                        add(&format!("{name}.{inner}"), &body);
                    }
                }
            }
        }
    }
    bodies
}

/// Bodies for replacements, with errors in each of their parameters.
fn redactions() -> Vec<(String, String, String)> {
    let mut bodies = Vec::new();
    for (model, own) in [
        ("tokens", json!({})),
        ("filter", json!({})),
        ("gliner", json!({ "labels": ["person"] })),
    ] {
        let whole =
            json!({ "redact": true, "patterns": "all", "redact_style": "hash", "redact_key": KEY });
        let number = json!({ "redact": true, "redact_style": "number", "redact_scope": "request" });
        for base in [whole, number, json!({ "redact": true })] {
            let parameters = |name: &str, value: Value| {
                let mut parameters = base.clone();
                let all = parameters.as_object_mut().unwrap();
                all.extend(own.as_object().unwrap().clone());
                all.insert(name.to_owned(), value);
                parameters
            };
            for name in [
                "redact",
                "patterns",
                "redact_style",
                "redact_key",
                "redact_scope",
                "redact_mapping",
                "aggregation_strategy",
                "ignore_labels",
                "stride",
                "transition_biases",
                "candidate_labels",
                "threshold",
                "truncate",
                "truncation_direction",
                "redact_kye",
            ] {
                for value in marked_values() {
                    let body = json!({ "inputs": ORIGINAL, "parameters": parameters(name, value) });
                    bodies.push((
                        format!("/models/{model}"),
                        name.to_owned(),
                        body.to_string(),
                    ));
                }
            }
            let mapping = parameters("redact_mapping", json!({ ORIGINAL: "[PERSON_1]" }));
            let body = json!({ "inputs": [ORIGINAL, 7], "parameters": mapping });
            bodies.push((
                format!("/models/{model}"),
                "redact_mapping".to_owned(),
                body.to_string(),
            ));
        }
    }
    bodies
}

#[test]
fn no_error_log_metric_or_span_has_an_original_or_a_key() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = MODELS.map(|(name, ..)| name);
    let models = folder.path().join("models");
    build(&models, runtime, &names);
    let _alone = alone();
    let (url, received) = collector();
    let log = folder.path().join("log");
    let process = kivu(&models)
        .env("RUST_LOG", "trace")
        .env("KIVU_LOG", "json")
        .env("KIVU_SLOW_REQUEST_MS", "1")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        .env("OTEL_METRIC_EXPORT_INTERVAL", "500")
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut server = Server::wait(process);
    let get = |path: &str| {
        server.exchange(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
    };
    let document = get("/openapi.json");
    let document = serde_json::from_str(document.split_once("\r\n\r\n").unwrap().1).unwrap();
    let mut bodies = bodies(&document);
    bodies.extend(redactions());
    // Texts that are no JSON, with errors within originals and keys.
    let whole = json!({ "inputs": ORIGINAL, "parameters": { "redact": true, "redact_style": "encrypt", "redact_key": KEY } });
    let whole = whole.to_string();
    for path in ["/models/tokens", "/embed", "/v1/embeddings", "/"] {
        for cut in 0..whole.len() {
            bodies.push((path.to_owned(), String::new(), whole[..cut].to_owned()));
        }
        for (from, to) in [
            ("quatre", "quatre\n"),
            ("Quatre", "Quatre\\ud800"),
            ("\"inputs\"", "inputs"),
            ("5ec2", "\"5ec2"),
        ] {
            bodies.push((path.to_owned(), String::new(), whole.replacen(from, to, 1)));
        }
    }
    let mut refused = 0;
    for (path, field, body) in &bodies {
        let answer = server.post(path, body);
        if answer.starts_with("HTTP/1.1 200") {
            continue;
        }
        refused += 1;
        let field = field.rsplit('.').next().unwrap_or_default();
        if !NAMES.contains(&field) {
            search(&format!("{path} {body}"), answer);
        }
    }
    assert!(
        bodies.len() > 1000 && refused > bodies.len() / 2,
        "{refused} of {}",
        bodies.len()
    );
    get(&format!("/embed?inputs={MARK}&key={KEY}"));
    search("metrics", get("/metrics"));
    search("models", get("/models"));
    server.stop();
    search("log", fs::read(log).unwrap());
    let received = received.lock().unwrap();
    assert!(received.len() > 1000, "{}", received.len());
    search("spans and metrics", &*received);
}

/// Rows with originals, of which all but the first are malformed.
const ROWS: [(&str, &str); 4] = [
    (
        "rows.jsonl",
        concat!(
            "{\"text\": \"Ann Quatrebras, ann@quatrebras.example\"}\n",
            "{\"text\": [\"Ann Quatrebras\"]}\n{\"text\": {\"Quatrebras\": 7}}\n{\"text\": 7, \"Quatrebras\": 1}\n",
            "{\"text\": \"Quatrebras\", \"text\": \"Ann Quatrebras\"}\n[\"Quatrebras\"]\n\"Ann Quatrebras\"\n",
            "{\"text\": \"Ann Quatrebras\n{\"text\": \"Quatrebras\\ud800\"}\nQuatrebras\n{\"texts\": \"Quatrebras\"}\n",
        ),
    ),
    (
        "fields.csv",
        "id,text\n1,\"Ann Quatrebras, ann@quatrebras.example\"\n2,Ann,Quatrebras\nQuatrebras\n",
    ),
    (
        "quotes.csv",
        "id,text\n1,Ann Quatrebras\n2,\"Ann \"Quatrebras\" \n3,\"Quatrebras",
    ),
    (
        "requests.jsonl",
        concat!(
            "{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/embeddings\", ",
            "\"body\": {\"model\": \"bert\", \"input\": \"Ann Quatrebras\", \"dimensions\": \"Quatrebras\"}}\n",
            "{\"custom_id\": \"2\", \"method\": \"POST\", \"url\": \"/v1/embeddings\", ",
            "\"body\": {\"model\": \"bert\", \"input\": {\"Quatrebras\": [\"Quatrebras\"]}}}\n",
        ),
    ),
];

/// Runs the command in `folder` and searches what it prints.
fn run(folder: &Path, arguments: &[&str], key: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command
        .args(arguments)
        .current_dir(folder)
        .env("RUST_LOG", "trace")
        .env("KIVU_REDACT_KEY", key)
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default())
        .stdin(Stdio::null());
    if key.is_empty() {
        command.env_remove("KIVU_REDACT_KEY");
    }
    let output = command.output().unwrap();
    let what = format!("{arguments:?}");
    search(&what, &output.stderr);
    search(&what, &output.stdout);
    output
}

#[test]
fn no_report_or_message_of_a_command_has_an_original_or_a_key() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    build(&at("models"), runtime, &["bert", "tokens"]);
    let run = |arguments: &[&str], key: &str| run(folder.path(), arguments, key);
    for (name, rows) in ROWS {
        fs::write(at(name), rows).unwrap();
        let model = match name {
            "requests.jsonl" => "models/bert",
            _ => "models/tokens",
        };
        let styles = [
            &[][..],
            &["--redact", "--patterns", "all"],
            &["--redact", "--patterns", "all", "--redact-style", "encrypt"],
            &[
                "--redact",
                "--patterns",
                "all",
                "--redact-style",
                "number",
                "--redact-scope",
                "file",
            ],
        ];
        for (style, options) in styles.iter().enumerate() {
            let output = format!("{style}-{name}");
            let mut arguments = vec!["batch", name, &output, "--model", model];
            arguments.extend_from_slice(options);
            run(&arguments, KEY);
            // Without a report, the command ended with a message.
            let report = fs::read(at(&format!("{output}.report.json"))).unwrap_or_default();
            search(&output, report);
            // The original column stays in the output, unlike in answers to requests.
            for line in fs::read_to_string(at(&output)).unwrap_or_default().lines() {
                match serde_json::from_str::<Value>(line) {
                    Ok(row) if model == "models/tokens" => {
                        search(&output, row["error"].to_string())
                    }
                    _ if model == "models/bert" => search(&output, line),
                    _ => {}
                }
            }
        }
        for style in ["label", "number", "hash", "encrypt"] {
            let output = format!("{style}-{name}");
            run(
                &[
                    "redact",
                    name,
                    &output,
                    "--patterns",
                    "all",
                    "--style",
                    style,
                ],
                KEY,
            );
            run(&["restore", name, "restored", "--mapping", name], KEY);
            run(
                &["restore", name, "restored", "--mapping", name, "--edited"],
                "",
            );
            assert!(!at(&output).exists(), "{output} has malformed rows");
        }
    }
    fs::write(at("text.txt"), "Write to ann@quatrebras.example.").unwrap();
    fs::write(
        at("mapping"),
        json!({ "file": ORIGINAL, "placeholders": { ORIGINAL: 7 } }).to_string(),
    )
    .unwrap();
    run(
        &[
            "restore",
            "text.txt",
            "restored",
            "--mapping",
            "mapping",
            "--edited",
        ],
        KEY,
    );
    for style in ["label", "number", "hash", "encrypt"] {
        let shared = format!("{style}.txt");
        let output = run(&["redact", "text.txt", &shared, "--style", style], KEY);
        assert!(output.status.success(), "{output:?}");
        search(&shared, fs::read(at(&shared)).unwrap());
    }
}

#[test]
fn no_message_about_a_key_has_one() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    build(&at("models"), runtime, &["tokens"]);
    let run = |arguments: &[&str], key: &str| run(folder.path(), arguments, key);
    fs::write(at("text.txt"), "Write to ann@quatrebras.example.").unwrap();
    fs::write(at("encrypt.txt"), "Write to [PERSON:q83v].").unwrap();
    fs::write(at("fields.csv"), "text\na\n").unwrap();
    let inputs = [
        &["redact", "text.txt", "new.txt", "--style", "encrypt"][..],
        &["restore", "encrypt.txt", "new.txt"],
        &[
            "batch",
            "fields.csv",
            "new.csv",
            "--model",
            "models/tokens",
            "--redact",
            "--redact-style",
            "hash",
        ],
        &[
            "run",
            "models/tokens",
            ORIGINAL,
            "--redact",
            "--redact-style",
            "hash",
        ],
    ];
    let files = [
        format!("redact_key = \"{}\"", &KEY[1..]),
        format!("redact_key = \"{KEY}"),
        format!("redact_key = {KEY}"),
        format!("redact_key = [\"{KEY}\"]"),
        format!("redact_kye = \"{KEY}\""),
        format!("redact_key = \"{KEY}\" \"{KEY}\""),
        format!("redact_key = \"{KEY}\"\nredact_key = \"{KEY}\""),
        format!("[redact_key]\n{KEY} = \"{KEY}\""),
    ];
    for arguments in inputs {
        for key in [&KEY[1..], &KEY.replace('7', "g"), &format!("{KEY}\u{e9}")] {
            assert!(!run(arguments, key).status.success(), "{arguments:?} {key}");
        }
        for file in &files {
            fs::write(at("kivu.toml"), file).unwrap();
            assert!(!run(arguments, "").status.success(), "{arguments:?} {file}");
        }
        fs::remove_file(at("kivu.toml")).unwrap();
    }
}
