//! Rotary position embeddings: queries and keys are rotated by angles that grow with the position.

use crate::onnx::{GraphBuilder, Value, data_type, integer};

/// The rotation of heads: the first half of the rotated values with the second half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotary {
    /// The values of a head that are rotated, an even number: the first ones.
    pub(crate) width: usize,
    /// The base of the frequencies (`rope_theta`).
    pub(crate) base: f64,
    pub(crate) scaling: Scaling,
}

/// The adaptation of frequencies to texts that are longer than those in training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    None,
    /// The base times `factor`, and frequencies divided by the power 2 / width of it, for texts of all lengths.
    Ntk {
        factor: f64,
    },
    /// A base that grows with the number of tokens beyond `positions`.
    DynamicNtk {
        factor: f64,
        positions: usize,
    },
}

/// The cosines and sines of the angles of a text, a row per position.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    rotary: Rotary,
    cosines: Value,
    sines: Value,
}

impl Rotary {
    /// Whether the frequencies are the same for all texts.
    pub(crate) fn is_fixed(&self) -> bool {
        !matches!(self.scaling, Scaling::DynamicNtk { .. })
    }

    /// The frequencies as a constant with one row.
    pub(crate) fn constant(&self, graph: &mut GraphBuilder) -> Value {
        let name = format!("frequencies_{}_{}", self.width, self.base);
        graph.floats(&name, &[1, self.width / 2], &self.frequencies())
    }

    /// The angle between neighbouring positions, by pair, in the order of operations of `transformers`.
    fn frequencies(&self) -> Vec<f32> {
        let (base, divisor) = match self.scaling {
            Scaling::Ntk { factor } => (self.base * factor, factor.powf(2.0 / self.width as f64)),
            Scaling::None | Scaling::DynamicNtk { .. } => (self.base, 1.0),
        };
        let frequency = |pair| 1.0 / base.powf(f64::from(self.exponent(pair))) as f32 / divisor as f32;
        (0..self.width / 2).map(frequency).collect()
    }

    fn exponent(&self, pair: usize) -> f32 {
        (2 * pair) as f32 / self.width as f32
    }
}

impl Rotation {
    /// The rotation of texts with `length` tokens, a list of one, at `positions`, a list of floats from 0.
    pub(crate) fn new(graph: &mut GraphBuilder, rotary: Rotary, [length, positions]: [&Value; 2]) -> Self {
        let mut frequencies = rotary.constant(graph);
        if let Scaling::DynamicNtk { factor, positions } = rotary.scaling {
            let growth = growth(graph, length, factor, positions);
            // The base is multiplied by the growth to the power of width / (width - 2).
            let width = rotary.width as f32;
            let exponents: Vec<f32> =
                (0..rotary.width / 2).map(|pair| -rotary.exponent(pair) * width / (width - 2.0)).collect();
            let exponents = graph.floats("growth_exponents", &[1, exponents.len()], &exponents);
            let growth = graph.node("Pow", &[&growth, &exponents], vec![]);
            frequencies = graph.node("Mul", &[&frequencies, &growth], vec![]);
        }
        let one = graph.integers("one", &[1]);
        let positions = graph.node("Unsqueeze", &[positions, &one], vec![]);
        let angles = graph.node("Mul", &[&positions, &frequencies], vec![]);
        let cosines = graph.node("Cos", &[&angles], vec![]);
        Self { rotary, cosines, sines: graph.node("Sin", &[&angles], vec![]) }
    }

    pub(crate) fn rotary(&self) -> Rotary {
        self.rotary
    }

    /// Rotates the vectors of tokens, which consist of `heads`.
    pub(crate) fn apply(&self, graph: &mut GraphBuilder, tokens: &Value, heads: usize) -> Value {
        let zero = graph.integers("zero", &[0]);
        let attributes = vec![
            integer("interleaved", 0),
            integer("num_heads", heads as i64),
            integer("rotary_embedding_dim", self.rotary.width as i64),
        ];
        let inputs = [tokens, &zero, &self.cosines, &self.sines];
        graph.microsoft("RotaryEmbedding", &inputs, attributes)
    }
}

/// The factor by which `length` tokens go beyond `positions`, scaled by `factor`; 1 for shorter texts.
fn growth(graph: &mut GraphBuilder, length: &Value, factor: f64, positions: usize) -> Value {
    let length = graph.cast(length, data_type::FLOAT);
    let mut constant = |name: &str, value: f64| graph.floats(name, &[], &[value as f32]);
    let slope = constant("growth_slope", factor / positions as f64);
    let offset = constant("growth_offset", factor - 1.0);
    let least = constant("growth_least", 1.0);
    let growth = graph.node("Mul", &[&length, &slope], vec![]);
    let growth = graph.node("Sub", &[&growth, &offset], vec![]);
    graph.node("Max", &[&growth, &least], vec![])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_one_and_ntk_lowers_them() {
        let plain = Rotary { width: 4, base: 10_000.0, scaling: Scaling::None };
        assert_eq!(plain.frequencies(), [1.0, 0.01]);
        let scaled = Rotary { scaling: Scaling::Ntk { factor: 4.0 }, ..plain };
        assert_eq!(scaled.frequencies(), [0.5, 0.005 / 2.0]);
    }
}
