//! Quantization of layers: whether and how their weights become 8-bit integers.

pub mod layer_calibration;
#[doc(hidden)]
pub use kivu_engine::quantize::{Rows, panels, panels_in_fp32, rows, transpose, was_quantized};
