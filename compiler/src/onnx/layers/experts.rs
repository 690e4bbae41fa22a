//! Feed-forward parts with experts: a router weighs experts by a softmax, and each token passes those with the largest weights.

use super::{Activation, Layers, Linear};
use crate::{
    files::weights::Weight,
    onnx::{
        Value,
        functions::{self, ExpertForm, LimitedGate, RoutedTokens, Storage},
    },
    quantize,
};
use kivu::Result;

/// Experts in a layer.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub count: usize,
    /// Experts per token.
    pub top: usize,
    /// Values between an expert's two matrices.
    pub width: usize,
    pub kind: ExpertKind,
}

/// The layers of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertKind {
    /// GELU between both layers, and a bias for their sum (megablocks).
    Plain,
    /// A gate between both layers, which have biases, as the router has, whose softmax is over the chosen experts (gpt-oss).
    Gated(LimitedGate),
}

impl Layers<'_> {
    /// The feed-forward part called `name`, for tokens with `hidden` values.
    pub fn experts(
        &mut self,
        name: &str,
        input: &Value,
        hidden: usize,
        experts: Experts,
    ) -> Result<Value> {
        let Experts {
            count,
            top,
            width,
            kind,
        } = experts;
        let weights = self.weights;
        let take = |part: &str, shape: &[usize]| weights.take(&format!("{name}.{part}"), shape);
        let (router, bias, layers) = match kind {
            ExpertKind::Plain => {
                let shape = [count * width, hidden];
                let up = ExpertLayer {
                    side: "up",
                    weight: take("experts.mlp.w1", &shape)?,
                    bias: None,
                    rows: Rows::Outputs,
                    size: [hidden, width],
                };
                let down = ExpertLayer {
                    side: "down",
                    weight: take("experts.mlp.w2", &shape)?,
                    rows: Rows::Inputs,
                    size: [width, hidden],
                    ..up
                };
                ("router.layer.weight", "experts.bias", [up, down])
            }
            ExpertKind::Gated(_) => {
                let up = ExpertLayer {
                    side: "up",
                    weight: take("experts.gate_up_proj", &[count, hidden, 2 * width])?,
                    bias: Some(take("experts.gate_up_proj_bias", &[count, 2 * width])?),
                    rows: Rows::Inputs,
                    size: [hidden, 2 * width],
                };
                let down = ExpertLayer {
                    side: "down",
                    weight: take("experts.down_proj", &[count, width, hidden])?,
                    bias: Some(take("experts.down_proj_bias", &[count, hidden])?),
                    size: [width, hidden],
                    ..up
                };
                ("router.weight", "router.bias", [up, down])
            }
        };
        let matrix = take(router, &[count, hidden])?;
        let matrix = quantize::transpose(&matrix.values, hidden);
        let router = self
            .graph
            .floats(&format!("{name}.{router}"), &[hidden, count], &matrix);
        let width_of_bias = if kind == ExpertKind::Plain {
            hidden
        } else {
            count
        };
        let bias = self.constant(&format!("{name}.{bias}"), &[width_of_bias])?;
        if self.graph.has_functions() {
            return Ok(self.expert_function(name, [input, &router, &bias], &layers, experts));
        }
        let (of_router, bias) = match kind {
            ExpertKind::Plain => (None, bias),
            ExpertKind::Gated(_) => (Some(bias), self.graph.floats("no_bias", &[1], &[0.0])),
        };
        let gates =
            functions::expert_gates(&mut self.graph, [input, &router], of_router.as_ref(), top);
        let mut routed = RoutedTokens::new(&mut self.graph, [input, &gates, &bias]);
        for expert in 0..count {
            let [up, down] = layers.map(|layer| layer.of(name, expert));
            let own = routed.of(&mut self.graph, expert);
            let raised = self.apply(&up, &own.tokens)?;
            let raised = match kind {
                ExpertKind::Plain => self.activate(Activation::Gelu, &raised),
                ExpertKind::Gated(gate) => gate.write(&mut self.graph, &raised),
            };
            let lowered = self.apply(&down, &raised)?;
            routed.add(&mut self.graph, &own, &lowered);
        }
        Ok(routed.finish(&mut self.graph))
    }

    /// The same as a function that the native engine executes by name.
    fn expert_function(
        &mut self,
        name: &str,
        inputs: [&Value; 3],
        layers: &[ExpertLayer<'_>; 2],
        Experts {
            count, top, kind, ..
        }: Experts,
    ) -> Value {
        let shape = self.graph.integers(
            &format!("experts_{count}_{top}"),
            &[count as i64, top as i64],
        );
        let mut constants = vec![shape];
        let (prefix, gate) = match kind {
            ExpertKind::Plain => ("", None),
            ExpertKind::Gated(gate) => {
                let numbers = [gate.alpha, gate.limit];
                constants.push(self.graph.floats("expert_gate", &[2], &numbers));
                ("Gated", Some(gate))
            }
        };
        let (mut storages, mut suffixes) = ([Storage::Matrix; 2], String::new());
        for expert in 0..count {
            let [up, down] = layers.map(|layer| {
                let layer = layer.of(name, expert);
                match kind {
                    ExpertKind::Plain => self.store(&layer, None),
                    ExpertKind::Gated(_) => self.store_in_small_quads(&layer),
                }
            });
            suffixes = format!("{}{}", up.suffix, down.suffix);
            storages = [up.storage, down.storage];
            constants.extend(up.constants.into_iter().chain(down.constants));
        }
        let inputs: Vec<&Value> = inputs.into_iter().chain(&constants).collect();
        let form = ExpertForm {
            count,
            top,
            gate,
            layers: storages,
        };
        let name = format!("{prefix}Experts{count}Top{top}{suffixes}");
        self.graph.function_of(&name, &inputs, |graph, inputs| {
            functions::experts(graph, form, inputs)
        })
    }
}

/// One of the layers of all experts, one expert after the other.
#[derive(Clone, Copy)]
struct ExpertLayer<'a> {
    side: &'static str,
    weight: &'a Weight,
    bias: Option<&'a Weight>,
    rows: Rows,
    /// Values per input and output.
    size: [usize; 2],
}

/// The layout of a matrix's rows.
#[derive(Clone, Copy)]
enum Rows {
    Inputs,
    Outputs,
}

impl ExpertLayer<'_> {
    /// The layer of one expert in the part called `name`.
    fn of(&self, name: &str, expert: usize) -> Linear {
        let [inputs, outputs] = self.size;
        let size = inputs * outputs;
        let part = &self.weight.values[expert * size..][..size];
        let values = match self.rows {
            Rows::Inputs => quantize::transpose(part, outputs),
            Rows::Outputs => part.to_vec(),
        };
        let weight = Weight {
            shape: vec![outputs, inputs],
            values,
        };
        let bias = self
            .bias
            .map(|bias| bias.values[expert * outputs..][..outputs].to_vec());
        Linear::new(
            &format!("{name}.experts.{expert}.{}", self.side),
            &weight,
            bias,
        )
    }
}
