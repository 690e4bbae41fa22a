//! Models that are loaded by their first request and leave when others need their memory.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, http::Request};
use futures::future::join_all;
use kivu::{
    backend::Deadline,
    cloud::Cloud,
    config::{Config, Limits, Load, ModelConfig},
    error::Error,
    model::{Catalog, Entry, ModelState},
    pipeline::Task,
    repository::{Bundle, bundle::MANIFEST, folder::Destination, manifest::Precision},
};
use kivu_http::{App, FetchModel, FetchProgress, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    messages::{answer, post},
    models::{build_request, fixtures, request, request_without_floor, runtime},
};

/// A folder of bundles, which are copies of two models.
struct Folder {
    built: tempfile::TempDir,
    bundles: tempfile::TempDir,
    bundle: Bundle,
    other: Bundle,
}

impl Folder {
    /// `None` without ONNX Runtime, which a build needs.
    fn new(names: &[&str]) -> Option<Self> {
        let (built, bundles) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let build = |name: &str| {
            let source = fixtures().join("models").join(name);
            let request = request(source, built.path().join(name), Some(Precision::Fp32));
            Some(build_request(&request, runtime()?).unwrap())
        };
        let (bundle, other) = (build("tiny-static")?, build("tiny-model2vec")?);
        let folder = Self {
            built,
            bundles,
            bundle,
            other,
        };
        names
            .iter()
            .for_each(|name| folder.add(name, &folder.bundle));
        Some(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bundles.path().join(name)
    }

    /// Adds a bundle with this name, or replaces it as `kivu build` does.
    fn add(&self, name: &str, bundle: &Bundle) {
        let hidden = self.path(&format!(".{name}"));
        fs::create_dir(&hidden).unwrap();
        write(bundle, name, &hidden);
        if self.path(name).exists() {
            self.remove(name);
        }
        fs::rename(hidden, self.path(name)).unwrap();
    }

    fn remove(&self, name: &str) {
        let gone = self.path(&format!(".gone-{name}"));
        fs::rename(self.path(name), &gone).unwrap();
        fs::remove_dir_all(gone).unwrap();
    }

    /// Memory for this many models.
    fn memory_for(&self, count: u64) -> u64 {
        let size = |bundle: &Bundle| {
            bundle
                .manifest()
                .files
                .iter()
                .map(|file| file.size)
                .sum::<u64>()
        };
        size(&self.bundle).max(size(&self.other)) * count
    }

    fn config(&self, max_memory: u64) -> Config {
        let models = vec![ModelConfig::from(self.bundles.path().to_owned())];
        let (load, max_memory) = (Load::OnDemand, Some(max_memory));
        Config {
            models,
            load,
            max_memory,
            ..crate::models::config()
        }
    }

    fn serve(&self, max_memory: u64) -> Server {
        Server::new(Catalog::open(&self.config(max_memory), &Cloud::default()).unwrap())
    }
}

fn write(bundle: &Bundle, name: &str, folder: &Path) {
    for file in &bundle.manifest().files {
        fs::copy(bundle.path(&file.name), folder.join(&file.name)).unwrap();
    }
    let mut manifest = bundle.manifest().clone();
    (manifest.name, manifest.aliases) = (name.to_owned(), Vec::new());
    fs::write(folder.join(MANIFEST), manifest.to_text().unwrap()).unwrap();
}

#[derive(Clone)]
struct Server {
    catalog: Arc<Catalog>,
    router: Router,
}

impl Server {
    fn new(catalog: Catalog) -> Self {
        let catalog = Arc::new(catalog);
        let router = router(App::of_catalog(Arc::clone(&catalog), Limits::default()));
        Self { catalog, router }
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, body) = answer(
            self.router
                .clone()
                .oneshot(post(path, body.to_string()))
                .await
                .unwrap(),
        )
        .await;
        (status.as_u16(), body)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let (status, body) = answer(self.router.clone().oneshot(request).await.unwrap()).await;
        (status.as_u16(), body)
    }

    /// The status, and the vector or the error.
    async fn embed(&self, model: &str) -> (u16, Value) {
        let (status, mut body) = self
            .post(
                "/v1/embeddings",
                json!({ "model": model, "input": "hello" }),
            )
            .await;
        match status {
            200 => {
                assert_eq!(body["model"], model);
                (status, body["data"][0]["embedding"].take())
            }
            _ => (status, body["error"]["message"].take()),
        }
    }

    async fn vector(&self, model: &str) -> Value {
        let (status, vector) = self.embed(model).await;
        assert_eq!(status, 200, "{vector}");
        vector
    }

    fn entry(&self, name: &str) -> Arc<Entry> {
        Arc::clone(
            self.catalog
                .entries()
                .iter()
                .find(|entry| entry.name == name)
                .unwrap(),
        )
    }

    fn loaded(&self) -> Vec<String> {
        let entries = self.catalog.entries();
        let loaded = entries
            .iter()
            .filter(|entry| entry.state() == ModelState::Loaded);
        loaded.map(|entry| entry.name.clone()).collect()
    }

    fn loads(&self, name: &str) -> u64 {
        self.entry(name).loads()
    }
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

/// Repeats `attempt` until it returns something.
async fn until<T, F: Future<Output = Option<T>>>(mut attempt: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it never happened"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_first_request_loads_a_model_and_others_wait_for_the_same_load() {
    let Some(folder) = Folder::new(&["a", "b"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(2));
    assert_eq!(server.loaded(), [""; 0], "nothing is loaded at start");
    assert_eq!(server.get("/health").await.0, 200);
    assert_eq!(
        server.get("/models").await.1["models"][0]["state"],
        "available"
    );
    let vectors = join_all((0..16).map(|_| server.embed("a"))).await;
    assert!(
        vectors
            .iter()
            .all(|found| found.0 == 200 && *found == vectors[0]),
        "{vectors:?}"
    );
    assert_eq!((server.loads("a"), server.loads("b")), (1, 0));
    let model = &server.get("/models").await.1["models"][0];
    assert_eq!(
        (&model["state"], &model["memory"]),
        (&json!("loaded"), &json!(server.entry("a").size()))
    );
    assert!(model["last_use"].as_f64().unwrap() > 1.7e9);
}

#[tokio::test]
async fn the_least_recently_used_model_leaves() {
    let Some(folder) = Folder::new(&["a", "b", "c"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(2));
    for model in ["a", "b"] {
        server.vector(model).await;
        // Last uses are counted in milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    server.vector("a").await;
    server.vector("c").await;
    assert_eq!(server.loaded(), ["a", "c"]);
    let (limit, used) = server.catalog.budget().unwrap();
    assert!(used <= limit, "{used} of {limit}");
}

#[tokio::test]
async fn requests_keep_the_model_that_they_use() {
    let Some(folder) = Folder::new(&["a", "b"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(1));
    let lease = server
        .catalog
        .lease(&server.entry("a"), soon())
        .await
        .unwrap()
        .unwrap();
    let waiting = Deadline::within(Duration::from_millis(50));
    let error = server
        .catalog
        .lease(&server.entry("b"), waiting)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "`b` was not loaded within the request's time; try again in a moment"
    );
    assert!(
        matches!(error, Error::Unavailable { .. }),
        "503 with `retry-after`"
    );
    // The model runs even after another one has taken its place.
    until(async || (server.entry("a").state() == ModelState::Available).then_some(())).await;
    let pipeline = lease.pipeline.embedding().unwrap();
    let input = vec![kivu::pipeline::Input::Text("hello".to_owned())];
    assert!(
        pipeline
            .embed(input, &crate::models::options(), soon())
            .await
            .is_ok()
    );
    assert_eq!(
        server.entry("b").state(),
        ModelState::Loading,
        "the memory is in use"
    );
    drop(lease);
    assert!(
        server
            .catalog
            .lease(&server.entry("b"), soon())
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(server.loaded(), ["b"]);
}

/// Two loads that wait for memory are as many as there are threads.
#[tokio::test]
async fn a_load_that_fits_does_not_wait_for_others() {
    let Some(folder) = Folder::new(&["a", "b", "c", "d"]) else {
        return;
    };
    let (source, out) = (
        fixtures().join("models/tiny-static"),
        folder.built.path().join("small"),
    );
    let request =
        request_without_floor(Task::FeatureExtraction, &source, out, Some(Precision::Int8));
    let small = build_request(&request, runtime().unwrap()).unwrap();
    folder.add("small", &small);
    let size: u64 = small.manifest().files.iter().map(|file| file.size).sum();
    assert!(size < folder.memory_for(1));
    let server = folder.serve(folder.memory_for(2) + size);
    let lease = async |name| {
        server
            .catalog
            .lease(&server.entry(name), soon())
            .await
            .unwrap()
            .unwrap()
    };
    let in_use = [lease("a").await, lease("b").await];
    let waiting = ["c", "d"].map(|name| {
        let server = server.clone();
        tokio::spawn(async move { server.embed(name).await })
    });
    for name in ["c", "d"] {
        until(async || (server.entry(name).state() == ModelState::Loading).then_some(())).await;
    }
    server.vector("small").await;
    assert!(
        ["c", "d"]
            .iter()
            .all(|name| server.entry(name).state() == ModelState::Loading)
    );
    drop(in_use);
    for embedded in waiting {
        let (status, vector) = embedded.await.unwrap();
        assert_eq!(status, 200, "{vector}");
    }
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_fails_alone_and_recovers() {
    let Some(folder) = Folder::new(&["a", "b"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(2));
    let weights = folder.bundle.manifest().files.iter().map(|file| &file.name);
    let weights = folder
        .path("a")
        .join(weights.max_by_key(|name| name.contains("weights")).unwrap());
    let intact = fs::read(&weights).unwrap();
    fs::write(&weights, &intact[1..]).unwrap();
    let failures = join_all((0..4).map(|_| server.embed("a"))).await;
    for (status, message) in failures {
        assert_eq!(status, 503);
        assert_eq!(
            message,
            "`a` cannot be loaded at the moment; the server's log has the cause"
        );
    }
    assert_eq!(server.get("/v2/models/a/ready").await.0, 503);
    assert_eq!(
        server.get("/models").await.1["models"][0]["state"],
        "failed"
    );
    server.vector("b").await;
    fs::write(&weights, intact).unwrap();
    until(async || (server.embed("a").await.0 == 200).then_some(())).await;
    assert_eq!(
        server.catalog.budget().unwrap().1,
        folder.memory_for(1).min(server.entry("a").size()) * 2
    );
}

#[tokio::test]
async fn changed_bundles_are_served_without_a_restart_and_never_half() {
    let Some(folder) = Folder::new(&["a", "b"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(2));
    let first = server.vector("a").await;
    folder.add("a", &folder.other);
    let second = until(async || {
        server.catalog.tend();
        let found = server.vector("a").await;
        (found != first).then_some(found)
    })
    .await;
    folder.add("new", &folder.bundle);
    // An unknown name is looked for at once.
    until(async || (server.embed("new").await.0 == 200).then_some(())).await;
    folder.remove("b");
    let (status, message) = until(async || {
        server.catalog.tend();
        let found = server.embed("b").await;
        (found.0 != 200).then_some(found)
    })
    .await;
    assert_eq!(
        (status, message),
        (404, json!("unknown model `b`; known models: `a`, `new`"))
    );
    assert_eq!(
        (server.vector("a").await, server.vector("new").await),
        (second, first)
    );
}

/// Exchanges the bundles in a folder, as `kivu build` does, until it is dropped.
struct Exchanges {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exchanges {
    fn start(place: &Path, bundles: [Bundle; 2]) -> Self {
        let destination = Destination::new(place).unwrap();
        // Hidden, like a build's scratch folder.
        let new = destination.parent().join(".new");
        let is_over = Arc::<AtomicBool>::default();
        let stops = Arc::clone(&is_over);
        let work = move || {
            for bundle in bundles.iter().cycle() {
                if stops.load(Ordering::Relaxed) {
                    break;
                }
                fs::create_dir(&new).unwrap();
                write(bundle, "a", &new);
                destination.replace(&new).unwrap();
                // Longer than the clock's resolution: bundles differ in the time of their manifests.
                thread::sleep(Duration::from_millis(10));
            }
        };
        Self {
            is_over,
            thread: Some(thread::spawn(work)),
        }
    }
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_is_replaced_while_it_loads_is_looked_for_again() {
    let Some(folder) = Folder::new(&["a"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(2));
    let exchanges = Exchanges::start(
        &folder.path("a"),
        [folder.other.clone(), folder.bundle.clone()],
    );
    for round in 0..300 {
        for entry in server.catalog.entries().iter() {
            server.catalog.unload(entry);
        }
        let (status, found) = server.embed("a").await;
        assert_eq!(status, 200, "round {round}: {found}");
    }
    drop(exchanges);
    // A damaged bundle still fails.
    for file in &folder.bundle.manifest().files {
        fs::write(folder.path("a").join(&file.name), "damaged").unwrap();
    }
    until(async || {
        server.catalog.tend();
        (server.embed("a").await.0 == 503).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_model_that_was_written_to_is_loaded_again() {
    let Some(folder) = Folder::new(&["a"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(1));
    server.vector("a").await;
    for file in &folder.bundle.manifest().files {
        let path = folder.path("a").join(&file.name);
        fs::write(&path, fs::read(&path).unwrap()).unwrap();
    }
    server.catalog.tend();
    assert_eq!(server.loaded(), [""; 0]);
    server.vector("a").await;
    assert_eq!(server.loads("a"), 2);
}

#[tokio::test]
async fn a_model_above_the_budget_is_refused() {
    let Some(folder) = Folder::new(&["a"]) else {
        return;
    };
    let server = folder.serve(1000);
    let (status, message) = server.embed("a").await;
    assert_eq!(status, 500);
    assert_eq!(message, "internal error; the server's log has the cause");
}

#[tokio::test]
async fn a_memory_limit_needs_models_on_demand() {
    let config = Config {
        max_memory: Some(1),
        ..crate::models::config()
    };
    let error = Catalog::open(&config, &Cloud::default())
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(error, @r#"`max_memory` needs `load = "on-demand"`: models that are loaded at start stay loaded"#);
}

#[tokio::test]
async fn ollama_clients_see_and_choose_how_long_models_stay() {
    let Some(folder) = Folder::new(&["a", "b", "c"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(2));
    let embed = async |model: &str, keep_alive: Value| {
        let body = json!({ "model": model, "input": "hello", "keep_alive": keep_alive });
        let (status, body) = server.post("/api/embed", body).await;
        assert_eq!(status, 200, "{body}");
        body["load_duration"].as_u64().unwrap()
    };
    let running = async || {
        let (_, body) = server.get("/api/ps").await;
        let models = body["models"].as_array().unwrap().iter();
        models
            .map(|model| (model["name"].clone(), model["expires_at"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(running().await, []);
    assert!(embed("a", json!(-1)).await > 0);
    assert_eq!(embed("a", Value::Null).await, 0, "it is loaded");
    assert_eq!(
        running().await,
        [(json!("a"), json!("9999-12-31T23:59:59Z"))]
    );
    embed("b", json!("1h")).await;
    assert!(running().await[1].1.as_str().unwrap() < "9999");
    // `a` was used before `b`, but stays.
    embed("c", Value::Null).await;
    assert_eq!(server.loaded(), ["a", "c"]);
    embed("c", json!(0)).await;
    assert_eq!(server.loaded(), ["a"], "it leaves at once");
    embed("a", json!("0s")).await;
    assert_eq!(running().await, []);
    let (status, body) = server
        .post("/api/embed", json!({ "model": "a", "keep_alive": "soon" }))
        .await;
    assert_eq!(status, 422, "{body}");
    let (_, tags) = server.get("/api/tags").await;
    assert_eq!(
        tags["models"].as_array().unwrap().len(),
        3,
        "whether loaded or not"
    );
    // Without it, clients in Rust fail.
    assert!(tags["models"][0]["modified_at"].is_string(), "{tags}");
    let (_, shown) = server.post("/api/show", json!({ "model": "b" })).await;
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    assert_eq!(server.loaded(), [""; 0], "descriptions load nothing");
}

#[tokio::test]
async fn triton_clients_load_and_unload_models() {
    let Some(folder) = Folder::new(&["a", "b"]) else {
        return;
    };
    let server = folder.serve(folder.memory_for(2));
    let state = async |place: usize| {
        server.post("/v2/repository/index", json!({})).await.1[place]["state"].take()
    };
    assert_eq!(state(0).await, "UNAVAILABLE");
    assert_eq!(
        server.get("/v2/models/a/ready").await.0,
        200,
        "its first request loads it"
    );
    assert_eq!(
        server
            .post("/v2/repository/models/a/load", json!({}))
            .await
            .0,
        200
    );
    assert_eq!(
        (state(0).await, state(1).await),
        (json!("READY"), json!("UNAVAILABLE"))
    );
    let (_, ready) = server
        .post("/v2/repository/index", json!({ "ready": true }))
        .await;
    assert_eq!(
        ready,
        json!([{ "name": "a", "state": "READY", "version": "1" }])
    );
    assert_eq!(
        server
            .post("/v2/repository/models/a/unload", json!({}))
            .await
            .0,
        200
    );
    assert_eq!(server.loaded(), [""; 0]);
    assert_eq!(
        server
            .post("/v2/repository/models/x/load", json!({}))
            .await
            .0,
        404
    );
    let start = Config {
        load: Load::Start,
        max_memory: None,
        ..folder.config(1)
    };
    let server = Server::new(Catalog::open(&start, &Cloud::default()).unwrap());
    assert_eq!(
        server
            .post("/v2/repository/models/a/load", json!({}))
            .await
            .0,
        200,
        "it is always loaded"
    );
    let (status, body) = server
        .post("/v2/repository/models/a/unload", json!({}))
        .await;
    assert_eq!(status, 400);
    insta::assert_snapshot!(body["error"].as_str().unwrap(), @r#"expected a model that is loaded on demand, but `a` is always loaded; start the server with `load = "on-demand"`"#);
}

/// A request that kept all its models would wait for memory that it holds itself.
#[tokio::test]
async fn a_request_may_use_more_models_than_fit_into_memory() {
    let names = ["a", "b", "c", "d"];
    let Some(folder) = Folder::new(&names) else {
        return;
    };
    let server = folder.serve(folder.memory_for(1));
    let expected = server.vector("a").await;
    let instances = names.map(|name| json!({ "inputs": "hello", "model": name }));
    let (status, body) = server
        .post("/vertex", json!({ "instances": instances }))
        .await;
    assert_eq!(status, 200, "{body}");
    let vectors = body["predictions"].as_array().unwrap();
    assert_eq!(vectors.len(), names.len());
    assert!(
        vectors.iter().all(|vectors| vectors[0] == expected),
        "{vectors:?}"
    );
}

/// Fetches any model: the one in `folder`.
#[derive(Debug)]
struct Fetcher {
    bundle: Bundle,
    folder: PathBuf,
}

impl FetchModel for Fetcher {
    fn check(&self, name: &str) -> kivu::Result<()> {
        if name.starts_with("..") {
            return Err(Error::config(format!(
                "expected a model, but found `{name}`"
            )));
        }
        Ok(())
    }

    fn fetch(&self, name: &str, report: &(dyn Fn(FetchProgress) + Sync)) -> kivu::Result<PathBuf> {
        match name {
            "org/broken" => return Err(Error::config("expected `/secret/place`, but found none")),
            "org/gated" => return Err(Error::invalid("expected access to `org/gated`")),
            "org/panics" => panic!("a fault"),
            _ => {}
        }
        report(FetchProgress::Bytes {
            name: "model.safetensors".into(),
            total: 10,
            completed: 5,
        });
        let folder = self.folder.join(name.replace('/', "-"));
        fs::create_dir(&folder).unwrap();
        write(
            &self.bundle,
            if name == "org/other" { "a" } else { name },
            &folder,
        );
        Ok(folder)
    }
}

#[tokio::test]
async fn ollama_clients_pull_models_with_their_progress() {
    let Some(folder) = Folder::new(&["a"]) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let catalog =
        Arc::new(Catalog::open(&folder.config(folder.memory_for(2)), &Cloud::default()).unwrap());
    let fetcher = Fetcher {
        bundle: folder.bundle.clone(),
        folder: place.path().to_owned(),
    };
    let app = App {
        fetcher: Some(Arc::new(fetcher)),
        ..App::of_catalog(Arc::clone(&catalog), Limits::default())
    };
    let server = Server {
        catalog,
        router: router(app),
    };
    let pull = async |name: &str| {
        let (status, body) = server.post("/api/pull", json!({ "model": name })).await;
        assert_eq!(status, 200);
        // One line is JSON, several are text.
        body.as_str()
            .map_or_else(|| body.to_string(), |text| text.trim().to_owned())
    };
    insta::assert_snapshot!(pull("org/new").await, @r#"
    {"status":"pulling model.safetensors","digest":"model.safetensors","total":10,"completed":5}
    {"status":"success"}
    "#);
    server.vector("org/new").await;
    insta::assert_snapshot!(pull("org/new").await, @r#"{"status":"success"}"#);
    insta::assert_snapshot!(pull("org/broken").await, @r#"{"error":"`org/broken` could not be fetched; the server's log has the cause"}"#);
    insta::assert_snapshot!(pull("org/gated").await, @r#"{"error":"expected access to `org/gated`"}"#);
    insta::assert_snapshot!(pull("org/panics").await, @r#"{"error":"fetching the model failed; the server's log has the cause"}"#);
    let whole = json!({ "model": "org/panics", "stream": false });
    assert_eq!(
        server.post("/api/pull", whole).await,
        (
            500,
            json!({ "error": "fetching the model failed; the server's log has the cause", "error_type": "Backend" })
        )
    );
    // Another model has its name.
    let failed = pull("org/other").await;
    insta::assert_snapshot!(failed.lines().last().unwrap(), @r#"{"error":"`org/other` was fetched, but it cannot be served; the server's log has the cause"}"#);
    let body = json!({ "model": "org/broken", "stream": false });
    assert_eq!(server.post("/api/pull", body).await.0, 503);
    for stream in [true, false] {
        let (status, body) = server
            .post("/api/pull", json!({ "model": "../x", "stream": stream }))
            .await;
        assert_eq!(
            (status, body["error"].as_str()),
            (422, Some("expected a model, but found `../x`"))
        );
    }
    // Other servers have the models that they started with.
    let (status, body) = folder
        .serve(1000)
        .post("/api/pull", json!({ "name": "org/new" }))
        .await;
    assert_eq!(status, 422);
    insta::assert_snapshot!(body["error"].as_str().unwrap(), @"expected a model that this server has, but found `org/new`; `kivu serve --load on-demand` fetches others from the Hugging Face Hub");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_models_share_little_memory_without_mixing_up_requests() {
    let names: Vec<String> = (0..12).map(|number| format!("m{number}")).collect();
    let Some(folder) = Folder::new(&[]) else {
        return;
    };
    for (number, name) in names.iter().enumerate() {
        folder.add(
            name,
            if number % 2 == 0 {
                &folder.bundle
            } else {
                &folder.other
            },
        );
    }
    let (server, limit) = (folder.serve(folder.memory_for(3)), folder.memory_for(3));
    let expected = [server.vector("m0").await, server.vector("m1").await];
    assert_ne!(expected[0], expected[1]);
    let clients = (0..4_usize).map(|client| {
        let (server, names, expected) = (server.clone(), names.clone(), expected.clone());
        tokio::spawn(async move {
            for turn in 0..60 {
                let number = (turn * (2 * client + 3) + client) % names.len();
                assert_eq!(server.vector(&names[number]).await, expected[number % 2]);
                assert!(server.catalog.budget().unwrap().1 <= limit);
            }
        })
    });
    assert!(join_all(clients).await.iter().all(Result::is_ok));
}
