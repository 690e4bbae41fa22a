//! Requests while servers fail: a real server is stopped, killed, frozen, moved, made to return errors, and put behind
//! a faulty proxy. No request hangs, no response is wrong, and no message contains secrets.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use axum::Router;
use futures::future::join_all;
use kivu::{
    config::{Config, FleetConfig, Limits, ModelConfig, Policy},
    pipeline::Task,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Answer, agree, app, app_of, model, post,
    proxy::{Mischief, Proxy, TlsEnd, tls},
    server::{Served, Triton, bundle, packages, parameters},
};
use crate::{models::runtime, tools::free_ports};

/// Article 004's embedding model, without its tokenizer.
pub(crate) const REMOTE: &str = "embedding_model";

/// A repository with that model, and its bundle.
pub(crate) struct Stage {
    _folder: TempDir,
    pub(crate) packages: PathBuf,
    pub(crate) repository: PathBuf,
    pub(crate) bundle: PathBuf,
}

impl Stage {
    /// `None` without Triton or ONNX Runtime.
    pub(crate) fn set(options: &[(&str, &str)], more: &str) -> Option<Self> {
        let (packages, runtime) = (packages()?, runtime()?);
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("repository");
        fs::create_dir(&repository).unwrap();
        let bundle = bundle(Task::FeatureExtraction, "tiny-bert", folder.path(), runtime);
        let more = parameters(&[&[("pooling", "mean")], options].concat()) + more;
        let served = Served {
            name: REMOTE,
            program: Some("graph.py"),
            bundle: Some(&bundle),
            more: &more,
        };
        served.write(&repository);
        Some(Self {
            _folder: folder,
            packages,
            repository,
            bundle,
        })
    }

    pub(crate) fn triton(&self) -> Triton {
        Triton::start(&self.packages, &self.repository)
    }

    fn here(&self) -> Router {
        app_of(ModelConfig::from(self.bundle.clone()))
    }

    /// The model on the servers at `urls`, with a time limit per request.
    pub(super) fn app(&self, policy: Policy, urls: &[String], time: Duration) -> Router {
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let limits = Limits {
            timeout_ms: time.as_millis() as u64,
            ..Limits::default()
        };
        app(&Config {
            models: vec![model(&self.bundle, policy, REMOTE, &urls)],
            limits,
            ..crate::models::config()
        })
    }
}

pub(super) const LONG: Duration = Duration::from_secs(20);

/// Maximum response delay after the deadline: enough for a busy machine, and less than half of each deadline, so that a
/// response at a multiple of the deadline is too late.
const MAX_DELAY: Duration = Duration::from_millis(250);

/// Enough texts that `auto` sends them to the fleet.
fn large() -> Value {
    let texts: Vec<String> = (0..40)
        .map(|number| format!("text {number} about a long way to go and on"))
        .collect();
    json!({ "inputs": texts })
}

fn small() -> Value {
    json!({ "inputs": ["a short text"] })
}

async fn embed(app: &Router, body: &Value) -> Answer {
    post(app, "/embed", body).await
}

/// Whether a message contains no addresses and no server internals.
fn may_be_shown(answer: &Answer) -> bool {
    let text = answer.body.to_string();
    ["127.0.0.1", "://", "/tmp", "Traceback", ".py"]
        .iter()
        .all(|part| !text.contains(part))
}

async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    (work.await, started.elapsed())
}

/// Sends requests from `callers` tasks for `time`. Returns all responses with their durations.
async fn load(
    app: &Router,
    body: &Value,
    callers: usize,
    time: Duration,
) -> Vec<(Answer, Duration)> {
    let until = Instant::now() + time;
    let caller = || async move {
        let mut answers = Vec::new();
        while Instant::now() < until {
            answers.push(timed(embed(app, body)).await);
            // Without a pause, the callers would take most of the processors' time.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        answers
    };
    join_all((0..callers).map(|_| caller()))
        .await
        .into_iter()
        .flatten()
        .collect()
}

fn failed(answers: &[(Answer, Duration)]) -> Vec<String> {
    let failed = answers.iter().filter(|(answer, _)| answer.status != 200);
    failed
        .map(|(answer, took)| format!("{} {} after {took:?}", answer.status, answer.body))
        .collect()
}

/// One server out of two is frozen and killed under load, and all requests succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_servers_fails_under_load() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let (mut first, second) = (stage.triton(), stage.triton());
    let expected = embed(&stage.here(), &small()).await.body;
    for protocol in [0, 1] {
        let urls = [
            first.urls()[protocol].clone(),
            second.urls()[protocol].clone(),
        ];
        let app = stage.app(Policy::Fleet, &urls, LONG);
        let asked = small();
        let (answers, ()) = tokio::join!(load(&app, &asked, 8, Duration::from_secs(4)), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            first.signal("STOP");
            tokio::time::sleep(Duration::from_millis(1500)).await;
            first.signal("CONT");
        });
        assert!(
            failed(&answers).is_empty(),
            "frozen: {:#?}",
            failed(&answers)
        );
        assert!(
            answers
                .iter()
                .all(|(answer, _)| agree(&answer.body, &expected))
        );
        let (answers, ()) = tokio::join!(load(&app, &asked, 8, Duration::from_secs(2)), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            first.kill();
        });
        assert!(
            failed(&answers).is_empty(),
            "killed: {:#?}",
            failed(&answers)
        );
        assert!(
            answers
                .iter()
                .all(|(answer, _)| answer.backend() == "triton")
        );
        first = Triton::start_at(
            &stage.packages,
            &stage.repository,
            [first.http, first.grpc],
            &[],
        );
    }
}

/// The whole fleet is killed under load: with `auto` requests run in this process, and later on the fleet again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_fleet_fails_under_load() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let mut triton = stage.triton();
    let here = embed(&stage.here(), &large()).await.body;
    let auto = stage.app(Policy::Auto, &[triton.urls()[1].clone()], LONG);
    let fleet = stage.app(Policy::Fleet, &triton.urls()[..1], LONG);
    let asked = large();
    let before = embed(&auto, &asked).await;
    assert_eq!(
        (before.status, before.backend()),
        (200, "triton"),
        "{}",
        before.body
    );
    let (answers, ()) = tokio::join!(load(&auto, &asked, 4, Duration::from_secs(3)), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        triton.kill();
    });
    assert!(failed(&answers).is_empty(), "{:#?}", failed(&answers));
    assert!(answers.iter().all(|(answer, _)| agree(&answer.body, &here)));
    assert_eq!(answers.last().unwrap().0.backend(), "native");
    // Without a local model the response is an error, immediately and without details.
    let (answer, took) = timed(embed(&fleet, &small())).await;
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(
        answer.headers.contains_key("retry-after") && may_be_shown(&answer),
        "{}",
        answer.body
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
    // The server is used again once it is back.
    let _triton = Triton::start_at(
        &stage.packages,
        &stage.repository,
        [triton.http, triton.grpc],
        &[],
    );
    let started = Instant::now();
    while embed(&fleet, &small()).await.status != 200 {
        assert!(
            started.elapsed() < LONG,
            "the server that came back is not asked"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// With a frozen server every request succeeds, or fails at its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_no_more_than_the_deadline() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    let [http, grpc] = free_ports();
    let urls = triton.urls();
    let time = Duration::from_millis(1500);
    let apps = urls
        .each_ref()
        .map(|url| stage.app(Policy::Fleet, std::slice::from_ref(url), time));
    let auto = stage.app(Policy::Auto, &urls[..1], Duration::from_secs(4));
    for app in apps.iter().chain([&auto]) {
        assert_eq!(embed(app, &large()).await.status, 200);
    }
    triton.signal("STOP");
    for app in &apps {
        let (answer, took) = timed(embed(app, &small())).await;
        assert!(matches!(answer.status, 503 | 504), "{}", answer.body);
        assert!(took < time + MAX_DELAY, "{took:?}");
        assert!(may_be_shown(&answer), "{}", answer.body);
    }
    let (answer, took) = timed(embed(&auto, &large())).await;
    assert_eq!(
        (answer.status, answer.backend()),
        (200, "native"),
        "{} after {took:?}",
        answer.body
    );
    triton.signal("CONT");
    // The server shuts down gracefully, and starts again at its second address.
    triton.signal("TERM");
    let moved = Triton::start_at(&stage.packages, &stage.repository, [http, grpc], &[]);
    let both = stage.app(
        Policy::Fleet,
        &[urls[0].clone(), moved.urls()[0].clone()],
        LONG,
    );
    for _ in 0..4 {
        let answer = embed(&both, &small()).await;
        assert_eq!(
            (answer.status, answer.backend()),
            (200, "triton"),
            "{}",
            answer.body
        );
    }
}

/// A server that accepts connections and never responds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_responds_costs_no_more_than_the_deadline() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let silent = Proxy::start(free_ports::<1>()[0], Mischief::Silence).await;
    let nothing_there = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let time = Duration::from_millis(700);
    for scheme in ["http", "grpc"] {
        let url = format!(
            "{scheme}://127.0.0.1:{}",
            nothing_there.local_addr().unwrap().port()
        );
        let app = stage.app(Policy::Fleet, &[url], time);
        let asked = small();
        let answers = join_all((0..8).map(|_| timed(embed(&app, &asked)))).await;
        for (answer, took) in &answers {
            assert!(matches!(answer.status, 503 | 504), "{}", answer.body);
            assert!(*took < time + MAX_DELAY, "{scheme}: {took:?}");
        }
        assert!(
            answers.iter().any(|(answer, _)| answer.status == 504),
            "{scheme}"
        );
    }
    drop(silent);
}

/// Server errors: a missing model, a missing version, wrong shapes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_errors_are_returned_without_secrets() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let options = [
        "--model-control-mode=explicit",
        "--load-model=embedding_model",
    ];
    let triton = Triton::start_at(&stage.packages, &stage.repository, free_ports(), &options);
    for url in triton.urls() {
        let app = stage.app(Policy::Fleet, std::slice::from_ref(&url), LONG);
        let expected = embed(&app, &small()).await;
        assert_eq!(expected.status, 200);

        let unknown = app_of(model(&stage.bundle, Policy::Fleet, "unknown", &[&url]));
        let answer = embed(&unknown, &small()).await;
        assert_eq!(answer.status, 503);
        assert!(
            may_be_shown(&answer) && answer.body.to_string().contains("`unknown`"),
            "{}",
            answer.body
        );

        let mut wrong_version = model(&stage.bundle, Policy::Fleet, REMOTE, &[&url]);
        wrong_version.version = Some("7".into());
        let answer = embed(&app_of(wrong_version), &small()).await;
        assert_eq!(answer.status, 503, "{}", answer.body);

        let unload = format!("/v2/repository/models/{REMOTE}/unload");
        assert!(triton.ask("POST", &unload).unwrap().contains("200"));
        let unloaded = |answer: &Answer| answer.status == 503 && may_be_shown(answer);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let answer = embed(&app, &small()).await;
        assert!(unloaded(&answer), "{} {}", answer.status, answer.body);
        let load = format!("/v2/repository/models/{REMOTE}/load");
        assert!(triton.ask("POST", &load).unwrap().contains("200"));
        let answer = embed(&app, &small()).await;
        assert_eq!(
            (answer.status, agree(&answer.body, &expected.body)),
            (200, true),
            "{}",
            answer.body
        );
    }
}

/// After the model is replaced, its new signature is read, or refused, but no response is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_model_is_detected() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let options = [
        "--model-control-mode=explicit",
        "--load-model=embedding_model",
    ];
    let triton = Triton::start_at(&stage.packages, &stage.repository, free_ports(), &options);
    let app = stage.app(Policy::Fleet, &triton.urls()[..1], LONG);
    let expected = embed(&app, &small()).await;
    assert_eq!(expected.status, 200);
    let config = stage.repository.join(REMOTE).join("config.pbtxt");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        before
            .replace("input_ids", "INPUT__0")
            .replace("attention_mask", "INPUT__1"),
    )
    .unwrap();
    let load = format!("/v2/repository/models/{REMOTE}/load");
    assert!(triton.ask("POST", &load).unwrap().contains("200"));
    let answers = [embed(&app, &small()).await, embed(&app, &small()).await];
    assert_eq!(
        answers[1].status, 200,
        "the signature is read again: {}",
        answers[1].body
    );
    assert!(agree(&answers[1].body, &expected.body));
    assert!(
        matches!(answers[0].status, 200 | 502) && may_be_shown(&answers[0]),
        "{}",
        answers[0].body
    );
}

/// Requests that do not fit into the server's queue are retried, or run in this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_retried() {
    let queue =
        "dynamic_batching { default_queue_policy { max_queue_size: 2 timeout_action: REJECT } }\n";
    let Some(stage) = Stage::set(&[("delay", "0.1")], "") else {
        return;
    };
    let config = stage.repository.join(REMOTE).join("config.pbtxt");
    let text = fs::read_to_string(&config).unwrap();
    // Only models with batching have a queue.
    let text = text
        .replace("max_batch_size: 0", "max_batch_size: 1")
        .replace("[ -1, -1 ]", "[ -1 ]");
    fs::write(&config, text.replace("[ -1, 32 ]", "[ 32 ]") + queue).unwrap();
    let triton = stage.triton();
    let url = &triton.urls()[1..];
    let fleet = stage.app(Policy::Fleet, url, LONG);
    let asked = small();
    let answers = join_all((0..12).map(|_| embed(&fleet, &asked))).await;
    let refused: Vec<&Answer> = answers
        .iter()
        .filter(|answer| answer.status != 200)
        .collect();
    assert!(
        refused
            .iter()
            .all(|answer| answer.status == 503 && may_be_shown(answer))
    );
    assert!(refused.len() < answers.len());
    for answer in &refused {
        assert!(answer.body.to_string().contains("queue"), "{}", answer.body);
    }
    let auto = stage.app(Policy::Auto, url, LONG);
    let asked = large();
    let answers = join_all((0..6).map(|_| embed(&auto, &asked))).await;
    assert!(
        answers.iter().all(|answer| answer.status == 200),
        "the others run in this process"
    );
}

/// Behind a faulty proxy, responses are right or errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupted_connections_never_give_wrong_results() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    let here = embed(&stage.here(), &large()).await.body;
    let time = Duration::from_secs(3);
    for (scheme, port) in [("http", triton.http), ("grpc", triton.grpc)] {
        let proxy = Proxy::start(port, Mischief::None).await;
        let url = [format!("{scheme}://127.0.0.1:{}", proxy.port)];
        let (fleet, auto) = (
            stage.app(Policy::Fleet, &url, time),
            stage.app(Policy::Auto, &url, time),
        );
        for mischief in [
            Mischief::Delay(Duration::from_millis(60)),
            Mischief::Drip,
            Mischief::CutAfter(0),
            Mischief::CutAfter(90),
            Mischief::CutAfter(400),
            Mischief::Corrupt(0),
            Mischief::Corrupt(12),
            Mischief::Silence,
            Mischief::Refuse,
        ] {
            proxy.turn(mischief);
            let (answer, took) = timed(embed(&fleet, &large())).await;
            let is_right = answer.status == 200 && agree(&answer.body, &here);
            assert!(
                is_right || matches!(answer.status, 502..=504),
                "{mischief:?}: {}",
                answer.status
            );
            assert!(may_be_shown(&answer), "{mischief:?}: {}", answer.body);
            assert!(took < time + MAX_DELAY, "{mischief:?}: {took:?}");
            if matches!(mischief, Mischief::Delay(_) | Mischief::Drip) {
                assert!(is_right, "{mischief:?} only delays: {}", answer.body);
            }
            let answer = embed(&auto, &large()).await;
            assert!(
                answer.status == 200 && agree(&answer.body, &here),
                "{mischief:?}: {}",
                answer.body
            );
        }
        // Without faults, requests succeed again.
        proxy.turn(Mischief::None);
        let started = Instant::now();
        while embed(&fleet, &small()).await.status != 200 {
            assert!(
                started.elapsed() < LONG,
                "{scheme}: requests fail without a fault"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Over TLS corruption is detected wherever it occurs, and servers without a trusted certificate are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_detects_corruption() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let (certificate, key) = (tls("server.pem"), tls("server.key"));
    let options = [
        "--grpc-use-ssl=true".to_owned(),
        format!("--grpc-server-cert={}", certificate.display()),
        format!("--grpc-server-key={}", key.display()),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let triton = Triton::start_at(&stage.packages, &stage.repository, free_ports(), &options);
    let https = TlsEnd::start(triton.http).await;
    let here = embed(&stage.here(), &large()).await.body;
    for (scheme, port) in [("https", https.port), ("grpcs", triton.grpc)] {
        let proxy = Proxy::start(port, Mischief::None).await;
        let urls = vec![format!("{scheme}://127.0.0.1:{}", proxy.port)];
        let config = |ca| Config {
            models: vec![ModelConfig {
                policy: Some(Policy::Fleet),
                remote: Some(REMOTE.into()),
                ..ModelConfig::from(stage.bundle.clone())
            }],
            fleet: FleetConfig {
                urls: urls.clone(),
                ca,
                ..FleetConfig::default()
            },
            limits: Limits {
                timeout_ms: 3_000,
                ..Limits::default()
            },
            ..crate::models::config()
        };
        let trusting = app(&config(Some(tls("authority.pem"))));
        let answer = embed(&trusting, &large()).await;
        assert!(
            answer.status == 200 && agree(&answer.body, &here),
            "{scheme}: {}",
            answer.body
        );
        assert_eq!(
            embed(&app(&config(None)), &small()).await.status,
            503,
            "{scheme}: the certificate is not trusted"
        );
        for place in [0, 7, 100, 800, 2_000] {
            proxy.turn(Mischief::Corrupt(place));
            let answer = embed(&trusting, &large()).await;
            let is_right = answer.status == 200 && agree(&answer.body, &here);
            assert!(
                is_right || matches!(answer.status, 502..=504),
                "{scheme} {place}: {}",
                answer.status
            );
        }
    }
}

/// Connections are reused, and a connection that was lost between requests causes no errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_reused_and_replaced() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    for (scheme, port) in [("http", triton.http), ("grpc", triton.grpc)] {
        let proxy = Proxy::start(port, Mischief::None).await;
        let url = [format!("{scheme}://127.0.0.1:{}", proxy.port)];
        let app = stage.app(Policy::Fleet, &url, LONG);
        let at_start = proxy.connections();
        for _ in 0..10 {
            assert_eq!(embed(&app, &small()).await.status, 200);
            // The connection returns to the pool shortly after the response.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let made = proxy.connections() - at_start;
        assert!(
            (1..=2).contains(&made),
            "{scheme}: {made} connections for 10 requests"
        );
        // Simulates a frozen function: the connection was closed without notice.
        proxy.turn(Mischief::CutAfter(0));
        let _ = embed(&app, &small()).await;
        proxy.turn(Mischief::None);
        let started = Instant::now();
        while embed(&app, &small()).await.status != 200 {
            assert!(started.elapsed() < LONG);
        }
    }
}

/// Small requests run in this process, large ones on the fleet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_chooses_by_the_work() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    let app = stage.app(Policy::Auto, &triton.urls()[..1], LONG);
    let answer = embed(&app, &small()).await;
    assert_eq!((answer.status, answer.backend()), (200, "native"));
    let answer = embed(&app, &large()).await;
    assert_eq!((answer.status, answer.backend()), (200, "triton"));
    let by_token = post(&app, "/embed_all", &large()).await;
    assert_eq!(
        (by_token.status, by_token.backend()),
        (200, "native"),
        "the model on the fleet returns one vector per text"
    );
}

/// Measured speed outweighs assumed speed: large requests no longer run on a fleet that is slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_leaves_a_slow_fleet() {
    let Some(stage) = Stage::set(&[("delay", "0.5")], "") else {
        return;
    };
    let triton = stage.triton();
    let app = stage.app(Policy::Auto, &triton.urls()[1..], LONG);
    let mut backends = Vec::new();
    for _ in 0..5 {
        let answer = embed(&app, &large()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        backends.push(answer.backend().to_owned());
    }
    assert_eq!(backends, ["triton", "native", "native", "native", "native"]);
}

/// The only server becomes much slower than its earlier responses: its requests still succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_becomes_slow_is_not_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let slow = folder.path().join("slow");
    let Some(stage) = Stage::set(&[("slow", slow.to_str().unwrap())], "") else {
        return;
    };
    let triton = stage.triton();
    let apps = triton
        .urls()
        .map(|url| stage.app(Policy::Fleet, &[url], LONG));
    for app in &apps {
        for _ in 0..3 {
            assert_eq!(embed(app, &small()).await.status, 200);
        }
    }
    fs::write(&slow, "").unwrap();
    for app in &apps {
        let asked = small();
        let answers = join_all((0..2).map(|_| timed(embed(app, &asked)))).await;
        assert!(failed(&answers).is_empty(), "{:#?}", failed(&answers));
        let (answer, took) = timed(embed(app, &asked)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(
            took < Duration::from_millis(2500),
            "expected one attempt with more time, but it took {took:?}"
        );
    }
}

/// A model that runs only on the fleet needs no graph. Without a fleet it cannot be served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_without_its_graph_runs_on_the_fleet() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    let expected = embed(&stage.here(), &large()).await.body;
    for name in ["model.onnx", "weights.bin"] {
        let _ = fs::remove_file(stage.bundle.join(name));
    }
    let app = stage.app(Policy::Fleet, &triton.urls()[1..], LONG);
    let answer = embed(&app, &large()).await;
    assert!(
        answer.status == 200 && agree(&answer.body, &expected),
        "{}",
        answer.body
    );
    let error = refusal(&stage.bundle, Some(Policy::Fleet), FleetConfig::default());
    insta::assert_snapshot!(error, @"expected servers for `feature-extraction`, whose policy needs a fleet, but found none; set `fleet.urls`");
    let all = FleetConfig {
        policy: Policy::Fleet,
        ..FleetConfig::default()
    };
    assert_eq!(refusal(&stage.bundle, None, all), error);
}

fn refusal(bundle: &Path, policy: Option<Policy>, fleet: FleetConfig) -> String {
    let models = vec![ModelConfig {
        policy,
        ..ModelConfig::from(bundle.to_owned())
    }];
    kivu::model::Model::open_all(
        &Config {
            models,
            fleet,
            ..crate::models::config()
        },
        &kivu::cloud::Cloud::default(),
    )
    .unwrap_err()
    .to_string()
}

/// The fleet fails and recovers repeatedly, and half the clients disconnect early: the others get right responses, and
/// disconnected clients do not occupy the request limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_flaps_while_callers_leave() {
    let Some(stage) = Stage::set(&[], "") else {
        return;
    };
    let triton = stage.triton();
    let proxy = Proxy::start(triton.http, Mischief::None).await;
    let expected = embed(&stage.here(), &large()).await.body;
    let urls = [format!("http://127.0.0.1:{}", proxy.port)];
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    const ROOM: usize = 8;
    let limits = Limits {
        requests: ROOM,
        timeout_ms: LONG.as_millis() as u64,
        ..Limits::default()
    };
    let models = vec![model(&stage.bundle, Policy::Auto, REMOTE, &urls)];
    let app = app(&Config {
        models,
        limits,
        ..crate::models::config()
    });
    let asked = large();
    let flapping = async {
        for turn in 0..20 {
            proxy.turn(match turn % 5 {
                0 => Mischief::Refuse,
                1 | 3 => Mischief::None,
                2 => Mischief::CutAfter(200),
                _ => Mischief::Silence,
            });
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let (answers, (), first, second) = tokio::join!(
        load(&app, &asked, 2, Duration::from_secs(4)),
        flapping,
        leave(&app, &asked, 1),
        leave(&app, &asked, 7)
    );
    assert!(first > 20 && second > 20, "{first} and {second} left");
    assert!(
        !answers.is_empty() && failed(&answers).is_empty(),
        "{:#?}",
        failed(&answers)
    );
    assert!(
        answers
            .iter()
            .all(|(answer, _)| agree(&answer.body, &expected))
    );
    // The whole request limit is available again.
    let again = join_all((0..ROOM).map(|_| embed(&app, &asked))).await;
    assert!(again.iter().all(|answer| answer.status == 200));
}

/// Sends requests and disconnects before the response is complete. Returns the request count.
async fn leave(app: &Router, asked: &Value, soonest: u64) -> u64 {
    let until = Instant::now() + Duration::from_secs(4);
    let mut left = 0;
    while Instant::now() < until {
        let timeout = Duration::from_millis(soonest + 3 * (left % 11));
        // The response may be complete already.
        let _ = tokio::time::timeout(timeout, embed(app, asked)).await;
        left += 1;
    }
    left
}
