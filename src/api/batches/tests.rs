//! Batches that are stopped, cancelled or too late, and the files that they leave.

use std::{
    collections::BTreeMap,
    future::{pending, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    entry::Entry,
    object::{Batch, BatchRecord, BatchStatus, Endpoint},
    run::{Advanced, Runs},
};
use crate::{
    api::{
        app::App,
        files::{FILE, FileNames, Files, Owner, new_id},
        fuzzing::models,
    },
    config::{Config, FilesConfig, Limits},
    regular_file,
};

struct Setup {
    folder: tempfile::TempDir,
    runs: Runs,
    entry: Entry,
}

fn requests(count: usize) -> String {
    let line = |id| {
        let body =
            json!({"model": "embedding", "input": if id % 10 == 7 { "" } else { "the cat" }});
        json!({"custom_id": format!("r{id}"), "method": "POST", "url": Endpoint::Embeddings.path(), "body": body})
            .to_string()
            + "\n"
    };
    (0..count).map(line).collect()
}

/// A batch with these requests, every tenth of which is wrong.
fn setup(requests: &str) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("files").display().to_string();
    let files = FilesConfig {
        folder: Some(place),
        ..FilesConfig::default()
    };
    let files = Files::open(&Config {
        files,
        ..Config::default()
    })
    .unwrap()
    .unwrap();
    let owner = Owner::of(None).folder;
    let request = json!({"input_file_id": new_id(FILE), "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let record = BatchRecord::new(serde_json::from_value(request).unwrap(), Vec::new()).unwrap();
    let entry = Entry::new(&owner, &record.batch.id);
    files
        .storage
        .write(&entry.requests(), requests.into())
        .unwrap();
    files.write(&entry.record(), &record).unwrap();
    files.write(&entry.queued(), &()).unwrap();
    let app = Arc::new(App::new(models().unwrap(), Limits::default()));
    Setup {
        folder,
        runs: Runs {
            app,
            files,
            interval: Duration::ZERO,
        },
        entry,
    }
}

impl Setup {
    fn files(&self) -> &Files {
        &self.runs.files
    }

    /// Runs the batch until the future `stop` of the job has been polled this often.
    async fn advance(&self, polls: usize) -> Advanced {
        let mut left = polls;
        let stop = poll_fn(|context| {
            left = left.saturating_sub(1);
            if left > 0 {
                return Poll::Pending;
            }
            context.waker().wake_by_ref();
            Poll::Ready(())
        });
        self.turn(stop).await
    }

    /// Runs the batch to its end.
    async fn finish(&self) -> Batch {
        while self.turn(pending()).await == Advanced::Unfinished {
            tokio::task::yield_now().await;
        }
        self.batch()
    }

    /// Runs the batch until `stop`. A thread of the turn before may not have released the output yet.
    async fn turn(&self, stop: impl Future<Output = ()> + Send) -> Advanced {
        match self.runs.advance(&self.entry, None, stop).await {
            Err(error) if error.to_string().contains("another one is writing it") => {
                Advanced::Unfinished
            }
            advanced => advanced.unwrap(),
        }
    }

    fn batch(&self) -> Batch {
        self.entry.read(self.files()).unwrap().unwrap().batch
    }

    /// Output lines, without their random ids.
    fn lines(&self, id: Option<&String>) -> Vec<Value> {
        let Some(id) = id else { return Vec::new() };
        let names = FileNames::new(&self.entry.owner, id);
        let text = String::from_utf8(self.files().storage.read(&names.contents).unwrap().unwrap())
            .unwrap();
        let line = |line: &str| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            line["id"] = Value::Null;
            if line["response"].is_object() {
                line["response"]["request_id"] = Value::Null;
            }
            line
        };
        text.lines().map(line).collect()
    }

    fn outputs(&self, batch: &Batch) -> [Vec<Value>; 2] {
        [
            self.lines(batch.output_file_id.as_ref()),
            self.lines(batch.error_file_id.as_ref()),
        ]
    }
}

fn counts(batch: &Batch) -> [u64; 3] {
    let counts = batch.request_counts;
    [counts.total, counts.completed, counts.failed]
}

fn codes(lines: &[Value]) -> BTreeMap<String, usize> {
    let mut codes = BTreeMap::new();
    for line in lines {
        let code = line["error"]["code"].as_str().unwrap_or("response");
        *codes.entry(code.to_owned()).or_default() += 1;
    }
    codes
}

#[tokio::test]
async fn a_stopped_batch_continues_without_lost_or_repeated_lines() {
    let requests = requests(1000);
    let uncut = setup(&requests);
    let batch = uncut.finish().await;
    assert_eq!(
        (batch.status, counts(&batch)),
        (BatchStatus::Completed, [1000, 900, 100])
    );
    let [expected, errors] = uncut.outputs(&batch);
    let ids = |lines: &[Value]| {
        lines
            .iter()
            .map(|line| line["custom_id"].to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&expected)[..3], ["\"r0\"", "\"r1\"", "\"r2\""]);
    assert_eq!(errors[0]["response"]["status_code"], 422);

    let cut = setup(&requests);
    let mut runs = 1;
    while cut.advance(1 + runs).await == Advanced::Unfinished {
        runs += 1;
    }
    assert!(runs > 2, "{runs} runs");
    let batch = cut.batch();
    assert_eq!(
        (batch.status, counts(&batch)),
        (BatchStatus::Completed, [1000, 900, 100])
    );
    assert_eq!(cut.outputs(&batch), [expected, errors]);
}

#[tokio::test]
async fn an_ended_batch_leaves_its_object_and_its_files() {
    let setup = setup(&requests(20));
    let batch = setup.finish().await;
    let all = |folder: &str| {
        setup
            .files()
            .storage
            .list(&format!("{}/{folder}", setup.entry.owner))
            .unwrap()
    };
    assert_eq!(all("batches"), [format!("{}.json", batch.id)]);
    assert_eq!(all("files").len(), 4);
    assert!(Entry::all(setup.files()).unwrap().is_empty());
    // A process that ended before it was taken out of the queue.
    setup.files().write(&setup.entry.queued(), &()).unwrap();
    let again = setup.finish().await;
    assert_eq!(
        (again.completed_at, again.output_file_id),
        (batch.completed_at, batch.output_file_id)
    );
    assert!(Entry::all(setup.files()).unwrap().is_empty());
}

#[tokio::test]
async fn a_batch_that_ended_while_its_files_were_written_has_them_once() {
    let setup = setup(&requests(20));
    let mut record: BatchRecord = setup.files().read(&setup.entry.record()).unwrap().unwrap();
    // All responses, and the files, but not the status.
    while setup.batch().status != BatchStatus::InProgress {
        setup.advance(1).await;
    }
    let requests = setup.entry.requests();
    setup.files().storage.copy(&requests, "kept").unwrap();
    setup.finish().await;
    record.batch.enter(BatchStatus::InProgress);
    setup.files().storage.copy("kept", &requests).unwrap();
    setup.files().write(&setup.entry.record(), &record).unwrap();
    let batch = setup.finish().await;
    assert_eq!(counts(&batch), [20, 18, 2]);
    assert_eq!(
        setup
            .files()
            .ids(&format!("{}/files", setup.entry.owner), FILE)
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn requests_of_a_cancelled_batch_do_not_run() {
    let setup = setup(&requests(1000));
    let mut polls = 2;
    while counts(&setup.batch())[1] == 0 {
        assert_eq!(setup.advance(polls).await, Advanced::Unfinished);
        polls += 1;
    }
    setup
        .files()
        .write(&setup.entry.cancellation(), &5)
        .unwrap();
    assert_eq!(setup.batch().status, BatchStatus::Cancelling);
    let batch = setup.finish().await;
    let [output, errors] = setup.outputs(&batch);
    assert_eq!(
        (batch.status, batch.cancelling_at),
        (BatchStatus::Cancelled, Some(5))
    );
    assert_eq!(
        counts(&batch),
        [1000, output.len() as u64, errors.len() as u64]
    );
    let codes = codes(&errors);
    assert!(
        codes["batch_cancelled"] > 0 && output.len() > 50,
        "{codes:?}"
    );

    let unchecked = setup_cancelled();
    let batch = unchecked.finish().await;
    assert_eq!(
        (batch.status, batch.output_file_id),
        (BatchStatus::Cancelled, None)
    );
}

fn setup_cancelled() -> Setup {
    let setup = setup(&requests(2));
    setup
        .files()
        .write(&setup.entry.cancellation(), &5)
        .unwrap();
    setup
}

#[tokio::test]
async fn requests_do_not_run_after_the_completion_window() {
    let setup = setup(&requests(3));
    let mut record: BatchRecord = setup.files().read(&setup.entry.record()).unwrap().unwrap();
    record.batch.expires_at = 1;
    setup.files().write(&setup.entry.record(), &record).unwrap();
    let batch = setup.finish().await;
    assert_eq!(
        (batch.status, counts(&batch)),
        (BatchStatus::Expired, [3, 0, 3])
    );
    let [_, errors] = setup.outputs(&batch);
    insta::assert_snapshot!(errors[0], @r#"{"custom_id":"r0","error":{"code":"batch_expired","message":"this request did not run before the completion window ended"},"id":null,"response":null}"#);
}

#[tokio::test]
async fn a_file_with_errors_fails_the_batch() {
    let setup = setup("{\"custom_id\": \"a\"}\n");
    let batch = setup.finish().await;
    assert_eq!(batch.status, BatchStatus::Failed);
    insta::assert_snapshot!(json!(batch.errors), @r#"{"data":[{"code":"missing_required_parameter","line":1,"message":"expected the field `method`, but found none","param":"method"}],"object":"list"}"#);
}

#[tokio::test]
async fn a_damaged_unfinished_output_is_written_again() {
    let setup = setup(&requests(1000));
    let mut polls = 2;
    while counts(&setup.batch())[1] == 0 {
        setup.advance(polls).await;
        polls += 1;
    }
    let folder = setup
        .folder
        .path()
        .join("files")
        .join(&setup.entry.owner)
        .join("batches");
    let partial = folder.join(format!(".{}.out.jsonl.kivu-partial", setup.entry.id));
    let mut bytes = regular_file::read(&partial).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&partial, bytes).unwrap();
    let batch = setup.finish().await;
    assert_eq!(
        (batch.status, counts(&batch)),
        (BatchStatus::Completed, [1000, 900, 100])
    );
}
