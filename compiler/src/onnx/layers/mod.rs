//! Transformer layers, written into a graph in the form that measured fastest.

mod adapters;
mod attention;
mod buckets;
mod experts;
mod linear;
mod norm;
mod rotary;

pub use self::{
    adapters::{adapter_names, type_adapter_name},
    attention::{Attention, AttentionWindow, Distance, alibi_slopes, attend_by_position},
    buckets::{BucketValues, Buckets},
    experts::{ExpertKind, Experts},
    linear::{Linear, Projection},
    rotary::{QueryGrowth, Rotary, Rotation, Scaling},
};
use super::{AttributeProto, GraphBuilder, Value, float, functions, integer};
use crate::{
    files::weights::{Weight, Weights},
    quantize::{self, layer_calibration::Calibration},
};
use kivu::{Error, Result, repository::manifest::Precision};

/// Attention score for padding: `torch.finfo(torch.float32).min`, as in `transformers`.
const MASKED: f32 = f32::MIN;

/// Weights per scale in block quantization, unless a graph uses a different number.
pub const BLOCK: usize = 32;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Gelu,
    GeluTanh,
    Relu,
    Swish,
    Tanh,
}

impl Activation {
    /// The activation that a `config.json` names.
    pub fn named(name: &str) -> Result<Self> {
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
pub enum NormKind {
    /// Mean 0 and variance 1, then times a gain, plus a bias in some models.
    Layer { has_bias: bool },
    /// Mean square 1, then times a gain: the weight, or 1 + the weight if `adds_one`.
    RootMeanSquare { adds_one: bool },
    /// Times a gain, plus a bias, without a normalization.
    None,
}

/// Task input of layers with adapters.
#[derive(Clone, Debug)]
pub struct TaskInput {
    /// The number of each token's task, from 1 on; 0 for no task.
    pub ids: Value,
    /// Number of tasks.
    pub count: usize,
    /// Numbers between a task's two matrices.
    pub rank: usize,
}

/// A graph under construction, and the weights to write into it.
pub struct Layers<'a> {
    pub graph: GraphBuilder,
    pub weights: &'a Weights,
    pub precision: Precision,
    /// Weights per scale in block quantization.
    pub block: usize,
    pub calibration: Option<&'a Calibration>,
    /// Width of a token's vector.
    pub hidden: usize,
    /// Normalization epsilon.
    pub epsilon: f32,
    pub norm: NormKind,
    /// Tasks with adapters, if the model has them.
    pub tasks: Option<TaskInput>,
    /// Whether the model was trained to run in int8, with one scale for all tokens in a text.
    pub is_trained_in_int8: bool,
}

impl<'a> Layers<'a> {
    /// An empty graph, for texts with `hidden` values per token.
    pub fn new(weights: &'a Weights, precision: Precision, hidden: usize, epsilon: f32) -> Self {
        let graph = GraphBuilder::default();
        let norm = NormKind::Layer { has_bias: true };
        Self {
            graph,
            weights,
            precision,
            block: BLOCK,
            calibration: None,
            hidden,
            epsilon,
            norm,
            tasks: None,
            is_trained_in_int8: false,
        }
    }

    /// Looks up embedding table rows: in int8 with one scale per row where weights are quantized.
    pub fn look_up(&mut self, name: &str, table: &Weight, ids: &Value) -> Value {
        if self.precision == Precision::Fp32 {
            let (shape, values) = (&table.shape, &table.values);
            if self.graph.has_functions() {
                let table = self.graph.short_floats(name, shape, values);
                return self
                    .graph
                    .function("Lookup", [&table, ids], functions::lookup);
            }
            let table = self.graph.floats(name, shape, values);
            return self.graph.gather(&table, ids);
        }
        let rows = quantize::rows(&table.values, table.shape[1]);
        let values = self
            .graph
            .bytes(&format!("{name}.int8"), &table.shape, &rows.values);
        let scales = self.graph.floats(
            &format!("{name}.scales"),
            &[table.shape[0], 1],
            &rows.scales,
        );
        self.graph.function(
            "QuantizedLookup",
            [&values, &scales, ids],
            functions::quantized_lookup,
        )
    }

    /// Rows in the position table `table` for each id.
    ///
    /// Positions count from 0, or, if the model has a `padding` id, from the one after it, skipping padding (as in
    /// fairseq).
    pub fn positions(&mut self, table: &Value, ids: &Value, padding: Option<i64>) -> Value {
        match padding {
            None => self
                .graph
                .function("Positions", [table, ids], functions::positions),
            Some(padding) => {
                let padding = self.graph.integers("padding", &[padding]);
                let inputs = [table, ids, &padding];
                self.graph.function(
                    "PositionsAfterPadding",
                    inputs,
                    functions::positions_after_padding,
                )
            }
        }
    }

    /// First token's vector per text.
    pub fn first_token(&mut self, hidden: &Value) -> Value {
        self.graph
            .function("FirstToken", [hidden], functions::first_token)
    }

    pub fn activate(&mut self, activation: Activation, value: &Value) -> Value {
        match activation {
            Activation::Gelu => self.graph.microsoft("Gelu", &[value], vec![]),
            Activation::GeluTanh => self.graph.microsoft("FastGelu", &[value], vec![]),
            Activation::Relu => self.graph.relu(value),
            Activation::Swish => {
                self.graph
                    .microsoft("QuickGelu", &[value], vec![float("alpha", 1.0)])
            }
            Activation::Tanh => self.graph.tanh(value),
        }
    }

    /// A weight in fp32.
    pub fn constant(&mut self, name: &str, shape: &[usize]) -> Result<Value> {
        let weight = self.weights.take(name, shape)?;
        Ok(self.graph.floats(name, &weight.shape, &weight.values))
    }
}

/// Attributes for `MultiHeadAttention`.
pub fn attention(heads: usize) -> Vec<AttributeProto> {
    vec![
        integer("num_heads", heads as i64),
        float("mask_filter_value", MASKED),
    ]
}
