//! `kivu serve`: startup errors, robustness, side effects and shutdown.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use kivu::config::InstructionSet;
use kivu_http::make_key;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use serde_json::json;

use crate::{
    models::{library_path, runtime},
    server::{Server, bundle, kivu},
};

fn refusal(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(1), "an error, not a crash");
    String::from_utf8(stderr).unwrap()
}

#[test]
fn the_printed_request_has_the_prefix_and_the_key() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let (_, line) = make_key("alice").unwrap();
    let mut server = kivu(&bundle)
        .env("KIVU_PREFIX", "/large")
        .env("KIVU_AUTH__KEYS", line)
        .spawn()
        .unwrap();
    let output = BufReader::new(server.stdout.take().unwrap());
    let lines: Vec<String> = output.lines().take(3).map(Result::unwrap).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    let address = lines[0]
        .split("http://")
        .nth(1)
        .unwrap()
        .trim_end_matches("/large");
    insta::assert_snapshot!(lines.join("\n").replace(address, "[address]"), @r#"
    serving `tiny-bert` (feature-extraction) on http://[address]/large
    try it: open http://[address]/large/ in a browser, or
      curl http://[address]/large/models/tiny-bert -H 'authorization: Bearer KEY' -H 'content-type: application/json' -d '{"inputs": "What is deep learning?"}'
    "#);
}

#[test]
fn startup_errors_are_printed() {
    let Some((folder, bundle)) = bundle() else {
        return;
    };
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    let port = occupied.local_addr().unwrap().port().to_string();
    command.arg("serve").arg(&bundle).args(["--port", &port]);
    let error = refusal(&mut command).replace(&address, "[address]");
    insta::assert_snapshot!(error, @"
    error: cannot listen on `[address]`: Address already in use (os error 98)
    hint: choose another port with `--port`
    ");
    let nowhere = refusal(&mut kivu(&folder.path().join("nowhere")));
    insta::assert_snapshot!(nowhere.replace(&folder.path().display().to_string(), "[folder]"), @"
    error: expected a bundle in `[folder]/nowhere`, but found no such folder
    hint: `kivu build` makes bundles
    ");
    let no_library = refusal(
        kivu(&bundle)
            .args(["--engine", "onnx"])
            .env("KIVU_ONNXRUNTIME", "/nowhere/libonnxruntime.so"),
    );
    insta::assert_snapshot!(no_library, @"error: expected ONNX Runtime at `/nowhere/libonnxruntime.so`, but found no file");
    let twice = refusal(kivu(&bundle).arg(&bundle));
    insta::assert_snapshot!(twice, @"
    error: expected a unique name for each model, but found `tiny-bert` twice
    hint: set `name` in `kivu.toml`
    ");
    let mut none = Command::new(env!("CARGO_BIN_EXE_kivu"));
    none.args(["serve", "--listen", "127.0.0.1:0"])
        .current_dir(folder.path());
    let none = refusal(&mut none);
    insta::assert_snapshot!(none, @"
    error: expected at least one model, but found none
    hint: name one, such as a bundle or ORG/NAME of the Hugging Face hub, or set `models` in `kivu.toml`
    ");
    let misspelt = refusal(kivu(&bundle).env("KIVU_LIMITS__TXETS", "1"));
    assert!(misspelt.contains("txets"), "{misspelt}");
}

/// A server per instruction set that this processor has, by option and by variable.
#[test]
fn all_instruction_sets_have_the_same_bits() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let body = json!({ "inputs": ["What is deep learning?", "a ".repeat(60)] }).to_string();
    let mut answers = BTreeSet::new();
    for set in InstructionSet::available() {
        let mut command = kivu(&bundle);
        match set == InstructionSet::detected() {
            true => command.env("KIVU_INSTRUCTIONS", set.name()),
            false => command
                .env("KIVU_INSTRUCTIONS", "portable")
                .args(["--instructions", set.name()]),
        };
        let server = Server::wait(command.stderr(Stdio::null()).spawn().unwrap());
        let info =
            server.exchange(b"GET /info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let arithmetic = format!(r#""arithmetic":"int8 by token (native engine, {set})""#);
        assert!(info.contains(&arithmetic), "{set}: {info}");
        let answer = server.post("/embed", &body);
        let (head, vectors) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        answers.insert(vectors.to_owned());
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    let other = if cfg!(target_arch = "x86_64") {
        "neon-i8mm"
    } else {
        "avx2"
    };
    let mut refused = kivu(&bundle);
    let Output { status, stderr, .. } = refused.args(["--instructions", other]).output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(
        error.contains(&format!("but found `{other}`")) && error.contains("`portable`"),
        "{error}"
    );
}

/// No request ends the server or blocks the next one.
#[test]
fn bad_requests_do_not_end_the_server() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let server = Server::wait(kivu(&bundle).stderr(Stdio::null()).spawn().unwrap());
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let good = || server.post("/embed", r#"{"inputs": "a text"}"#);
    let first = good();
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    let body = |answer: String| {
        answer
            .split("\r\n\r\n")
            .nth(1)
            .unwrap_or_default()
            .to_owned()
    };
    let expected = body(first);

    let long_word = "x".repeat(1_000_000);
    let many = format!(r#"{{"inputs": [{}"a"]}}"#, r#""a","#.repeat(9_999));
    let hosted = |host: &str| {
        post(
            &head.replace("host: localhost", host),
            br#"{"inputs": "a text"}"#,
        )
    };
    let asks = format!("{head}expect: 100-continue\r\ncontent-length: 99999999999\r\n\r\n");
    let cases: [(&str, Vec<u8>, &str); 12] = [
        (
            "a megabyte of one word",
            post(head, format!(r#"{{"inputs": "{long_word}"}}"#).as_bytes()),
            "200",
        ),
        ("10,000 texts", post(head, many.as_bytes()), "413"),
        (
            "invalid UTF-8",
            post(head, b"{\"inputs\": \"\xc3\x28\"}"),
            "400",
        ),
        (
            "an unpaired surrogate",
            post(head, br#"{"inputs": "\ud83d"}"#),
            "400",
        ),
        (
            "a body beyond the limit",
            post(head, &vec![b' '; 7 * 1024 * 1024]),
            "413",
        ),
        // The connection is closed at some point, with or without a response.
        (
            "a body far beyond the limit",
            post(head, &vec![b' '; 40 * 1024 * 1024]),
            "",
        ),
        (
            "a body beyond the limit that is announced",
            asks.into_bytes(),
            "413",
        ),
        ("no HTTP", b"hello\r\n\r\n".to_vec(), "400"),
        ("a host that is none", hosted("host: [::bad"), "403"),
        (
            "a host that would be a place",
            hosted("host: a b/../%00@evil:99999"),
            "403",
        ),
        ("no host", hosted("x-host: localhost"), "200"),
        (
            "deep nesting",
            post(
                head,
                format!("{{\"inputs\": {}", "[".repeat(100_000)).as_bytes(),
            ),
            "400",
        ),
    ];
    for (what, request, status) in cases {
        let answer = server.exchange(&request);
        let line = answer.lines().next().unwrap_or("no answer");
        assert!(
            line.contains(status),
            "{what}: expected {status}, but found {line}"
        );
        assert_eq!(body(good()), expected, "after {what}");
    }
    // A body that ends too early.
    let mut connection = TcpStream::connect(&server.address).unwrap();
    connection
        .write_all(format!("{head}content-length: 1000\r\n\r\n{{\"inputs\"").as_bytes())
        .unwrap();
    drop(connection);
    assert_eq!(body(good()), expected, "after a truncated body");
}

/// Waits until the server reads the body after `expect: 100-continue`.
pub(crate) fn wait_for_continue(connection: &mut TcpStream) {
    let mut interim = [0; 25];
    connection.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
}

fn post(head: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!("{head}content-length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(body);
    request
}

#[test]
fn signals_let_accepted_requests_finish() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    for signal in ["TERM", "INT", "HUP"] {
        requests_finish_after(signal, &bundle);
    }
}

fn requests_finish_after(signal: &str, bundle: &Path) {
    // The process that started the tests may ignore the signal.
    let mut command = Command::new("env");
    let served = kivu(bundle);
    command
        .args(["--default-signal=HUP,INT"])
        .arg(served.get_program())
        .args(served.get_args());
    command.envs(
        served
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut server = Server::wait(command.spawn().unwrap());
    let mut connection = TcpStream::connect(&server.address).unwrap();
    let body = r#"{"inputs": "a text"}"#;
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    write!(
        connection,
        "{head}expect: 100-continue\r\ncontent-length: {}\r\n\r\n{{",
        body.len()
    )
    .unwrap();
    wait_for_continue(&mut connection);
    let killed = Command::new("kill")
        .args(["-s", signal, &server.process.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    thread::sleep(Duration::from_millis(200));
    connection.write_all(&body.as_bytes()[1..]).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let status = server.process.wait().unwrap();
    assert_eq!(
        (status.code(), status.signal()),
        (Some(0), None),
        "{signal}"
    );
}

#[test]
fn texts_are_not_logged() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut server = Server::wait(
        kivu(&bundle)
            .env("RUST_LOG", "trace")
            .env("KIVU_LOG", "json")
            .spawn()
            .unwrap(),
    );
    let secret = "correcthorsebatterystaple";
    for body in [
        format!(r#"{{"inputs": "{secret}"}}"#),
        format!(r#"{{"inputs": "{secret}", "truncate": "{secret}"}}"#),
        format!(r#"{{"inputs": {{"{secret}": 1}}}}"#),
        format!(r#"{{"inputs": "{secret}"#),
    ] {
        server.post("/embed", &body);
        server.post("/v1/embeddings", &body.replace("inputs", "input"));
    }
    let log = server.end();
    assert!(
        log.contains("\"path\":\"/embed\""),
        "requests are logged: {log}"
    );
    assert!(!log.contains(secret), "{log}");
}

/// Runs `start` on a thread whose child processes are killed when they open a connection.
fn without_connections<T: Send>(start: impl FnOnce() -> T + Send) -> T {
    let connect = [(libc_connect(), Vec::new())];
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(
        connect.into(),
        SeccompAction::Allow,
        SeccompAction::KillProcess,
        architecture,
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    thread::scope(|scope| {
        scope
            .spawn(|| {
                apply_filter(&program).unwrap();
                start()
            })
            .join()
            .unwrap()
    })
}

/// Number of the system call `connect`.
fn libc_connect() -> i64 {
    if cfg!(target_arch = "x86_64") {
        42
    } else {
        203
    }
}

fn files_under(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files_under(&path)
            } else {
                [path].into()
            }
        })
        .collect()
}

#[test]
fn serving_writes_no_files_and_opens_no_connections() {
    let Some((folder, bundle)) = bundle() else {
        return;
    };
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    let before = files_under(folder.path());
    let mut server = without_connections(|| {
        let mut command = kivu(&bundle);
        command
            .env("HOME", &home)
            .env("TMPDIR", &home)
            .env_remove("XDG_CACHE_HOME")
            .current_dir(&home);
        Server::wait(command.stderr(Stdio::null()).spawn().unwrap())
    });
    for _ in 0..3 {
        let answer = server.post("/embed", r#"{"inputs": ["a text", "another one"]}"#);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // Waits for background work.
    thread::sleep(Duration::from_secs(1));
    assert!(
        server.process.try_wait().unwrap().is_none(),
        "it asked for a connection and was killed"
    );
    assert_eq!(files_under(folder.path()), before);

    // The filter works: a program that opens a connection is killed.
    let address = &server.address;
    let caller = without_connections(|| {
        let mut caller = Command::new("python3");
        let (host, port) = address.split_once(':').unwrap();
        caller.args([
            "-c",
            &format!("import socket; socket.create_connection(('{host}', {port}))"),
        ]);
        caller.stderr(Stdio::null()).status().unwrap()
    });
    assert_eq!(caller.signal(), Some(31), "SIGSYS");
}

#[test]
fn a_full_disk_is_reported() {
    if runtime().is_none() {
        return;
    }
    // /dev/full answers every write with "no space left".
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command
        .arg("doctor")
        .stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let error = refusal(command.env("KIVU_ONNXRUNTIME", library_path().unwrap()));
    insta::assert_snapshot!(error, @"error: cannot write to standard output: No space left on device (os error 28)");
}
