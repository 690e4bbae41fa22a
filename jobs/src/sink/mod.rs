//! Sinks: databases and search indexes that store a job's vectors, by the rows' ids.
//!
//! The rows that a sink does not get, with their errors, are written to a file, as are the checkpoint and the report.
//! A checkpoint is saved only after the sink has stored all rows before it. The rows after it are stored again when the
//! job is resumed, and replace themselves.

#![cfg_attr(
    not(all(feature = "postgres", feature = "s3")),
    allow(dead_code, reason = "sinks that this build lacks use it")
)]

mod connect;
mod interface;
#[cfg(feature = "s3")]
mod open_search;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_table;
#[cfg(feature = "postgres")]
mod postgres_tls;
mod record;
#[cfg_attr(
    not(any(feature = "postgres", feature = "s3")),
    expect(dead_code, reason = "no sink is built")
)]
mod retry;
#[cfg(feature = "s3")]
mod s3_vectors;
mod url;
mod writer;

pub use self::url::{SinkSettings, SinkUrl};
pub use self::writer::SinkWriter;
