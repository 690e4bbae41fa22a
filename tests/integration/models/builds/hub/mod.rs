//! Models from the Hugging Face Hub: downloads from a server with its API, which the `huggingface_hub` package checks,
//! and models that are served by name.

mod named;
mod server;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use kivu::{
    config::{HubConfig, Secret, Variables},
    repository::Meter,
};
use kivu_compiler::library::hub::{self, Fetched};

use self::server::{COMMIT, Fault, HubServer, Seen, TOKEN, read_folder};
use crate::{
    flips::Flips,
    models::fixtures,
    tools::{root, succeed, tool},
};

/// A server's hub configuration, with short pauses and an empty cache.
fn config(server: &HubServer, cache: &Path) -> HubConfig {
    HubConfig {
        endpoint: server.url.clone(),
        cache: cache.to_owned(),
        timeout: Duration::from_secs(1),
        retry_pause: Duration::from_millis(1),
        ..HubConfig::new(&Variables::new())
    }
}

fn fetch(name: &str, config: &HubConfig) -> kivu::Result<Fetched> {
    hub::fetch(&name.parse()?, config, &())
}

fn tiny_bert() -> PathBuf {
    fixtures().join("models/tiny-bert")
}

fn server() -> HubServer {
    let server = HubServer::start();
    server.add("tests/tiny-bert", &tiny_bert());
    server
}

/// A cache's links and files, without its locks.
fn layout(cache: &Path) -> BTreeMap<String, String> {
    let (mut found, mut pending) = (BTreeMap::new(), vec![cache.to_owned()]);
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(cache).unwrap().display().to_string();
            if let Ok(target) = fs::read_link(&path) {
                found.insert(name, format!("-> {}", target.display()));
            } else if path.is_dir() {
                // Locks from both programs, and file lists that only Kivu stores.
                if !path.ends_with(".locks") && !path.ends_with(".kivu") {
                    pending.push(path);
                }
            } else {
                found.insert(
                    name,
                    format!("{} bytes", fs::metadata(&path).unwrap().len()),
                );
            }
        }
    }
    found
}

/// Downloads with `huggingface_hub` into a cache; with `offline`, from that cache alone.
fn python(server: &HubServer, cache: &Path, offline: bool) -> Option<Command> {
    let mut command = Command::new(tool("TEST_PYTHON")?);
    command
        .arg(root().join("tests/clients/download.py"))
        .arg("tests/tiny-bert");
    command
        .env("HF_ENDPOINT", &server.url)
        .env("HF_HUB_CACHE", cache);
    command.env("HF_HUB_OFFLINE", if offline { "1" } else { "0" });
    Some(command)
}

#[test]
fn the_cache_is_shared_with_huggingface_hub() {
    let server = server();
    let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let Some(mut download) = python(&server, theirs.path(), false) else {
        return;
    };
    succeed(&mut download);
    fetch("tests/tiny-bert", &config(&server, ours.path())).unwrap();
    let (mut expected, found) = (layout(theirs.path()), layout(ours.path()));
    let model = format!("models--tests--tiny-bert/snapshots/{COMMIT}/model.safetensors");
    assert!(found[&model].starts_with("-> ../../blobs/"), "{found:#?}");
    // Some package versions write a tag into each cache, and lock files.
    expected.retain(|name, _| name.starts_with("models--") && !name.ends_with(".lock"));
    assert_eq!(found, expected);

    succeed(&mut python(&server, ours.path(), true).unwrap());
    server.seen();
    let fetched = fetch("tests/tiny-bert", &config(&server, theirs.path())).unwrap();
    assert_eq!(server.seen().len(), 1, "only the list is downloaded again");
    assert_eq!(read_folder(&fetched.folder), read_folder(&tiny_bert()));

    // A download that Kivu began is completed by the package.
    let shared = tempfile::tempdir().unwrap();
    for length in [1000, 0, 0, 0, 0] {
        server.fail("model.safetensors", Fault::Cut(length));
    }
    let error = fetch("tests/tiny-bert", &config(&server, shared.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("found a closed connection after 1000; run the command again to resume"),
        "{error}"
    );
    server.seen();
    succeed(&mut python(&server, shared.path(), false).unwrap());
    assert!(
        server
            .seen()
            .iter()
            .any(|seen| seen.range.as_deref() == Some("bytes=1000-"))
    );
    assert_eq!(layout(shared.path())[&model], found[&model]);
}

/// The bytes that a download reports.
#[derive(Default)]
struct Bytes {
    total: AtomicU64,
    done: AtomicU64,
}

impl Meter for Bytes {
    fn begin(&self, _: &str, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn interrupted_downloads_are_resumed() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let size = fs::metadata(tiny_bert().join("model.safetensors"))
        .unwrap()
        .len();
    // More interruptions than attempts: interruptions after delivered bytes are not counted.
    for _ in 0..8 {
        server.fail("model.safetensors", Fault::Cut(1000));
    }
    server.fail("model.safetensors", Fault::Status(503, &[]));
    server.fail("revision/main", Fault::Status(500, &[]));
    server.fail("config.json", Fault::Status(429, &[("retry-after", "0")]));
    let meter = Bytes::default();
    let name = "tests/tiny-bert".parse().unwrap();
    let fetched = hub::fetch(&name, &config(&server, cache.path()), &meter).unwrap();
    assert_eq!(read_folder(&fetched.folder), read_folder(&tiny_bert()));
    assert_eq!(meter.total.into_inner(), meter.done.into_inner());
    let seen = server.seen();
    let ranges: Vec<_> = seen
        .iter()
        .filter(|seen| seen.path == "/tests/tiny-bert/model.safetensors")
        .map(|seen| &seen.range)
        .collect();
    assert_eq!(ranges[0], &None);
    assert_eq!(
        ranges.last().unwrap().as_deref(),
        Some("bytes=8000-"),
        "of {size} bytes"
    );

    // An earlier process was killed.
    let blob = fs::canonicalize(fetched.folder.join("model.safetensors")).unwrap();
    let bytes = fs::read(&blob).unwrap();
    let incomplete = blob.with_extension("incomplete");
    fs::remove_file(&blob).unwrap();
    for (kept, fault, range) in [
        (bytes[..500].to_vec(), None, Some("bytes=500-")),
        // A file with different contents is downloaded again.
        (vec![0; 500], None, None),
        (vec![0; bytes.len() + 1], None, None),
        // A server may ignore ranges.
        (
            bytes[..500].to_vec(),
            Some(Fault::Whole),
            Some("bytes=500-"),
        ),
    ] {
        fs::write(&incomplete, kept).unwrap();
        if let Some(fault) = fault {
            server.fail("model.safetensors", fault);
        }
        fetch("tests/tiny-bert", &config(&server, cache.path())).unwrap();
        assert_eq!(fs::read(&blob).unwrap(), bytes);
        let last = server
            .seen()
            .into_iter()
            .rfind(|seen| seen.path.ends_with("/model.safetensors"))
            .unwrap();
        assert_eq!(last.range.as_deref(), range);
        fs::remove_file(&blob).unwrap();
    }
}

#[test]
fn slow_connections_are_replaced() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    server.fail("model.safetensors", Fault::Drip);
    let mut config = config(&server, cache.path());
    fetch("tests/tiny-bert", &config).unwrap();
    // Each attempt delivers a few bytes; if no attempt delivers more, the download fails in the end.
    let other = tempfile::tempdir().unwrap();
    config.cache = other.path().to_owned();
    for _ in 0..5 {
        server.fail("tokenizer.json", Fault::Status(503, &[]));
    }
    let error = fetch("tests/tiny-bert", &config).unwrap_err().to_string();
    insta::assert_snapshot!(error.replace(&server.url, "[hub]"), @"expected a response from `[hub]` for `tests/tiny-bert`, but found the status 503 Service Unavailable; try again later");
}

#[test]
fn files_with_other_contents_are_refused() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    for file in ["model.safetensors", "tokenizer_config.json"] {
        server.fail(&format!("/{file}"), Fault::Corrupt);
        let error = fetch("tests/tiny-bert", &config(&server, cache.path()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!(
                "expected `{file}` of `tests/tiny-bert` to have the hash"
            )),
            "{error}"
        );
        let left = layout(cache.path());
        assert!(left.keys().all(|name| !name.ends_with(file)), "{left:?}");
        // Other small files are downloaded at the same time.
        let is_incomplete = left.keys().any(|name| name.ends_with(".incomplete"));
        assert!(!is_incomplete || file != "model.safetensors", "{left:?}");
        assert!(
            !left.contains_key("models--tests--tiny-bert/refs/main"),
            "{left:?}"
        );
        let _ = fs::remove_dir_all(cache.path().join("models--tests--tiny-bert"));
    }

    // A file that was changed in the cache is downloaded again, or refused without a connection.
    let mut config = config(&server, cache.path());
    let fetched = fetch("tests/tiny-bert", &config).unwrap();
    let model = fetched.folder.join("model.safetensors");
    let bytes = fs::read(&model).unwrap();
    let spoil = || {
        let mut bytes = bytes.clone();
        bytes[9999] ^= 1;
        fs::write(&model, bytes).unwrap();
    };
    spoil();
    fetch("tests/tiny-bert", &config).unwrap();
    assert_eq!(fs::read(&model).unwrap(), bytes);
    spoil();
    config.offline = true;
    let error = fetch("tests/tiny-bert", &config).unwrap_err().to_string();
    assert!(
        error.contains("model.safetensors` does not have the hash") && error.contains("; remove `"),
        "{error}"
    );
}

#[test]
fn the_token_is_sent_to_the_hub_only() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    server.add("tests/private", &tiny_bert());
    let mut config = config(&server, cache.path());
    config.token = Some(Secret(TOKEN.into()));
    fetch("tests/private", &config).unwrap();
    // The server for large files refuses tokens.
    let seen = server.seen();
    let of_hub = |seen: &&Seen| seen.path.starts_with("/api") || seen.path.contains("/resolve/");
    assert!(
        seen.iter().filter(of_hub).all(|seen| seen.has_token),
        "{seen:?}"
    );
    assert!(
        seen.iter().any(|seen| !seen.has_token),
        "large files are on another host"
    );
}

#[test]
fn errors_say_what_to_do() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    server
        .add("tests/gated", &tiny_bert())
        .add("tests/private", &tiny_bert());
    let without = config(&server, cache.path());
    let with = HubConfig {
        token: Some(Secret("hf_other".into())),
        ..without.clone()
    };
    let mut errors = Vec::new();
    let mut refused = |name: &str, config: &HubConfig| {
        let error = fetch(name, config).unwrap_err().to_string();
        errors.push(
            error
                .replace(&server.url, "[hub]")
                .replace(&cache.path().display().to_string(), "[cache]"),
        );
    };
    refused("tests/gated", &without);
    refused("tests/gated", &with);
    refused("tests/private", &without);
    refused("tests/nothing", &with);
    refused("tests/tiny-bert@v9", &without);
    server.fail(
        "revision/main",
        Fault::Status(429, &[("ratelimit", "\"api\";r=0;t=290")]),
    );
    refused("tests/tiny-bert", &without);
    server.fail(
        "revision/main",
        Fault::Status(
            401,
            &[(
                "x-error-message",
                "Invalid credentials in Authorization header",
            )],
        ),
    );
    refused("tests/tiny-bert", &with);
    server.fail(
        "revision/main",
        Fault::Status(
            403,
            &[("x-error-message", "Access to this resource is disabled.")],
        ),
    );
    refused("tests/tiny-bert", &without);
    refused(
        "tests/tiny-bert",
        &HubConfig {
            offline: true,
            ..without.clone()
        },
    );
    refused(
        "tests/tiny-bert",
        &HubConfig {
            endpoint: "http://127.0.0.1:1".into(),
            ..without
        },
    );
    assert_eq!(
        layout(cache.path()),
        BTreeMap::new(),
        "nothing is left behind"
    );
    insta::assert_snapshot!(errors.join("\n"), @"
    `tests/gated` is gated; accept its terms at [hub]/tests/gated and set HF_TOKEN
    `tests/gated` is gated; accept its terms at [hub]/tests/gated with HF_TOKEN's account
    expected a repository `tests/private` at `[hub]`, but found none that is public; check the name or, if it is private, set HF_TOKEN
    expected a repository `tests/nothing` at `[hub]`, but found none that is public; check the name or, if it is private, that HF_TOKEN's account can read it
    expected the revision `v9` of `tests/tiny-bert`, but found none; [hub]/tests/tiny-bert/tree/main lists them
    `[hub]` limits requests; try again in 290 s, or set HF_TOKEN, which raises the limit
    expected a valid token in HF_TOKEN or from `hf auth login`, but `[hub]` refused it; create one at [hub]/settings/tokens
    the hub has disabled `tests/tiny-bert`; choose another model
    no `tests/tiny-bert` in `[cache]`, and HF_HUB_OFFLINE is set; unset it to download the model
    expected a response from `http://127.0.0.1:1` for `tests/tiny-bert`, but found tcp connect error: Connection refused (os error 111); check the name and the connection, or set HF_HUB_OFFLINE=1 to use files that were downloaded earlier
    ");
}

#[test]
fn renamed_repositories_and_revisions_are_followed() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    server.rename("tests/old", "tests/tiny-bert");
    let config = config(&server, cache.path());
    for name in [
        "tests/old",
        "tests/tiny-bert@v1.0",
        "tests/tiny-bert@refs/pr/1",
    ] {
        let fetched = fetch(name, &config).unwrap();
        assert_eq!(fetched.commit, COMMIT);
        assert_eq!(
            read_folder(&fetched.folder),
            read_folder(&tiny_bert()),
            "{name}"
        );
    }
    let offline = HubConfig {
        offline: true,
        ..config.clone()
    };
    fetch("tests/tiny-bert@refs/pr/1", &offline).unwrap();
    fetch(&format!("tests/tiny-bert@{COMMIT}"), &offline).unwrap();
    // Without a connection, files that were downloaded earlier are used.
    let cut = HubConfig {
        endpoint: "http://127.0.0.1:1".into(),
        ..config
    };
    fetch("tests/tiny-bert@v1.0", &cut).unwrap();
}

#[test]
fn shards_adapters_and_exports_are_fetched() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let config = config(&server, cache.path());
    server.add(
        "tests/sharded",
        &fixtures().join("models/tiny-bert-sharded"),
    );
    let fetched = fetch("tests/sharded", &config).unwrap();
    assert!(
        fetched
            .folder
            .join("model-00002-of-00002.safetensors")
            .is_file()
    );

    let adapter = fixtures().join("models/tiny-bert-lora");
    server.add("tests/adapter", &adapter);
    let error = fetch("tests/adapter", &config).unwrap_err().to_string();
    assert!(
        error.contains(
            "to name the repository of its base model, but found `../tiny-bert-sentiment`"
        ),
        "{error}"
    );
    let mut files = read_folder(&adapter);
    let config_file = String::from_utf8(files["adapter_config.json"].clone()).unwrap();
    let config_file = config_file.replace("../tiny-bert-sentiment", "tests/sentiment");
    files.insert("adapter_config.json".into(), config_file.into());
    server.add_files("tests/adapter", files).add(
        "tests/sentiment",
        &fixtures().join("models/tiny-bert-sentiment"),
    );
    let fetched = fetch("tests/adapter", &config).unwrap();
    assert!(fetched.folder.join("model.safetensors").is_file());
    assert!(
        fetched
            .adapter
            .unwrap()
            .join("adapter_model.safetensors")
            .is_file()
    );
    assert!(fetched.origin.starts_with("tests/adapter@"));

    // Only one weight format is downloaded.
    let mut files = read_folder(&fixtures().join("exports/tiny-bert"));
    let graph = files.remove("model.onnx").unwrap();
    files.insert("onnx/model.onnx".into(), graph);
    files.insert("tf_model.h5".into(), vec![0; 10]);
    server.add_files("tests/export", files.clone());
    let fetched = fetch("tests/export", &config).unwrap();
    assert!(
        fetched.folder.join("onnx/model.onnx").is_file()
            && !fetched.folder.join("tf_model.h5").exists()
    );
    files.insert(
        "model.safetensors".into(),
        fs::read(tiny_bert().join("model.safetensors")).unwrap(),
    );
    server.add_files("tests/both", files);
    let fetched = fetch("tests/both", &config).unwrap();
    assert!(
        fetched.folder.join("model.safetensors").is_file() && !fetched.folder.join("onnx").exists()
    );
}

/// A cache with these files from `tests/tiny-bert`, as copies, as another program downloads them.
fn downloaded_by_others(cache: &Path, names: &[&str]) -> PathBuf {
    let repository = cache.join("models--tests--tiny-bert");
    let snapshot = repository.join("snapshots").join(COMMIT);
    for name in names {
        let path = snapshot.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(tiny_bert().join(name), path).unwrap();
    }
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    repository
}

const FOR_TRANSFORMERS: [&str; 4] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

#[test]
fn an_incomplete_cache_of_another_program_is_not_taken_for_the_model() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let online = config(&server, cache.path());
    let offline = HubConfig {
        offline: true,
        ..online.clone()
    };
    let repository = downloaded_by_others(cache.path(), &FOR_TRANSFORMERS);
    // The model has a `modules.json` with its pooling, which other programs do not download.
    let error = fetch("tests/tiny-bert", &offline).unwrap_err().to_string();
    let error = error
        .replace(&cache.path().display().to_string(), "[cache]")
        .replace(COMMIT, "[commit]");
    insta::assert_snapshot!(error, @"expected all files of `tests/tiny-bert` in `[cache]/models--tests--tiny-bert/snapshots/[commit]`, but found another program's download, which may have left out `modules.json`; connect to the hub once, or run `hf download tests/tiny-bert`");
    // `huggingface_hub` notes files that a repository does not have, and whole downloads have all.
    let absent = repository.join(".no_exist").join(COMMIT);
    fs::create_dir_all(&absent).unwrap();
    fs::write(absent.join("modules.json"), "").unwrap();
    let partial = fetch("tests/tiny-bert", &offline).unwrap();
    assert!(
        !partial.is_complete && partial.id != COMMIT,
        "other files may be missing: {partial:?}"
    );
    // With a connection, missing files are downloaded; then the commit identifies the model, offline too.
    let whole = fetch("tests/tiny-bert", &online).unwrap();
    assert!(whole.is_complete && whole.id == COMMIT);
    assert_eq!(read_folder(&whole.folder), read_folder(&tiny_bert()));
    assert_eq!(fetch("tests/tiny-bert", &offline).unwrap(), whole);
    // From then on, a missing file is an error.
    fs::remove_file(whole.folder.join("modules.json")).unwrap();
    let error = fetch("tests/tiny-bert", &offline).unwrap_err().to_string();
    assert!(
        error.contains("modules.json`, but found none; connect to the hub"),
        "{error}"
    );
    fetch("tests/tiny-bert", &online).unwrap();
    fs::remove_file(fs::canonicalize(whole.folder.join("1_Pooling/config.json")).unwrap()).unwrap();
    let error = fetch("tests/tiny-bert", &offline).unwrap_err().to_string();
    assert!(
        error.contains("1_Pooling/config.json`, but found a link to nothing"),
        "{error}"
    );
    // Without a list, a dangling link is an error as well.
    fs::remove_dir_all(repository.join(".kivu")).unwrap();
    let error = fetch("tests/tiny-bert", &offline).unwrap_err().to_string();
    assert!(error.contains("found a link to nothing"), "{error}");
    assert_eq!(fetch("tests/tiny-bert", &online).unwrap(), whole);
}

#[test]
fn a_damaged_cache_never_becomes_another_model() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let offline = HubConfig {
        offline: true,
        ..config(&server, cache.path())
    };
    let whole = fetch("tests/tiny-bert", &config(&server, cache.path())).unwrap();
    let expected = read_folder(&whole.folder);
    let repository = cache.path().join("models--tests--tiny-bert");
    let files: Vec<PathBuf> = ["blobs", "refs", ".kivu"]
        .iter()
        .flat_map(|name| {
            fs::read_dir(repository.join(name))
                .unwrap()
                .map(|entry| entry.unwrap().path())
        })
        .collect();
    let mut random = Flips::new();
    for flip in 0..Flips::count() {
        let path = &files[flip % files.len()];
        let bytes = fs::read(path).unwrap();
        let mut damaged = bytes.clone();
        random.flip(&mut damaged);
        fs::write(path, damaged).unwrap();
        if let Ok(found) = fetch("tests/tiny-bert", &offline) {
            // Files that no build needs may be damaged, and so may the list: then the files have no commit.
            assert!(
                read_folder(&found.folder) == expected && (found == whole || !found.is_complete),
                "{path:?}"
            );
        }
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn the_base_of_an_adapter_is_part_of_its_id() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let mut files = read_folder(&fixtures().join("models/tiny-bert-lora"));
    let settings = String::from_utf8(files["adapter_config.json"].clone()).unwrap();
    let settings = settings.replace("../tiny-bert-sentiment", "tests/sentiment");
    files.insert("adapter_config.json".into(), settings.into());
    server.add_files("tests/adapter", files).add(
        "tests/sentiment",
        &fixtures().join("models/tiny-bert-sentiment"),
    );
    let fetched = fetch("tests/adapter", &config(&server, cache.path())).unwrap();
    assert!(
        fetched.is_complete && fetched.id != fetched.commit,
        "{fetched:?}"
    );
}

#[test]
fn static_embeddings_are_fetched() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    for name in ["tiny-static", "tiny-model2vec"] {
        let folder = fixtures().join("models").join(name);
        server.add(&format!("tests/{name}"), &folder);
        let fetched = fetch(&format!("tests/{name}"), &config(&server, cache.path())).unwrap();
        assert_eq!(read_folder(&fetched.folder), read_folder(&folder), "{name}");
    }
}

/// GLiNER's published models have neither the tokenizer nor the config for their encoder.
#[test]
fn the_files_of_an_encoder_are_fetched_without_its_weights() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let config = config(&server, cache.path());
    let mut files = read_folder(&fixtures().join("models/tiny-gliner"));
    let pieces = files.remove("spm.model").unwrap();
    server.add_files("tests/whole", files.clone());
    assert_eq!(fetch("tests/whole", &config).unwrap().encoder, None);

    files.retain(|name, _| ["gliner_config.json", "model.safetensors"].contains(&name.as_str()));
    let mut settings: serde_json::Value =
        serde_json::from_slice(&files["gliner_config.json"]).unwrap();
    let encoder = settings["encoder_config"].take().to_string();
    settings["model_name"] = "tests/deberta".into();
    files.insert("gliner_config.json".into(), settings.to_string().into());
    server.add_files("tests/gliner", files);
    let files = [
        ("config.json", encoder.into()),
        ("spm.model", pieces),
        ("pytorch_model.bin", vec![0; 10]),
    ];
    let files: BTreeMap<String, Vec<u8>> = files
        .map(|(name, content)| (name.to_owned(), content))
        .into();
    server.add_files("tests/deberta", files);
    let fetched = fetch("tests/gliner", &config).unwrap();
    assert!(fetched.folder.join("model.safetensors").is_file());
    let encoder = fetched.encoder.clone().unwrap();
    assert!(encoder.join("spm.model").is_file() && !encoder.join("pytorch_model.bin").exists());
    // The same without a connection.
    let offline = HubConfig {
        offline: true,
        ..config
    };
    assert_eq!(fetch("tests/gliner", &offline).unwrap(), fetched);
}

#[test]
fn links_out_of_the_cache_are_not_followed_when_writing() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let config = config(&server, cache.path());
    // A link in place of a file is replaced, not written through.
    let target = cache.path().join("precious");
    fs::write(&target, "precious").unwrap();
    let snapshot = cache
        .path()
        .join("models--tests--tiny-bert/snapshots")
        .join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    symlink(&target, snapshot.join("config.json")).unwrap();
    let fetched = fetch("tests/tiny-bert", &config).unwrap();
    assert_eq!(read_folder(&fetched.folder), read_folder(&tiny_bert()));
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
}
