//! Jobs with the scripted model.

use std::{path::Path, time::Duration};

use kivu_jobs::{Ended, Job, JobInput, JobOutput, Parameters, Report, Status};

use crate::scripted::scripted_model;

/// A file-to-file job on a two-dimensional scripted model.
pub(crate) fn job(input: &Path, output: &Path) -> Job {
    Job {
        interval: Duration::from_secs(60),
        parquet: kivu_parquet::parquet(),
        ..Job::new(
            JobInput::File(input.to_owned()),
            JobOutput::File(output.to_owned()),
            scripted_model(),
            Parameters::default(),
        )
    }
}

pub(crate) fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// Runs a job to its end and returns its report.
pub(crate) fn run(job: Job) -> kivu::Result<Report> {
    wait(job.run()).map(|ended| match ended {
        Ended::Done(report) => *report,
        other => panic!("expected a report, but found {other:?}"),
    })
}

pub(crate) fn finished(job: Job) -> Report {
    let report = run(job).unwrap();
    assert_eq!(report.status, Status::Finished, "{:?}", report.error);
    report
}
