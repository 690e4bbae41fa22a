//! An output in the making: rows with their answers, and where they go.

use std::{fs::File, io::Write};

use super::{
    answer::Answers,
    checkpoint::FILE_PIECE,
    output::{Pieces, Target},
    report::Progress,
    rows::Rows,
};
use crate::error::{Error, Result};

/// An output in the making.
pub(super) struct Work {
    pub(super) target: Target,
    pub(super) pieces: Pieces,
    pub(super) progress: Progress,
    /// What the report says of how the input was read.
    pub(super) notes: Vec<String>,
    /// Whether the input can be read again.
    pub(super) is_resumable: bool,
}

impl Work {
    pub(super) fn take(&mut self, rows: Rows, answers: &Answers) -> Result<()> {
        self.pieces.write(rows, &answers.outcomes)?;
        self.progress.add(answers);
        self.progress.name_columns(self.pieces.columns());
        match &mut self.target {
            Target::Stream(file) if self.pieces.is_plain() || self.pieces.len() >= FILE_PIECE => {
                append(file, &self.pieces.take()?)
            }
            Target::Stream(_) => Ok(()),
            Target::Saved(checkpoint) => {
                checkpoint.begin()?;
                if self.pieces.len() >= checkpoint.part_bytes() {
                    let bytes = self.pieces.take()?;
                    checkpoint.send(bytes, &mut self.pieces, &self.progress)
                } else if checkpoint.is_due() {
                    checkpoint.save(&mut self.pieces, &self.progress)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Saves what is done, so that it need not be done again; of a stream nothing is kept.
    pub(super) fn pause(mut self) -> Result<Progress> {
        if self.is_resumable {
            self.save()?;
        } else {
            self.drop_stream()?;
        }
        Ok(self.progress)
    }

    /// Removes what was made of an input that cannot be read again.
    pub(super) fn drop_stream(&self) -> Result<()> {
        match &self.target {
            Target::Saved(checkpoint) if !self.is_resumable => checkpoint.abandon(),
            _ => Ok(()),
        }
    }

    fn save(&mut self) -> Result<()> {
        match &mut self.target {
            Target::Saved(checkpoint) => {
                checkpoint.begin()?;
                checkpoint.save(&mut self.pieces, &self.progress)
            }
            Target::Stream(_) => Ok(()),
        }
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        let bytes = self.pieces.take_last()?;
        self.progress.name_columns(self.pieces.columns());
        match &mut self.target {
            Target::Stream(file) => append(file, &bytes),
            Target::Saved(checkpoint) => {
                checkpoint.begin()?;
                checkpoint.finish(bytes, &mut self.pieces, &self.progress)
            }
        }
    }
}

fn append(file: &mut File, bytes: &[u8]) -> Result<()> {
    file.write_all(bytes).map_err(Error::io("cannot write the output"))
}
