//! Signals from the embeddings to each layer (EmbeddingGemma 2).

use super::{details::LayerSignals, graph::Writer};
use crate::onnx::Value;
use kivu::Result;

/// From embeddings to a layer's signal, and the normalization of all layers' signals.
pub const SIGNAL: &str = "ple_block.model_projection";
const SIGNAL_NORM: &str = "ple.per_layer_projection_norm";
/// From a layer's output to the signal's factors, and from their products to the output, which is normalized and added.
const GATE: &str = "ple_block.per_layer_input_gate";
const PROJECTION: &str = "ple_block.per_layer_projection";
const NORM: &str = "ple_block.post_per_layer_input_norm";
/// The factor for a layer's output.
const SCALAR: &str = "layer_scalar";

impl Writer<'_> {
    /// A layer's output, from its feed-forward part's and the input of that part.
    pub fn with_signal(
        &mut self,
        layer: usize,
        LayerSignals { width }: LayerSignals,
        [embedded, lowered, sum]: [&Value; 3],
    ) -> Result<Value> {
        let (config, hidden) = (self.config, self.config.layer_width());
        let projection = |name, outputs| [config.in_layer(layer, name, outputs, false)];
        let sum = self.layers.graph.add(sum, lowered);
        let gate = self.project(&projection(GATE, width), &sum, hidden)?;
        let gate = self.layers.activate(config.feed_forward.activation, &gate);
        let signal = self.project(&projection(SIGNAL, width), embedded, hidden)?;
        let signal = self.layers.normalize_rows(&signal, SIGNAL_NORM, width)?;
        let gated = self.layers.graph.mul(&gate, &signal);
        let raised = self.project(&projection(PROJECTION, hidden), &gated, width)?;
        let raised = self
            .layers
            .normalize(&raised, &config.name_in_layer(layer, NORM))?;
        let sum = self.layers.graph.add(&sum, &raised);
        let name = config.name_in_layer(layer, SCALAR);
        let scalar = self.layers.weights.take(&name, &[1])?;
        let scalar = self.layers.graph.floats(&name, &[1], &scalar.values);
        Ok(self.layers.graph.mul(&sum, &scalar))
    }
}
