//! Feed-forward parts with experts, in the form of megablocks: a router weighs experts by a softmax, and each token passes
//! those with the largest weights.

use super::{Activation, Layers, Linear};
use crate::{
    files::weights::Weight,
    onnx::{
        Value,
        functions::{self, ExpertForm},
        integer,
    },
    quantize,
};
use kivu::{error::Result, repository::manifest::Precision};

/// Experts in a layer.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub count: usize,
    /// Experts per token.
    pub top: usize,
    /// Values between an expert's two matrices.
    pub width: usize,
}

impl Layers<'_> {
    /// The feed-forward part called `name`, with GELU, for tokens with `hidden` values.
    pub fn experts(
        &mut self,
        name: &str,
        input: &Value,
        hidden: usize,
        experts: Experts,
    ) -> Result<Value> {
        let Experts { count, top, width } = experts;
        let router = format!("{name}.router.layer.weight");
        let matrix = self.weights.take(&router, &[count, hidden])?;
        let matrix = quantize::transpose(&matrix.values, hidden);
        let router = self.graph.floats(&router, &[hidden, count], &matrix);
        let bias = self.constant(&format!("{name}.experts.bias"), &[hidden])?;
        let [first, second] = ["w1", "w2"].map(|part| format!("{name}.experts.mlp.{part}"));
        let (first, second) = (
            self.weights.take(&first, &[count * width, hidden])?,
            self.weights.take(&second, &[count * width, hidden])?,
        );
        let pairs: Vec<[Linear; 2]> = (0..count)
            .map(|expert| {
                let part = |weight: &Weight| {
                    weight.values[expert * width * hidden..][..width * hidden].to_vec()
                };
                let name = |side: &str| format!("{name}.experts.{expert}.{side}");
                let up = Weight {
                    shape: vec![width, hidden],
                    values: part(first),
                };
                let down = quantize::transpose(&part(second), hidden);
                let down = Weight {
                    shape: vec![hidden, width],
                    values: down,
                };
                [
                    Linear::new(&name("up"), &up, None),
                    Linear::new(&name("down"), &down, None),
                ]
            })
            .collect();
        if self.precision != Precision::Fp32 && self.graph.has_functions() {
            return Ok(self.expert_function((input, &router, &bias), &pairs, top));
        }
        let gates = functions::expert_gates(&mut self.graph, [input, &router], top);
        let mut sum = bias;
        for (expert, [up, down]) in pairs.iter().enumerate() {
            let raised = self.apply(up, input)?;
            let raised = self.activate(Activation::Gelu, &raised);
            let lowered = self.apply(down, &raised)?;
            let place = self
                .graph
                .integers(&format!("expert_{expert}"), &[expert as i64]);
            let gate = self
                .graph
                .node("Gather", &[&gates, &place], vec![integer("axis", -1)]);
            let product = self.graph.node("Mul", &[&lowered, &gate], vec![]);
            sum = self.graph.node("Add", &[&product, &sum], vec![]);
        }
        Ok(sum)
    }

    /// The same as a function that the native engine executes by name: it runs only the chosen experts.
    fn expert_function(
        &mut self,
        (input, router, bias): (&Value, &Value, &Value),
        pairs: &[[Linear; 2]],
        top: usize,
    ) -> Value {
        let count = pairs.len();
        let shape = self.graph.integers(
            &format!("experts_{count}_{top}"),
            &[count as i64, top as i64],
        );
        let (mut constants, mut linears, mut suffixes) = (Vec::new(), None, String::new());
        for [up, down] in pairs {
            let [up, down] = [up, down].map(|layer| self.panels(layer, None));
            suffixes = format!("{}{}", up.suffix, down.suffix);
            linears = Some([up.linear, down.linear]);
            constants.extend(up.constants.into_iter().chain(down.constants));
        }
        let Some(linears) = linears else {
            return bias.clone();
        };
        let inputs: Vec<&Value> = [input, router, bias, &shape]
            .into_iter()
            .chain(&constants)
            .collect();
        let form = ExpertForm { top, linears };
        let name = format!("Experts{count}Top{top}{suffixes}");
        self.graph.function_of(&name, &inputs, |graph, inputs| {
            functions::experts(graph, form, inputs)
        })
    }
}
