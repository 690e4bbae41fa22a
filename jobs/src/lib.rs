//! Batch jobs: text files become files with answers, row for row, in the same format and with bounded memory.
//!
//! Outputs consist of self-contained pieces, so that a job can stop after any piece, and another process can resume
//! it: see `checkpoint.rs`.

#[doc(hidden)]
pub mod answer;
mod appender;
mod benchmark;
#[doc(hidden)]
pub mod checkpoint;
mod columns;
#[doc(hidden)]
pub mod compression;
#[cfg(test)]
mod corruption;
#[doc(hidden)]
pub mod distributed_map;
#[doc(hidden)]
pub mod event;
mod files;
mod format;
mod handler;
mod identity;
mod input;
mod job;
#[doc(hidden)]
pub mod kpl;
mod local_storage;
mod location;
#[doc(hidden)]
pub mod output;
mod output_file;
#[doc(hidden)]
pub mod output_form;
mod parameters;
mod parts;
mod predictor;
mod process;
mod report;
mod report_file;
mod requests;
#[doc(hidden)]
pub mod row_event;
mod row_function;
#[doc(hidden)]
pub mod rows;
mod rules;
mod s3_storage;
#[doc(hidden)]
pub mod sink;
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
    rows::{CsvOptions, Mark},
    sink::{SinkSettings, SinkUrl},
    text_predictor::{Prediction, TextPredictor},
    watcher::Watcher,
};
