//! A second server gets what takes unusually long at the first: two ways to the real server, one of which turns slow.

use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use kivu::{
    config::{Config, FleetConfig, ModelConfig, Policy},
    telemetry::Embedded,
};
use serde_json::json;

use super::{
    agree, app,
    faults::{REMOTE, Stage},
    post,
    proxy::{Mischief, Proxy},
};

const SLOW: Duration = Duration::from_millis(400);
const REQUESTS: usize = 60;

fn hedged_app(stage: &Stage, urls: &[String], hedge: bool) -> Router {
    let models = vec![ModelConfig {
        policy: Some(Policy::Fleet),
        remote: Some(REMOTE.into()),
        ..ModelConfig::from(stage.bundle.clone())
    }];
    let fleet = FleetConfig { urls: urls.to_vec(), hedge, ..FleetConfig::default() };
    app(&Config { models, fleet, ..Config::default() })
}

/// How long each of some requests takes, one after the other.
async fn ask(app: &Router, count: usize) -> Vec<Duration> {
    let body = json!({ "inputs": "a short text" });
    let expected = post(app, "/embed", &body).await;
    let mut times = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        let answer = post(app, "/embed", &body).await;
        times.push(started.elapsed());
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(agree(&answer.body, &expected.body));
    }
    times
}

fn slow(times: &[Duration]) -> usize {
    times.iter().filter(|time| **time >= SLOW).count()
}

/// On one thread, since what is counted goes to the recorder of the thread.
#[tokio::test]
async fn one_slow_server_of_two_slows_nobody_down() {
    let Some(stage) = Stage::set(&[], "") else { return };
    let triton = stage.triton();
    for (scheme, port) in [("http", triton.http), ("grpc", triton.grpc)] {
        let ways = [Proxy::start(port, Mischief::None).await, Proxy::start(port, Mischief::None).await];
        let urls = ways.each_ref().map(|way| format!("{scheme}://127.0.0.1:{}", way.port));
        let (plain, hedged) = (hedged_app(&stage, &urls, false), hedged_app(&stage, &urls, true));
        let embedded = Embedded::new("kivu-test");
        let _recorder = metrics::set_default_local_recorder(&embedded);
        // What is usual has to be known first.
        ask(&hedged, 40).await;
        let _ = embedded.lines(SystemTime::now());
        ways[0].turn(Mischief::Delay(SLOW));
        let without = ask(&plain, 6).await;
        assert!(slow(&without) >= 2, "{scheme}: every other request should be slow: {without:?}");
        let _ = embedded.lines(SystemTime::now());

        let times = ask(&hedged, REQUESTS).await;
        assert!(slow(&times) <= 1, "{scheme}: {times:?}");
        let line = embedded.lines(SystemTime::now()).remove(0);
        let count = |name: &str| line[name].as_f64().unwrap_or_default();
        assert!(count("FleetHedgesWon") >= 1.0, "{scheme}: {line:#}");
        assert!(
            count("FleetHedges") <= REQUESTS as f64 / 2.0,
            "{scheme}: the slow one is asked less: {line:#}"
        );
        assert!(count("FleetRequests0Abandoned") >= count("FleetHedgesWon"), "{scheme}: {line:#}");

        // Slow for good: hedges neither come later and later nor run out, also where many ask at once.
        let body = json!({ "inputs": "a short text" });
        let mut times = Vec::new();
        for _ in 0..40 {
            let started = Instant::now();
            let answers = (0..4).map(|_| async { (post(&hedged, "/embed", &body).await, started.elapsed()) });
            let answers = futures::future::join_all(answers).await;
            assert!(answers.iter().all(|(answer, _)| answer.status == 200));
            times.extend(answers.into_iter().map(|(_, took)| took));
        }
        assert!(slow(&times) <= times.len() / 20, "{scheme}: {times:?}");
    }
}
