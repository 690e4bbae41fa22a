//! The forms in which a graph's linear layers are written.

use crate::quantize::layer_calibration::Calibration;

/// How linear layers are written.
#[derive(Clone, Copy)]
pub enum LayerForms<'a> {
    /// In the graph's precision.
    Plain,
    /// In 8 bits, fitted to sample texts.
    Fitted(&'a Calibration),
}
