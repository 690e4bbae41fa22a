//! Where rows with their answers are written.

use std::{fs::File, io::Write};

use super::{
    answer::Answers, checkpoint::Checkpoint, local_storage::PART_BYTES, pieces::Pieces,
    progress_object::ProgressObject, report::Progress,
};
use crate::{input::compression::unwritable, rows::Rows, sink::SinkWriter};
use kivu::{Result, telemetry::job::record_rows};

/// Where output pieces are written.
pub enum Target {
    /// A pipe, a device or standard output.
    Stream(File),
    /// A file or an object, with a checkpoint.
    Checkpoint(Box<Checkpoint>),
}

/// Writes rows to a target.
pub struct Writer {
    pub target: Target,
    pub pieces: Pieces,
    pub progress: Progress,
    /// Notes for the report.
    pub notes: Vec<String>,
    /// Text column, for the report.
    pub column: String,
    /// Whether the input can be read again.
    pub is_resumable: bool,
    /// Gets the vectors; then, the target gets only rows with errors.
    pub sink: Option<SinkWriter>,
    /// Publishes the progress of a job with an output in S3.
    pub published: Option<ProgressObject>,
}

impl Writer {
    /// Writes rows, and saves the job if it is time.
    pub fn write(&mut self, rows: Rows, mut answers: Answers) -> Result<()> {
        match &mut self.sink {
            Some(sink) => {
                sink.add(rows, answers);
                let is_due =
                    matches!(&self.target, Target::Checkpoint(checkpoint) if checkpoint.is_due());
                if !sink.is_full() && !is_due {
                    return Ok(());
                }
                self.flush()?;
            }
            None => {
                self.pieces.write(rows, &mut answers.results)?;
                self.count(&answers);
            }
        }
        self.progress.name_columns(self.pieces.columns());
        self.save_if_due()
    }

    /// Publishes the progress, if it is time; `share` is the share of the input.
    pub fn publish(&mut self, share: Option<f64>) {
        if let Some(published) = &mut self.published {
            published.advance(&self.progress, share);
        }
    }

    /// Deletes the published progress of a job that has ended.
    pub fn end_progress(&mut self) {
        if let Some(published) = &mut self.published {
            published.end();
        }
    }

    /// Sends the rows that wait for the sink.
    fn flush(&mut self) -> Result<()> {
        let sent = self.sink.as_mut().map(SinkWriter::flush).transpose()?;
        for sent in sent.into_iter().flatten() {
            for (rows, mut results) in sent.failed {
                self.pieces.write(rows, &mut results)?;
            }
            self.count(&sent.answers);
        }
        Ok(())
    }

    /// Counts finished rows.
    fn count(&mut self, answers: &Answers) {
        self.progress.add(answers);
        record_rows(
            answers.results.len(),
            answers
                .results
                .iter()
                .filter(|result| result.is_err())
                .count(),
        );
    }

    fn save_if_due(&mut self) -> Result<()> {
        match &mut self.target {
            Target::Stream(file) if self.pieces.is_plain() || self.pieces.size() >= PART_BYTES => {
                append(file, &self.pieces.take()?)
            }
            Target::Stream(_) => Ok(()),
            Target::Checkpoint(checkpoint) => {
                checkpoint.begin()?;
                let min_bytes = checkpoint.part_bytes(&self.pieces);
                match self.pieces.take_part(min_bytes)? {
                    Some(bytes) => checkpoint.send(bytes, &mut self.pieces, &self.progress),
                    None if checkpoint.is_due() => {
                        checkpoint.save(&mut self.pieces, &self.progress)
                    }
                    None => Ok(()),
                }
            }
        }
    }

    /// Saves a job that is stopped; one that cannot resume is abandoned.
    pub fn pause(mut self) -> Result<Progress> {
        if self.is_resumable {
            self.flush()?;
        }
        match &mut self.target {
            Target::Checkpoint(checkpoint) if self.is_resumable => {
                checkpoint.begin()?;
                checkpoint.save(&mut self.pieces, &self.progress)?;
                if let Some(published) = &mut self.published {
                    published.wait(&self.progress);
                }
            }
            _ => self.abandon_unresumable()?,
        }
        Ok(self.progress)
    }

    /// Abandons a job that cannot resume.
    pub fn abandon_unresumable(&self) -> Result<()> {
        match &self.target {
            Target::Checkpoint(checkpoint) if !self.is_resumable => checkpoint.abandon(),
            _ => Ok(()),
        }
    }

    /// Writes the output's end and completes it.
    pub fn finish(&mut self) -> Result<()> {
        self.flush()?;
        let bytes = self.pieces.take_last()?;
        self.progress.name_columns(self.pieces.columns());
        match &mut self.target {
            Target::Stream(file) => append(file, &bytes),
            Target::Checkpoint(checkpoint) => {
                checkpoint.begin()?;
                checkpoint.finish(bytes, &mut self.pieces, &self.progress)
            }
        }
    }
}

fn append(file: &mut File, bytes: &[u8]) -> Result<()> {
    file.write_all(bytes).map_err(unwritable)
}
