//! Batch jobs: text files become files with answers, row for row, in the same format and with bounded memory.
//!
//! Outputs consist of self-contained pieces, so that a job can stop after any piece, and another process can resume
//! it: see `checkpoint.rs`.

#[doc(hidden)]
pub mod events;
#[doc(hidden)]
pub mod input;
mod job;
#[doc(hidden)]
pub mod output;
pub mod rewrite;
#[doc(hidden)]
pub mod rows;
#[doc(hidden)]
pub mod sink;

pub use self::{
    events::{
        handler::Handler,
        text_predictor::{Prediction, Predictions, TextPredictor},
    },
    input::{
        columns::ColumnFile,
        format::Format,
        location::{Existing, JobInput, JobOutput},
    },
    job::{
        Ended, Job,
        benchmark::pass_through,
        listing::{JobState, ListedJob, Listing, list},
        parameters::{OPTIONS, Parameters},
        watcher::Watcher,
    },
    output::report::{Progress, Report, Status},
    rows::{CsvOptions, Mark, Parquet},
    sink::{SinkSettings, Sinks},
};
