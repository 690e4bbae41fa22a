//! Products of multi-vectors, with the kernels of the engine.

pub use kivu_engine::similarity::Query;
