//! Bodies of requests and responses.

pub mod body;
pub mod body_memory;
pub mod content_encoding;
pub mod context;
pub mod inputs;
pub mod permit_body;
pub mod rejection;
pub mod request;
pub mod response;
pub mod truncation;
pub mod vectors;
