//! Transformer layers, written into a graph in the form that measured fastest.

mod attention;
mod buckets;
mod rotary;

use kivu_engine::kernel::{GROUP, LANES};

pub(super) use self::{
    attention::{Attention, Blocks, Distance, Reach, alibi_slopes, attend_by_position},
    buckets::Buckets,
    rotary::{Rotary, Rotation, Scaling},
};
use super::{
    functions::{self, QuantizedLinear},
    onnx::{AttributeProto, GraphBuilder, Value, float, integer},
    quantize,
    weights::{Weight, Weights},
};
use kivu::{
    error::{Error, Result},
    repository::manifest::Precision,
};

/// Attention score for padding: `torch.finfo(torch.float32).min`, as in `transformers`.
const MASKED: f32 = f32::MIN;

/// Weights per scale in block quantization, unless a graph uses another number.
pub(super) const BLOCK: usize = 32;
/// Accuracy level for `MatMulNBits` that quantizes activations too.
const INT8_ACTIVATIONS: i64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
    Swish,
    Tanh,
}

impl Activation {
    /// The activation that a `config.json` names.
    pub(super) fn named(name: &str) -> Result<Self> {
        match name {
            "gelu" | "gelu_python" => Ok(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Self::GeluTanh),
            "relu" => Ok(Self::Relu),
            "silu" | "swish" => Ok(Self::Swish),
            "tanh" => Ok(Self::Tanh),
            other => Err(Error::model(format!(
                "expected an activation among `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`, `relu`, \
                 `swish`, `tanh`, but found `{other}`"
            ))),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormKind {
    /// To the mean 0 and the variance 1, times a gain, plus a bias in some models.
    Layer { has_bias: bool },
    /// To the mean square 1, times a gain: the weight, or 1 + the weight if `adds_one`.
    RootMeanSquare { adds_one: bool },
}

/// A graph under construction, and the weights to write into it.
pub(super) struct Layers<'a> {
    pub(super) graph: GraphBuilder,
    pub(super) weights: &'a Weights,
    pub(super) precision: Precision,
    /// Weights per scale in block quantization.
    pub(super) block: usize,
    /// Width of a token's vector.
    pub(super) hidden: usize,
    /// Normalization epsilon.
    pub(super) epsilon: f32,
    pub(super) norm: NormKind,
    /// Whether the model was trained to run in int8, with one scale for all tokens in a text.
    pub(super) is_trained_in_int8: bool,
}

/// Weights and biases from linear layers, joined along their outputs.
pub(super) struct Linear {
    name: String,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// Creates a layer with one weight row per output.
    pub(super) fn new(name: &str, weight: &Weight, bias: Option<Vec<f32>>) -> Self {
        let [outputs, inputs] = weight.shape[..] else { unreachable!("the caller took a matrix") };
        Self { name: name.to_owned(), weight: weight.values.clone(), bias, inputs, outputs }
    }
}

/// A linear layer in int8 for the native engine.
struct Panels {
    /// Suffix for the names of functions with such a layer.
    suffix: &'static str,
    /// The layer's function.
    linear: QuantizedLinear,
    /// Panels, scales, sums, bias and shape.
    constants: [Value; 5],
}

/// A linear layer's weights in the file.
#[derive(Clone, Debug)]
pub(super) struct Projection {
    /// The name without the body's prefix, and without `.weight`.
    pub(super) name: String,
    pub(super) outputs: usize,
    pub(super) has_bias: bool,
}

impl<'a> Layers<'a> {
    /// An empty graph, for texts with `hidden` values per token.
    pub(super) fn new(weights: &'a Weights, precision: Precision, hidden: usize, epsilon: f32) -> Self {
        let graph = GraphBuilder::default();
        let norm = NormKind::Layer { has_bias: true };
        Self { graph, weights, precision, block: BLOCK, hidden, epsilon, norm, is_trained_in_int8: false }
    }

    /// Looks up embedding table rows: in int8 with one scale per row where weights are quantized.
    pub(super) fn look_up(&mut self, name: &str, table: &Weight, ids: &Value) -> Value {
        if self.precision == Precision::Fp32 {
            let table = self.graph.floats(name, &table.shape, &table.values);
            return self.graph.node("Gather", &[&table, ids], vec![]);
        }
        let rows = quantize::rows(&table.values, table.shape[1]);
        let values = self.graph.bytes(&format!("{name}.int8"), &table.shape, &rows.values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[table.shape[0], 1], &rows.scales);
        self.graph.function("QuantizedLookup", [&values, &scales, ids], functions::quantized_lookup)
    }

    /// Rows in the position table `table` for each id.
    ///
    /// Positions count from 0, or, if the model has a `padding` id, from the one after it, skipping padding (as in
    /// fairseq).
    pub(super) fn positions(&mut self, table: &Value, ids: &Value, padding: Option<i64>) -> Value {
        match padding {
            None => self.graph.function("Positions", [table, ids], functions::positions),
            Some(padding) => {
                let padding = self.graph.integers("padding", &[padding]);
                let inputs = [table, ids, &padding];
                self.graph.function("PositionsAfterPadding", inputs, functions::positions_after_padding)
            }
        }
    }

    /// First token's vector per text.
    pub(super) fn first_token(&mut self, hidden: &Value) -> Value {
        self.graph.function("FirstToken", [hidden], functions::first_token)
    }

    /// A linear layer in fp32; its weight and bias names are complete.
    pub(super) fn linear_in_fp32(
        &mut self,
        (name, bias): (&str, Option<&str>),
        input: &Value,
        shape: [usize; 2],
    ) -> Result<Value> {
        let [inputs, outputs] = shape;
        let weight = self.weights.take_whole(name, &[outputs, inputs])?;
        let weight = quantize::transpose(&weight.values, inputs);
        let weight = self.graph.floats(name, &shape, &weight);
        let product = self.graph.node("MatMul", &[input, &weight], vec![]);
        let Some(name) = bias else { return Ok(product) };
        let bias = self.weights.take_whole(name, &[outputs])?;
        let bias = self.graph.floats(name, &bias.shape, &bias.values);
        Ok(self.graph.node("Add", &[&product, &bias], vec![]))
    }

    /// Joins linear layers with the same inputs.
    pub(super) fn project(
        &mut self,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        let layer = self.join(projections, inputs)?;
        Ok(match self.precision {
            Precision::Int8 if !self.graph.has_functions() => {
                let bias = self.bias(&layer);
                self.by_channel(&layer, input, &bias)
            }
            _ => self.apply(&layer, input),
        })
    }

    /// A linear layer that, in int8, scales each token's values separately.
    pub(super) fn apply(&mut self, layer: &Linear, input: &Value) -> Value {
        match self.precision {
            Precision::Fp32 => {
                let weight = quantize::transpose(&layer.weight, layer.inputs);
                let weight = self.graph.floats(&layer.name, &[layer.inputs, layer.outputs], &weight);
                let product = self.graph.node("MatMul", &[input, &weight], vec![]);
                self.add_bias(product, layer)
            }
            _ if self.graph.has_functions() => {
                let Panels { suffix, linear, constants: [panels, scales, sums, bias, shape] } =
                    self.panels(layer);
                let inputs = [input, &panels, &scales, &sums, &bias, &shape];
                self.graph.function(&format!("QuantizedLinear{suffix}"), inputs, linear)
            }
            Precision::Int8Blocks if layer.inputs.is_multiple_of(self.block) => self.in_blocks(layer, input),
            Precision::Int8 => self.scaled_by_token(layer, input),
            Precision::Int8Blocks => {
                let bias = self.bias(layer);
                self.by_channel(layer, input, &bias)
            }
        }
    }

    /// A linear layer's per-output maximum over a text's tokens; `mask` is 0 for padding. The native engine needs no
    /// memory for all tokens' outputs.
    pub(super) fn largest_outputs(&mut self, mut layer: Linear, input: &Value, mask: &Value) -> Value {
        if self.precision != Precision::Fp32 && self.graph.has_functions() {
            let width = self.graph.integers("largest_width", &[layer.outputs as i64]);
            layer.outputs = layer.outputs.next_multiple_of(LANES);
            layer.weight.resize(layer.outputs * layer.inputs, 0.0);
            layer.bias.iter_mut().for_each(|bias| bias.resize(layer.outputs, 0.0));
            let Panels { suffix, linear, constants: [panels, scales, sums, bias, shape] } =
                self.panels(&layer);
            let inputs = [input, mask, &panels, &scales, &sums, &bias, &shape, &width];
            return self.graph.function(&format!("LargestOutputs{suffix}"), inputs, |graph, inputs| {
                functions::largest_outputs(graph, linear, inputs)
            });
        }
        // The largest sum belongs to the largest product, since all have the same bias.
        let unbiased = Linear { bias: None, ..layer };
        let outputs = self.apply(&unbiased, input);
        let largest = functions::largest_of_tokens(&mut self.graph, [&outputs, mask]);
        self.add_bias(largest, &Linear { bias: layer.bias, ..unbiased })
    }

    /// Linear layers that, in int8, scale each token's values separately. With one scale for all tokens, as in
    /// [`Layers::project`], the token with the largest value costs the others their precision. Models trained in int8
    /// do without these scales, which are a third of an encoder's operators.
    pub(super) fn project_by_token(
        &mut self,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        if self.precision != Precision::Int8 || self.graph.has_functions() {
            return self.project(projections, input, inputs);
        }
        let layer = self.join(projections, inputs)?;
        Ok(self.scaled_by_token(&layer, input))
    }

    fn scaled_by_token(&mut self, layer: &Linear, input: &Value) -> Value {
        let last = self.graph.integers("last_axis", &[-1]);
        // Avoids division by zero for all-zero tokens.
        let smallest = self.graph.floats("smallest", &[], &[f32::MIN_POSITIVE]);
        let largest = self.graph.node("Abs", &[input], vec![]);
        let largest = self.graph.node("ReduceMax", &[&largest, &last], vec![integer("keepdims", 1)]);
        let largest = self.graph.node("Max", &[&largest, &smallest], vec![]);
        let scaled = self.graph.node("Div", &[input, &largest], vec![]);
        let product = self.by_channel(layer, &scaled, &Value::none());
        let product = self.graph.node("Mul", &[&product, &largest], vec![]);
        self.add_bias(product, layer)
    }

    fn join(&mut self, projections: &[Projection], inputs: usize) -> Result<Linear> {
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for Projection { name, outputs, has_bias } in projections {
            weight.extend(&self.weights.take(&format!("{name}.weight"), &[*outputs, inputs])?.values);
            match has_bias {
                true => bias.extend(&self.weights.take(&format!("{name}.bias"), &[*outputs])?.values),
                false => bias.resize(bias.len() + outputs, 0.0),
            }
        }
        let (name, outputs) = (projections[0].name.clone(), bias.len());
        let bias = projections.iter().any(|projection| projection.has_bias).then_some(bias);
        Ok(Linear { name, weight, bias, inputs, outputs })
    }

    /// The layer's bias; [`Value::none`] without one.
    fn bias(&mut self, layer: &Linear) -> Value {
        match &layer.bias {
            Some(bias) => self.graph.floats(&format!("{}.bias", layer.name), &[layer.outputs], bias),
            None => Value::none(),
        }
    }

    fn add_bias(&mut self, product: Value, layer: &Linear) -> Value {
        match &layer.bias {
            Some(_) => {
                let bias = self.bias(layer);
                self.graph.node("Add", &[&product, &bias], vec![])
            }
            None => product,
        }
    }

    /// A linear layer with one weight scale per output channel.
    fn by_channel(&mut self, layer: &Linear, input: &Value, bias: &Value) -> Value {
        let Linear { name, inputs, outputs, .. } = layer;
        // Each row in a linear layer's weight produces one output channel.
        let rows = quantize::rows(&layer.weight, *inputs);
        let values = quantize::transpose(&rows.values, *inputs);
        let values = self.graph.bytes(&format!("{name}.int8"), &[*inputs, *outputs], &values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[*outputs], &rows.scales);
        // The runtime needs a zero point to make the weights unsigned where signed ones would saturate.
        let zero = self.graph.bytes(&format!("{name}.zero_point"), &[], &[0]);
        self.graph.microsoft("DynamicQuantizeMatMul", &[input, &values, &scales, &zero, bias], vec![])
    }

    /// A linear layer's weights in the order in which the native engine's kernels read them. Each output, or each block
    /// within an output, has a scale.
    fn panels(&mut self, layer: &Linear) -> Panels {
        let Linear { name, inputs, outputs, .. } = layer;
        let (inputs, outputs) = (*inputs, *outputs);
        let is_in_blocks = self.precision == Precision::Int8Blocks && inputs.is_multiple_of(self.block);
        let block = if is_in_blocks { self.block } else { inputs };
        let (panels, blocks) = (outputs / LANES, inputs / block);
        let bias = layer.bias.clone().unwrap_or_else(|| vec![0.0; outputs]);
        let bias = self.graph.floats(&format!("{name}.bias"), &[outputs], &bias);
        let rows = quantize::rows(&layer.weight, block);
        let sums: Vec<i32> = rows
            .values
            .chunks_exact(block)
            .map(|row| row.iter().map(|weight| i32::from(*weight)).sum())
            .collect();
        // From outputs and their blocks to panels, their blocks, and outputs within each.
        let order = |place: usize| {
            let (panel, block, lane) = (place / LANES / blocks, place / LANES % blocks, place % LANES);
            (panel * LANES + lane) * blocks + block
        };
        let sums: Vec<i32> = (0..sums.len()).map(|place| sums[order(place)]).collect();
        let scales: Vec<f32> = (0..rows.scales.len()).map(|place| rows.scales[order(place)]).collect();
        let of_panels = [panels, inputs / GROUP, LANES, GROUP];
        let values =
            self.graph.bytes(&format!("{name}.panels"), &of_panels, &quantize::panels(&rows.values, inputs));
        let (shape, of_blocks) = match is_in_blocks {
            true => (vec![blocks, block, outputs], vec![panels, blocks, LANES]),
            false => (vec![inputs, outputs], vec![outputs]),
        };
        let scales = self.graph.floats(&format!("{name}.scales"), &of_blocks, &scales);
        let sums = self.graph.sums(&format!("{name}.sums"), &of_blocks, &sums);
        let shape: Vec<i64> = shape.into_iter().map(|side| side as i64).collect();
        let names: Vec<String> = shape.iter().map(i64::to_string).collect();
        let shape = self.graph.integers(&format!("shape_{}", names.join("_")), &shape);
        Panels {
            suffix: if is_in_blocks { "InBlocks" } else { "" },
            linear: match is_in_blocks {
                true => functions::quantized_linear_in_blocks,
                false => functions::quantized_linear,
            },
            constants: [values, scales, sums, bias, shape],
        }
    }

    /// A linear layer with one weight scale per row and block.
    fn in_blocks(&mut self, layer: &Linear, input: &Value) -> Value {
        let Linear { name, inputs, outputs, .. } = layer;
        let bias = self.bias(layer);
        let block = self.block;
        let blocks = quantize::rows(&layer.weight, block);
        let shape = [*outputs, inputs / block, block];
        let values = self.graph.shifted_bytes(&format!("{name}.blocks"), &shape, &blocks.values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[blocks.scales.len()], &blocks.scales);
        self.multiply_in_blocks(input, [&values, &scales, &bias], shape)
    }

    /// Multiplies `input` by a blockwise quantized matrix with the given shape: outputs, blocks per output, values per
    /// block.
    pub(super) fn multiply_in_blocks(
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
        self.graph.microsoft("MatMulNBits", &[input, values, scales, &none, &none, bias], attributes)
    }

    pub(super) fn activate(&mut self, activation: Activation, value: &Value) -> Value {
        match activation {
            Activation::Gelu => self.graph.microsoft("Gelu", &[value], vec![]),
            Activation::GeluTanh => self.graph.microsoft("FastGelu", &[value], vec![]),
            Activation::Relu => self.graph.node("Relu", &[value], vec![]),
            Activation::Swish => self.graph.microsoft("QuickGelu", &[value], vec![float("alpha", 1.0)]),
            Activation::Tanh => self.graph.node("Tanh", &[value], vec![]),
        }
    }

    pub(super) fn normalize(&mut self, value: &Value, name: &str) -> Result<Value> {
        self.normalize_rows(value, name, self.hidden)
    }

    /// The normalization called `name` for rows with `width` values.
    pub(super) fn normalize_rows(&mut self, value: &Value, name: &str, width: usize) -> Result<Value> {
        let name = format!("{}{name}", self.weights.prefix);
        self.normalize_whole(value, &name, width)
    }

    /// The normalization called `name` for each head's values.
    pub(super) fn normalize_heads(
        &mut self,
        value: &Value,
        name: &str,
        [heads, width]: [usize; 2],
    ) -> Result<Value> {
        let by_head = self.graph.integers(&format!("heads_{heads}"), &[0, 0, heads as i64, width as i64]);
        let flat = self.graph.integers(&format!("flat_{heads}"), &[0, 0, (heads * width) as i64]);
        let value = self.graph.node("Reshape", &[value, &by_head], vec![]);
        let value = self.normalize_rows(&value, name, width)?;
        Ok(self.graph.node("Reshape", &[&value, &flat], vec![]))
    }

    /// The normalization with the full name `name`, for rows with `width` values.
    pub(super) fn normalize_whole(&mut self, value: &Value, name: &str, width: usize) -> Result<Value> {
        let [gain, bias] = self.norm(name, width)?;
        let attributes = vec![integer("axis", -1), float("epsilon", self.epsilon)];
        Ok(match self.norm {
            NormKind::Layer { .. } => {
                self.graph.node("LayerNormalization", &[value, &gain, &bias], attributes)
            }
            NormKind::RootMeanSquare { .. } => {
                self.graph.node("SimplifiedLayerNormalization", &[value, &gain], attributes)
            }
        })
    }

    /// Adds and applies the normalization called `name`.
    pub(super) fn add_and_norm(&mut self, value: &Value, residual: &Value, name: &str) -> Result<Value> {
        let [gain, bias] = self.norm(&format!("{}{name}", self.weights.prefix), self.hidden)?;
        let attributes = vec![float("epsilon", self.epsilon)];
        Ok(match self.norm {
            NormKind::Layer { .. } => {
                let inputs = [value, residual, &gain, &bias];
                self.graph.microsoft("SkipLayerNormalization", &inputs, attributes)
            }
            NormKind::RootMeanSquare { .. } => {
                let inputs = [value, residual, &gain];
                self.graph.microsoft("SkipSimplifiedLayerNormalization", &inputs, attributes)
            }
        })
    }

    /// Adds and applies the normalization called `name`; also returns the sum.
    pub(super) fn add_norm_and_sum(&mut self, value: &Value, sum: &Value, name: &str) -> Result<[Value; 2]> {
        let [gain, bias] = self.norm(&format!("{}{name}", self.weights.prefix), self.hidden)?;
        let (attributes, keep) = (vec![float("epsilon", self.epsilon)], [true, false, false, true]);
        let [normalized, _, _, sum] = match self.norm {
            NormKind::Layer { .. } => {
                let inputs = [value, sum, &gain, &bias];
                self.graph.several("SkipLayerNormalization", &inputs, attributes, keep)
            }
            NormKind::RootMeanSquare { .. } => {
                let inputs = [value, sum, &gain];
                self.graph.several("SkipSimplifiedLayerNormalization", &inputs, attributes, keep)
            }
        };
        Ok([normalized, sum])
    }

    /// Gain and bias of the normalization with the full name `name`.
    fn norm(&mut self, name: &str, width: usize) -> Result<[Value; 2]> {
        let weight = format!("{name}.weight");
        let mut constant = |name: &str| {
            let weight = self.weights.take_whole(name, &[width])?;
            Ok::<_, Error>(self.graph.floats(name, &weight.shape, &weight.values))
        };
        Ok(match self.norm {
            NormKind::Layer { has_bias } => {
                let gain = constant(&weight)?;
                let bias = match has_bias {
                    true => constant(&format!("{name}.bias"))?,
                    false => Value::none(),
                };
                [gain, bias]
            }
            NormKind::RootMeanSquare { adds_one: false } => [constant(&weight)?, Value::none()],
            NormKind::RootMeanSquare { adds_one: true } => {
                let gain = self.weights.take_whole(&weight, &[width])?;
                let gain: Vec<f32> = gain.values.iter().map(|value| 1.0 + value).collect();
                [self.graph.floats(&weight, &[width], &gain), Value::none()]
            }
        })
    }

    /// A weight in fp32.
    pub(super) fn constant(&mut self, name: &str, shape: &[usize]) -> Result<Value> {
        let weight = self.weights.take(name, shape)?;
        Ok(self.graph.floats(name, &weight.shape, &weight.values))
    }

    /// Casts `value` to another element type, see [`data_type`].
    pub(super) fn cast(&mut self, value: &Value, to: i32) -> Value {
        self.graph.cast(value, to)
    }
}

/// Attributes for `MultiHeadAttention`.
pub(super) fn attention(heads: usize) -> Vec<AttributeProto> {
    vec![integer("num_heads", heads as i64), float("mask_filter_value", MASKED)]
}
