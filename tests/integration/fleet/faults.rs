//! What becomes of requests when servers fail: the real server is stopped, killed, frozen, moved, made to answer
//! errors, and put behind a proxy that spoils what it says. Nothing hangs, nothing is answered wrongly, and no
//! message tells more than it should.

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
    server::{Served, Triton, bundle, free_ports, packages, parameters},
};
use crate::models::runtime;

/// The model of these tests: an embedding model as 004 has it, without the tokenizer before it.
pub(crate) const REMOTE: &str = "embedding_model";

/// A repository with that model, and the bundle that it was made of.
pub(crate) struct Stage {
    _folder: TempDir,
    pub(crate) packages: PathBuf,
    pub(crate) repository: PathBuf,
    pub(crate) bundle: PathBuf,
}

impl Stage {
    /// Nothing where there is no Triton or no ONNX Runtime.
    pub(crate) fn set(options: &[(&str, &str)], more: &str) -> Option<Self> {
        let (packages, runtime) = (packages()?, runtime()?);
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("repository");
        fs::create_dir(&repository).unwrap();
        let bundle = bundle(Task::FeatureExtraction, "tiny-bert", folder.path(), runtime);
        let more = parameters(&[&[("pooling", "mean")], options].concat()) + more;
        let served = Served { name: REMOTE, program: Some("graph.py"), bundle: Some(&bundle), more: &more };
        served.write(&repository);
        Some(Self { _folder: folder, packages, repository, bundle })
    }

    pub(crate) fn triton(&self) -> Triton {
        Triton::start(&self.packages, &self.repository)
    }

    fn here(&self) -> Router {
        app_of(ModelConfig::from(self.bundle.clone()))
    }

    /// The model on the servers at `urls`, each request with so much time.
    pub(super) fn app(&self, policy: Policy, urls: &[String], time: Duration) -> Router {
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let limits = Limits { timeout_ms: time.as_millis() as u64, ..Limits::default() };
        app(&Config { models: vec![model(&self.bundle, policy, REMOTE, &urls)], limits, ..Config::default() })
    }
}

pub(super) const PATIENT: Duration = Duration::from_secs(20);

/// Enough texts that `auto` sends them to the fleet.
fn large() -> Value {
    let texts: Vec<String> =
        (0..40).map(|number| format!("text {number} about a long way to go and on")).collect();
    json!({ "inputs": texts })
}

fn small() -> Value {
    json!({ "inputs": ["a short text"] })
}

async fn embed(app: &Router, body: &Value) -> Answer {
    post(app, "/embed", body).await
}

/// A message must not tell where servers are or how they are made.
fn is_fit_to_be_told(answer: &Answer) -> bool {
    let text = answer.body.to_string();
    ["127.0.0.1", "://", "/tmp", "Traceback", ".py"].iter().all(|part| !text.contains(part))
}

async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    (work.await, started.elapsed())
}

/// Asks `app` from `callers` sides for `time`; every answer with the time that it took.
async fn load(app: &Router, body: &Value, callers: usize, time: Duration) -> Vec<(Answer, Duration)> {
    let until = Instant::now() + time;
    let caller = || async move {
        let mut answers = Vec::new();
        while Instant::now() < until {
            answers.push(timed(embed(app, body)).await);
        }
        answers
    };
    join_all((0..callers).map(|_| caller())).await.into_iter().flatten().collect()
}

fn failed(answers: &[(Answer, Duration)]) -> Vec<String> {
    let failed = answers.iter().filter(|(answer, _)| answer.status != 200);
    failed.map(|(answer, took)| format!("{} {} after {took:?}", answer.status, answer.body)).collect()
}

/// Two servers under load; one is killed, frozen and killed for good: nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_servers_fails_under_load() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let (mut first, second) = (stage.triton(), stage.triton());
    let expected = embed(&stage.here(), &small()).await.body;
    for protocol in [0, 1] {
        let urls = [first.urls()[protocol].clone(), second.urls()[protocol].clone()];
        let app = stage.app(Policy::Fleet, &urls, PATIENT);
        let asked = small();
        let (answers, ()) = tokio::join!(load(&app, &asked, 8, Duration::from_secs(4)), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            first.signal("STOP");
            tokio::time::sleep(Duration::from_millis(1500)).await;
            first.signal("CONT");
        });
        assert!(failed(&answers).is_empty(), "frozen: {:#?}", failed(&answers));
        assert!(answers.iter().all(|(answer, _)| agree(&answer.body, &expected)));
        let (answers, ()) = tokio::join!(load(&app, &asked, 8, Duration::from_secs(2)), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            first.kill();
        });
        assert!(failed(&answers).is_empty(), "killed: {:#?}", failed(&answers));
        assert!(answers.iter().all(|(answer, _)| answer.backend() == "triton"));
        first = Triton::start_at(&stage.packages, &stage.repository, [first.http, first.grpc], &[]);
    }
}

/// The whole fleet goes under load: whoever has the model here answers here, and returns to the fleet later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_fleet_fails_under_load() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let mut triton = stage.triton();
    let here = embed(&stage.here(), &large()).await.body;
    let auto = stage.app(Policy::Auto, &[triton.urls()[1].clone()], PATIENT);
    let fleet = stage.app(Policy::Fleet, &triton.urls()[..1], PATIENT);
    let asked = large();
    let before = embed(&auto, &asked).await;
    assert_eq!((before.status, before.backend()), (200, "triton"), "{}", before.body);
    let (answers, ()) = tokio::join!(load(&auto, &asked, 4, Duration::from_secs(3)), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        triton.kill();
    });
    assert!(failed(&answers).is_empty(), "{:#?}", failed(&answers));
    assert!(answers.iter().all(|(answer, _)| agree(&answer.body, &here)));
    assert_eq!(answers.last().unwrap().0.backend(), "onnx");
    // Where it is not here, the answer says so, at once and no more than that.
    let (answer, took) = timed(embed(&fleet, &small())).await;
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.headers.contains_key("retry-after") && is_fit_to_be_told(&answer), "{}", answer.body);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // Back again, it is found again.
    let _triton = Triton::start_at(&stage.packages, &stage.repository, [triton.http, triton.grpc], &[]);
    let started = Instant::now();
    while embed(&fleet, &small()).await.status != 200 {
        assert!(started.elapsed() < PATIENT, "the server that came back is not asked");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Frozen: every request is answered, or told that its time is over, when it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_no_more_than_the_deadline() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let triton = stage.triton();
    let [http, grpc] = free_ports();
    let urls = triton.urls();
    let time = Duration::from_millis(1500);
    let apps = urls.each_ref().map(|url| stage.app(Policy::Fleet, std::slice::from_ref(url), time));
    let auto = stage.app(Policy::Auto, &urls[..1], Duration::from_secs(4));
    for app in apps.iter().chain([&auto]) {
        assert_eq!(embed(app, &large()).await.status, 200);
    }
    triton.signal("STOP");
    for app in &apps {
        let (answer, took) = timed(embed(app, &small())).await;
        assert!(matches!(answer.status, 503 | 504), "{}", answer.body);
        assert!(took < time + Duration::from_millis(50), "{took:?}");
        assert!(is_fit_to_be_told(&answer), "{}", answer.body);
    }
    let (answer, took) = timed(embed(&auto, &large())).await;
    assert_eq!((answer.status, answer.backend()), (200, "onnx"), "{} after {took:?}", answer.body);
    triton.signal("CONT");
    // Asked to stop it finishes; then it is elsewhere, at the second of its two places.
    triton.signal("TERM");
    let moved = Triton::start_at(&stage.packages, &stage.repository, [http, grpc], &[]);
    let both = stage.app(Policy::Fleet, &[urls[0].clone(), moved.urls()[0].clone()], PATIENT);
    for _ in 0..4 {
        let answer = embed(&both, &small()).await;
        assert_eq!((answer.status, answer.backend()), (200, "triton"), "{}", answer.body);
    }
}

/// A server that takes connections and never answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_answers_costs_no_more_than_the_deadline() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let silent = Proxy::start(free_ports::<1>()[0], Mischief::Silence).await;
    let nothing_there = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let time = Duration::from_millis(700);
    for scheme in ["http", "grpc"] {
        let url = format!("{scheme}://127.0.0.1:{}", nothing_there.local_addr().unwrap().port());
        let app = stage.app(Policy::Fleet, &[url], time);
        let asked = small();
        let answers = join_all((0..8).map(|_| timed(embed(&app, &asked)))).await;
        for (answer, took) in &answers {
            assert!(matches!(answer.status, 503 | 504), "{}", answer.body);
            assert!(*took < time + Duration::from_millis(50), "{scheme}: {took:?}");
        }
        assert!(answers.iter().any(|(answer, _)| answer.status == 504), "{scheme}");
    }
    drop(silent);
}

/// The server's own errors: a model that is not there, a version that is not there, shapes that do not fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_server_are_told_without_its_secrets() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let options = ["--model-control-mode=explicit", "--load-model=embedding_model"];
    let triton = Triton::start_at(&stage.packages, &stage.repository, free_ports(), &options);
    for url in triton.urls() {
        let app = stage.app(Policy::Fleet, std::slice::from_ref(&url), PATIENT);
        let expected = embed(&app, &small()).await;
        assert_eq!(expected.status, 200);

        let unknown = app_of(model(&stage.bundle, Policy::Fleet, "nobody", &[&url]));
        let answer = embed(&unknown, &small()).await;
        assert_eq!(answer.status, 503);
        assert!(
            is_fit_to_be_told(&answer) && answer.body.to_string().contains("`nobody`"),
            "{}",
            answer.body
        );

        let mut wrong_version = model(&stage.bundle, Policy::Fleet, REMOTE, &[&url]);
        wrong_version.version = Some("7".into());
        let answer = embed(&app_of(wrong_version), &small()).await;
        assert_eq!(answer.status, 503, "{}", answer.body);

        let unload = format!("/v2/repository/models/{REMOTE}/unload");
        assert!(triton.ask("POST", &unload).unwrap().contains("200"));
        let unloaded = |answer: &Answer| answer.status == 503 && is_fit_to_be_told(answer);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let answer = embed(&app, &small()).await;
        assert!(unloaded(&answer), "{} {}", answer.status, answer.body);
        let load = format!("/v2/repository/models/{REMOTE}/load");
        assert!(triton.ask("POST", &load).unwrap().contains("200"));
        let answer = embed(&app, &small()).await;
        assert_eq!((answer.status, agree(&answer.body, &expected.body)), (200, true), "{}", answer.body);
    }
}

/// Another model behind the same name: the new signature is read, or refused, but nothing is answered wrongly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_changes_is_noticed() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let options = ["--model-control-mode=explicit", "--load-model=embedding_model"];
    let triton = Triton::start_at(&stage.packages, &stage.repository, free_ports(), &options);
    let app = stage.app(Policy::Fleet, &triton.urls()[..1], PATIENT);
    let expected = embed(&app, &small()).await;
    assert_eq!(expected.status, 200);
    let config = stage.repository.join(REMOTE).join("config.pbtxt");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, before.replace("input_ids", "INPUT__0").replace("attention_mask", "INPUT__1"))
        .unwrap();
    let load = format!("/v2/repository/models/{REMOTE}/load");
    assert!(triton.ask("POST", &load).unwrap().contains("200"));
    let answers = [embed(&app, &small()).await, embed(&app, &small()).await];
    assert_eq!(answers[1].status, 200, "the signature is read again: {}", answers[1].body);
    assert!(agree(&answers[1].body, &expected.body));
    assert!(matches!(answers[0].status, 200 | 502) && is_fit_to_be_told(&answers[0]), "{}", answers[0].body);
}

/// More requests than the server's queue holds: those that it refuses come again, or go elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_waited_for() {
    let queue = "dynamic_batching { default_queue_policy { max_queue_size: 2 timeout_action: REJECT } }\n";
    let Some(stage) = Stage::set(&[("delay", "0.1")], "") else { return };
    let config = stage.repository.join(REMOTE).join("config.pbtxt");
    let text = fs::read_to_string(&config).unwrap();
    // Queues are those of models that batch.
    let text = text.replace("max_batch_size: 0", "max_batch_size: 1").replace("[ -1, -1 ]", "[ -1 ]");
    fs::write(&config, text.replace("[ -1, 32 ]", "[ 32 ]") + queue).unwrap();
    let triton = stage.triton();
    let url = &triton.urls()[1..];
    let fleet = stage.app(Policy::Fleet, url, PATIENT);
    let asked = small();
    let answers = join_all((0..12).map(|_| embed(&fleet, &asked))).await;
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(refused.iter().all(|answer| answer.status == 503 && is_fit_to_be_told(answer)));
    assert!(refused.len() < answers.len());
    for answer in &refused {
        assert!(answer.body.to_string().contains("queue"), "{}", answer.body);
    }
    let auto = stage.app(Policy::Auto, url, PATIENT);
    let asked = large();
    let answers = join_all((0..6).map(|_| embed(&auto, &asked))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "the rest runs here");
}

/// What lies between spoils what the server says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_spoils_answers_makes_none_wrong() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let triton = stage.triton();
    let here = embed(&stage.here(), &large()).await.body;
    let time = Duration::from_secs(3);
    for (scheme, port) in [("http", triton.http), ("grpc", triton.grpc)] {
        let proxy = Proxy::start(port, Mischief::None).await;
        let url = [format!("{scheme}://127.0.0.1:{}", proxy.port)];
        let (fleet, auto) = (stage.app(Policy::Fleet, &url, time), stage.app(Policy::Auto, &url, time));
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
            assert!(is_right || matches!(answer.status, 502..=504), "{mischief:?}: {}", answer.status);
            assert!(is_fit_to_be_told(&answer), "{mischief:?}: {}", answer.body);
            assert!(took < time + Duration::from_millis(50), "{mischief:?}: {took:?}");
            if matches!(mischief, Mischief::Delay(_) | Mischief::Drip) {
                assert!(is_right, "{mischief:?} only takes longer: {}", answer.body);
            }
            let answer = embed(&auto, &large()).await;
            assert!(answer.status == 200 && agree(&answer.body, &here), "{mischief:?}: {}", answer.body);
        }
        // Once the line is good again, so are the answers.
        proxy.turn(Mischief::None);
        let started = Instant::now();
        while embed(&fleet, &small()).await.status != 200 {
            assert!(started.elapsed() < PATIENT, "{scheme}: the line is good, but nobody uses it");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Over TLS a damaged answer is never taken for a right one, wherever it is damaged; and nobody is trusted that
/// the configuration does not name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_keeps_answers_whole() {
    let Some(stage) = Stage::set(&[], "") else { return };
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
            fleet: FleetConfig { urls: urls.clone(), ca, ..FleetConfig::default() },
            limits: Limits { timeout_ms: 3_000, ..Limits::default() },
            ..Config::default()
        };
        let trusting = app(&config(Some(tls("authority.pem"))));
        let answer = embed(&trusting, &large()).await;
        assert!(answer.status == 200 && agree(&answer.body, &here), "{scheme}: {}", answer.body);
        assert_eq!(embed(&app(&config(None)), &small()).await.status, 503, "{scheme}: nobody vouches for it");
        for place in [0, 7, 100, 800, 2_000] {
            proxy.turn(Mischief::Corrupt(place));
            let answer = embed(&trusting, &large()).await;
            let is_right = answer.status == 200 && agree(&answer.body, &here);
            assert!(is_right || matches!(answer.status, 502..=504), "{scheme} {place}: {}", answer.status);
        }
    }
}

/// Connections are kept from request to request, and one that was lost meanwhile costs nobody an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_kept_and_made_again() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let triton = stage.triton();
    for (scheme, port) in [("http", triton.http), ("grpc", triton.grpc)] {
        let proxy = Proxy::start(port, Mischief::None).await;
        let url = [format!("{scheme}://127.0.0.1:{}", proxy.port)];
        let app = stage.app(Policy::Fleet, &url, PATIENT);
        let at_start = proxy.connections();
        for _ in 0..10 {
            assert_eq!(embed(&app, &small()).await.status, 200);
            // The connection goes back into its pool shortly after the answer is there.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(proxy.connections(), at_start + 1, "{scheme}");
        // As after a freeze: the other side is gone, and nobody was awake to hear of it.
        proxy.turn(Mischief::CutAfter(0));
        let _ = embed(&app, &small()).await;
        proxy.turn(Mischief::None);
        let started = Instant::now();
        while embed(&app, &small()).await.status != 200 {
            assert!(started.elapsed() < PATIENT);
        }
    }
}

/// Small work runs here, large work there, and each answer says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_chooses_by_the_work() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let triton = stage.triton();
    let app = stage.app(Policy::Auto, &triton.urls()[..1], PATIENT);
    let answer = embed(&app, &small()).await;
    assert_eq!((answer.status, answer.backend()), (200, "onnx"));
    let answer = embed(&app, &large()).await;
    assert_eq!((answer.status, answer.backend()), (200, "triton"));
    let by_token = post(&app, "/embed_all", &large()).await;
    assert_eq!((by_token.status, by_token.backend()), (200, "onnx"), "the fleet gives one vector a text");
}

/// What was measured counts for more than what was assumed: large work leaves a fleet that turns out slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_leaves_a_slow_fleet() {
    let Some(stage) = Stage::set(&[("delay", "0.5")], "") else { return };
    let triton = stage.triton();
    let app = stage.app(Policy::Auto, &triton.urls()[1..], PATIENT);
    let mut backends = Vec::new();
    for _ in 0..5 {
        let answer = embed(&app, &large()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        backends.push(answer.backend().to_owned());
    }
    assert_eq!(backends, ["triton", "onnx", "onnx", "onnx", "onnx"]);
}

/// A model that is on the fleet only needs no graph; without a fleet it cannot be served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_without_its_graph_runs_on_the_fleet() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let triton = stage.triton();
    let expected = embed(&stage.here(), &large()).await.body;
    for name in ["model.onnx", "weights.bin"] {
        let _ = fs::remove_file(stage.bundle.join(name));
    }
    let app = stage.app(Policy::Fleet, &triton.urls()[1..], PATIENT);
    let answer = embed(&app, &large()).await;
    assert!(answer.status == 200 && agree(&answer.body, &expected), "{}", answer.body);
    let error = refusal(&stage.bundle, Policy::Fleet, FleetConfig::default());
    insta::assert_snapshot!(error, @"expected servers for `feature-extraction`, whose policy needs a fleet, but found none; set `fleet.urls`");
}

fn refusal(bundle: &Path, policy: Policy, fleet: FleetConfig) -> String {
    let models = vec![ModelConfig { policy: Some(policy), ..ModelConfig::from(bundle.to_owned()) }];
    kivu::model::Model::open_all(&Config { models, fleet, ..Config::default() }).unwrap_err().to_string()
}

/// The fleet comes and goes, and half of the callers leave before they are answered: the others get their answers, all
/// of them right, and those who left take no place with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_flaps_while_callers_leave() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let triton = stage.triton();
    let proxy = Proxy::start(triton.http, Mischief::None).await;
    let expected = embed(&stage.here(), &large()).await.body;
    let urls = [format!("http://127.0.0.1:{}", proxy.port)];
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    const ROOM: usize = 8;
    let limits = Limits { requests: ROOM, timeout_ms: PATIENT.as_millis() as u64, ..Limits::default() };
    let models = vec![model(&stage.bundle, Policy::Auto, REMOTE, &urls)];
    let app = app(&Config { models, limits, ..Config::default() });
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
    assert!(!answers.is_empty() && failed(&answers).is_empty(), "{:#?}", failed(&answers));
    assert!(answers.iter().all(|(answer, _)| agree(&answer.body, &expected)));
    // Every place is free again.
    let again = join_all((0..ROOM).map(|_| embed(&app, &asked))).await;
    assert!(again.iter().all(|answer| answer.status == 200));
}

/// Asks and leaves before the answer is whole, sooner or later; how often.
async fn leave(app: &Router, asked: &Value, soonest: u64) -> u64 {
    let until = Instant::now() + Duration::from_secs(4);
    let mut left = 0;
    while Instant::now() < until {
        let patience = Duration::from_millis(soonest + 3 * (left % 11));
        // Whether there was an answer already is all the same.
        let _ = tokio::time::timeout(patience, embed(app, asked)).await;
        left += 1;
    }
    left
}
