//! Output files, checkpoints and reports.

#[doc(hidden)]
pub mod answer;
pub mod appender;
#[doc(hidden)]
pub mod checkpoint;
pub mod files;
pub mod local_storage;
pub mod output_file;
#[doc(hidden)]
pub mod output_form;
#[doc(hidden)]
pub mod pieces;
pub mod progress_object;
pub mod report;
pub mod report_file;
pub mod s3_storage;
pub mod target;
