//! What quantising saved: measured on the way to the quality, and so for nothing; it goes into no manifest, since
//! it is the machine's as much as the model's.

use std::{fs, path::Path, time::Duration};

use serde::Serialize;

use crate::error::{Error, Result};

/// What one form of the weights costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The size of graph and weights.
    pub bytes: u64,
    /// Sample texts a second, while the other form runs in turns with it on all CPUs.
    pub texts_per_second: f64,
}

/// Both forms side by side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The weights as they came.
    pub fp32: Cost,
    /// The weights as they are in the bundle.
    pub built: Cost,
}

/// The time that both forms took for the same texts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) texts: usize,
    pub(super) reference: Duration,
    pub(super) quantised: Duration,
}

impl Spent {
    /// The same with what others spent at the same time.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            texts: self.texts + other.texts,
            reference: self.reference + other.reference,
            quantised: self.quantised + other.quantised,
        }
    }

    /// What both forms cost, whose files lie in two folders, where so many threads took turns.
    pub(super) fn compare(self, folders: [u64; 2], threads: usize) -> Comparison {
        let speed = |spent: Duration| self.texts as f64 * threads as f64 / spent.as_secs_f64();
        let [reference, built] = folders;
        Comparison {
            fp32: Cost { bytes: reference, texts_per_second: speed(self.reference) },
            built: Cost { bytes: built, texts_per_second: speed(self.quantised) },
        }
    }
}

/// The size of all files in a folder.
pub(super) fn size(folder: &Path) -> Result<u64> {
    let unreadable = || Error::io(format!("cannot read `{}`", folder.display()));
    fs::read_dir(folder)
        .map_err(unreadable())?
        .map(|entry| entry.and_then(|entry| entry.metadata()).map(|file| file.len()).map_err(unreadable()))
        .sum()
}
