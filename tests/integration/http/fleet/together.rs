//! Several failures at once: S3 throttles, fleet servers restart, clients disconnect.

use std::{
    fs,
    io::Write,
    net::{Shutdown, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    agree,
    faults::{REMOTE, Stage},
    proxy::{Mischief, Proxy},
};
use crate::{
    server::{Server, alone},
    storage::{Mood, Storage, done},
};

/// Request phase duration, and the additional time for the fleet to restart.
const TIME: Duration = Duration::from_secs(6);
const LONGEST: Duration = Duration::from_secs(60);
/// Maximum concurrent requests.
const ROOM: usize = 8;
/// A job's retries, as on Lambda.
const STARTS: usize = 5;
const ROWS: usize = 2_000;
/// Texts per request: large enough for `auto` to use the fleet.
const TEXTS: usize = 40;

fn text(number: usize) -> String {
    format!(
        "text {number} about a long way to go {}",
        "and on ".repeat(number % 9)
    )
}

/// The models with the policies `auto` and `fleet`.
const ANYWHERE: &str = "anywhere";
const THERE: &str = "there";

fn request(model: &str) -> String {
    json!({ "model": model, "input": (0..TEXTS).map(text).collect::<Vec<_>>() }).to_string()
}

/// JSON Lines rows.
fn rows(lines: &[u8]) -> Vec<Value> {
    let lines = std::str::from_utf8(lines).unwrap().lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Breaks the fleet in several ways, with healthy periods in between.
async fn flap(proxy: Arc<Proxy>) {
    for mood in [Mischief::Refuse, Mischief::CutAfter(200), Mischief::Silence]
        .into_iter()
        .cycle()
    {
        proxy.turn(Mischief::None);
        sleep(Duration::from_millis(1000)).await;
        proxy.turn(mood);
        sleep(Duration::from_millis(400)).await;
    }
}

/// Sends requests and disconnects before the response; returns their number.
fn leave(server: &Server, until: Instant) -> usize {
    let body = request(ANYWHERE);
    let asked = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut left = 0;
    while Instant::now() < until {
        let mut connection = TcpStream::connect(&server.address).unwrap();
        let part = if left % 3 == 0 {
            asked.len() / 2
        } else {
            asked.len()
        };
        // The server may close the connection first.
        let _ = connection.write_all(&asked.as_bytes()[..part]);
        thread::sleep(Duration::from_millis(left as u64 % 23));
        let _ = connection.shutdown(Shutdown::Both);
        left += 1;
    }
    left
}

/// Counts responses and fleet errors.
#[derive(Default)]
struct Answers {
    right: usize,
    refused: usize,
}

/// Sends requests for `model` until `is_enough`: all results are correct, and the only errors report an
/// unavailable server.
fn stay(
    server: &Server,
    model: &str,
    expected: &[Value],
    is_enough: impl Fn(&Answers) -> bool,
) -> Answers {
    let mut answers = Answers::default();
    while !is_enough(&answers) {
        let answer = server.post("/v1/embeddings", &request(model));
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let body: Value = serde_json::from_str(body).expect("an answer is JSON");
        if head.starts_with("HTTP/1.1 200") {
            let vectors = body["data"].as_array().unwrap();
            let right = vectors
                .iter()
                .zip(expected)
                .all(|(found, row)| agree(&found["embedding"], &row["embedding"]));
            assert!(vectors.len() == TEXTS && right, "{body}");
            answers.right += 1;
        } else if head.starts_with("HTTP/1.1 429") {
            // On a slow machine, disconnected clients' requests may use all permits for a moment.
            thread::sleep(Duration::from_millis(50));
        } else {
            assert!(
                ["502", "503", "504"]
                    .iter()
                    .any(|status| head.starts_with(&format!("HTTP/1.1 {status}"))),
                "{answer}"
            );
            assert!(body["error"]["message"].is_string(), "{body}");
            answers.refused += 1;
        }
    }
    answers
}

/// Runs a job until it is done.
fn finish(job: impl Fn() -> Output) {
    let mut said = Vec::new();
    for _ in 0..STARTS {
        let ended = job();
        if ended.status.success() {
            return;
        }
        said.push(String::from_utf8_lossy(&ended.stderr).into_owned());
    }
    panic!("the job never came to its end: {said:#?}");
}

/// Two out of three requests to S3, which has the bundle and a job's output, are throttled; the fleet restarts; half
/// the clients disconnect. All other responses are correct, and the job's output is the same as without failures.
#[test]
fn s3_throttles_while_the_fleet_flaps_while_callers_leave() {
    let (Some(stage), Some(mut storage)) = (Stage::set(&[], ""), Storage::start()) else {
        return;
    };
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let triton = stage.triton();
    let proxy = Arc::new(runtime.block_on(Proxy::start(triton.http, Mischief::None)));
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let batch = |mut command: Command, output: &Path| {
        command
            .arg("batch")
            .arg(at("in.jsonl"))
            .arg(output)
            .current_dir(folder.path())
            .output()
            .unwrap()
    };

    // The baseline without failures, on this machine.
    let line = |row| format!("{}\n", json!({ "id": row, "text": text(row) }));
    fs::write(at("in.jsonl"), (0..ROWS).map(line).collect::<String>()).unwrap();
    let mut quiet = storage.kivu(Mood::Calm);
    quiet.env("KIVU_MODELS", &stage.bundle);
    let ended = batch(quiet, &at("quiet.jsonl"));
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    let expected = rows(&fs::read(at("quiet.jsonl")).unwrap());

    let prefix = storage.url("models");
    done(
        storage
            .kivu(Mood::Busy)
            .arg("push")
            .arg(&stage.bundle)
            .arg(&prefix)
            .env("KIVU_HOME", folder.path()),
    );
    let model = |name: &str, policy: &str| {
        format!(
            "[[models]]\nname = '{name}'\npath = '{prefix}/feature-extraction'\npolicy = '{policy}'\n\
             remote = '{REMOTE}'\nurls = ['http://127.0.0.1:{}']\n",
            proxy.port
        )
    };
    let config = format!(
        "[limits]\nrequests = {ROOM}\n[fleet]\ntimeout_ms = 1000\n[batch]\nsave_ms = 200\n{}{}",
        model(ANYWHERE, "auto"),
        model(THERE, "fleet")
    );
    fs::write(at("kivu.toml"), config).unwrap();
    let flapping = runtime.spawn(flap(Arc::clone(&proxy)));
    let mut serve = storage.kivu(Mood::Busy);
    serve
        .args(["serve", "--listen", "127.0.0.1:0"])
        .current_dir(folder.path());
    let server = Server::wait(
        serve
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let started = Instant::now();
    let output = storage.url("out/answers.jsonl");
    thread::scope(|scope| {
        let anywhere =
            scope.spawn(|| stay(&server, ANYWHERE, &expected, |_| started.elapsed() > TIME));
        let there = scope.spawn(|| {
            stay(&server, THERE, &expected, |answers| {
                let both = answers.right > 0 && answers.refused > 0;
                started.elapsed() > if both { TIME } else { LONGEST }
            })
        });
        let leavers = [(); 2].map(|()| scope.spawn(|| leave(&server, started + TIME)));
        finish(|| batch(storage.kivu(Mood::Busy), Path::new(&output)));
        let left: usize = leavers.map(|leaver| leaver.join().unwrap()).iter().sum();
        assert!(left > 50, "only {left} callers left");
        let [anywhere, there] =
            [anywhere, there].map(|caller| caller.join().expect("the other clients get responses"));
        assert!(
            anywhere.right > 0 && anywhere.refused == 0,
            "what can run here does not fail with the fleet"
        );
        assert!(there.right > 0, "the fleet never answered");
        assert!(there.refused > 0, "the fleet was never away");
    });
    flapping.abort();
    proxy.turn(Mischief::None);

    let left = storage.read("out/");
    let found = rows(left["out/answers.jsonl"].as_bytes());
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!(
            agree(found, expected),
            "{found} where {expected} was expected"
        );
    }
    assert_eq!(
        left.len(),
        2,
        "the output and its report: {:?}",
        left.keys()
    );
    // All permits are released after the server has detected the disconnections.
    let noticed = Instant::now() + Duration::from_secs(5);
    loop {
        let answers: Vec<String> = thread::scope(|scope| {
            let again = [(); ROOM]
                .map(|()| scope.spawn(|| server.post("/v1/embeddings", &request(ANYWHERE))));
            again
                .into_iter()
                .map(|caller| caller.join().unwrap())
                .collect()
        });
        match answers
            .iter()
            .find(|answer| !answer.starts_with("HTTP/1.1 200"))
        {
            None => break,
            Some(refused) => assert!(Instant::now() < noticed, "{refused}"),
        }
        thread::sleep(Duration::from_millis(100));
    }
}
