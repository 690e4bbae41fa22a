//! Model names on the command line.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use kivu::repository::Bundle;

use super::{
    server,
    server::{HubServer, read_folder},
};
use crate::{
    copies::copy,
    models::{fixtures, library_path, runtime},
    server::{Server, alone, kivu},
    tools::{root, succeed, tool},
};

/// The program with its own home and a server's hub.
fn command(server: &HubServer, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command.args(arguments);
    configure(&mut command, server, home);
    command
}

fn configure(command: &mut Command, server: &HubServer, home: &Path) {
    command
        .current_dir(home)
        .env("KIVU_HOME", home.join("kivu"))
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default())
        .env("HF_ENDPOINT", &server.url)
        .env("HF_HOME", home.join("hf"))
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "2")
        .stdin(Stdio::null());
    for variable in ["HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"] {
        command.env_remove(variable);
    }
}

fn serve(server: &HubServer, home: &Path, name: &str) -> Server {
    let mut command = kivu(Path::new(name));
    configure(&mut command, server, home);
    Server::wait(command.stderr(Stdio::null()).spawn().unwrap())
}

/// A successful command's standard output.
fn output(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    assert!(
        status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

/// A failing command's standard error.
fn refusal(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(1), "an error, not a crash");
    String::from_utf8(stderr).unwrap()
}

/// Neither errors nor the log, at its most verbose, have user information.
#[test]
fn addresses_are_shown_without_user_information() {
    let server = HubServer::start();
    let home = tempfile::tempdir().unwrap();
    let mirror = server.url.replace("http://", "http://me:password@");
    for (endpoint, arguments) in [
        (mirror.as_str(), &["build", "tests/nothing"][..]),
        (
            "http://me:password@127.0.0.1:1/hub",
            &["build", "tests/nothing"],
        ),
        (
            "http://me:pass/password@[::1]:1",
            &["serve", "tests/nothing", "--port", "0"],
        ),
        ("me:password@nowhere", &["run", "tests/nothing", "a text"]),
        (&mirror, &["build", "https://me:password@hub/a/b"]),
        (&mirror, &["serve", "https://me:password@hub/a/b"]),
        (&mirror, &["show", "HTTPS://me:password@hub"]),
        (&mirror, &["pull", "http://me:password@hub/a", "--out", "x"]),
        (
            &mirror,
            &["pull", "s3://me:password@bucket/a", "--out", "x"],
        ),
        (&mirror, &["ps", "--url", "http://me:password@127.0.0.1:1"]),
        (&mirror, &["ps", "--url", "ftp://me:password@host"]),
        (
            &mirror,
            &["batch", "http://me:password@host", "x", "--model", "m"],
        ),
    ] {
        let mut command = command(&server, home.path(), arguments);
        command
            .env("HF_ENDPOINT", endpoint)
            .env("RUST_LOG", "trace");
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().unwrap();
        let shown = String::from_utf8([stdout, stderr].concat()).unwrap();
        assert!(
            !status.success() && shown.contains("error: "),
            "{arguments:?}: {shown}"
        );
        assert!(!shown.contains("password"), "{arguments:?}: {shown}");
    }
}

#[test]
fn a_repository_is_built_once_and_served_by_its_name() {
    if runtime().is_none() {
        return;
    }
    let _alone = alone();
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    let embed = |server: &Server| {
        server.post(
            "/v1/embeddings",
            r#"{"model": "tests/tiny-bert", "input": "What is deep learning?"}"#,
        )
    };
    let body = |answer: String| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    let first = embed(&serve(&hub, home.path(), "tests/tiny-bert"));
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    hub.seen();
    let second = embed(&serve(&hub, home.path(), "tests/tiny-bert"));
    assert_eq!(hub.seen(), [], "the second start needs no connection");
    assert_eq!(body(first), body(second));

    let input = home.path().join("in.csv");
    fs::write(&input, "text\nhello\n").unwrap();
    let batch = ["batch", "in.csv", "out.csv", "--model", "tests/tiny-bert"];
    assert!(output(&mut command(&hub, home.path(), &batch)).starts_with("1 row in"));

    let listed = output(&mut command(&hub, home.path(), &["models"]));
    let [header, row] = listed.lines().collect::<Vec<_>>()[..] else {
        panic!("{listed}")
    };
    assert!(
        header.starts_with("NAME") && row.starts_with("tests/tiny-bert  feature-extraction"),
        "{listed}"
    );
    assert!(
        row.contains(" MB ") && row.contains(" s ") && row.contains("cosine 0.9"),
        "{listed}"
    );

    // Newer weights are used after `kivu build`, and a build with other options is a separate bundle.
    let known = output(&mut command(
        &hub,
        home.path(),
        &["build", "tests/tiny-bert"],
    ));
    assert!(known.starts_with("known  tests/tiny-bert"), "{known}");
    let known = output(&mut command(
        &hub,
        home.path(),
        &["build", "tests/tiny-bert", "--json"],
    ));
    let known: serde_json::Value = serde_json::from_str(&known).unwrap();
    assert_eq!(
        (&known["name"], &known["precision"]),
        (&"tiny-bert".into(), &"int8".into())
    );
    let built = output(&mut command(
        &hub,
        home.path(),
        &["build", "tests/tiny-bert", "--precision", "fp32"],
    ));
    assert!(
        built.contains("next     kivu serve tests/tiny-bert\n"),
        "{built}"
    );
    let listed = output(&mut command(&hub, home.path(), &["models", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let precisions: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["precision"].as_str())
        .collect();
    assert_eq!(precisions, [Some("fp32"), Some("int8")], "the newest first");

    // Both bundles come from this repository, whose name is given to the first.
    let exact = [
        "build",
        "tests/tiny-bert",
        "--precision",
        "fp32",
        "--name",
        "exact",
        "--out",
        "exact",
    ];
    output(&mut command(&hub, home.path(), &exact));
    let mut both = kivu(Path::new("tests/tiny-bert"));
    configure(both.arg("exact"), &hub, home.path());
    let both = Server::wait(both.stderr(Stdio::null()).spawn().unwrap());
    for model in ["tests/tiny-bert", "exact"] {
        let answer = both.post(
            "/v1/embeddings",
            &format!(r#"{{"model": "{model}", "input": "hello"}}"#),
        );
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(both);

    let removed = output(&mut command(
        &hub,
        home.path(),
        &["rm", "tests/tiny-bert", "--weights"],
    ));
    assert!(
        removed.starts_with("removed tests/tiny-bert, "),
        "{removed}"
    );
    assert_eq!(read_folder(&home.path().join("kivu")).len(), 0);
    assert_eq!(read_folder(&home.path().join("hf")).len(), 0);
    let again = refusal(&mut command(&hub, home.path(), &["rm", "tests/tiny-bert"]));
    insta::assert_snapshot!(again, @"
    error: expected the name of a model on this machine, but found `tests/tiny-bert`
    hint: `kivu models` lists them
    ");
}

#[test]
fn ollama_clients_pull_a_repository_and_choose_how_long_it_stays() {
    let Some(python) = tool("TEST_FRAMEWORKS") else {
        return;
    };
    if runtime().is_none() {
        return;
    }
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    // Any folder may get bundles later.
    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let mut serve = kivu(&empty);
    configure(serve.args(["--load", "on-demand"]), &hub, home.path());
    let server = Server::wait(serve.stderr(Stdio::null()).spawn().unwrap());
    let mut tests = Command::new(python);
    tests.arg(root().join("tests/frameworks/test_on_demand.py"));
    succeed(tests.env("TEST_URL", format!("http://{}", server.address)));
    let url = format!("http://{}", server.address);
    let listed = output(&mut command(&hub, home.path(), &["ps", "--url", &url]));
    let [header, row] = listed.lines().collect::<Vec<_>>()[..] else {
        panic!("{listed}")
    };
    assert!(
        header.starts_with("NAME") && header.ends_with("LAST USE"),
        "{listed}"
    );
    assert!(
        row.starts_with("tiny-bert ") && row.contains("  available "),
        "{listed}"
    );
    let gone = refusal(&mut command(
        &hub,
        home.path(),
        &["ps", "--url", "http://127.0.0.1:9"],
    ));
    assert!(
        gone.starts_with("error: expected a server at `http://127.0.0.1:9`, but found none: "),
        "{gone}"
    );
}

#[test]
fn processes_that_build_the_same_model_do_it_once() {
    if runtime().is_none() {
        return;
    }
    let _alone = alone();
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    let build = || {
        let mut build = command(&hub, home.path(), &["build", "tests/tiny-bert"]);
        build
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let outputs = [build(), build()].map(|process| {
        let Output {
            status,
            stdout,
            stderr,
        } = process.wait_with_output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    });
    assert_eq!(
        outputs
            .iter()
            .filter(|output| output.starts_with("known"))
            .count(),
        1,
        "{outputs:?}"
    );
    let weights = hub
        .seen()
        .into_iter()
        .filter(|seen| seen.path == "/tests/tiny-bert/model.safetensors");
    assert_eq!(weights.count(), 1);
}

#[test]
fn folders_with_weights_are_served() {
    if runtime().is_none() {
        return;
    }
    let _alone = alone();
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    let folder = fixtures().join("models/tiny-bert");
    let answer = serve(&hub, home.path(), folder.to_str().unwrap())
        .post("/models/tiny-bert", r#"{"inputs": "a"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let listed = output(&mut command(&hub, home.path(), &["models"]));
    assert!(
        listed.contains("tests/fixtures/models/tiny-bert  feature-extraction"),
        "{listed}"
    );
}

/// The commands that `kivu build` prints, and the bundle digest that `kivu push` would upload under a name.
fn next_commands(report: &str) -> Vec<String> {
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    report["next"]
        .as_array()
        .unwrap()
        .iter()
        .map(|next| next.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_folder_that_was_built_is_served_as_it_was_built() {
    if runtime().is_none() {
        return;
    }
    let _alone = alone();
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    copy(
        &fixtures().join("models/tiny-bert"),
        &home.path().join("tickets"),
    );
    let run = |arguments: &[&str]| output(&mut command(&hub, home.path(), arguments));
    let report = run(&["build", "tickets", "--precision", "fp32", "--json"]);
    assert_eq!(next_commands(&report)[0], "kivu serve tickets");
    let precisions = || {
        let listed: serde_json::Value = serde_json::from_str(&run(&["models", "--json"])).unwrap();
        let rows = listed.as_array().unwrap().iter();
        rows.map(|row| row["precision"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // The folder with that name has weights, too, but the bundle is newer, and the folder is unchanged.
    drop(serve(&hub, home.path(), "tickets"));
    fs::write(home.path().join("in.csv"), "text\nhello\n").unwrap();
    run(&["batch", "in.csv", "out.csv", "--model", "tickets"]);
    assert_eq!(precisions(), ["fp32"], "nothing else was built");
    // Once the folder changes, it is built again.
    fs::write(home.path().join("tickets/README.md"), "a change").unwrap();
    drop(serve(&hub, home.path(), "tickets"));
    assert_eq!(precisions().len(), 2);
    // Its bundle is replaced by its own builds, and by others only if they ask for its name.
    run(&["build", "tickets", "--precision", "fp32"]);
    fs::create_dir(home.path().join("other")).unwrap();
    copy(
        &fixtures().join("models/tiny-bert-sentiment"),
        &home.path().join("other/tickets"),
    );
    let refused = |source| {
        let message = refusal(&mut command(
            &hub,
            home.path(),
            &["build", source, "--precision", "fp32"],
        ));
        message.replace(&home.path().display().to_string(), "[home]")
    };
    insta::assert_snapshot!(refused("other/tickets"), @"
    error: expected a new name for the model in `other/tickets`, but found a bundle of `[home]/tickets` in `[home]/kivu/bundles/tickets`
    hint: name this one with `--name NAME`, or replace that one with `--name tickets`
    ");
    let replace = [
        "build",
        "other/tickets",
        "--precision",
        "fp32",
        "--name",
        "tickets",
        "--json",
    ];
    let report = run(&replace);
    assert!(refused("tickets").contains("a bundle of `[home]/other/tickets`"));
    // A name that means something else is not printed.
    let bundle = home
        .path()
        .join("kivu/bundles/tickets")
        .display()
        .to_string();
    assert_eq!(next_commands(&report)[0], format!("kivu serve {bundle}"));
    assert_eq!(
        next_commands(&report)[1],
        format!("kivu push {bundle} s3://BUCKET/PREFIX")
    );
    run(&["build", "other/tickets", "--precision", "fp32"]);
}

#[test]
fn damaged_bundles_are_built_again_and_can_be_removed() {
    if runtime().is_none() {
        return;
    }
    let _alone = alone();
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    let run = |arguments: &[&str]| output(&mut command(&hub, home.path(), arguments));
    let build = ["build", "tests/tiny-bert", "--precision", "fp32"];
    let built = run(&build);
    let bundle = built
        .lines()
        .find_map(|line| line.trim().strip_prefix("bundle   "))
        .unwrap();
    let bundle = PathBuf::from(bundle.split(", ").next().unwrap());
    for file in ["weights.bin", "manifest.toml"] {
        let mut bytes = fs::read(bundle.join(file)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(bundle.join(file), bytes).unwrap();
        let again = run(&build);
        assert!(!again.starts_with("known"), "{file}: {again}");
        Bundle::open(&bundle).unwrap().verify().unwrap();
    }
    assert!(run(&build).starts_with("known"));
    // The name file and the manifest are damaged.
    fs::write(bundle.join("manifest.toml"), "damaged").unwrap();
    fs::write(
        home.path().join("kivu/models/tests--tiny-bert/name"),
        "damaged",
    )
    .unwrap();
    assert!(run(&["rm", "tests/tiny-bert"]).starts_with("removed tests/tiny-bert"));
    copy(
        &fixtures().join("models/tiny-bert"),
        &home.path().join("tickets"),
    );
    run(&["build", "tickets", "--precision", "fp32"]);
    fs::write(
        home.path().join("kivu/bundles/tickets/manifest.toml"),
        "damaged",
    )
    .unwrap();
    assert!(run(&["rm", "tickets"]).starts_with("removed tickets"));
    assert!(!home.path().join("kivu/bundles/tickets").exists());
    run(&["run", "./tickets", "cat", "--precision", "fp32"]);
    assert!(run(&["rm", "./tickets"]).starts_with("removed ./tickets"));
    let folder = home.path().join("tickets").display().to_string();
    let again = refusal(&mut command(&hub, home.path(), &["rm", &folder]));
    assert!(
        again.contains("expected the name of a model on this machine"),
        "{again}"
    );
}

#[test]
fn a_checkpoint_of_pytorch_gives_the_same_vectors() {
    if runtime().is_none() {
        return;
    }
    let _alone = alone();
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    let mut files = read_folder(&fixtures().join("models/tiny-bert"));
    files.remove("model.safetensors");
    files.extend(read_folder(&fixtures().join("checkpoints/tiny-bert")));
    hub.add_files("tests/checkpoint", files);
    let answers = ["tests/tiny-bert", "tests/checkpoint"].map(|name| {
        let answer = serve(&hub, home.path(), name)
            .post("/embed", r#"{"inputs": "What is deep learning?"}"#);
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    });
    assert!(answers[0].starts_with("[["), "{}", answers[0]);
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn names_without_a_model_are_refused() {
    let (hub, home) = (server(), tempfile::tempdir().unwrap());
    let mut files = read_folder(&fixtures().join("models/tiny-bert"));
    files.insert(
        "config.json".into(),
        r#"{"model_type": "chatglm", "auto_map": {"AutoModel": "model.Model"}}"#.into(),
    );
    hub.add_files("tests/code", files);
    let refused = |name: &str| {
        let refusal = refusal(&mut command(
            &hub,
            home.path(),
            &["serve", name, "--listen", "127.0.0.1:0"],
        ));
        refusal.replace(&hub.url, "[hub]")
    };
    insta::assert_snapshot!(refused("no-such-model"), @"
    error: expected a bundle, a recipe (`minilm`, `rank`, `sentiment`, `text-language`, `translate-en-pt`, `translate-pt-en`, `zero-shot`) or a Hugging Face hub repository as ORG/NAME, but found `no-such-model`
    hint: `kivu models` lists the models on this machine
    ");
    insta::assert_snapshot!(refused("tests/nothing"), @"
    error: expected a repository `tests/nothing` at `[hub]`, but found none that is public
    hint: check the name or, if it is private, set HF_TOKEN
    ");
    insta::assert_snapshot!(refused("./tests/nothing"), @"
    error: expected a bundle in `./tests/nothing`, but found no such folder
    hint: `kivu build` makes bundles
    ");
    insta::assert_snapshot!(refused("tests/tiny-bert@v9"), @"
    error: expected the revision `v9` of `tests/tiny-bert`, but found none
    hint: [hub]/tests/tiny-bert/tree/main lists them
    ");
    insta::assert_snapshot!(refused("tests/tiny-bert@../v9"), @"error: expected a Hugging Face hub repository, as ORG/NAME or ORG/NAME@REVISION, but found `tests/tiny-bert@../v9`");
    let code = refused("tests/code");
    let problem = "the `model_type` `chatglm` (chatglm) of `tests/code` is not supported";
    assert!(
        code.contains(problem) && code.contains("\nhint: it needs code from the repository"),
        "{code}"
    );
    assert!(!code.contains("model.safetensors is"), "{code}");
    assert_eq!(
        read_folder(&home.path().join("kivu/models"))
            .keys()
            .filter(|file| !file.ends_with("lock"))
            .count(),
        0
    );
}
