//! Events that start jobs or carry rows.

#[doc(hidden)]
pub mod distributed_map;
#[doc(hidden)]
pub mod event;
pub mod handler;
#[doc(hidden)]
pub mod kinesis_aggregation;
pub mod parts;
pub mod row_function;
pub mod rules;
pub mod streams;
pub mod text_predictor;
pub mod warehouse;
