//! Models by name: on the hub, in recipes, and on this machine.

pub mod elsewhere;
pub mod fetch;
pub mod hub;
pub mod links;
pub mod named;
pub mod names;
pub mod onnx_runtime;
