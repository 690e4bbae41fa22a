//! Products of rows by a panel: the loops that all integer products share.

use std::{arch::wasm32::v128, array};

use super::IntegerProducts;
use crate::kernel::{GROUP, LANES, Panel, Sums, part, with_row_count};

/// Rows per register tile. With two registers of columns, their sums occupy 10 of the 16 registers that most processors have:
/// more than products take cycles, times those that begin per cycle.
const ROWS: usize = 5;

/// Multiplies rows, as many as `out` has, by panel `n`.
///
/// # Safety
/// `rows` has as many rows as `out`, each with one activation per input in `panel`.
pub unsafe fn tile<P: IntegerProducts>(
    products: P,
    rows: &[u8],
    panel: Panel<'_>,
    n: usize,
    out: &mut [[Sums; 2]],
) {
    let row_size = panel.blocks.len() * GROUP * P::ACTIVATION_SIZE;
    let part = part(out.len(), ROWS);
    for (i, out) in out.chunks_mut(part).enumerate() {
        let rows = &rows[i * part * row_size..];
        // SAFETY: per this function's contract.
        with_row_count!(out, R in 1 2 3 4 5 => unsafe { row_tile::<P, R>(products, rows, panel, n, out) });
    }
}

/// Multiplies `R` rows by panel `n`, as many columns at a time as two registers of weights have.
///
/// # Safety
/// `rows` begins with `R` rows, each with one activation per input in `panel`.
unsafe fn row_tile<P: IntegerProducts, const R: usize>(
    products: P,
    rows: &[u8],
    panel: Panel<'_>,
    n: usize,
    out: &mut [[Sums; 2]; R],
) {
    let steps = panel.blocks.len();
    let row_size = steps * GROUP * P::ACTIVATION_SIZE;
    let columns = 2 * P::WEIGHTS / GROUP;
    for first in (0..LANES).step_by(columns) {
        let mut sums = [products.begin(&panel.column_sums[first..first + columns]); R];
        // Wrapping, since there may be no steps.
        let mut weights = panel
            .blocks
            .as_ptr()
            .cast::<i8>()
            .wrapping_add(first * GROUP);
        let mut groups = array::from_fn(|r| rows.as_ptr().wrapping_add(r * row_size));
        for _ in 0..steps / 4 {
            // SAFETY: per this function's contract.
            unsafe { multiply::<P, R, 4>(products, &mut weights, &mut groups, &mut sums) };
        }
        for _ in 0..steps % 4 {
            // SAFETY: per this function's contract.
            unsafe { multiply::<P, R, 1>(products, &mut weights, &mut groups, &mut sums) };
        }
        for (sums, out) in sums.into_iter().zip(&mut *out) {
            products.finish(sums, &mut out[n][first..first + columns]);
        }
    }
}

/// Adds the products of `STEPS` groups of four inputs to `sums`, and moves the pointers behind them.
///
/// # Safety
/// As many groups follow in each row, and blocks at `weights`.
#[inline(always)]
unsafe fn multiply<P: IntegerProducts, const R: usize, const STEPS: usize>(
    products: P,
    weights: &mut *const i8,
    groups: &mut [*const u8; R],
    sums: &mut [[v128; 2]; R],
) {
    for step in 0..STEPS {
        // SAFETY: a block has two such registers for these columns.
        let register = |register: usize| unsafe {
            products.load_weights(weights.add(step * LANES * GROUP + register * P::WEIGHTS))
        };
        let weights = [register(0), register(1)];
        for (group, sums) in groups.iter().zip(&mut *sums) {
            // SAFETY: per this function's contract.
            let activations =
                unsafe { products.load_activations(group.add(step * GROUP * P::ACTIVATION_SIZE)) };
            for (sums, weights) in sums.iter_mut().zip(weights) {
                *sums = products.multiply_add(weights, activations, *sums);
            }
        }
    }
    // The first columns of a panel end within the last block, the last ones behind it.
    *weights = weights.wrapping_add(STEPS * LANES * GROUP);
    for group in groups {
        *group = group.wrapping_add(STEPS * GROUP * P::ACTIVATION_SIZE);
    }
}
