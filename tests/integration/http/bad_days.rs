//! Misbehaving clients and exhausted resources: responses, log lines and memory use.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kivu_http::make_key;

use crate::{
    server::{Server, bundle, kivu},
    serving::wait_for_continue,
};

/// First bytes of a request whose body never ends.
const SLOW: &[u8] =
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
    expect: 100-continue\r\ncontent-length: 100\r\n\r\n{\"inputs\": \"";

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("no answer")
}

/// A process's current resident memory in kB.
fn resident_kb(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Slow requests end with their timeout; meanwhile, other requests are refused with `retry-after`.
#[test]
fn slow_requests_time_out_and_others_get_429() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut command = kivu(&bundle);
    command
        .env("KIVU_LIMITS__REQUESTS", "2")
        .env("KIVU_LIMITS__TIMEOUT_MS", "2000")
        .stderr(Stdio::null());
    let server = Server::wait(command.spawn().unwrap());
    let started = Instant::now();
    let slow: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut connection = TcpStream::connect(&server.address).unwrap();
            connection.write_all(SLOW).unwrap();
            wait_for_continue(&mut connection);
            connection
        })
        .collect();
    let refused = server.post("/embed", r#"{"inputs": "a text"}"#);
    assert_eq!(status(&refused), "429", "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    for mut connection in slow {
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert_eq!(status(&answer), "504", "{answer}");
    }
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(
        status(&server.post("/embed", r#"{"inputs": "a text"}"#)),
        "200"
    );
}

/// Whether the server closes a connection within `time`.
fn is_closed_within(connection: &mut TcpStream, time: Duration) -> bool {
    connection.set_read_timeout(Some(time)).unwrap();
    let read = connection.read_to_end(&mut Vec::new());
    !read.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// The server closes connections without a complete request.
#[test]
fn connections_without_a_complete_request_are_closed() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut command = kivu(&bundle);
    command
        .env("KIVU_LIMITS__TIMEOUT_MS", "1000")
        .stderr(Stdio::null());
    let server = Server::wait(command.spawn().unwrap());
    for said in [
        "",
        "POST /embed HT",
        "POST /embed HTTP/1.1\r\nhost: localhost\r\n",
    ] {
        let mut connection = TcpStream::connect(&server.address).unwrap();
        connection.write_all(said.as_bytes()).unwrap();
        assert!(
            is_closed_within(&mut connection, Duration::from_secs(4)),
            "{said:?}"
        );
    }
    // A request that arrives byte by byte gets no extra time.
    let mut connection = TcpStream::connect(&server.address).unwrap();
    let started = Instant::now();
    while connection.write_all(b"x").is_ok() {
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "the connection is still open"
        );
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        status(&server.post("/embed", r#"{"inputs": "a text"}"#)),
        "200"
    );
}

/// A connection with a small receive buffer.
fn connect_narrowly(address: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let connection = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(16 * 1024).unwrap();
        socket
            .connect(address.parse().unwrap())
            .await
            .unwrap()
            .into_std()
            .unwrap()
    });
    connection.set_nonblocking(false).unwrap();
    connection
}

/// Unread responses count as requests, and are aborted at the request timeout.
#[test]
fn unread_responses_hold_a_permit_until_the_timeout() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let body = format!(r#"{{"inputs": "{}"}}"#, "the cat ".repeat(85_000));
    let server = Server::wait(kivu(&bundle).stderr(Stdio::null()).spawn().unwrap());
    let started = Instant::now();
    assert_eq!(status(&server.post("/tokenize", &body)), "200");
    let timeout = Duration::from_secs(5).max(started.elapsed() * 5);
    let mut command = kivu(&bundle);
    command
        .env("KIVU_LIMITS__REQUESTS", "2")
        .stderr(Stdio::null());
    let server = Server::wait(
        command
            .env("KIVU_LIMITS__TIMEOUT_MS", timeout.as_millis().to_string())
            .spawn()
            .unwrap(),
    );
    let request = format!(
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut unread = [(); 2].map(|()| {
        let mut connection = connect_narrowly(&server.address);
        connection.write_all(request.as_bytes()).unwrap();
        connection
    });
    for connection in &mut unread {
        let mut answer = [0; 15];
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    }
    let ask = || status(&server.post("/embed", r#"{"inputs": "a text"}"#)).to_owned();
    assert_eq!(ask(), "429", "both permits are in use");
    let started = Instant::now();
    while ask() == "429" {
        assert!(
            started.elapsed() < timeout * 3,
            "the permits are not released"
        );
        thread::sleep(Duration::from_millis(100));
    }
    // The other connection may have time left.
    let is_cut_off = |mut connection: TcpStream| {
        let mut rest = Vec::new();
        let _ = connection.read_to_end(&mut rest);
        !rest.ends_with(b"]]")
    };
    assert!(
        unread.into_iter().any(is_cut_off),
        "both responses are complete"
    );
    // A slow client that reads everything before the timeout gets the whole response.
    let mut connection = TcpStream::connect(&server.address).unwrap();
    connection
        .write_all(
            request
                .replace("host: localhost", "host: localhost\r\nconnection: close")
                .as_bytes(),
        )
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    let mut whole = Vec::new();
    connection.read_to_end(&mut whole).unwrap();
    assert!(
        whole.ends_with(b"]]") && whole.len() > 10_000_000,
        "{} bytes",
        whole.len()
    );
}

/// A server that is stopped does not wait for idle connections.
#[test]
fn slow_clients_do_not_delay_the_end_of_the_server() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut command = kivu(&bundle);
    command
        .env("KIVU_LIMITS__TIMEOUT_MS", "1000")
        .stderr(Stdio::null());
    let mut server = Server::wait(command.spawn().unwrap());
    let mut connection = TcpStream::connect(&server.address).unwrap();
    connection.write_all(b"POST /embed HTTP/1.1\r\n").unwrap();
    let idle = TcpStream::connect(&server.address).unwrap();
    thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    assert_eq!(server.stop(), Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    drop((connection, idle));
}

/// The server, started by a shell after `ulimit`.
fn limited(limit: &str, bundle: &Path) -> Command {
    let program = kivu(bundle);
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("ulimit {limit}; exec \"$0\" \"$@\""));
    command.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Without file descriptors for more connections, open ones work, and new ones wait.
#[test]
fn running_out_of_file_descriptors_ends_nothing() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut command = limited("-n 64", &bundle);
    let server = Server::wait(
        command
            .env("KIVU_LIMITS__TIMEOUT_MS", "3000")
            .spawn()
            .unwrap(),
    );
    let mut open = TcpStream::connect(&server.address).unwrap();
    let request = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    open.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 12];
    open.read_exact(&mut answer).unwrap();
    let started = Instant::now();
    let crowd: Vec<TcpStream> = (0..80)
        .map(|_| TcpStream::connect(&server.address).unwrap())
        .collect();
    let descriptors = format!("/proc/{}/fd", server.id());
    while fs::read_dir(&descriptors).unwrap().count() < 64 {
        assert!(
            started.elapsed() < Duration::from_secs(3),
            "file descriptors are left"
        );
        thread::sleep(Duration::from_millis(10));
    }
    open.write_all(
        request
            .replace("host: localhost", "host: localhost\r\nconnection: close")
            .as_bytes(),
    )
    .unwrap();
    let mut rest = String::new();
    open.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("HTTP/1.1 200"),
        "the open connection has no second response: {rest}"
    );
    // It waits until idle connections time out.
    assert_eq!(
        status(&server.post("/embed", r#"{"inputs": "a text"}"#)),
        "200"
    );
    drop(crowd);
    assert_eq!(
        status(&server.post("/embed", r#"{"inputs": "a text"}"#)),
        "200"
    );
}

/// Requests beyond the limit are refused without using memory.
#[test]
fn a_flood_is_refused_and_memory_stays_flat() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut command = kivu(&bundle);
    command
        .env("KIVU_LIMITS__REQUESTS", "4")
        .stderr(Stdio::null());
    let server = Server::wait(command.spawn().unwrap());
    let body = format!(r#"{{"inputs": ["{}"]}}"#, "word ".repeat(20_000));
    let flood = || {
        thread::scope(|scope| {
            let callers: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| (0..10).map(|_| server.post("/embed", &body)).collect()))
                .collect();
            callers
                .into_iter()
                .flat_map(|caller| -> Vec<String> { caller.join().unwrap() })
                .collect::<Vec<_>>()
        })
    };
    flood();
    let before = resident_kb(server.id());
    let answers = flood();
    let refused = answers
        .iter()
        .filter(|answer| status(answer) == "429")
        .count();
    let answered = answers
        .iter()
        .filter(|answer| status(answer) == "200")
        .count();
    assert_eq!(
        refused + answered,
        answers.len(),
        "every request has a response"
    );
    assert!(
        refused > 0 && answered > 0,
        "{refused} refused, {answered} answered"
    );
    let grown = resident_kb(server.id()).saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KB more after the second flood");
}

/// The log has each refusal's reason and key names, but no keys.
#[test]
fn the_log_has_the_reasons_of_refusals() {
    let Some((folder, bundle)) = bundle() else {
        return;
    };
    let (key, line) = make_key("alice").unwrap();
    let file = folder.path().join("keys");
    let (limited, limits) = make_key("bob").unwrap();
    fs::write(&file, format!("{line}\n{limits} per-minute=1\n")).unwrap();
    let mut command = kivu(&bundle);
    let mut server = Server::wait(
        command
            .env("KIVU_AUTH__KEYS_FILE", &file)
            .env("KIVU_LOG", "json")
            .spawn()
            .unwrap(),
    );
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for header in [
        String::new(),
        "x-api-key: kivu_wrong\r\n".to_owned(),
        format!("api-key: {key}\r\n"),
        format!("x-api-key: {key}\r\ntraceparent: {trace}\r\n"),
        format!("x-api-key: {limited}\r\n"),
        format!("x-api-key: {limited}\r\n"),
    ] {
        let body = r#"{"inputs": "a text"}"#;
        let length = body.len();
        server.exchange(
            format!(
                "POST /embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 {header}content-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        );
    }
    let log = server.end();
    for expected in [
        r#""refused":"no key""#,
        r#""refused":"unknown key""#,
        r#""refused":"key in the wrong header""#,
        r#""caller":"alice","trace":"4bf92f3577b34da6a3ce929d0e0e4736""#,
        r#""caller":"bob","refused":"too many requests with this key""#,
    ] {
        assert!(log.contains(expected), "{expected} is not in {log}");
    }
    for secret in [&key, &limited, "kivu_wrong"] {
        assert!(!log.contains(secret), "{log}");
    }
}

/// A process that crashes writes no texts to a core dump, even if the shell permits core dumps.
#[test]
fn a_crash_leaves_no_core_dump_behind() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let control = Command::new("sh")
        .args(["-c", "ulimit -c unlimited; kill -ABRT $$"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    if !control.core_dumped() {
        crate::skips::unsupported("this machine writes no core dumps for tests");
        return;
    }
    let mut command = limited("-c unlimited", &bundle);
    let mut server = Server::wait(command.current_dir(folder.path()).spawn().unwrap());
    server.post("/embed", r#"{"inputs": "a text"}"#);
    let ended = server.crash();
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(6), false));
}

#[test]
fn what_was_done_is_counted_for_prometheus() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let server = Server::wait(kivu(&bundle).stderr(Stdio::null()).spawn().unwrap());
    server.post("/embed", r#"{"inputs": ["a text", "another"]}"#);
    server.post("/embed", "{");
    let page =
        server.exchange(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    for counted in [
        "kivu_requests_total 2",
        r#"kivu_responses_total{status="4xx"} 1"#,
        r#"kivu_runs_total{backend="native"} 1"#,
        "kivu_tokens_total ",
        "kivu_infer_seconds_count 1",
        r#"kivu_cold_seconds_count{part="session"} 1"#,
        r#"kivu_request_seconds_bucket{le="+Inf"} 2"#,
    ] {
        assert!(page.contains(counted), "{counted} is not in {page}");
    }
}

/// A server that others can reach asks for keys, or does not start.
#[test]
fn a_server_for_others_does_not_start_without_keys() {
    let Some((folder, bundle)) = bundle() else {
        return;
    };
    let open = |command: &mut Command| {
        let output = command.args(["--listen", "0.0.0.0:0"]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    let refusal = open(command.arg("serve").arg(&bundle));
    insta::assert_snapshot!(refusal, @r#"
    error: expected keys for a server that is reachable from other machines, but found none
    hint: `kivu key NAME` creates one for `auth.keys`, and `auth.mode = "none"` allows open access
    "#);
    let nowhere = folder.path().join("nowhere");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    let refusal = open(
        command
            .arg("serve")
            .arg(&bundle)
            .env("KIVU_AUTH__KEYS_FILE", &nowhere),
    );
    assert!(
        refusal.contains("error: cannot read the keys in "),
        "{refusal}"
    );
}
