//! Commands that run models on texts and files.

pub mod batch;
pub mod jobs;
pub mod redact;
pub mod run;
pub mod search;
mod task_options;
