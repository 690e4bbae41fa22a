//! Fits a layer's 8-bit weights to the values that sample texts produce: input columns of similar ranges, and weights whose
//! rounding errors cancel.
//!
//! The engine quantizes a token's values in a few blocks, with a scale each, so a few columns with large values cost the
//! others in their block their precision. Each [column](Columns) gets a shift and a factor, which weights and bias make up
//! for. The weights are then [rounded](rounding::round) for these inputs.

use std::cmp::Ordering;

use super::{
    columns::{Columns, step},
    rounding::{self, Moments, Nearest, Permitted, Rounded, Weights},
};
use crate::{kernel::LANES, quantize};

/// Inputs of layers up to which weights are rounded for them: 256 MB of products between columns.
const MAX_ROUNDED_INPUTS: usize = 8192;
/// Minimum number of inputs that share a scale.
const MIN_BLOCK: usize = 32;
/// Maximum number of inputs that share a scale in `int8-blocks`.
pub const MAX_BLOCK: usize = 64;

/// A layer as it is stored.
#[derive(Clone, Debug)]
pub struct FittedLayer {
    /// `None` if the values are quantized as they are.
    pub columns: Option<Columns>,
    /// Inputs that share a scale.
    pub block: usize,
    /// The integers, and a scale per output and block.
    pub rows: quantize::Rows,
    /// Added to the bias.
    pub bias: Vec<f32>,
}

/// Fits a layer's weights, a row per output, to input rows.
pub fn fit(weight: &[f32], inputs: usize, form: Form, mut rows: Vec<f32>) -> FittedLayer {
    let Form { block, permitted } = form;
    let layer = Weights {
        values: weight,
        inputs,
        block,
        permitted,
    };
    let columns = Columns::choose(layer, &rows);
    let mut weight = weight.to_vec();
    let mut bias = vec![0.0; weight.len() / inputs];
    if let Some(columns) = &columns {
        for (weights, bias) in weight.chunks_exact_mut(inputs).zip(&mut bias) {
            let products = weights
                .iter()
                .zip(&columns.shifts)
                .map(|(weight, shift)| weight * shift);
            *bias = products.map(f64::from).sum::<f64>() as f32;
            weights
                .iter_mut()
                .zip(&columns.factors)
                .for_each(|(weight, factor)| *weight /= factor);
        }
        columns.apply(&mut rows);
    }
    let rows = if inputs <= MAX_ROUNDED_INPUTS {
        rows.chunks_exact_mut(block).for_each(quantize_block);
        let weights = Weights {
            values: &weight,
            ..layer
        };
        let Rounded {
            integers,
            scales,
            offsets,
        } = rounding::round(weights, Moments::new(rows, inputs));
        bias.iter_mut()
            .zip(offsets)
            .for_each(|(bias, offset)| *bias += offset);
        quantize::Rows {
            values: integers,
            scales,
        }
    } else {
        quantize::rows(&weight, block)
    };
    FittedLayer {
        columns,
        block,
        rows,
        bias,
    }
}

/// Rounds a layer's weights, a row per output, without sample inputs.
pub fn round(weight: &[f32], inputs: usize, form: Form) -> FittedLayer {
    let Form { block, permitted } = form;
    let Nearest {
        integers, scales, ..
    } = Nearest::new(Weights {
        values: weight,
        inputs,
        block,
        permitted,
    });
    FittedLayer {
        columns: None,
        block,
        rows: quantize::Rows {
            values: integers.into_iter().map(|integer| integer as i8).collect(),
            scales,
        },
        bias: vec![0.0; weight.len() / inputs],
    }
}

/// How a layer is stored.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Inputs that share a scale.
    pub block: usize,
    /// The integers that weights may become.
    pub permitted: Permitted,
}

impl Form {
    /// A few scales per row: as many as cost a layer's product a few percent.
    pub fn int8(inputs: usize, outputs: usize) -> Self {
        Self {
            block: block(inputs, outputs),
            permitted: Permitted::SmallQuads,
        }
    }

    /// For layers that are rounded without sample inputs: four blocks make up for most of what small quads cost.
    pub fn int8_without_samples(inputs: usize) -> Self {
        Self {
            block: part(inputs, &[4, 2]),
            permitted: Permitted::SmallQuads,
        }
    }

    /// A scale per block of at most [`MAX_BLOCK`] inputs.
    pub fn int8_blocks(inputs: usize) -> Self {
        Self {
            block: small_block(inputs),
            permitted: Permitted::Any,
        }
    }
}

/// The largest size in [`MIN_BLOCK`] to [`MAX_BLOCK`] that divides a row.
fn small_block(inputs: usize) -> usize {
    let sizes = (MIN_BLOCK..=MAX_BLOCK)
        .rev()
        .filter(|size| size.is_multiple_of(LANES));
    sizes
        .into_iter()
        .find(|size| inputs.is_multiple_of(*size))
        .unwrap_or(inputs)
}

/// As many inputs as cost a layer's product a few percent, fewer where errors in a row matter more.
///
/// Layers with more outputs than inputs read normalized rows, with a few large values, for queries, keys and values or a
/// feed-forward network's first half. Of the cosine that rounding all inputs costs all-MiniLM-L6-v2, 84 % is from these,
/// and 2 % from attention's outputs, whose layers have as many outputs as inputs.
fn block(inputs: usize, outputs: usize) -> usize {
    let counts: &[usize] = match (inputs, outputs.cmp(&inputs)) {
        (..=256, _) => &[2],
        (257..=512, Ordering::Greater) => &[6, 4, 2],
        (257..=1024, Ordering::Equal) => &[],
        (257..=1024, _) => &[4, 2],
        (_, Ordering::Less) => &[6, 8, 4, 2],
        _ => &[8, 4, 2],
    };
    part(inputs, counts)
}

/// A block's inputs, for the first of these numbers of blocks that divides a row well.
fn part(inputs: usize, counts: &[usize]) -> usize {
    let fits =
        |blocks: &&usize| inputs.is_multiple_of(*blocks * LANES) && inputs / *blocks >= MIN_BLOCK;
    inputs / counts.iter().find(fits).unwrap_or(&1)
}

/// Rounds a block's values as the engine does.
fn quantize_block(block: &mut [f32]) {
    let [least, step] = step(block);
    if step > 0.0 {
        block
            .iter_mut()
            .for_each(|value| *value = ((*value - least) / step).round_ties_even() * step + least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{panels::Panels, quantize::tests::numbers};

    const INPUTS: usize = 64;
    const OUTPUTS: usize = 16;

    fn form(block: usize) -> Form {
        Form {
            block,
            permitted: Permitted::SmallQuads,
        }
    }

    /// Mean squared output error over the rows.
    fn error(weight: &[f32], rows: &[f32], layer: &FittedLayer) -> f64 {
        let FittedLayer {
            columns,
            block,
            rows: quantized,
            bias,
        } = layer;
        let mut fitted = rows.to_vec();
        if let Some(columns) = columns {
            columns.apply(&mut fitted);
        }
        fitted.chunks_exact_mut(*block).for_each(quantize_block);
        let integers = quantized.values.iter().enumerate();
        let stored: Vec<f32> = integers
            .map(|(place, integer)| f32::from(*integer) * quantized.scales[place / block])
            .collect();
        let product = |row: &[f32], weights: &[f32]| {
            row.iter()
                .zip(weights)
                .map(|(value, weight)| f64::from(value * weight))
                .sum::<f64>()
        };
        let mut sum = 0.0;
        for (row, fitted) in rows.chunks_exact(INPUTS).zip(fitted.chunks_exact(INPUTS)) {
            let outputs = weight
                .chunks_exact(INPUTS)
                .zip(stored.chunks_exact(INPUTS))
                .zip(bias);
            for ((weights, stored), bias) in outputs {
                sum += (product(fitted, stored) + f64::from(*bias) - product(row, weights)).powi(2);
            }
        }
        sum / (rows.len() / INPUTS) as f64
    }

    /// Rows with a column that is far from zero, a constant one, and one that is zero.
    fn rows(seed: u64, count: usize) -> Vec<f32> {
        let mut rows = numbers(seed, count * INPUTS);
        for row in rows.chunks_exact_mut(INPUTS) {
            (row[3], row[7], row[9]) = (40.0 + 5.0 * row[3], -2.5, 0.0);
        }
        rows
    }

    #[test]
    fn columns_with_large_values_do_not_cost_the_others_their_precision() {
        let weight = numbers(1, OUTPUTS * INPUTS);
        let layer = fit(&weight, INPUTS, form(INPUTS / 2), rows(2, 500));
        let columns = layer.columns.as_ref().unwrap();
        assert!(
            columns
                .factors
                .iter()
                .all(|factor| factor.is_normal() && *factor > 0.0),
            "{columns:?}"
        );
        assert!(layer.rows.values.iter().all(|integer| *integer > i8::MIN));
        let unfitted = FittedLayer {
            columns: None,
            block: INPUTS,
            rows: quantize::rows(&weight, INPUTS),
            bias: vec![0.0; OUTPUTS],
        };
        // On rows that the layer was not fitted to.
        let unseen = rows(3, 200);
        let [before, after] = [&unfitted, &layer].map(|layer| error(&weight, &unseen, layer));
        assert!(after < before / 10.0, "{before}, {after}");
    }

    #[test]
    fn a_layer_without_weights_or_values_is_stored_as_it_is() {
        let zeros = fit(&[0.0; OUTPUTS * INPUTS], INPUTS, form(INPUTS), rows(2, 300));
        assert!(zeros.columns.is_none() && zeros.rows.values.iter().all(|integer| *integer == 0));
        let weight = numbers(1, OUTPUTS * INPUTS);
        let without_values = fit(&weight, INPUTS, form(INPUTS / 2), vec![0.0; 300 * INPUTS]);
        let quantize::Rows { values, scales } = &without_values.rows;
        for (place, (weight, integer)) in weight.iter().zip(values).enumerate() {
            let steps = weight / scales[place / without_values.block];
            assert!(
                (steps - f32::from(*integer)).abs() <= 1.0,
                "{steps}, {integer}"
            );
        }
        assert!(without_values.bias.iter().all(|bias| *bias == 0.0));
    }

    #[test]
    fn a_layer_without_samples_gets_the_nearest_small_quads() {
        let weight = numbers(1, OUTPUTS * INPUTS);
        for block in [INPUTS, INPUTS / 2] {
            let FittedLayer {
                columns,
                rows: quantize::Rows { values, scales },
                bias,
                ..
            } = round(&weight, INPUTS, form(block));
            assert!(columns.is_none() && bias.iter().all(|bias| *bias == 0.0));
            assert_eq!(scales.len(), weight.len() / block);
            for (place, (weight, integer)) in weight.iter().zip(&values).enumerate() {
                let steps = weight / scales[place / block];
                assert!((steps - f32::from(*integer)).abs() <= 1.0, "{place}");
            }
            let panels = quantize::panels(&values, INPUTS);
            let blocks = panels.as_chunks().0.as_chunks().0.to_vec();
            assert!(Panels::from(blocks).have_small_quads(), "{block}");
        }
    }

    #[test]
    fn blocks_divide_a_layers_inputs() {
        let without_samples = [32, 48, 64, 640, 720].map(Form::int8_without_samples);
        assert_eq!(
            without_samples.map(|form| (form.block, form.permitted)),
            [32, 48, 32, 160, 720].map(|block| (block, Permitted::SmallQuads))
        );
        for (inputs, outputs, in_int8, in_blocks) in [
            (16, 16, 16, 16),
            (32, 32, 32, 32),
            (48, 48, 48, 48),
            (64, 64, 32, 64),
            (80, 80, 80, 80),
            (96, 96, 48, 48),
            (272, 288, 272, 272),
            (384, 1152, 64, 64),
            (384, 384, 384, 64),
            (512, 128, 128, 64),
            (448, 896, 112, 64),
            (768, 3072, 192, 64),
            (1536, 384, 256, 64),
            (2048, 2048, 256, 64),
            (2048, 6144, 256, 64),
            (4096, 1024, 512, 64),
            (720, 768, 720, 48),
            (736, 768, 368, 32),
        ] {
            let forms = [Form::int8(inputs, outputs), Form::int8_blocks(inputs)];
            assert_eq!(
                forms.map(|form| form.permitted),
                [Permitted::SmallQuads, Permitted::Any],
                "{inputs}"
            );
            let found = forms.map(|form| form.block);
            assert_eq!(found, [in_int8, in_blocks], "{inputs}");
            for block in found {
                assert!(
                    inputs.is_multiple_of(block) && block.is_multiple_of(LANES),
                    "{inputs}"
                );
            }
        }
    }
}
