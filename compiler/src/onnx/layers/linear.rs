//! Linear layers in each precision.

use kivu_engine::{
    kernel::{COLUMNS, GROUP, LANES},
    quantize::{
        columns::Columns,
        fit::{FittedLayer, Form, round},
    },
};

use super::Layers;
use crate::{
    files::weights::Weight,
    onnx::{
        Value,
        functions::{self, Storage},
        integer,
    },
    quantize,
};
use kivu::{Result, repository::manifest::Precision};

/// Accuracy level for `MatMulNBits` that quantizes activations too.
const INT8_ACTIVATIONS: i64 = 4;

/// Weights and biases from linear layers, joined along their outputs.
pub struct Linear {
    name: String,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// Creates a layer with one weight row per output.
    pub fn new(name: &str, weight: &Weight, bias: Option<Vec<f32>>) -> Self {
        let [outputs, inputs] = weight.shape[..] else {
            unreachable!("the caller passes a matrix")
        };
        Self {
            name: name.to_owned(),
            weight: weight.values.clone(),
            bias,
            inputs,
            outputs,
        }
    }
}

/// A linear layer for the native engine.
pub struct Stored {
    /// Suffix for the names of functions with such a layer.
    pub suffix: &'static str,
    pub storage: Storage,
    /// See [`Storage::linear`].
    pub constants: Vec<Value>,
}

/// A linear layer's weights in the file.
#[derive(Clone, Debug)]
pub struct Projection {
    /// The name without the body's prefix, and without `.weight`.
    pub name: String,
    pub outputs: usize,
    pub has_bias: bool,
}

impl Layers<'_> {
    /// A linear layer in fp32; its weight and bias names are complete.
    pub fn linear_in_fp32(
        &mut self,
        name: &str,
        bias: Option<&str>,
        input: &Value,
        shape: [usize; 2],
    ) -> Result<Value> {
        let [inputs, outputs] = shape;
        let weight = self.weights.take_whole(name, &[outputs, inputs])?;
        let weight = quantize::transpose(&weight.values, inputs);
        let weight = self.graph.floats(name, &shape, &weight);
        let product = self.graph.matmul(input, &weight);
        let Some(name) = bias else { return Ok(product) };
        let bias = self.weights.take_whole(name, &[outputs])?;
        let bias = self.graph.floats(name, &bias.shape, &bias.values);
        Ok(self.graph.add(&product, &bias))
    }

    /// Joins linear layers with the same inputs.
    pub fn project(
        &mut self,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        let layer = self.join(projections, inputs)?;
        let product = match self.precision {
            Precision::Int8 if !self.graph.has_functions() => {
                let bias = self.bias(&layer);
                self.by_channel(&layer, input, &bias)
            }
            _ => self.apply(&layer, input)?,
        };
        self.adapt(product, projections, input, inputs)
    }

    /// Like [`project`](Self::project), in fp32 at all precisions.
    pub fn project_in_fp32(
        &mut self,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        let layer = self.join(projections, inputs)?;
        let product = self.apply_in_fp32(&layer, input);
        self.adapt(product, projections, input, inputs)
    }

    /// A linear layer that, in int8, scales each token's values separately.
    pub fn apply(&mut self, layer: &Linear, input: &Value) -> Result<Value> {
        Ok(match self.precision {
            Precision::Fp32 => self.apply_in_fp32(layer, input),
            _ if self.graph.has_functions() => {
                let fitted = match self.calibration {
                    Some(calibration) => {
                        calibration.fit(&layer.name, &layer.weight, layer.inputs)?
                    }
                    None => None,
                };
                self.quantized_linear(layer, input, fitted.as_deref())
            }
            Precision::Int8Blocks if layer.inputs.is_multiple_of(self.block) => {
                self.in_blocks(layer, input)
            }
            Precision::Int8 => self.scaled_by_token(layer, input),
            Precision::Int8Blocks => {
                let bias = self.bias(layer);
                self.by_channel(layer, input, &bias)
            }
        })
    }

    fn apply_in_fp32(&mut self, layer: &Linear, input: &Value) -> Value {
        let product = match self.weights_in_fp32(layer) {
            (Storage::Panels, panels) => {
                let inputs = [input, &panels];
                self.graph
                    .function("PanelProduct", inputs, functions::panel_product)
            }
            (_, weights) => self.graph.matmul(input, &weights),
        };
        self.add_bias(product, layer)
    }

    /// A linear layer's per-output maximum over a text's tokens; `mask` is 0 for padding. The native engine needs no
    /// memory for all tokens' outputs.
    pub fn largest_outputs(
        &mut self,
        mut layer: Linear,
        input: &Value,
        mask: &Value,
    ) -> Result<Value> {
        if !self.graph.has_functions() {
            let outputs = self.apply(&layer, input)?;
            return Ok(functions::largest_of_tokens(
                &mut self.graph,
                [&outputs, mask],
            ));
        }
        let width = self
            .graph
            .integers("largest_width", &[layer.outputs as i64]);
        layer.outputs = layer.outputs.next_multiple_of(match self.precision {
            Precision::Fp32 => COLUMNS,
            _ => LANES,
        });
        layer.weight.resize(layer.outputs * layer.inputs, 0.0);
        layer
            .bias
            .iter_mut()
            .for_each(|bias| bias.resize(layer.outputs, 0.0));
        let Stored {
            suffix,
            storage,
            constants,
        } = self.store(&layer, None);
        let mut inputs = vec![input, mask];
        inputs.extend(constants.iter().chain([&width]));
        let name = format!("LargestOutputs{suffix}");
        Ok(self.graph.function_of(&name, &inputs, |graph, inputs| {
            functions::largest_outputs(graph, storage, inputs)
        }))
    }

    /// Linear layers that, in int8, scale each token's values separately. With one scale for all tokens, as in
    /// [`Layers::project`], the token with the largest value costs the others their precision. Models trained in int8
    /// do without these scales, which are a third of an encoder's operators.
    pub fn project_by_token(
        &mut self,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        if self.precision != Precision::Int8 || self.graph.has_functions() {
            return self.project(projections, input, inputs);
        }
        let layer = self.join(projections, inputs)?;
        let product = self.scaled_by_token(&layer, input);
        self.adapt(product, projections, input, inputs)
    }

    fn scaled_by_token(&mut self, layer: &Linear, input: &Value) -> Value {
        let last = self.graph.last_axis();
        // Avoids division by zero for all-zero tokens.
        let smallest = self.graph.scalar("smallest", f32::MIN_POSITIVE);
        let largest = self.graph.abs(input);
        let largest = self.graph.reduce_keeping("ReduceMax", &[&largest, &last]);
        let largest = self.graph.max(&largest, &smallest);
        let scaled = self.graph.div(input, &largest);
        let product = self.by_channel(layer, &scaled, &Value::none());
        let product = self.graph.mul(&product, &largest);
        self.add_bias(product, layer)
    }

    fn join(&mut self, projections: &[Projection], inputs: usize) -> Result<Linear> {
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for Projection {
            name,
            outputs,
            has_bias,
        } in projections
        {
            weight.extend(
                &self
                    .weights
                    .take(&format!("{name}.weight"), &[*outputs, inputs])?
                    .values,
            );
            match has_bias {
                true => bias.extend(
                    &self
                        .weights
                        .take(&format!("{name}.bias"), &[*outputs])?
                        .values,
                ),
                false => bias.resize(bias.len() + outputs, 0.0),
            }
        }
        let (name, outputs) = (projections[0].name.clone(), bias.len());
        let bias = projections
            .iter()
            .any(|projection| projection.has_bias)
            .then_some(bias);
        Ok(Linear {
            name,
            weight,
            bias,
            inputs,
            outputs,
        })
    }

    /// The layer's bias; [`Value::none`] without one.
    fn bias(&mut self, layer: &Linear) -> Value {
        match &layer.bias {
            Some(bias) => {
                self.graph
                    .floats(&format!("{}.bias", layer.name), &[layer.outputs], bias)
            }
            None => Value::none(),
        }
    }

    fn add_bias(&mut self, product: Value, layer: &Linear) -> Value {
        match &layer.bias {
            Some(_) => {
                let bias = self.bias(layer);
                self.graph.add(&product, &bias)
            }
            None => product,
        }
    }

    /// A linear layer with one weight scale per output channel.
    fn by_channel(&mut self, layer: &Linear, input: &Value, bias: &Value) -> Value {
        let Linear {
            name,
            inputs,
            outputs,
            ..
        } = layer;
        // Each row in a linear layer's weight produces one output channel.
        let rows = quantize::rows(&layer.weight, *inputs);
        let values = quantize::transpose(&rows.values, *inputs);
        let values = self
            .graph
            .bytes(&format!("{name}.int8"), &[*inputs, *outputs], &values);
        let scales = self
            .graph
            .floats(&format!("{name}.scales"), &[*outputs], &rows.scales);
        // The runtime needs a zero point to make the weights unsigned where signed ones would saturate.
        let zero = self.graph.bytes(&format!("{name}.zero_point"), &[], &[0]);
        self.graph.microsoft(
            "DynamicQuantizeMatMul",
            &[input, &values, &scales, &zero, bias],
            vec![],
        )
    }

    /// A linear layer in int8 for the native engine.
    fn quantized_linear(
        &mut self,
        layer: &Linear,
        input: &Value,
        fitted: Option<&FittedLayer>,
    ) -> Value {
        let Stored {
            suffix,
            storage,
            mut constants,
        } = self.store(layer, fitted);
        let mut name = format!("QuantizedLinear{suffix}");
        let columns = fitted.and_then(|fitted| fitted.columns.as_ref());
        if let Some(Columns { shifts, factors }) = columns {
            let offsets: Vec<f32> = shifts
                .iter()
                .zip(factors)
                .map(|(shift, factor)| -shift * factor)
                .collect();
            for (part, values) in [("factors", factors), ("offsets", &offsets)] {
                let part = format!("{}.{part}", layer.name);
                constants.push(self.graph.floats(&part, &[layer.inputs], values));
            }
            name = format!("ScaledLinear{suffix}");
        }
        let inputs: Vec<&Value> = [input].into_iter().chain(&constants).collect();
        self.graph.function_of(&name, &inputs, |graph, inputs| {
            let [input, constants @ ..] = inputs else {
                unreachable!("the input is listed above")
            };
            // Factors and offsets of input columns follow the layer's own constants.
            let [own @ .., factors, offsets] = constants else {
                unreachable!("all layers have more")
            };
            if columns.is_none() {
                return storage.linear(graph, input, constants);
            }
            let input = graph.mul(input, factors);
            let input = graph.add(&input, offsets);
            storage.linear(graph, &input, own)
        })
    }

    /// A linear layer's weights in fp32, in panels where the native engine reads them and they are whole.
    fn weights_in_fp32(&mut self, layer: &Linear) -> (Storage, Value) {
        let Linear {
            name,
            inputs,
            outputs,
            weight,
            ..
        } = layer;
        if self.graph.has_functions() && outputs.is_multiple_of(COLUMNS) {
            let panels = quantize::panels_in_fp32(weight, *inputs);
            let shape = [outputs / COLUMNS, *inputs, COLUMNS];
            let name = format!("{name}.columns");
            return (
                Storage::Panels,
                self.graph.short_floats(&name, &shape, &panels),
            );
        }
        let weight = quantize::transpose(weight, *inputs);
        let weight = self.graph.floats(name, &[*inputs, *outputs], &weight);
        (Storage::Matrix, weight)
    }

    /// Like [`store`](Self::store), for a layer that many rows pass, but too few samples. In int8, its weights have
    /// [small quads](kivu_engine::kernel#small-quads), unless they were quantized before.
    pub fn store_in_small_quads(&mut self, layer: &Linear) -> Stored {
        let Linear { inputs, weight, .. } = layer;
        let is_rounded =
            self.precision == Precision::Int8 && !quantize::was_quantized(weight, *inputs);
        let rounded =
            is_rounded.then(|| round(weight, *inputs, Form::int8_without_samples(*inputs)));
        self.store(layer, rounded.as_ref())
    }

    /// A linear layer's weights in the order in which the native engine's kernels read them. In int8, each output, or each
    /// block within an output, has a scale.
    pub fn store(&mut self, layer: &Linear, fitted: Option<&FittedLayer>) -> Stored {
        let Linear {
            name,
            inputs,
            outputs,
            ..
        } = layer;
        let (inputs, outputs) = (*inputs, *outputs);
        let mut bias = layer.bias.clone().unwrap_or_else(|| vec![0.0; outputs]);
        if let Some(fitted) = fitted {
            bias.iter_mut()
                .zip(&fitted.bias)
                .for_each(|(bias, added)| *bias += added);
        }
        let bias = self
            .graph
            .floats(&format!("{name}.bias"), &[outputs], &bias);
        if self.precision == Precision::Fp32 {
            let (storage, weights) = self.weights_in_fp32(layer);
            return Stored {
                suffix: match storage {
                    Storage::Panels => "InPanels",
                    _ => "InMatrices",
                },
                storage,
                constants: vec![weights, bias],
            };
        }
        let is_in_blocks =
            self.precision == Precision::Int8Blocks && inputs.is_multiple_of(self.block);
        let (suffix, storage, block) = match fitted {
            Some(fitted) => ("InWideBlocks", Storage::Int8Blocks, fitted.block),
            None if is_in_blocks => ("InBlocks", Storage::Int8Blocks, self.block),
            None => ("", Storage::Int8, inputs),
        };
        let (panels, blocks) = (outputs / LANES, inputs / block);
        let rows = match fitted {
            Some(fitted) => &fitted.rows,
            None => &quantize::rows(&layer.weight, block),
        };
        let sums: Vec<i32> = rows
            .values
            .chunks_exact(block)
            .map(|row| row.iter().map(|weight| i32::from(*weight)).sum())
            .collect();
        // From outputs and their blocks to panels, their blocks, and outputs within each.
        let order = |place: usize| {
            let (panel, block, lane) = (
                place / LANES / blocks,
                place / LANES % blocks,
                place % LANES,
            );
            (panel * LANES + lane) * blocks + block
        };
        let sums: Vec<i32> = (0..sums.len()).map(|place| sums[order(place)]).collect();
        let scales: Vec<f32> = (0..rows.scales.len())
            .map(|place| rows.scales[order(place)])
            .collect();
        let of_panels = [panels, inputs / GROUP, LANES, GROUP];
        let values = self.graph.bytes(
            &format!("{name}.panels"),
            &of_panels,
            &quantize::panels(&rows.values, inputs),
        );
        let (shape, of_blocks) = match storage {
            Storage::Int8 => (vec![inputs, outputs], vec![outputs]),
            _ => (vec![blocks, block, outputs], vec![panels, blocks, LANES]),
        };
        let scales = self
            .graph
            .floats(&format!("{name}.scales"), &of_blocks, &scales);
        let sums = self.graph.sums(&format!("{name}.sums"), &of_blocks, &sums);
        let shape: Vec<i64> = shape.into_iter().map(|side| side as i64).collect();
        let names: Vec<String> = shape.iter().map(i64::to_string).collect();
        let shape = self
            .graph
            .integers(&format!("shape_{}", names.join("_")), &shape);
        Stored {
            suffix,
            storage,
            constants: vec![values, scales, sums, bias, shape],
        }
    }

    /// A linear layer with one weight scale per row and block.
    fn in_blocks(&mut self, layer: &Linear, input: &Value) -> Value {
        let Linear {
            name,
            inputs,
            outputs,
            ..
        } = layer;
        let bias = self.bias(layer);
        let block = self.block;
        let blocks = quantize::rows(&layer.weight, block);
        let shape = [*outputs, inputs / block, block];
        let values = self
            .graph
            .shifted_bytes(&format!("{name}.blocks"), &shape, &blocks.values);
        let scales = self.graph.floats(
            &format!("{name}.scales"),
            &[blocks.scales.len()],
            &blocks.scales,
        );
        self.multiply_in_blocks(input, [&values, &scales, &bias], shape)
    }

    /// Multiplies `input` by a blockwise quantized matrix with the given shape: outputs, blocks per output, values per
    /// block.
    pub fn multiply_in_blocks(
        &mut self,
        input: &Value,
        [values, scales, bias]: [&Value; 3],
        [outputs, blocks, block]: [usize; 3],
    ) -> Value {
        let attributes = vec![
            integer("K", (blocks * block) as i64),
            integer("N", outputs as i64),
            integer("bits", 8),
            integer("block_size", block as i64),
            integer("accuracy_level", INT8_ACTIVATIONS),
        ];
        let none = Value::none();
        self.graph.microsoft(
            "MatMulNBits",
            &[input, values, scales, &none, &none, bias],
            attributes,
        )
    }
}
