//! Sinks: databases and search indexes that store a job's vectors, by the rows' ids. The crate `kivu-sinks` has them.
//!
//! The rows that a sink does not get, with their errors, are written to a file, as are the checkpoint and the report.
//! A checkpoint is saved only after the sink has stored all rows before it. The rows after it are stored again when the
//! job is resumed, and replace themselves.

mod interface;
mod record;
mod writer;

pub use self::{
    interface::{Refusal, Sink, SinkKind, SinkSettings, SinkUrl, Sinks},
    record::Record,
    writer::{SinkWriter, value_bytes},
};
