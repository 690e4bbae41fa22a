//! Functions that are restored from a snapshot: whole ones, with a runtime API that holds them back, and forks of this
//! process, which are as alike as environments from one snapshot.

use std::{
    collections::HashSet,
    io::{self, Read, Write},
    process::Command,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use kivu::{config::Limits, random};
use kivu_http::{App, make_key, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    built::compiled,
    models::{build_request, fixtures, request, runtime, serve},
    server::bundle,
    tools::{root, succeed},
};

const RESTORES: usize = 1000;
/// Seconds after which a fork ends that waits for a lock of another thread.
const LIFETIME_S: u32 = 20;

/// Hooks, their order and failures; credentials, connections and clocks; times to first responses.
#[test]
fn functions_are_restored_from_snapshots() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut check = Command::new("python3");
    check.current_dir(root()).arg("tests/lambda/restores.py");
    let (api, batch) = (compiled("api"), compiled("batch"));
    succeed(check.arg(api).arg(batch).arg(bundle));
}

/// What a process answers, and its random numbers: ids of a request and of a response, a seed, a jitter, and an API key.
fn answers(router: Router, model: &str) -> Value {
    let body =
        json!({ "texts": ["A hen lays eggs."], "input_type": "search_query", "model": model });
    let request = Request::post("/v2/embed").header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let response = router.oneshot(request).await.unwrap();
        let id = response.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let key = make_key("a").unwrap().0;
        let random = json!([id, body["id"], random::seed(), random::fraction(), key]);
        json!({ "random": random, "vectors": body["embeddings"] })
    })
}

/// The answers of a fork of this process.
#[expect(unsafe_code, reason = "a fork has only this thread")]
fn forked(router: &Router, model: &str) -> Value {
    let (mut answered, mut answering) = io::pipe().unwrap();
    // SAFETY: the C library's allocator can be used in a fork, no lock of another thread is, and a fork that waits for one
    // ends. It leaves without running anything of this process.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: sets a timer.
        unsafe { libc::alarm(LIFETIME_S) };
        let answers = answers(router.clone(), model).to_string();
        let is_written = answering.write_all(answers.as_bytes()).is_ok();
        // SAFETY: ends the fork.
        unsafe { libc::_exit(i32::from(!is_written)) };
    }
    drop(answering);
    let mut found = String::new();
    answered.read_to_string(&mut found).unwrap();
    let mut status = 0;
    // SAFETY: waits for the child, whose status it writes.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "{found}");
    serde_json::from_str(&found).unwrap()
}

#[test]
fn restored_processes_share_vectors_and_no_random_number() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-static");
    let out = folder.path().join("static");
    build_request(&request(source, out.clone(), None), runtime).unwrap();
    let model = serve(&out).unwrap();
    let name = model.name.clone();
    let router = router(App::new(vec![model], Limits::default()));
    // Generators of this process would have their seeds from here on.
    let first = answers(router.clone(), &name);
    let (vectors, mut random) = (&first["vectors"], vec![HashSet::new(); 5]);
    assert_eq!(vectors["float"].as_array().unwrap().len(), 1, "{first}");
    for restored in (0..RESTORES).map(|_| forked(&router, &name)) {
        assert_eq!(restored["vectors"], *vectors);
        for (seen, value) in random
            .iter_mut()
            .zip(restored["random"].as_array().unwrap())
        {
            assert!(seen.insert(value.to_string()), "{value} again");
        }
    }
    assert!(random.iter().all(|seen| seen.len() == RESTORES));
}
