//! Normalizations.

use super::{Layers, NormKind, attention};
use crate::onnx::{Value, float, integer};
use kivu::{Error, Result};

impl Layers<'_> {
    pub fn normalize(&mut self, value: &Value, name: &str) -> Result<Value> {
        self.normalize_rows(value, name, self.hidden)
    }

    /// The normalization called `name` for rows with `width` values.
    pub fn normalize_rows(&mut self, value: &Value, name: &str, width: usize) -> Result<Value> {
        let name = format!("{}{name}", self.weights.prefix);
        self.normalize_whole(value, &name, width)
    }

    /// The normalization called `name` for each head's values.
    pub fn normalize_heads(
        &mut self,
        value: &Value,
        name: &str,
        [heads, width]: [usize; 2],
    ) -> Result<Value> {
        let by_head = attention::by_head(&mut self.graph, heads, width);
        let flat = attention::flat(&mut self.graph, heads * width);
        let value = self.graph.reshape(value, &by_head);
        let value = self.normalize_rows(&value, name, width)?;
        Ok(self.graph.reshape(&value, &flat))
    }

    /// The normalization with the full name `name`, for rows with `width` values.
    pub fn normalize_whole(&mut self, value: &Value, name: &str, width: usize) -> Result<Value> {
        let [gain, bias] = self.norm(name, width)?;
        let attributes = vec![integer("axis", -1), float("epsilon", self.epsilon)];
        Ok(match self.norm {
            NormKind::Layer { .. } => {
                self.graph
                    .node("LayerNormalization", &[value, &gain, &bias], attributes)
            }
            NormKind::RootMeanSquare { .. } => {
                self.graph
                    .node("SimplifiedLayerNormalization", &[value, &gain], attributes)
            }
            NormKind::None => {
                let inputs = [value, &gain, &bias];
                self.graph
                    .function("Affine", inputs, |graph, [value, gain, bias]| {
                        let scaled = graph.mul(value, gain);
                        graph.add(&scaled, bias)
                    })
            }
        })
    }

    /// Adds and applies the normalization called `name`.
    pub fn add_and_norm(&mut self, value: &Value, residual: &Value, name: &str) -> Result<Value> {
        self.add_and_norm_rows([value, residual], name, self.hidden)
    }

    /// The same for rows with `width` values.
    pub fn add_and_norm_rows(
        &mut self,
        [value, residual]: [&Value; 2],
        name: &str,
        width: usize,
    ) -> Result<Value> {
        if matches!(self.norm, NormKind::None) {
            let sum = self.graph.add(value, residual);
            return self.normalize_rows(&sum, name, width);
        }
        let [gain, bias] = self.norm(&format!("{}{name}", self.weights.prefix), width)?;
        let attributes = vec![float("epsilon", self.epsilon)];
        Ok(match self.norm {
            NormKind::Layer { .. } => {
                let inputs = [value, residual, &gain, &bias];
                self.graph
                    .microsoft("SkipLayerNormalization", &inputs, attributes)
            }
            NormKind::RootMeanSquare { .. } => {
                let inputs = [value, residual, &gain];
                self.graph
                    .microsoft("SkipSimplifiedLayerNormalization", &inputs, attributes)
            }
            NormKind::None => unreachable!("returned above"),
        })
    }

    /// Adds and applies the normalization called `name`; also returns the sum.
    pub fn add_norm_and_sum(
        &mut self,
        value: &Value,
        sum: &Value,
        name: &str,
    ) -> Result<[Value; 2]> {
        let [gain, bias] = self.norm(&format!("{}{name}", self.weights.prefix), self.hidden)?;
        let (attributes, keep) = (
            vec![float("epsilon", self.epsilon)],
            [true, false, false, true],
        );
        let [normalized, _, _, sum] = match self.norm {
            NormKind::Layer { .. } => {
                let inputs = [value, sum, &gain, &bias];
                self.graph
                    .several("SkipLayerNormalization", &inputs, attributes, keep)
            }
            NormKind::RootMeanSquare { .. } => {
                let inputs = [value, sum, &gain];
                self.graph.several(
                    "SkipSimplifiedLayerNormalization",
                    &inputs,
                    attributes,
                    keep,
                )
            }
            NormKind::None => unreachable!("the family normalizes after sums"),
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
            NormKind::None => [constant(&weight)?, constant(&format!("{name}.bias"))?],
            NormKind::RootMeanSquare { adds_one: false } => [constant(&weight)?, Value::none()],
            NormKind::RootMeanSquare { adds_one: true } => {
                let gain = self.weights.take_whole(&weight, &[width])?;
                let gain: Vec<f32> = gain.values.iter().map(|value| 1.0 + value).collect();
                [self.graph.floats(&weight, &[width], &gain), Value::none()]
            }
        })
    }
}
