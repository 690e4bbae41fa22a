//! Multiply-adds in `f64`, where products are exact, rounded to `f32`. A sum in `f64` that was rounded to the middle
//! between two `f32`, about once in 2^29 operations, is corrected before it is rounded again, so that the results equal
//! fused multiply-adds for all but subnormal numbers.

use std::{arch::wasm32::*, array};

use super::{MultiplyAdds, map};
use crate::kernel::{LANES, Lanes, Rows, part, with_row_count};

/// Rows per register tile, and columns. Their sums occupy 8 registers.
const ROWS: usize = 2;
const COLUMNS: usize = 8;

/// Multiply-adds in `f64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulated;

impl MultiplyAdds for Emulated {
    #[inline(always)]
    fn mul_add(self, a: v128, b: v128, c: v128) -> v128 {
        let [a, b, c] = [wide(a), wide(b), wide(c)];
        let products = [f64x2_mul(a[0], b[0]), f64x2_mul(a[1], b[1])];
        let mut sums = [f64x2_add(products[0], c[0]), f64x2_add(products[1], c[1])];
        if !are_clear(sums) {
            sums = [
                corrected_pair(sums[0], products[0], c[0]),
                corrected_pair(sums[1], products[1], c[1]),
            ];
        }
        i64x2_shuffle::<0, 2>(
            f32x4_demote_f64x2_zero(sums[0]),
            f32x4_demote_f64x2_zero(sums[1]),
        )
    }

    #[inline(always)]
    fn mul_add_one(self, a: f32, b: f32, c: f32) -> f32 {
        let (product, addend) = (f64::from(a) * f64::from(b), f64::from(c));
        corrected(product + addend, product, addend) as f32
    }

    unsafe fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        let part = part(out.len(), ROWS);
        for (n, out) in out.chunks_mut(part).enumerate() {
            let a = Rows {
                values: &a.values[n * part * a.stride..],
                ..a
            };
            // SAFETY: per this function's contract.
            with_row_count!(out, R in 1 2 => unsafe { product::<R>(depth, a, b, out) });
        }
    }
}

/// Four numbers in `f64`.
#[inline(always)]
fn wide(a: v128) -> [v128; 2] {
    [
        f64x2_promote_low_f32x4(a),
        f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(a, a)),
    ]
}

/// Mantissa bits of an `f64` that an `f32` lacks.
const LOW: i64 = (1 << 29) - 1;
/// Their value in the middle between two `f32`.
const MIDDLE: i64 = 1 << 28;

/// Whether no number is in the middle between two `f32`.
#[inline(always)]
fn are_clear<const N: usize>(sums: [v128; N]) -> bool {
    let are_middles =
        sums.map(|sum| i64x2_eq(v128_and(sum, i64x2_splat(LOW)), i64x2_splat(MIDDLE)));
    !v128_any_true(
        are_middles
            .into_iter()
            .fold(i64x2_splat(0), |all, one| v128_or(all, one)),
    )
}

#[cold]
fn corrected_pair(sums: v128, products: v128, addends: v128) -> v128 {
    let numbers = |pair| [f64x2_extract_lane::<0>(pair), f64x2_extract_lane::<1>(pair)];
    let [sums, products, addends] = [numbers(sums), numbers(products), numbers(addends)];
    let [first, second] = array::from_fn(|n| corrected(sums[n], products[n], addends[n]));
    f64x2(first, second)
}

/// Moves a rounded sum that is in the middle between two `f32` by the smallest step towards the exact sum.
fn corrected(sum: f64, product: f64, addend: f64) -> f64 {
    let bits = sum.to_bits();
    if bits as i64 & LOW != MIDDLE {
        return sum;
    }
    // The rounding error, which is exact (Knuth's two-sum).
    let other = sum - product;
    let error = (product - (sum - other)) + (addend - other);
    if error == 0.0 {
        return sum;
    }
    f64::from_bits(if (error > 0.0) == (sum > 0.0) {
        bits + 1
    } else {
        bits - 1
    })
}

/// # Safety
/// `a` has `R` rows with `depth` values each, and `b` has `depth` rows with 32 values each.
unsafe fn product<const R: usize>(
    depth: usize,
    a: Rows<'_>,
    b: Rows<'_>,
    out: &mut [[Lanes; 2]; R],
) {
    for first in (0..2 * LANES).step_by(COLUMNS) {
        // Numbers in `f32`, as `f64`.
        let mut sums = [[f64x2_splat(0.0); COLUMNS / 2]; R];
        for k in 0..depth {
            let columns = b.values.as_ptr().wrapping_add(k * b.stride + first);
            // SAFETY: per this function's contract.
            let columns = map(|i| {
                f64x2_promote_low_f32x4(unsafe { v128_load64_zero(columns.add(2 * i).cast()) })
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let value = a.values.as_ptr().wrapping_add(r * a.stride + k);
                // SAFETY: per this function's contract.
                let value = f64x2_splat(f64::from(unsafe { *value }));
                let products: [v128; COLUMNS / 2] =
                    columns.map(|columns| f64x2_mul(value, columns));
                let mut totals: [v128; COLUMNS / 2] = map(|i| f64x2_add(products[i], sums[i]));
                if !are_clear(totals) {
                    totals = map(|i| corrected_pair(totals[i], products[i], sums[i]));
                }
                *sums = totals.map(|total| f64x2_promote_low_f32x4(f32x4_demote_f64x2_zero(total)));
            }
        }
        for (sums, out) in sums.into_iter().zip(&mut *out) {
            let out = &mut out.as_flattened_mut()[first..first + COLUMNS];
            for (sum, out) in sums.into_iter().zip(out.as_chunks_mut::<2>().0) {
                let pair = f32x4_demote_f64x2_zero(sum);
                *out = [f32x4_extract_lane::<0>(pair), f32x4_extract_lane::<1>(pair)];
            }
        }
    }
}
