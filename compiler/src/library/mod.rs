//! Models by name: on the hub, in recipes, and on this machine.

pub mod external_bundles;
pub mod hub;
pub mod links;
pub mod model_library;
pub mod onnx_runtime;
pub mod pip;
pub mod resolve;
