//! Jobs whose outputs are below a prefix in S3, from their reports, progress and checkpoints.

use std::{collections::BTreeSet, sync::Arc, thread};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::output::{
    progress_object::{self, Activity, JobProgress, now},
    report::{Report, Status},
    report_file,
};
use kivu::{
    Error, Result,
    repository::s3::{Store, Url},
};

/// Maximum number of reports that are read.
const MAX_REPORTS: usize = 1_000;
/// Objects that are read concurrently.
const READERS: usize = 16;
const CHECKPOINT: &str = ".checkpoint";
/// Digits of a job's id in names.
const ID: usize = 16;

/// A job's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Its process publishes progress.
    Running,
    /// Begun, without progress yet.
    #[default]
    Begun,
    /// Stopped; the next run continues it.
    Waiting,
    /// Its process does not publish progress any more.
    Stale,
    /// There is no output.
    Failed,
    /// The output has all rows.
    Finished,
}

/// A job with an output in S3.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListedJob {
    /// The job's state.
    pub state: JobState,
    /// Output URL.
    pub output: String,
    /// Input URL, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Model name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Finished rows, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Rows with an error, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<u64>,
    /// Rows per second of a job that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_per_second: Option<f64>,
    /// Estimated seconds until the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// When its last process began, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When the progress was published, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Jobs, those that run first.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The jobs.
    pub jobs: Vec<ListedJob>,
    /// Reports that were not read, since there are too many.
    pub unread: usize,
}

/// Lists the jobs whose outputs begin with `prefix`.
pub fn list(store: &Arc<dyn Store>, prefix: &Url) -> Result<Listing> {
    let keys = store.list(prefix)?;
    let ending = |suffix: &str| -> Vec<&String> {
        keys.iter().filter(|key| key.ends_with(suffix)).collect()
    };
    let mut reports = ending(report_file::SUFFIX);
    let unread = reports.len().saturating_sub(MAX_REPORTS);
    reports.truncate(MAX_REPORTS);
    let reports: Vec<Report> = read(store, prefix, &reports)?;
    let has_checkpoint = |key: &&String| {
        let job = key.strip_suffix(progress_object::SUFFIX);
        job.is_some_and(|job| keys.contains(&format!("{job}{CHECKPOINT}")))
    };
    let (claimed, others): (Vec<&String>, _) = ending(progress_object::SUFFIX)
        .into_iter()
        .partition(has_checkpoint);
    let claimed: Vec<JobProgress> = read(store, prefix, &claimed)?;
    let others: Vec<JobProgress> = read(store, prefix, &others)?;
    let mut jobs = Vec::new();
    let now = now();
    // A process that was replaced may publish its progress once more after the end. The report beside a checkpoint is an
    // earlier job's.
    let has_ended = |job: &JobProgress| {
        reports
            .iter()
            .any(|report| report.output == job.output && report.version == job.version)
    };
    let others = others.into_iter().filter(|job| !has_ended(job));
    jobs.extend(
        claimed
            .into_iter()
            .chain(others)
            .map(|job| active(job, now)),
    );
    let known: BTreeSet<String> = jobs.iter().map(|job| job.output.clone()).collect();
    let begun = ending(CHECKPOINT)
        .into_iter()
        .filter_map(|key| output_of(key))
        .map(|key| prefix.with_key(key).to_string())
        .filter(|output| !known.contains(output));
    jobs.extend(begun.map(|output| of_output(JobState::Begun, output)));
    jobs.extend(reports.into_iter().map(ended));
    jobs.sort_by(|left, right| (left.state, &left.output).cmp(&(right.state, &right.output)));
    Ok(Listing { jobs, unread })
}

/// Reads objects, without those that are gone meanwhile or are something else.
fn read<T: DeserializeOwned + Send>(
    store: &Arc<dyn Store>,
    bucket: &Url,
    keys: &[&String],
) -> Result<Vec<T>> {
    let part = keys.len().div_ceil(READERS).max(1);
    let read_part = |keys: &[&String]| -> Result<Vec<T>> {
        let mut found = Vec::new();
        for key in keys {
            let bytes = store.read(&bucket.with_key((*key).clone()))?;
            found.extend(bytes.and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()));
        }
        Ok(found)
    };
    let read = thread::scope(|scope| {
        let readers: Vec<_> = keys
            .chunks(part)
            .map(|keys| scope.spawn(move || read_part(keys)))
            .collect();
        let joined = readers.into_iter().map(|reader| {
            reader
                .join()
                .unwrap_or_else(|_| Err(Error::model("reading the jobs panicked")))
        });
        joined.collect::<Result<Vec<Vec<T>>>>()
    });
    Ok(read?.into_iter().flatten().collect())
}

/// The output that a checkpoint belongs to: its key without the job's id.
fn output_of(checkpoint: &str) -> Option<&str> {
    let (output, id) = checkpoint.strip_suffix(CHECKPOINT)?.rsplit_once('.')?;
    let is_id = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(output)
}

fn of_output(state: JobState, output: String) -> ListedJob {
    ListedJob {
        state,
        output,
        ..ListedJob::default()
    }
}

fn active(job: JobProgress, now: u64) -> ListedJob {
    let state = match job.status {
        Activity::Waiting => JobState::Waiting,
        Activity::Running if job.is_stale(now) => JobState::Stale,
        Activity::Running => JobState::Running,
    };
    let runs = state == JobState::Running;
    ListedJob {
        input: Some(job.input),
        model: Some(job.model),
        rows: Some(job.rows),
        errors: Some(job.errors),
        rows_per_second: runs.then_some(job.rows_per_second),
        seconds_left: job.seconds_left.filter(|_| runs),
        started: Some(job.started),
        updated: Some(job.updated),
        ..of_output(state, job.output)
    }
}

fn ended(report: Report) -> ListedJob {
    let state = match report.status {
        Status::Finished => JobState::Finished,
        Status::Failed => JobState::Failed,
    };
    ListedJob {
        input: Some(report.input),
        model: Some(report.model),
        rows: Some(report.progress.rows),
        errors: Some(report.progress.errors.values().sum()),
        error: report.error,
        ..of_output(state, report.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_names_its_output() {
        assert_eq!(
            output_of("out/a.b.csv.0123456789abcdef.checkpoint"),
            Some("out/a.b.csv")
        );
        for other in [
            "out/a.csv.checkpoint",
            "model.checkpoint",
            "out/a.csv.0123.checkpoint",
            "x.0123456789abcdef",
        ] {
            assert_eq!(output_of(other), None, "{other}");
        }
    }
}
