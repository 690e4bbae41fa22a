//! Size and speed before and after quantization. They are measured together with the quality, and depend on the machine,
//! so that the manifest does not contain them.

use std::{path::Path, time::Duration};

use serde::Serialize;

use super::files;
use kivu::error::Result;

/// The cost of one form of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The size of the graphs and their weights.
    pub bytes: u64,
    /// Sample texts per second, while the other form runs alternately on all CPUs.
    pub texts_per_second: f64,
}

/// The cost of both forms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The weights in fp32.
    pub fp32: Cost,
    /// The weights in the bundle.
    pub built: Cost,
}

impl Comparison {
    /// The cost of the fp32 form and the built one, from the size of each and its time for `texts` texts.
    pub(super) fn new(bytes: [u64; 2], times: [Duration; 2], texts: usize) -> Self {
        let cost = |form: usize| Cost {
            bytes: bytes[form],
            texts_per_second: texts as f64 / times[form].as_secs_f64(),
        };
        Self { fp32: cost(0), built: cost(1) }
    }
}

/// The size of all files in a folder.
pub(super) fn size(folder: &Path) -> Result<u64> {
    Ok(files::list(folder)?.iter().map(|(_, file)| file.len()).sum())
}
