//! Batches in S3, which the batch function runs when they are created.

use std::{
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;

use super::{
    entry::{Entry, QUEUE},
    run::{Advanced, Runs},
};
use crate::{
    api::{app::App, files::Files},
    batch::{Ended, ObjectJobs, Progress},
    error::Result,
    repository::s3::Url,
};

/// Batches whose files are in S3. Each is an object in the queue's folder.
#[derive(Debug)]
pub struct BatchObjects {
    runs: Runs,
    /// The queue's folder.
    queue: Url,
}

impl BatchObjects {
    /// The batches in `files`, unless they are in a local folder.
    pub fn new(app: App, files: Arc<Files>, interval: Duration) -> Option<Self> {
        let queue = files.prefix.as_ref()?.join(&format!("{QUEUE}/"));
        Some(Self {
            runs: Runs {
                app: Arc::new(app),
                files,
                interval,
            },
            queue,
        })
    }

    fn entry(&self, url: &Url) -> Option<Entry> {
        let name = url
            .key
            .strip_prefix(&self.queue.key)
            .filter(|_| url.bucket == self.queue.bucket);
        Entry::parse(name?)
    }
}

#[async_trait(?Send)]
impl ObjectJobs for BatchObjects {
    fn has(&self, url: &Url) -> bool {
        self.entry(url).is_some()
    }

    async fn run(&self, url: &Url, until: Option<Instant>) -> Result<Ended> {
        let Some(entry) = self.entry(url) else {
            return Ok(Ended::Known);
        };
        match self.runs.advance(&entry, until, pending()).await? {
            Advanced::Done => Ok(Ended::Known),
            Advanced::Unfinished => {
                let counts = entry
                    .read(&self.runs.files)?
                    .map(|record| record.batch.request_counts);
                let rows = counts.map_or(0, |counts| counts.completed + counts.failed);
                Ok(Ended::Unfinished(Progress {
                    rows,
                    ..Progress::default()
                }))
            }
        }
    }
}
