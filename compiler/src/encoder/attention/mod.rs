//! Attention that differs from BERT's.

pub mod convolution;
pub mod cross_attention;
pub mod decoder;
pub mod distance_tables;
pub mod distances;
pub mod pair_templates;
mod short_convolution;
