//! Gated short convolutions, which LFM2 has in place of attention in some layers.

use super::super::graph::Writer;
use crate::onnx::{
    Value,
    functions::{self, ConvolutionForm},
};
use kivu::Result;

impl Writer<'_> {
    /// The convolution between its two projections.
    pub fn convolve(
        &mut self,
        layer: usize,
        input: &Value,
        form: ConvolutionForm,
    ) -> Result<Value> {
        let (config, hidden) = (self.config, self.config.encoder_limits.hidden);
        let ConvolutionForm {
            count,
            before,
            has_bias,
        } = form;
        let [raise, lower] = [("conv.in_proj", 3 * hidden), ("conv.out_proj", hidden)]
            .map(|(name, outputs)| config.in_layer(layer, name, outputs, has_bias));
        let projected = self.project(&[raise], input, hidden)?;
        let name = config.name_in_layer(layer, "conv.conv");
        let layers = &mut self.layers;
        let weight = layers
            .weights
            .take(&format!("{name}.weight"), &[hidden, 1, count])?;
        let by_place = |place| weight.values.iter().skip(place).step_by(count).copied();
        let taps: Vec<f32> = (0..count).flat_map(by_place).collect();
        let taps = layers
            .graph
            .floats(&format!("{name}.taps"), &[count, hidden], &taps);
        let bias = match has_bias {
            true => layers.constant(&format!("{name}.bias"), &[hidden])?,
            false => Value::none(),
        };
        let before = layers.graph.integers("rows_before", &[before as i64]);
        let inputs = [&projected, &self.mask, &taps, &before, &bias];
        let convolved = layers
            .graph
            .function("GatedConvolution", inputs, |graph, inputs| {
                functions::gated_convolution(graph, form, inputs)
            });
        self.project(&[lower], &convolved, hidden)
    }
}
