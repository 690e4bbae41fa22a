//! Jobs on local files: outputs, existing files, stopping and resuming.

mod corruption;
mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use kivu::{
    cloud::Cloud,
    config::{Config, EngineChoice, Limits},
    model::Model,
    pipeline::Task,
    repository::manifest::Precision,
    task::JobOptions,
};
use kivu_http::batch_requests;
use kivu_jobs::{
    Ended, Existing, Format, Job, JobInput, JobOutput, Mark, Parameters, Status, Watcher,
};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    flips::Flips,
    jobs::{finished, job, run, wait},
    models::{
        build_request, fixtures, library_path, open, request, request_without_floor, runtime,
    },
    server::alone,
};

pub(crate) fn parameters_of(job: &mut Job) -> &mut Parameters {
    &mut job.parameters
}

fn refused(job: Job) -> String {
    run(job).unwrap_err().chain()
}

/// Stops a job when the first new rows are written.
#[derive(Default)]
struct Stopper {
    before: AtomicU64,
    stop: Notify,
}

impl Watcher for Stopper {
    fn begin(&self, _: &str, rows: u64) {
        self.before.store(rows, Ordering::Relaxed);
    }

    fn advance(&self, rows: u64, _: Option<f64>) {
        if rows > self.before.load(Ordering::Relaxed) {
            self.stop.notify_one();
        }
    }
}

/// Runs a job until its first new rows are written.
pub(crate) fn stopped(mut job: Job) -> kivu::Result<Ended> {
    let stopper = Arc::new(Stopper::default());
    job.watcher = Arc::clone(&stopper) as _;
    wait(job.run_until(stopper.stop.notified()))
}

pub(crate) fn rows(count: usize) -> String {
    (0..count)
        .map(|row| {
            format!(
                "{{\"id\": {row}, \"text\": \"the cat {}\"}}\n",
                "sat ".repeat(row % 5)
            )
        })
        .collect()
}

pub(crate) fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn special_files_are_written_through_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let [input, fifo, null] = ["in.jsonl", "fifo", "null"].map(|name| folder.path().join(name));
    fs::write(&input, rows(200)).unwrap();
    // Through a link, so that a bug cannot remove the device.
    symlink("/dev/null", &null).unwrap();
    assert_eq!(finished(job(&input, &null)).progress.rows, 200);
    assert!(fs::symlink_metadata(&null).unwrap().is_symlink());
    mkfifo(&fifo);
    let reader = fifo.clone();
    let reading = thread::spawn(move || text(reader));
    finished(job(&input, &fifo));
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    assert_eq!(reading.join().unwrap().lines().count(), 200);
    assert_eq!(
        names(folder.path()),
        ["fifo", "in.jsonl", "null"],
        "streams have neither report nor checkpoint"
    );
}

#[test]
fn a_pipe_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let [fifo, output, empty] = ["in", "out.jsonl", "empty"].map(|name| folder.path().join(name));
    mkfifo(&fifo);
    let write = |contents: Vec<u8>| {
        let fifo = fifo.clone();
        thread::spawn(move || {
            File::options()
                .write(true)
                .open(fifo)
                .unwrap()
                .write_all(&contents)
        })
    };
    let writing = write(rows(500).into_bytes());
    assert_eq!(finished(job(&fifo, &output)).progress.rows, 500);
    writing.join().unwrap().unwrap();
    // Each pipe is a new job.
    let writing = write(rows(3).into_bytes());
    assert_eq!(finished(job(&fifo, &output)).progress.rows, 3);
    writing.join().unwrap().unwrap();
    let writing = write(b"PAR1 and more".to_vec());
    let report = run(job(&fifo, &output)).unwrap();
    assert!(report.error.unwrap().contains("` is a stream"));
    let _ = writing.join().unwrap();
    let report = run(job(Path::new("/dev/null"), &empty)).unwrap();
    assert_eq!(
        report.error.as_deref(),
        Some("expected rows, but found an empty file")
    );
    assert_eq!(text(&output).lines().count(), 3);
    assert!(
        names(folder.path())
            .iter()
            .all(|name| !name.starts_with('.'))
    );
}

#[test]
fn outputs_that_would_cost_another_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("in.jsonl"), rows(2)).unwrap();
    fs::write(at("notes.txt"), "mine").unwrap();
    fs::hard_link(at("in.jsonl"), at("same.jsonl")).unwrap();
    symlink(at("notes.txt"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("a.report.json"), "{\"status\": \"mine\"}").unwrap();
    fs::write(at(".b.kivu-partial"), "mine").unwrap();
    fs::write(at(".c.kivu-checkpoint"), "mine").unwrap();
    symlink(at("notes.txt"), at("d.report.json")).unwrap();
    let before = snapshot(folder.path());
    let cases = [
        (
            "notes.txt",
            "was not written by `kivu batch`, or has changed since",
        ),
        ("in.jsonl", "is the same file"),
        ("same.jsonl", "is the same file"),
        ("link", "is a link to"),
        ("dangling", "is a link to"),
        ("folder", "but found the folder"),
        ("new/", "but found the folder"),
        ("a", "is not a report of `kivu batch`"),
        ("b", "exists, where an unfinished output is kept"),
        ("c", "is not a checkpoint of `kivu batch`"),
        ("d", "is not a report of `kivu batch`"),
    ];
    for (name, message) in cases {
        let refused = refused(job(&at("in.jsonl"), &at(name)));
        assert!(refused.contains(message), "{name}: {refused}");
    }
    let refused = refused(job(&at("in.jsonl"), &at(&"n".repeat(250))));
    assert!(
        refused.contains("expected a name of at most 234 bytes for the output, but found 250"),
        "{refused}"
    );
    assert_eq!(snapshot(folder.path()), before);
}

#[test]
fn an_output_is_replaced_as_long_as_it_is_what_kivu_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, broken] =
        ["in.jsonl", "out.jsonl", "broken"].map(|name| folder.path().join(name));
    fs::write(&input, rows(2)).unwrap();
    fs::write(&broken, "").unwrap();
    finished(job(&input, &output));
    fs::write(&input, rows(5)).unwrap();
    finished(job(&input, &output));
    assert_eq!(text(&output).lines().count(), 5);
    // The same after a failed job.
    assert_eq!(run(job(&broken, &output)).unwrap().status, Status::Failed);
    finished(job(&input, &output));
    fs::write(&output, "changed by hand").unwrap();
    refused(job(&input, &output));
    assert_eq!(text(&output), "changed by hand");
    let mut wanted = job(&input, &output);
    wanted.existing.overwrite = true;
    finished(wanted);
    assert_eq!(text(&output).lines().count(), 5);
}

#[test]
fn modes_are_kept_and_otherwise_follow_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, new, usual] =
        ["in", "out", "new", "usual"].map(|name| folder.path().join(name));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    fs::write(&input, rows(2)).unwrap();
    fs::write(&output, "").unwrap();
    fs::write(&usual, "").unwrap();
    fs::set_permissions(&output, Permissions::from_mode(0o600)).unwrap();
    finished(job(&input, &output));
    assert_eq!((mode(&output), text(&output).lines().count()), (0o600, 2));
    finished(job(&input, &new));
    // The mode does not depend on the umask.
    assert_eq!(mode(&new), mode(&usual));
    assert_eq!(mode(&folder.path().join("new.report.json")), mode(&usual));
    // A private file's partial output is private, and any checkpoint is its owner's.
    fs::set_permissions(&output, Permissions::from_mode(0o640)).unwrap();
    fs::write(&input, rows(2000)).unwrap();
    stopped(job(&input, &output)).unwrap();
    for (name, expected) in [
        (".out.kivu-partial", 0o640),
        (".out.kivu-checkpoint", 0o600),
    ] {
        assert_eq!(mode(&folder.path().join(name)), expected, "{name}");
    }
}

#[test]
fn a_stopped_job_continues_without_repeating_or_losing_rows() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, uncut] =
        ["in.jsonl", "out.jsonl", "uncut.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(3000)).unwrap();
    finished(job(&input, &uncut));
    let Ended::Unfinished(progress) = stopped(job(&input, &output)).unwrap() else {
        panic!("it was not stopped")
    };
    assert!((1..3000).contains(&progress.rows), "{}", progress.rows);
    assert!(!output.exists());
    // The state after a kill between writing and saving.
    let partial = folder.path().join(".out.jsonl.kivu-partial");
    File::options()
        .append(true)
        .open(&partial)
        .unwrap()
        .write_all(b"{\"half\": ")
        .unwrap();
    fs::write(folder.path().join(".out.jsonl.kivu-checkpoint.new"), "{").unwrap();
    let Ended::Unfinished(more) = stopped(job(&input, &output)).unwrap() else {
        panic!("it was not stopped")
    };
    assert!(more.rows > progress.rows);
    let report = finished(job(&input, &output));
    assert_eq!(report.progress.rows, 3000);
    assert!(
        text(&output) == text(&uncut),
        "the output is not that of an uncut job"
    );
    assert!(
        names(folder.path())
            .iter()
            .all(|name| !name.starts_with('.')),
        "{:?}",
        names(folder.path())
    );
}

#[test]
fn a_job_whose_process_ended_before_its_report_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    let report = folder.path().join("out.jsonl.report.json");
    fs::write(&input, rows(300)).unwrap();
    // If the report cannot be written, the output gets its name, and the checkpoint remains.
    struct Blocker(PathBuf);
    impl Watcher for Blocker {
        fn begin(&self, _: &str, _: u64) {
            fs::create_dir(&self.0).unwrap();
        }
        fn advance(&self, _: u64, _: Option<f64>) {}
    }
    let blocked = Job {
        watcher: Arc::new(Blocker(report.clone())),
        ..job(&input, &output)
    };
    assert!(refused(blocked).contains("out.jsonl.report.json"));
    assert!(output.exists() && folder.path().join(".out.jsonl.kivu-checkpoint").exists());
    fs::remove_dir(&report).unwrap();
    assert_eq!(finished(job(&input, &output)).progress.rows, 300);
    assert_eq!(
        names(folder.path()),
        ["in.jsonl", "out.jsonl", "out.jsonl.report.json"]
    );
    fs::write(&input, rows(2)).unwrap();
    finished(job(&input, &output));
}

#[test]
fn an_unfinished_job_is_not_continued_with_another_input_or_other_options() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(2000)).unwrap();
    stopped(job(&input, &output)).unwrap();
    let mut other = job(&input, &output);
    parameters_of(&mut other)
        .options
        .set("dimensions", "1")
        .unwrap()
        .unwrap();
    let message = "the unfinished job for";
    assert!(refused(other.clone()).starts_with(message));
    // Same size and modification time.
    let written = fs::metadata(&input).unwrap().modified().unwrap();
    fs::write(&input, rows(2000).replace("cat", "dog")).unwrap();
    File::options()
        .write(true)
        .open(&input)
        .unwrap()
        .set_modified(written)
        .unwrap();
    assert!(refused(job(&input, &output)).starts_with(message));
    other.existing.restart = true;
    assert_eq!(finished(other).progress.rows, 2000);
    let first = text(&output).lines().next().unwrap().to_owned();
    assert!(
        first.contains("dog") && first.contains("\"embedding\":[1.0]"),
        "{first}"
    );
}

/// Changes one setting.
type Change = Box<dyn Fn(&mut Config, &mut Parameters)>;

/// One change for every setting that identifies a job.
fn changes(bundles: &Path) -> Vec<(&'static str, Change)> {
    let (other, tasks) = (bundles.join("other"), bundles.join("tasks"));
    let set = |name: &'static str, change: fn(&mut Parameters)| -> (&'static str, Change) {
        (name, Box::new(move |_, parameters| change(parameters)))
    };
    let option = |name: &'static str, value: &'static str| -> (&'static str, Change) {
        (
            name,
            Box::new(move |_, parameters| parameters.options.set(name, value).unwrap().unwrap()),
        )
    };
    vec![
        (
            "limits.tokens",
            Box::new(|config, _| config.limits.tokens = Some(4)),
        ),
        (
            "limits.truncate",
            Box::new(|config, _| config.limits.truncate = false),
        ),
        (
            "engine",
            Box::new(|config, _| config.engine = EngineChoice::Onnx),
        ),
        (
            "bundle",
            Box::new(move |config, _| config.models = vec![other.clone().into()]),
        ),
        set("column", |it| it.column = Some("title".into())),
        set("truncate", |it| it.truncate = Some(false)),
        option("normalize", "false"),
        option("dimensions", "8"),
        option("vector-type", "int8"),
        option("prompt", "query"),
        (
            "embedding-task",
            Box::new(move |config, parameters| {
                config.models = vec![tasks.clone().into()];
                parameters
                    .options
                    .set("embedding-task", "separation")
                    .unwrap()
                    .unwrap();
            }),
        ),
        // Settings without effect on embeddings, or on this job.
        set("format", |it| it.format = Some(Format::JsonLines)),
        option("outputs", "dense"),
        set("delimiter", |it| it.csv.delimiter = Some(b';')),
        set("quote", |it| it.csv.quote = Some(Mark::None)),
        set("escape", |it| it.csv.escape = Some(Mark::Character(b'\\'))),
        set("null", |it| it.csv.null = Some("NULL".into())),
        set("header", |it| it.csv.header = Some(false)),
        option("labels", "a"),
        option("template", "a {}"),
        option("multi-label", "true"),
        option("all-scores", "true"),
        option("aggregation", "max"),
        option("ignore-labels", "a"),
        option("threshold", "0.25"),
        option("flat", "false"),
        option("stride", "2"),
        option("transition-biases", r#"{"background_stay": -1}"#),
        option("redact", "true"),
        option("redact-style", "number"),
        option("redact-scope", "file"),
        option("patterns", "all"),
        set("query", |it| it.query = Some("a".into())),
        option("raw-scores", "true"),
        option("instruction", "Find proofs"),
        option("source-language", "en"),
        option("target-language", "pt"),
        option("max-active-dims", "3"),
        option("words", "true"),
        option("schema", "{}"),
        option("schema-form", "extract_json"),
        option("confidence", "true"),
        option("spans", "true"),
    ]
}

/// A stopped job is refused with any changed setting; restarted from its first row, it has the new setting's output.
#[test]
fn rows_of_two_settings_are_never_mixed() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bundles = [
        ("bundle", "tiny-bert", Precision::Int8),
        ("other", "tiny-bert", Precision::Fp32),
        ("tasks", "tiny-jina-v3", Precision::Int8),
    ];
    for (name, model, precision) in bundles {
        let source = fixtures().join("models").join(model);
        let request =
            request_without_floor(Task::FeatureExtraction, &source, at(name), Some(precision));
        build_request(&request, runtime).unwrap();
    }
    let row = |row: usize| {
        format!(
            "{{\"title\": \"row {row}\", \"text\": \"the {}\"}}\n",
            "cat sat ".repeat(row % 5)
        )
    };
    fs::write(at("in.jsonl"), (0..400).map(row).collect::<String>()).unwrap();
    let changed = |change: Option<&Change>, output: &str| {
        let (mut config, mut parameters) = (Config::default(), Parameters::default());
        config.models = vec![at("bundle").into()];
        config.onnxruntime = library_path().ok();
        if let Some(change) = change {
            change(&mut config, &mut parameters);
        }
        let model = Model::open_all(&config, &Cloud::default())
            .unwrap()
            .remove(0);
        let (input, output) = (JobInput::File(at("in.jsonl")), JobOutput::File(at(output)));
        Job::new(input, output, model, parameters)
    };
    finished(changed(None, "whole"));
    let mut outputs = vec![("none", text(at("whole")))];
    let changes = changes(folder.path());
    let parameters = serde_json::to_value(Parameters::default()).unwrap();
    // The model is identified by its bundle, not by its name.
    let own = parameters
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| !["model", "options"].contains(&name.as_str()));
    for name in own.cloned().chain(
        JobOptions::all()
            .into_iter()
            .map(|(option, _)| option.name.to_owned()),
    ) {
        assert!(
            changes.iter().any(|(known, _)| *known == name),
            "add `{name}` to the changes"
        );
    }
    for (name, change) in changes {
        let Ended::Unfinished(progress) = stopped(changed(None, "out")).unwrap() else {
            panic!("{name}")
        };
        assert!((1..400).contains(&progress.rows), "{}", progress.rows);
        let refusal = refused(changed(Some(&change), "out"));
        assert!(
            refusal.starts_with("the unfinished job for"),
            "{name}: {refusal}"
        );
        let whole = format!("{name}-whole");
        finished(changed(Some(&change), &whole));
        let mut again = changed(Some(&change), "out");
        again.existing = Existing {
            restart: true,
            overwrite: true,
        };
        finished(again);
        assert!(
            text(at("out")) == text(at(&whole)),
            "{name}: the output is that of another setting"
        );
        outputs.push((name, text(at("out"))));
    }
    let distinct: BTreeSet<&str> = outputs.iter().map(|(_, output)| output.as_str()).collect();
    // No text has too many tokens for the model itself, so that `truncate` changes nothing.
    assert!(
        distinct.len() >= 8,
        "changes that should have an effect have none"
    );
    // `kivu batch` obeys the configured limits.
    let limited = |config: &mut Config, _: &mut Parameters| {
        (config.limits.tokens, config.limits.truncate) = (Some(4), false);
    };
    let report = finished(changed(Some(&(Box::new(limited) as Change)), "limited"));
    assert!(
        report.progress.errors["input"] > 100,
        "{:?}",
        report.progress.errors
    );
}

/// Numbers are those of `kivu redact`, also after a stop.
#[test]
fn placeholders_are_numbered_in_a_file() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let source = fixtures().join("models/tiny-bert-ner");
    build_request(
        &request(source, at("bundle"), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap();
    let row = |row: usize| {
        format!(
            "{{\"text\": \"Ann and [PER_1] ask {}@a.org, {row}@a.org\"}}\n",
            row % 7
        )
    };
    fs::write(at("in.jsonl"), (0..300).map(row).collect::<String>()).unwrap();
    let numbered = |output: &str, options: &[(&str, &str)]| {
        let model = Model::open(&at("bundle"), &Config::default(), &Cloud::default()).unwrap();
        let (input, output) = (JobInput::File(at("in.jsonl")), JobOutput::File(at(output)));
        let mut job = Job::new(input, output, model, Parameters::default());
        for (name, value) in options {
            let set = parameters_of(&mut job).options.set(name, value);
            set.unwrap().unwrap();
        }
        job
    };
    let options = [
        ("redact", "true"),
        ("patterns", "all"),
        ("redact-style", "number"),
        ("redact-scope", "file"),
    ];
    finished(numbered("whole.jsonl", &options));
    let Ended::Unfinished(progress) = stopped(numbered("out.jsonl", &options)).unwrap() else {
        panic!("it ended")
    };
    assert!((1..300).contains(&progress.rows), "{}", progress.rows);
    finished(numbered("out.jsonl", &options));
    assert_eq!(text(at("out.jsonl")), text(at("whole.jsonl")));
    let redacted = Command::new(env!("CARGO_BIN_EXE_kivu"))
        .args(["redact", "in.jsonl", "redacted.jsonl", "--style", "number"])
        .args(["--model", "bundle"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(redacted.status.success(), "{redacted:?}");
    let column = |name: &str, column: &str| -> Vec<String> {
        let of_row = |row: &str| serde_json::from_str::<Value>(row).unwrap()[column].to_string();
        text(at(name)).lines().map(of_row).collect()
    };
    let found = column("whole.jsonl", "redacted");
    assert_eq!(found, column("redacted.jsonl", "text"));
    assert!(found[299].contains("[EMAIL_ADDRESS_300]"), "{}", found[299]);
    let refused =
        |options: &[(&str, &str)]| run(numbered("no.jsonl", options)).unwrap().error.unwrap();
    insta::assert_snapshot!(refused(&[options[0], options[3]]), @"`redact_scope` has no effect without the `redact_style` `number`");
    insta::assert_snapshot!(refused(&[options[3]]), @"`redact_scope` has no effect without `redact`");
}

/// Every damaged bit in a checkpoint or the output so far is noticed, or changes nothing. `TEST_FLIPS`
/// sets how many are tried.
#[test]
fn a_damaged_job_never_ends_with_other_rows() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, uncut] =
        ["in.jsonl", "out.jsonl", "uncut.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(300)).unwrap();
    finished(job(&input, &uncut));
    stopped(job(&input, &output)).unwrap();
    let files = [".out.jsonl.kivu-checkpoint", ".out.jsonl.kivu-partial"]
        .map(|name| folder.path().join(name));
    let saved = files.each_ref().map(|file| fs::read(file).unwrap());
    let mut random = Flips::new();
    let mut noticed = 0;
    for flip in 0..Flips::count() {
        let mut damaged = saved.clone();
        random.flip(&mut damaged[flip % 2]);
        for (file, bytes) in files.iter().zip(&damaged) {
            fs::write(file, bytes).unwrap();
        }
        match run(job(&input, &output)) {
            Ok(report) => {
                assert!(
                    report.status == Status::Finished && text(&output) == text(&uncut),
                    "{flip}"
                )
            }
            Err(_) => noticed += 1,
        }
        for file in names(folder.path())
            .iter()
            .filter(|name| !name.starts_with("in.") && !name.starts_with("uncut"))
        {
            fs::remove_file(folder.path().join(file)).unwrap();
        }
    }
    assert_eq!(noticed, Flips::count());
}

#[test]
fn two_jobs_for_one_output_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(2000)).unwrap();
    struct Second(Job);
    impl Watcher for Second {
        fn begin(&self, _: &str, _: u64) {
            let second = self.0.clone();
            let refused = thread::spawn(move || refused(second)).join().unwrap();
            assert!(
                refused.contains("another `kivu batch` is writing"),
                "{refused}"
            );
        }
        fn advance(&self, _: u64, _: Option<f64>) {}
    }
    let second = job(&input, &output);
    finished(Job {
        watcher: Arc::new(Second(second)),
        ..job(&input, &output)
    });
}

#[test]
fn rows_of_a_file_and_of_another_that_is_written_over_it_are_not_mixed() {
    struct Rewriter(PathBuf, Vec<u8>, Once);
    impl Watcher for Rewriter {
        fn begin(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64, _: Option<f64>) {
            // Without an empty file in between.
            let rewrite = || fs::OpenOptions::new().write(true).open(&self.0).unwrap();
            self.2.call_once(|| rewrite().write_all(&self.1).unwrap());
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let before = rows(20_000);
    let table = fs::read(fixtures().join("parquet/snappy.parquet")).unwrap();
    for (name, before, after, is_right) in [
        (
            "in.jsonl",
            before.clone().into_bytes(),
            before.replace("cat", "dog").into_bytes(),
            false,
        ),
        (
            "in.jsonl",
            before.clone().into_bytes(),
            (before.clone() + &rows(1)).into_bytes(),
            true,
        ),
        // Whose bytes are not compared, since they are read from many places.
        ("in.parquet", table.clone(), table, false),
    ] {
        let [input, output] = [name, "out"].map(|name| folder.path().join(name));
        fs::write(&input, before).unwrap();
        let file = File::open(&input).unwrap();
        // Times have steps of a few milliseconds.
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let report = run(Job {
            watcher: Arc::new(Rewriter(input.clone(), after, Once::new())),
            ..job(&input, &output)
        });
        let report = report.unwrap();
        if is_right {
            assert_eq!(report.progress.rows, 20_000);
            assert_eq!(report.notes, ["the input was changed while it was read"]);
            fs::remove_file(&output).unwrap();
        } else {
            assert_eq!(report.status, Status::Failed);
            let error = report.error.unwrap();
            assert!(error.contains("while it is read, but it was"), "{error}");
        }
        fs::remove_file(&input).unwrap();
        assert_eq!(names(folder.path()), ["out.report.json"]);
    }
}

#[test]
fn options_that_fail_every_row_fail_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(2)).unwrap();
    let mut asked = job(&input, &output);
    parameters_of(&mut asked)
        .options
        .set("dimensions", "400")
        .unwrap()
        .unwrap();
    let report = run(asked).unwrap();
    assert_eq!(
        report.error.as_deref(),
        Some("expected `dimensions` from 1 to 2, but found 400")
    );
    assert!(!output.exists());
}

#[test]
fn a_language_that_a_translator_does_not_know_fails_at_once() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(2)).unwrap();
    let model = fixtures().join("models/tiny-m2m100");
    let mut asked = job(&input, &output);
    let model = open(model, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    (asked.model, asked.parameters) = (Box::new(model), Box::default());
    for (name, language) in [("source-language", "klingon"), ("target-language", "fr")] {
        parameters_of(&mut asked)
            .options
            .set(name, language)
            .unwrap()
            .unwrap();
    }
    let error = run(asked).unwrap().error.unwrap();
    assert!(
        error.contains("found `klingon`") && error.contains("see `source-language`"),
        "{error}"
    );
    assert!(!output.exists());
}

#[test]
fn parquet_is_read_in_every_codec_but_brotli() {
    let folder = tempfile::tempdir().unwrap();
    for codec in ["none", "snappy", "gzip", "lz4", "zstd"] {
        let input = fixtures().join(format!("parquet/{codec}.parquet"));
        assert_eq!(
            finished(job(&input, &folder.path().join(codec)))
                .progress
                .rows,
            2,
            "{codec}"
        );
    }
    let output = folder.path().join("brotli");
    let report = run(job(&fixtures().join("parquet/brotli.parquet"), &output)).unwrap();
    let expected = "expected Parquet that is uncompressed or uses Snappy, gzip, LZ4 or zstd, but found BROTLI; \
                    write the file again with one of these";
    assert_eq!(report.error.as_deref(), Some(expected));
    assert!(!output.exists());
}

#[test]
fn spaces_alone_are_a_text_as_they_are_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, "{\"text\": \" \"}\n{\"text\": \"\"}\n").unwrap();
    finished(job(&input, &output));
    let lines = text(&output);
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].contains("\"embedding\":["), "{}", lines[0]);
    assert!(
        lines[1].contains("expected a text, but found an empty one"),
        "{}",
        lines[1]
    );
}

#[test]
fn the_report_names_the_columns_of_answers_and_an_ambiguous_delimiter() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.csv", "out.csv"].map(|name| folder.path().join(name));
    fs::write(
        &input,
        "id;text;embedding;kivu_embedding;a,b\n1;cat;x;y;z\n",
    )
    .unwrap();
    let report = finished(job(&input, &output));
    assert_eq!(
        report.progress.columns.into_iter().collect::<Vec<_>>(),
        ["error", "kivu_embedding_2"]
    );
    assert_eq!(report.notes.len(), 1);
    assert!(
        text(&output).starts_with("id;text;embedding;kivu_embedding;a,b;kivu_embedding_2;error\n")
    );
}

/// The entry at a path.
#[derive(Clone, Debug)]
enum Entry {
    File(Vec<u8>),
    Link(&'static str),
    /// Another name for a file.
    Hard(&'static str),
    Folder,
}

/// Names that a job from `in.jsonl` to `out.jsonl` uses, and others.
const NAMES: [&str; 9] = [
    "in.jsonl",
    "out.jsonl",
    "out.jsonl.report.json",
    ".out.jsonl.kivu-partial",
    ".out.jsonl.kivu-checkpoint",
    ".out.jsonl.kivu-checkpoint.new",
    ".in.jsonl.kivu-partial",
    "in.jsonl.report.json",
    "notes",
];

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        4 => select(vec!["", "{\"text\": \"cat\"}\n", "text\ncat\n", "notes", "{}", "{\"job\": \"x\"}\n", "{\"status\": \"finished\"}"])
            .prop_map(|contents| Entry::File(contents.as_bytes().to_vec())),
        1 => Just(Entry::File(rows(200).into_bytes())),
        1 => select(NAMES.to_vec()).prop_map(Entry::Link),
        1 => select(NAMES.to_vec()).prop_map(Entry::Hard),
        1 => Just(Entry::Folder),
    ]
}

/// All paths in a folder, with their contents or targets.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            found.extend(snapshot(&path));
            found.insert(path, b"a folder".to_vec());
        } else if about.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            found.insert(path, target.into_os_string().into_encoded_bytes());
        } else {
            let contents = fs::read(&path).unwrap();
            found.insert(path, contents);
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_job_neither_removes_nor_replaces_what_kivu_did_not_write(
        entries in proptest::collection::btree_map(select(NAMES.to_vec()), entry(), 0..6),
        has_input in prop::bool::weighted(0.8),
        runs in proptest::collection::vec((select(NAMES.to_vec()), select(NAMES.to_vec()), any::<bool>(), any::<bool>()), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        if has_input {
            fs::write(at("in.jsonl"), rows(200)).unwrap();
        }
        for (name, entry) in &entries {
            // Entries that conflict with others are skipped.
            let _ = match entry {
                Entry::File(contents) if !at(name).exists() => fs::write(at(name), contents),
                Entry::File(_) => Ok(()),
                Entry::Link(target) => symlink(at(target), at(name)),
                Entry::Hard(target) => fs::hard_link(at(target), at(name)),
                Entry::Folder => fs::create_dir(at(name)).and_then(|()| fs::write(at(name).join("mine"), "mine")),
            };
        }
        let mut before = snapshot(folder.path());
        // Empty files may be replaced.
        before.retain(|_, contents| !contents.is_empty());
        for (place, (input, output, is_stopped, restart)) in runs.iter().enumerate() {
            // Names that jobs use come first.
            let (input, output) = if place == 0 && has_input { (&"in.jsonl", &"out.jsonl") } else { (input, output) };
            let mut job = job(&at(input), &at(output));
            job.existing.restart = *restart;
            // Any result is valid here.
            let _ = if *is_stopped { stopped(job) } else { wait(job.run()) };
            let after = snapshot(folder.path());
            for (path, contents) in &before {
                prop_assert_eq!(after.get(path), Some(contents), "{} after {:?}", path.display(), &runs[..=place]);
            }
        }
    }
}

/// A tiny model's bundle, if ONNX Runtime is installed.
pub(crate) fn program() -> Option<(tempfile::TempDir, PathBuf)> {
    let runtime = runtime()?;
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    let source = fixtures().join("models/tiny-bert");
    build_request(
        &request(source, bundle.clone(), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap();
    Some((folder, bundle))
}

pub(crate) fn kivu(arguments: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command
        .arg("batch")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
        .env("KIVU_ONNXRUNTIME", library_path().unwrap())
        .env("KIVU_BATCH__SAVE_MS", "1");
    command
}

#[test]
fn a_killed_process_is_continued_and_signals_end_it_with_their_codes() {
    let Some((folder, bundle)) = program() else {
        return;
    };
    let _alone = alone();
    let [input, output, uncut] =
        ["in.jsonl", "out.jsonl", "uncut.jsonl"].map(|name| folder.path().join(name));
    let checkpoint = folder.path().join(".out.jsonl.kivu-checkpoint");
    fs::write(&input, rows(20_000)).unwrap();
    let model = [Path::new("--model"), &bundle];
    assert!(
        kivu(&[&[&*input, &*uncut], &model[..]].concat())
            .output()
            .unwrap()
            .status
            .success()
    );
    let arguments: Vec<&Path> = [&[&*input, &*output], &model[..]].concat();
    let saved = || -> u64 {
        let state = fs::read_to_string(&checkpoint).unwrap_or_default();
        // Inside the JSON, after the hash.
        let state: Value = serde_json::from_str(state.lines().nth(1).unwrap_or("0")).unwrap();
        state["progress"]["rows"].as_u64().unwrap_or(0)
    };
    let signals = [
        ("KILL", None),
        ("INT", Some(130)),
        ("HUP", Some(129)),
        ("KILL", None),
        ("TERM", Some(143)),
    ];
    for (signal, code) in signals {
        let (before, end) = (saved(), Instant::now() + Duration::from_secs(30));
        // The process that started the tests may ignore the signal.
        let mut process = Command::new("env");
        let job = kivu(&arguments);
        process
            .args(["--default-signal=HUP,INT"])
            .arg(job.get_program())
            .args(job.get_args());
        process.envs(
            job.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        process
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = process.spawn().unwrap();
        while saved() == before && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        Command::new("kill")
            .args([&format!("-{signal}"), &process.id().to_string()])
            .status()
            .unwrap();
        assert_eq!(process.wait().unwrap().code(), code, "{signal}");
    }
    let done = kivu(&arguments).output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(
        String::from_utf8_lossy(&done.stderr).contains("continued after"),
        "it started from the first row"
    );
    assert!(
        text(&output) == text(&uncut),
        "the output is not that of an uncut job"
    );
    let left: Vec<_> = names(folder.path())
        .into_iter()
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn options_of_other_tasks_are_refused() {
    let Some((folder, bundle)) = program() else {
        return;
    };
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(2)).unwrap();
    for option in ["--labels=a,b", "--query=a", "--redact", "--nested"] {
        let refused = kivu(&[
            &input,
            &output,
            Path::new("--model"),
            &bundle,
            Path::new(option),
        ])
        .output()
        .unwrap();
        let error = String::from_utf8(refused.stderr).unwrap();
        let name = option.split('=').next().unwrap();
        assert!(
            error.contains(&format!("`{name}` has no effect with `")),
            "{error}"
        );
        assert!(!output.exists());
    }
}

#[test]
fn the_program_reads_and_writes_pipes() {
    let Some((folder, bundle)) = program() else {
        return;
    };
    let _alone = alone();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, rows(300)).unwrap();
    let script = "set -o pipefail
        gzip -c $IN | $KIVU batch - - --model $MODEL | gzip -dc | wc -l
        $KIVU batch $IN /dev/stdout --model $MODEL 2>/dev/null | wc -l
        { echo first; $KIVU batch /dev/stdin /dev/stdout --model $MODEL 2>/dev/null; } <$IN >$OUT.stdout; wc -l <$OUT.stdout
        $KIVU batch $IN $OUT --model $MODEL | true; echo $?
        wc -l <$OUT
        mkfifo $OUT.fifo; $KIVU batch $OUT.fifo $OUT.never --model $MODEL & sleep 0.5; kill $!; wait $!; echo $?";
    let shell = Command::new("bash")
        .args(["-c", script])
        .env("KIVU", env!("CARGO_BIN_EXE_kivu"))
        .env("KIVU_ONNXRUNTIME", library_path().unwrap())
        .env("IN", &input)
        .env("OUT", &output)
        .env("MODEL", &bundle)
        .output();
    let Ok(shell) = shell else {
        crate::skips::unsupported("bash is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&shell.stdout);
    let said: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(
        said,
        ["300", "300", "301", "0", "300", "143"],
        "{}",
        String::from_utf8_lossy(&shell.stderr)
    );
}

/// Requests with a `custom_id` each: right ones, one whose input is empty, one for another route, no request, and one with
/// an earlier one's `custom_id`.
const REQUESTS: &str = r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["the cat", "a dog"]}}
{"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": {"input": ""}}
{"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {}}
{"custom_id": "d"}
{"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {"model": "other", "input": "x"}}
{"custom_id": "f", "method": "POST", "url": "/v1/embeddings", "body": {"input": "the cat", "encoding_format": "base64"}}
{"custom_id": "\u0061", "method": "POST", "url": "/v1/embeddings", "body": {"input": "another cat"}}
"#;

fn requests_job(input: &Path, output: &Path) -> Job {
    Job {
        requests: Some(batch_requests(Limits::default())),
        ..job(input, output)
    }
}

#[test]
fn requests_have_a_response_each_in_openais_form() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, REQUESTS).unwrap();
    let report = finished(requests_job(&input, &output));
    assert_eq!(report.progress.rows, 7);
    assert_eq!(report.progress.errors.values().sum::<u64>(), 5);
    let lines: Vec<Value> = text(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let summary: Vec<_> = lines
        .iter()
        .map(|line| {
            let (response, error) = (&line["response"], &line["error"]);
            json!([
                line["custom_id"],
                response["status_code"],
                response["body"]["data"].as_array().map(Vec::len),
                error["code"]
            ])
        })
        .collect();
    assert_eq!(
        json!(summary),
        json!([
            ["a", 200, 2, null],
            ["b", 422, null, null],
            ["c", null, null, "invalid_request"],
            ["d", null, null, "invalid_request"],
            ["e", 404, null, null],
            ["f", 200, 1, null],
            [null, null, null, "invalid_request"]
        ])
    );
    let ids: BTreeSet<_> = lines.iter().map(|line| line["id"].to_string()).collect();
    assert_eq!(ids.len(), 7);
    // The same bytes again, packed too.
    let first = text(&output);
    finished(Job {
        existing: Existing {
            overwrite: true,
            restart: true,
        },
        ..requests_job(&input, &output)
    });
    assert_eq!(text(&output), first);
}

#[test]
fn requests_are_resumed_where_they_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, whole] =
        ["in.jsonl", "out.jsonl", "whole.jsonl"].map(|name| folder.path().join(name));
    let with_id = |number| REQUESTS.replace("_id\": \"", &format!("_id\": \"{number} "));
    fs::write(&input, (0..400).map(with_id).collect::<String>()).unwrap();
    finished(requests_job(&input, &whole));
    let stopped = stopped(requests_job(&input, &output)).unwrap();
    assert!(matches!(stopped, Ended::Unfinished(_)), "{stopped:?}");
    finished(requests_job(&input, &output));
    assert_eq!(text(&output), text(&whole));
}

#[test]
fn requests_take_no_options_and_need_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, REQUESTS).unwrap();
    let failed = |job| run(job).unwrap().error.unwrap();
    insta::assert_snapshot!(failed(job(&input, &output)), @"OpenAI's batch requests are not supported here; use `kivu batch` or an upload");
    let mut named = requests_job(&input, &output);
    parameters_of(&mut named).column = Some("body".into());
    insta::assert_snapshot!(failed(named), @"rows that are requests have their parameters in `body`; omit the column, the task's options and the database");
    // Without the fields of a request, the same file has texts.
    fs::write(&input, "{\"custom_id\": \"a\", \"text\": \"the cat\"}\n").unwrap();
    assert_eq!(
        finished(job(&input, &output)).text_column.as_deref(),
        Some("text")
    );
}
