//! Maximum products between multi-vectors, computed with the engine's kernels.

pub use kivu_engine::similarity::Query;
