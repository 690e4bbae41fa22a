//! The router's state and what surrounds each request.

pub mod app;
pub mod cors;
pub mod example;
pub mod info;
pub mod models;
pub mod observe;
pub mod openapi;
pub mod query;
pub mod response_limit;
#[doc(hidden)]
pub mod route;
pub mod startup;
pub mod warm_up;
