//! `kivu jobs`: jobs with outputs in S3.

use std::process::ExitCode;

use clap::Args;

use crate::{
    examples::examples,
    library::models::age,
    terminal::{Format, print_aside},
};
use kivu::{Result, clock, cloud::Cloud, repository::s3::Url};
use kivu_jobs::{JobState, ListedJob, list};

/// List jobs with outputs in S3: running, waiting, stale, failed and finished ones
///
/// A running job publishes its progress as often as it is saved; a job whose progress is late is stale: its process has
/// probably died, and the next run continues it.
#[derive(Debug, Args)]
#[command(after_help = examples("jobs"))]
pub struct Arguments {
    /// Where the outputs are, as s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    prefix: Url,
    #[command(flatten)]
    format: Format,
}

pub fn run(arguments: &Arguments, cloud: &Cloud) -> Result<ExitCode> {
    let found = list(&cloud.store()?, &arguments.prefix)?;
    if found.unread > 0 {
        print_aside(&format!(
            "{} reports were not read; name a longer prefix to see them",
            found.unread
        ));
    }
    arguments.format.print(&found.jobs, |jobs| {
        if jobs.is_empty() {
            print_aside(&format!("no jobs below {}", arguments.prefix));
            return Vec::new();
        }
        lines(jobs)
    })
}

fn lines(jobs: &[ListedJob]) -> Vec<String> {
    let now = clock::since_1970().as_secs();
    let head = format!(
        "{:8}  {:>10}  {:>8}  {:26}  OUTPUT",
        "STATE", "ROWS", "ERRORS", ""
    );
    let jobs = jobs.iter().map(|job| line(job, now));
    [head].into_iter().chain(jobs).collect()
}

fn line(job: &ListedJob, now: u64) -> String {
    let state = match job.state {
        JobState::Running => "running",
        JobState::Begun => "begun",
        JobState::Waiting => "waiting",
        JobState::Stale => "stale",
        JobState::Failed => "failed",
        JobState::Finished => "finished",
    };
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    let since = |time: Option<u64>| age(now.saturating_sub(time.unwrap_or(now)));
    let about = match (job.state, job.rows_per_second) {
        (JobState::Running, Some(speed)) => {
            let left = job
                .seconds_left
                .map(|left| format!(", {} left", age(left)))
                .unwrap_or_default();
            format!("{speed:.0} rows/s{left}")
        }
        (JobState::Stale | JobState::Waiting, _) => format!("last seen {} ago", since(job.updated)),
        _ => String::new(),
    };
    let error = job
        .error
        .as_ref()
        .map(|error| format!(": {error}"))
        .unwrap_or_default();
    // A key may have several lines.
    let output = format!("{}{error}", job.output).replace('\n', "\\n");
    format!(
        "{state:8}  {:>10}  {:>8}  {about:26}  {output}",
        count(job.rows),
        count(job.errors),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_a_job_does() {
        let job = |text: &str| serde_json::from_str::<ListedJob>(text).unwrap();
        let jobs = [
            r#"{"state": "running", "output": "s3://b/out/a", "rows": 1000, "errors": 2, "rows_per_second": 99.6, "seconds_left": 240}"#,
            r#"{"state": "stale", "output": "s3://b/out/b", "rows": 5, "errors": 0, "updated": 1000}"#,
            r#"{"state": "begun", "output": "s3://b/out/c\nd"}"#,
            r#"{"state": "failed", "output": "s3://b/out/d", "rows": 0, "errors": 0, "error": "expected rows, but found an empty file"}"#,
        ];
        let lines: Vec<String> = jobs.iter().map(|text| line(&job(text), 8200)).collect();
        insta::assert_snapshot!(lines.join("\n"), @"
        running         1000         2  100 rows/s, 4 min left      s3://b/out/a
        stale              5         0  last seen 2 h ago           s3://b/out/b
        begun              -         -                              s3://b/out/c\\nd
        failed             0         0                              s3://b/out/d: expected rows, but found an empty file
        ");
    }
}
