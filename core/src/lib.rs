//! Pipelines from texts to results, and the backends that run their models.

#![cfg_attr(
    target_family = "wasm",
    allow(
        dead_code,
        unused_imports,
        reason = "used by the modules that WebAssembly lacks"
    )
)]

pub mod backend;
pub mod observer;
pub mod pipeline;
