//! Size and speed before and after quantization. Measured together with quality; machine-dependent, so the manifest
//! does not contain them.

use std::{path::Path, time::Duration};

use serde::Serialize;

use crate::files::io as files;
use kivu::Result;

/// Size and speed for one weight form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Graphs and weights, in bytes.
    pub bytes: u64,
    /// Sample texts per second on all CPUs.
    pub texts_per_second: f64,
}

/// Size and speed before and after quantization.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The weights in fp32.
    pub fp32: Cost,
    /// The weights in the bundle.
    pub built: Cost,
}

impl Comparison {
    /// Costs for the fp32 form and the built one, from their sizes in bytes and times for `texts` texts.
    pub fn new(bytes: [u64; 2], times: [Duration; 2], texts: usize) -> Self {
        let cost = |form: usize| Cost {
            bytes: bytes[form],
            texts_per_second: texts as f64 / times[form].as_secs_f64(),
        };
        Self {
            fp32: cost(0),
            built: cost(1),
        }
    }
}

/// Total file size in a folder, in bytes.
pub fn size(folder: &Path) -> Result<u64> {
    Ok(files::list(folder)?
        .iter()
        .map(|(_, file)| file.len())
        .sum())
}
