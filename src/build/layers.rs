//! The layers that encoders are made of, written into a graph in the form that measured fastest.

use super::{
    onnx::{GraphBuilder, Value, float, integer, proto::data_type},
    quantise,
    weights::{Weight, Weights},
};
use crate::{
    error::{Error, Result},
    repository::manifest::Precision,
};

/// What attention scores get where there is padding; `torch.finfo(torch.float32).min`, as in `transformers`.
pub(super) const MASKED: f32 = f32::MIN;

/// The weights that share a scale where they are quantised in blocks, unless a graph says otherwise.
pub(super) const BLOCK: usize = 32;
/// `MatMulNBits`' accuracy level at which activations are quantised too.
const INT8_ACTIVATIONS: i64 = 4;

/// What follows a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
    Swish,
    Tanh,
}

impl Activation {
    /// The activation that a config names.
    pub(super) fn of_name(name: &str) -> Result<Self> {
        match name {
            "gelu" => Ok(Self::Gelu),
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

/// A graph under construction, and the weights that go into it.
pub(super) struct Layers<'a> {
    pub(super) graph: GraphBuilder,
    pub(super) weights: &'a Weights,
    pub(super) precision: Precision,
    /// The weights that share a scale where they are quantised in blocks.
    pub(super) block: usize,
    /// The width of a token's vector.
    pub(super) hidden: usize,
    /// What keeps a normalisation from dividing by zero.
    pub(super) epsilon: f32,
}

impl Layers<'_> {
    /// The rows of an embedding table, in int8 with one scale a row where weights are quantised.
    pub(super) fn look_up(&mut self, name: &str, table: &Weight, ids: &Value) -> Value {
        if self.precision == Precision::Fp32 {
            let table = self.graph.floats(name, &table.shape, &table.values);
            return self.graph.node("Gather", &[&table, ids], vec![]);
        }
        let rows = quantise::rows(&table.values, table.shape[1]);
        let values = self.graph.bytes(&format!("{name}.int8"), &table.shape, &rows.values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[table.shape[0], 1], &rows.scales);
        let values = self.graph.node("Gather", &[&values, ids], vec![]);
        let values = self.cast(&values, data_type::FLOAT);
        let scales = self.graph.node("Gather", &[&scales, ids], vec![]);
        self.graph.node("Mul", &[&values, &scales], vec![])
    }

    /// How many tokens a text has, as a list of one.
    pub(super) fn length(&mut self, ids: &Value) -> Value {
        let (one, two) = (self.graph.integers("one", &[1]), self.graph.integers("two", &[2]));
        let shape = self.graph.node("Shape", &[ids], vec![]);
        self.graph.node("Slice", &[&shape, &one, &two], vec![])
    }

    /// The vector of each text's first token.
    pub(super) fn first_token(&mut self, hidden: &Value) -> Value {
        let (zero, one) = (self.graph.integers("zero", &[0]), self.graph.integers("one", &[1]));
        self.graph.node("Slice", &[hidden, &zero, &one, &one], vec![])
    }

    /// A linear layer in fp32, by its whole name.
    pub(super) fn plain_linear(
        &mut self,
        name: &str,
        input: &Value,
        inputs: usize,
        outputs: usize,
    ) -> Result<Value> {
        let weight = self.weights.take_whole(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.weights.take_whole(&format!("{name}.bias"), &[outputs])?;
        let weight = quantise::transpose(&weight.values, inputs);
        let weight = self.graph.floats(&format!("{name}.weight"), &[inputs, outputs], &weight);
        let bias = self.graph.floats(&format!("{name}.bias"), &bias.shape, &bias.values);
        let product = self.graph.node("MatMul", &[input, &weight], vec![]);
        Ok(self.graph.node("Add", &[&product, &bias], vec![]))
    }

    /// The linear layers of the given names side by side, each from `inputs` to `outputs` values.
    pub(super) fn linear(
        &mut self,
        names: &[String],
        input: &Value,
        inputs: usize,
        outputs: usize,
    ) -> Result<Value> {
        let (weight, bias, outputs) = self.side_by_side(names, inputs, outputs)?;
        let name = &names[0];
        if self.precision == Precision::Fp32 {
            let weight = quantise::transpose(&weight, inputs);
            let weight = self.graph.floats(name, &[inputs, outputs], &weight);
            let product = self.graph.node("MatMul", &[input, &weight], vec![]);
            return Ok(self.graph.node("Add", &[&product, &bias], vec![]));
        }
        if self.precision == Precision::Int8Blocks && inputs.is_multiple_of(self.block) {
            return Ok(self.in_blocks(name, input, &weight, &bias, [inputs, outputs]));
        }
        Ok(self.by_channel(name, input, &weight, &bias, [inputs, outputs]))
    }

    /// The same, where each token's values have a scale of their own. With one scale for all, as
    /// [`Layers::linear`] has it in int8, the token of the largest value costs the others their precision.
    pub(super) fn linear_by_token(
        &mut self,
        name: &str,
        input: &Value,
        inputs: usize,
        outputs: usize,
    ) -> Result<Value> {
        if self.precision != Precision::Int8 {
            return self.linear(&[name.to_owned()], input, inputs, outputs);
        }
        let (weight, bias, outputs) = self.side_by_side(&[name.to_owned()], inputs, outputs)?;
        let last = self.graph.integers("last_axis", &[-1]);
        // A token may be all zeros, and stays so.
        let smallest = self.graph.floats("smallest", &[], &[f32::MIN_POSITIVE]);
        let largest = self.graph.node("Abs", &[input], vec![]);
        let largest = self.graph.node("ReduceMax", &[&largest, &last], vec![integer("keepdims", 1)]);
        let largest = self.graph.node("Max", &[&largest, &smallest], vec![]);
        let even = self.graph.node("Div", &[input, &largest], vec![]);
        let product = self.by_channel(name, &even, &weight, &Value::none(), [inputs, outputs]);
        let product = self.graph.node("Mul", &[&product, &largest], vec![]);
        Ok(self.graph.node("Add", &[&product, &bias], vec![]))
    }

    /// The weights of linear layers one below the other, their biases, and the number of outputs together.
    fn side_by_side(
        &mut self,
        names: &[String],
        inputs: usize,
        outputs: usize,
    ) -> Result<(Vec<f32>, Value, usize)> {
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            weight
                .extend_from_slice(&self.weights.take(&format!("{name}.weight"), &[outputs, inputs])?.values);
            bias.extend_from_slice(&self.weights.take(&format!("{name}.bias"), &[outputs])?.values);
        }
        let outputs = bias.len();
        Ok((weight, self.graph.floats(&format!("{}.bias", names[0]), &[outputs], &bias), outputs))
    }

    /// A linear layer whose weights have a scale for each output channel.
    fn by_channel(
        &mut self,
        name: &str,
        input: &Value,
        weight: &[f32],
        bias: &Value,
        [inputs, outputs]: [usize; 2],
    ) -> Value {
        // One row of a linear layer's weight makes one output channel.
        let rows = quantise::rows(weight, inputs);
        let values = quantise::transpose(&rows.values, inputs);
        let values = self.graph.bytes(&format!("{name}.int8"), &[inputs, outputs], &values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[outputs], &rows.scales);
        // Without one of its own the runtime could not make the weights unsigned where signed ones would saturate.
        let zero = self.graph.bytes(&format!("{name}.zero_point"), &[], &[0]);
        let inputs = [input, &values, &scales, &zero, bias];
        self.graph.microsoft("DynamicQuantizeMatMul", &inputs, vec![])
    }

    /// A linear layer whose weights have a scale for each block along a row.
    fn in_blocks(
        &mut self,
        name: &str,
        input: &Value,
        weight: &[f32],
        bias: &Value,
        [inputs, outputs]: [usize; 2],
    ) -> Value {
        let block = self.block;
        let blocks = quantise::rows(weight, block);
        let shape = [outputs, inputs / block, block];
        let values = self.graph.shifted_bytes(&format!("{name}.blocks"), &shape, &blocks.values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[blocks.scales.len()], &blocks.scales);
        self.multiply_in_blocks(input, [&values, &scales, bias], [inputs, outputs], block)
    }

    /// The product of `input` and a matrix in blocks: its values, its scales, and what is added.
    pub(super) fn multiply_in_blocks(
        &mut self,
        input: &Value,
        [values, scales, bias]: [&Value; 3],
        [inputs, outputs]: [usize; 2],
        block: usize,
    ) -> Value {
        let attributes = vec![
            integer("K", inputs as i64),
            integer("N", outputs as i64),
            integer("bits", 8),
            integer("block_size", block as i64),
            integer("accuracy_level", INT8_ACTIVATIONS),
        ];
        let none = Value::none();
        self.graph.microsoft("MatMulNBits", &[input, values, scales, &none, &none, bias], attributes)
    }

    /// What an activation makes of `value`.
    pub(super) fn activate(&mut self, activation: Activation, value: &Value) -> Value {
        match activation {
            Activation::Gelu => self.graph.microsoft("Gelu", &[value], vec![]),
            Activation::GeluTanh => self.graph.microsoft("FastGelu", &[value], vec![]),
            Activation::Relu => self.graph.node("Relu", &[value], vec![]),
            Activation::Swish => self.graph.microsoft("QuickGelu", &[value], vec![float("alpha", 1.0)]),
            Activation::Tanh => self.graph.node("Tanh", &[value], vec![]),
        }
    }

    /// The normalisation called `name`.
    pub(super) fn normalise(&mut self, value: &Value, name: &str) -> Result<Value> {
        let [gain, bias] = self.norm(name)?;
        let attributes = vec![integer("axis", -1), float("epsilon", self.epsilon)];
        Ok(self.graph.node("LayerNormalization", &[value, &gain, &bias], attributes))
    }

    /// The normalisation called `name` of a sum.
    pub(super) fn add_and_norm(&mut self, value: &Value, residual: &Value, name: &str) -> Result<Value> {
        let [gain, bias] = self.norm(name)?;
        let attributes = vec![float("epsilon", self.epsilon)];
        Ok(self.graph.microsoft("SkipLayerNormalization", &[value, residual, &gain, &bias], attributes))
    }

    /// The normalisation called `name` of a sum, and the sum.
    pub(super) fn add_norm_and_sum(
        &mut self,
        value: &Value,
        residual: &Value,
        name: &str,
    ) -> Result<[Value; 2]> {
        let [gain, bias] = self.norm(name)?;
        let [normalised, _, _, sum] = self.graph.several(
            "SkipLayerNormalization",
            &[value, residual, &gain, &bias],
            vec![float("epsilon", self.epsilon)],
            [true, false, false, true],
        );
        Ok([normalised, sum])
    }

    fn norm(&mut self, name: &str) -> Result<[Value; 2]> {
        let mut constant = |part: &str| {
            let name = format!("{name}.{part}");
            let weight = self.weights.take(&name, &[self.hidden])?;
            Ok::<_, Error>(self.graph.floats(&name, &weight.shape, &weight.values))
        };
        Ok([constant("weight")?, constant("bias")?])
    }

    /// `value` in another element type.
    pub(super) fn cast(&mut self, value: &Value, to: i32) -> Value {
        self.graph.node("Cast", &[value], vec![integer("to", i64::from(to))])
    }
}
