//! Attention that differs from BERT's.

pub mod convolution;
pub mod cross_attention;
pub mod decoder;
pub mod distance_tables;
pub mod distances;
mod short_convolution;
