//! Rotary position embeddings: queries and keys are rotated by angles that grow with the position.

use crate::onnx::{GraphBuilder, Value, data_type, integer};

/// Head rotation: pairs each value in the first half of the rotated values with one in the second half.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Number of rotated values per head, from the first on; even.
    pub width: usize,
    /// Frequency base (`rope_theta`).
    pub base: f64,
    pub scaling: Scaling,
    /// Factors for rotated queries.
    pub growth: Option<QueryGrowth>,
}

/// A factor for queries that grows with their position (Llama 4): 1 + `slope` × ln(1 + ⌊position / `period`⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    pub slope: f32,
    /// Positions with the same factor.
    pub period: usize,
}

/// Frequency scaling for texts longer than in training.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    None,
    /// Divides frequencies by `factor`.
    Linear {
        factor: f64,
    },
    /// Divides the first `pairs` frequencies by `factor`, and does not rotate the other pairs.
    Proportional {
        factor: f64,
        pairs: usize,
    },
    /// Multiplies the base by `factor`, and divides frequencies by `factor`^(2 / width), for all text lengths.
    Ntk {
        factor: f64,
    },
    /// A base that grows with the number of tokens beyond `positions`.
    DynamicNtk {
        factor: f64,
        positions: usize,
    },
    /// Divides frequencies with fewer than `slow` turns in `positions` tokens by `factor`, and keeps those with more than
    /// `fast` (Llama 3.1).
    Llama3 {
        factor: f64,
        slow: f64,
        fast: f64,
        positions: usize,
    },
    /// Divides the frequencies after the pair `to` by `factor`, and keeps those before `from`.
    Yarn {
        factor: f64,
        from: f64,
        to: f64,
        amplitude: f64,
    },
    /// Divides each frequency by a factor: `short`, or `long` in texts with more than `positions` tokens.
    Long {
        short: Vec<f64>,
        long: Vec<f64>,
        positions: usize,
        amplitude: f64,
    },
}

/// Cosines and sines for a text's angles, a row per position.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// Number of rotated values per head.
    width: usize,
    cosines: Value,
    sines: Value,
    /// A factor per token for queries.
    factors: Option<Value>,
}

impl Rotary {
    /// The frequencies as a constant with one row, or with a second one for long texts.
    pub fn constant(&self, graph: &mut GraphBuilder) -> Value {
        let name = format!("frequencies_{}_{}", self.width, self.base);
        let frequencies = self.frequencies();
        graph.floats(
            &name,
            &[2 * frequencies.len() / self.width, self.width / 2],
            &frequencies,
        )
    }

    /// Parameters for the native engine besides the frequencies: a factor for cosines and sines, the number of tokens up to
    /// which texts are short, and the factor by which the base grows.
    pub fn parameters(&self, graph: &mut GraphBuilder) -> Value {
        let parameters = match self.scaling {
            Scaling::DynamicNtk { factor, positions } => vec![1.0, positions as f32, factor as f32],
            Scaling::Long {
                positions,
                amplitude,
                ..
            } => vec![amplitude as f32, positions as f32],
            _ if self.amplitude() != 1.0 => vec![self.amplitude()],
            _ => return Value::none(),
        };
        graph.floats("rotation", &[parameters.len()], &parameters)
    }

    /// Factor for cosines and sines.
    fn amplitude(&self) -> f32 {
        match self.scaling {
            Scaling::Yarn { amplitude, .. } | Scaling::Long { amplitude, .. } => amplitude as f32,
            _ => 1.0,
        }
    }

    /// Angle between neighbouring positions, by pair, computed in the same order as in `transformers`; then those for
    /// long texts, if they differ.
    fn frequencies(&self) -> Vec<f32> {
        let base = if let Scaling::Ntk { factor } = self.scaling {
            self.base * factor
        } else {
            self.base
        };
        let powers =
            (0..self.width / 2).map(|pair| base.powf(f64::from(self.exponent(pair))) as f32);
        let plain = powers.clone().map(|power| 1.0 / power);
        match &self.scaling {
            Scaling::None | Scaling::DynamicNtk { .. } => plain.collect(),
            Scaling::Linear { factor } => {
                plain.map(|frequency| frequency / *factor as f32).collect()
            }
            Scaling::Proportional { factor, pairs } => plain
                .enumerate()
                .map(|(pair, frequency)| match pair < *pairs {
                    true => frequency / *factor as f32,
                    false => 0.0,
                })
                .collect(),
            Scaling::Ntk { factor } => {
                let divisor = factor.powf(2.0 / self.width as f64) as f32;
                plain.map(|frequency| frequency / divisor).collect()
            }
            Scaling::Llama3 {
                factor,
                slow,
                fast,
                positions,
            } => {
                let [factor, slow, fast] = [*factor as f32, *slow as f32, *fast as f32];
                let positions = *positions as f32;
                let scaled = |frequency: f32| {
                    let length = std::f32::consts::TAU / frequency;
                    if length > positions / slow {
                        return frequency / factor;
                    }
                    if length < positions / fast {
                        return frequency;
                    }
                    let share = (positions / length - slow) / (fast - slow);
                    (1.0 - share) * frequency / factor + share * frequency
                };
                plain.map(scaled).collect()
            }
            Scaling::Yarn {
                factor, from, to, ..
            } => {
                // Avoids division by zero.
                let to = if from == to { to + 0.001 } else { *to };
                let (from, distance) = (*from as f32, (to - from) as f32);
                let scaled = |(pair, power): (usize, f32)| {
                    let kept = 1.0 - ((pair as f32 - from) / distance).clamp(0.0, 1.0);
                    1.0 / (*factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
                };
                powers.enumerate().map(scaled).collect()
            }
            Scaling::Long { short, long, .. } => {
                let scaled = |factors: &[f64]| {
                    let pairs = powers.clone().zip(factors);
                    pairs
                        .map(|(power, factor)| 1.0 / (*factor as f32 * power))
                        .collect::<Vec<_>>()
                };
                [scaled(short), scaled(long)].concat()
            }
        }
    }

    fn exponent(&self, pair: usize) -> f32 {
        (2 * pair) as f32 / self.width as f32
    }
}

impl Rotation {
    /// Creates the rotation for texts with `length` tokens, a one-element list, at `positions`, a list of floats from
    /// 0.
    pub fn new(
        graph: &mut GraphBuilder,
        rotary: &Rotary,
        [length, positions]: [&Value; 2],
    ) -> Self {
        let mut frequencies = rotary.constant(graph);
        if let Scaling::Long { positions, .. } = rotary.scaling {
            let limit = graph.integers("short_length", &[positions as i64]);
            let is_long = graph.greater(length, &limit);
            let row = graph.cast(&is_long, data_type::INT64);
            frequencies = graph.gather_along(&frequencies, &row, 0);
        }
        if let Scaling::DynamicNtk { factor, positions } = rotary.scaling {
            let growth = growth(graph, length, factor, positions);
            // The base is multiplied by growth^(width / (width - 2)).
            let width = rotary.width as f32;
            let exponents: Vec<f32> = (0..rotary.width / 2)
                .map(|pair| -rotary.exponent(pair) * width / (width - 2.0))
                .collect();
            let exponents = graph.floats("growth_exponents", &[1, exponents.len()], &exponents);
            let growth = graph.node("Pow", &[&growth, &exponents], vec![]);
            frequencies = graph.mul(&frequencies, &growth);
        }
        let one = graph.one();
        let positions = graph.unsqueeze(positions, &one);
        let angles = graph.mul(&positions, &frequencies);
        let amplitude = rotary.amplitude();
        let [cosines, sines] = ["Cos", "Sin"].map(|function| {
            let values = graph.node(function, &[&angles], vec![]);
            if amplitude == 1.0 {
                return values;
            }
            let amplitude = graph.scalar("rotary_amplitude", amplitude);
            graph.mul(&values, &amplitude)
        });
        let factors = rotary
            .growth
            .map(|growth| growth.factors(graph, [length, &positions]));
        Self {
            width: rotary.width,
            cosines,
            sines,
            factors,
        }
    }

    /// Rotates queries, which consist of `heads`, and multiplies them by their factors.
    pub fn apply_to_queries(
        &self,
        graph: &mut GraphBuilder,
        queries: &Value,
        heads: usize,
    ) -> Value {
        let rotated = self.apply(graph, queries, heads);
        match &self.factors {
            Some(factors) => graph.mul(&rotated, factors),
            None => rotated,
        }
    }

    /// Rotates token vectors, which consist of `heads`.
    pub fn apply(&self, graph: &mut GraphBuilder, tokens: &Value, heads: usize) -> Value {
        let zero = graph.zero();
        let attributes = vec![
            integer("interleaved", 0),
            integer("num_heads", heads as i64),
            integer("rotary_embedding_dim", self.width as i64),
        ];
        let inputs = [tokens, &zero, &self.cosines, &self.sines];
        graph.microsoft("RotaryEmbedding", &inputs, attributes)
    }
}

impl QueryGrowth {
    /// Parameters for the native engine: slope and period.
    pub fn parameters(self, graph: &mut GraphBuilder) -> Value {
        graph.floats("query_growth", &[2], &[self.slope, self.period as f32])
    }

    /// Factors for `length` tokens, one per row, from a column of at least as many positions.
    fn factors(self, graph: &mut GraphBuilder, [length, positions]: [&Value; 2]) -> Value {
        let zero = graph.zero();
        let one = graph.scalar("one_float", 1.0);
        let slope = graph.scalar("query_slope", self.slope);
        let period = graph.scalar("query_period", self.period as f32);
        let positions = graph.slice(positions, &zero, length, &zero);
        let periods = graph.div(&positions, &period);
        let periods = graph.node("Floor", &[&periods], vec![]);
        let periods = graph.add(&periods, &one);
        let logarithms = graph.node("Log", &[&periods], vec![]);
        let growth = graph.mul(&logarithms, &slope);
        graph.add(&growth, &one)
    }
}

/// Growth factor for `length` tokens beyond `positions`, scaled by `factor`; 1 for shorter texts.
fn growth(graph: &mut GraphBuilder, length: &Value, factor: f64, positions: usize) -> Value {
    let length = graph.float(length);
    let slope = graph.scalar("growth_slope", (factor / positions as f64) as f32);
    let offset = graph.scalar("growth_offset", (factor - 1.0) as f32);
    let least = graph.scalar("growth_least", 1.0);
    let growth = graph.mul(&length, &slope);
    let growth = graph.sub(&growth, &offset);
    graph.max(&growth, &least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_one_and_ntk_lowers_them() {
        let plain = Rotary {
            width: 4,
            base: 10_000.0,
            scaling: Scaling::None,
            growth: None,
        };
        assert_eq!(plain.frequencies(), [1.0, 0.01]);
        let scaled = |scaling| {
            Rotary {
                scaling,
                ..plain.clone()
            }
            .frequencies()
        };
        assert_eq!(scaled(Scaling::Ntk { factor: 4.0 }), [0.5, 0.005 / 2.0]);
        assert_eq!(scaled(Scaling::Linear { factor: 4.0 }), [0.25, 0.0025]);
        let proportional = Scaling::Proportional {
            factor: 4.0,
            pairs: 1,
        };
        assert_eq!(scaled(proportional), [0.25, 0.0]);
        let lists = Scaling::Long {
            short: vec![1.0, 2.0],
            long: vec![4.0, 8.0],
            positions: 9,
            amplitude: 1.0,
        };
        assert_eq!(scaled(lists), [1.0, 0.005, 0.25, 0.00125]);
    }
}
