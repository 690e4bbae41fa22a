//! The forms in which a graph's linear layers are written.

use std::{cell::RefCell, sync::Arc};

use crate::{
    layer_calibration::{Calibration, FittedLayer},
    quantize,
};
use kivu::error::Result;

/// How linear layers are written.
#[derive(Clone, Copy)]
pub(crate) enum LayerForms<'a> {
    /// In the graph's precision.
    Plain,
    /// In 8 bits, fitted to sample texts.
    Fitted(&'a Calibration),
    /// Rounded as in 8 bits, in fp32 graphs.
    Rounded(&'a RoundedLayers<'a>),
}

/// What is rounded in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounded {
    Weights,
    Activations,
    Both,
}

/// Layers of an fp32 graph that are rounded as in 8 bits.
pub(crate) struct RoundedLayers<'a> {
    /// Knows the layers that run once per token.
    pub(crate) calibration: &'a Calibration,
    /// Inputs that share a scale; `None` for fitted layers.
    pub(crate) block: Option<fn(usize) -> usize>,
    pub(crate) rounded: Rounded,
    /// The name of the only layer to round; by default all.
    pub(crate) only: Option<&'a str>,
    /// Names and shapes (inputs, outputs) of the graph's layers, in order.
    pub(crate) seen: RefCell<Vec<(String, [usize; 2])>>,
}

impl RoundedLayers<'_> {
    /// A layer's 8-bit form; `None` if it stays as it is.
    pub(crate) fn form(
        &self,
        name: &str,
        weight: &[f32],
        inputs: usize,
    ) -> Result<Option<Arc<FittedLayer>>> {
        if !self.calibration.knows(name, inputs) {
            return Ok(None);
        }
        let outputs = weight.len() / inputs;
        self.seen
            .borrow_mut()
            .push((name.to_owned(), [inputs, outputs]));
        if self.only.is_some_and(|only| only != name) {
            return Ok(None);
        }
        let fitted = match self.block {
            None => self.calibration.fit(name, weight, inputs)?,
            Some(_) => None,
        };
        let plain = || {
            let block = self.block.map_or(inputs, |block| block(inputs));
            let rows = quantize::rows(weight, block);
            Arc::new(FittedLayer {
                columns: None,
                block,
                rows,
                bias: vec![0.0; outputs],
            })
        };
        Ok(Some(fitted.unwrap_or_else(plain)))
    }
}
