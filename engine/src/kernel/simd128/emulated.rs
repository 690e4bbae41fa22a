//! Multiply-adds in `f64`, where products are exact, rounded to `f32`. They equal fused multiply-adds unless the sum in
//! `f64` was rounded to the middle between two `f32`, about once in 2^29 operations.

use std::arch::wasm32::*;

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
        let sum = |half: usize| f32x4_demote_f64x2_zero(f64x2_add(f64x2_mul(a[half], b[half]), c[half]));
        i64x2_shuffle::<0, 2>(sum(0), sum(1))
    }

    #[inline(always)]
    fn mul_add_one(self, a: f32, b: f32, c: f32) -> f32 {
        (f64::from(a) * f64::from(b) + f64::from(c)) as f32
    }

    unsafe fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        let part = part(out.len(), ROWS);
        for (n, out) in out.chunks_mut(part).enumerate() {
            let a = Rows { values: &a.values[n * part * a.stride..], ..a };
            // SAFETY: per this function's contract.
            with_row_count!(out, R in 1 2 => unsafe { product::<R>(depth, a, b, out) });
        }
    }
}

/// Four numbers in `f64`.
#[inline(always)]
fn wide(a: v128) -> [v128; 2] {
    [f64x2_promote_low_f32x4(a), f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(a, a))]
}

/// # Safety
/// `a` has `R` rows with `depth` values each, and `b` has `depth` rows with 32 values each.
unsafe fn product<const R: usize>(depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]; R]) {
    for first in (0..2 * LANES).step_by(COLUMNS) {
        // Numbers in `f32`, as `f64`.
        let mut sums = [[f64x2_splat(0.0); COLUMNS / 2]; R];
        for k in 0..depth {
            let columns = b.values.as_ptr().wrapping_add(k * b.stride + first);
            // SAFETY: per this function's contract.
            let columns =
                map(|i| f64x2_promote_low_f32x4(unsafe { v128_load64_zero(columns.add(2 * i).cast()) }));
            for (r, sums) in sums.iter_mut().enumerate() {
                let value = a.values.as_ptr().wrapping_add(r * a.stride + k);
                // SAFETY: per this function's contract.
                let value = f64x2_splat(f64::from(unsafe { *value }));
                for (sum, columns) in sums.iter_mut().zip(columns) {
                    let exact = f64x2_add(f64x2_mul(value, columns), *sum);
                    *sum = f64x2_promote_low_f32x4(f32x4_demote_f64x2_zero(exact));
                }
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
