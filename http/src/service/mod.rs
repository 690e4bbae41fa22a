//! The router's state and what surrounds each request.

pub mod app;
pub mod caller_models;
pub mod cors;
pub mod example;
pub mod info;
pub mod lookup;
pub mod observe;
pub mod openapi;
pub mod pull;
pub mod response_limit;
#[doc(hidden)]
pub mod route;
pub mod startup;
pub mod used_models;
pub mod warm_up;
