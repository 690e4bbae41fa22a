//! Attention that differs from BERT's.

pub mod cross_attention;
pub mod decoder;
pub mod disentangled;
pub mod distance_tables;
pub mod distances;
mod short_convolution;
