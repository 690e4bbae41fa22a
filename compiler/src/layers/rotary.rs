//! Rotary position embeddings: queries and keys are rotated by angles that grow with the position.

use crate::onnx::{GraphBuilder, Value, data_type, integer};

/// Head rotation: pairs each value in the first half of the rotated values with one in the second half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotary {
    /// Number of rotated values per head, from the first on; even.
    pub(crate) width: usize,
    /// Frequency base (`rope_theta`).
    pub(crate) base: f64,
    pub(crate) scaling: Scaling,
}

/// Frequency scaling for texts longer than in training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    None,
    /// Multiplies the base by `factor`, and divides frequencies by `factor`^(2 / width), for all text lengths.
    Ntk {
        factor: f64,
    },
    /// A base that grows with the number of tokens beyond `positions`.
    DynamicNtk {
        factor: f64,
        positions: usize,
    },
}

/// Cosines and sines for a text's angles, a row per position.
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

    /// Angle between neighbouring positions, by pair, computed in the same order as in `transformers`.
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
    /// Creates the rotation for texts with `length` tokens, a one-element list, at `positions`, a list of floats from
    /// 0.
    pub(crate) fn new(graph: &mut GraphBuilder, rotary: Rotary, [length, positions]: [&Value; 2]) -> Self {
        let mut frequencies = rotary.constant(graph);
        if let Scaling::DynamicNtk { factor, positions } = rotary.scaling {
            let growth = growth(graph, length, factor, positions);
            // The base is multiplied by growth^(width / (width - 2)).
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

    /// Rotates token vectors, which consist of `heads`.
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

/// Growth factor for `length` tokens beyond `positions`, scaled by `factor`; 1 for shorter texts.
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
