//! Batch jobs: text files become files with answers, row for row, in the same format and with bounded memory.
//!
//! Outputs consist of self-contained pieces, so that a job can stop after any piece, and another process can resume
//! it: see `checkpoint.rs`.

mod answer;
mod appender;
mod benchmark;
mod checkpoint;
mod columns;
mod compression;
#[cfg(test)]
mod corruption;
mod distributed_map;
mod event;
mod files;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handler;
mod identity;
mod input;
mod job;
mod kpl;
mod local_storage;
mod location;
mod output;
mod output_file;
mod output_form;
mod parameters;
mod parts;
mod predictor;
mod process;
mod report;
mod report_file;
mod requests;
mod row_event;
mod row_function;
mod rows;
mod rules;
mod s3_storage;
mod sink;
mod streams;
mod target;
mod text_predictor;
mod warehouse;
mod watcher;

pub use self::{
    benchmark::pass_through,
    columns::ColumnFile,
    format::Format,
    handler::Handler,
    job::{Ended, Job},
    location::{Existing, JobInput, JobOutput},
    parameters::Parameters,
    report::{Progress, Report, Status},
    requests::{Requests, Respond},
    rows::{CsvOptions, Mark},
    sink::{SinkSettings, SinkUrl},
    text_predictor::{Prediction, TextPredictor},
    watcher::Watcher,
};
