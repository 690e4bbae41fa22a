//! Relaxed instructions, on hosts where their results are exact.

use std::{arch::wasm32::*, array, hint::black_box};

use super::{IntegerProducts, MultiplyAdds, WIDTH};
use crate::kernel::{GROUP, LANES, Lanes, Rows, part, with_row_count};

/// Rows per register tile of `f32` products. With two registers of columns, their sums occupy 8 registers.
const PRODUCT_ROWS: usize = 4;
/// Columns in two registers.
const COLUMNS: usize = 2 * WIDTH;

/// Multiply-adds by `f32x4.relaxed_madd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fused(());

impl Fused {
    /// `None` if this host does not fuse them.
    pub fn new() -> Option<Self> {
        const SMALL: f32 = 1.0 / 4096.0;
        // The square is 1 + 2 SMALL + SMALL², whose last term is lost if it is rounded.
        let factor = f32x4_splat(black_box(1.0 + SMALL));
        let rest = f32x4_relaxed_madd(factor, factor, f32x4_splat(-1.0 - 2.0 * SMALL));
        i32x4_all_true(f32x4_eq(rest, f32x4_splat(SMALL * SMALL))).then_some(Self(()))
    }
}

impl MultiplyAdds for Fused {
    #[inline(always)]
    fn mul_add(self, a: v128, b: v128, c: v128) -> v128 {
        f32x4_relaxed_madd(a, b, c)
    }

    #[inline(always)]
    fn mul_add_one(self, a: f32, b: f32, c: f32) -> f32 {
        f32x4_extract_lane::<0>(f32x4_relaxed_madd(
            f32x4_splat(a),
            f32x4_splat(b),
            f32x4_splat(c),
        ))
    }

    unsafe fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        let part = part(out.len(), PRODUCT_ROWS);
        for (n, out) in out.chunks_mut(part).enumerate() {
            let a = Rows {
                values: &a.values[n * part * a.stride..],
                ..a
            };
            // SAFETY: per this function's contract.
            with_row_count!(out, R in 1 2 3 4 => unsafe { product::<R>(depth, a, b, out) });
        }
    }
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
        let mut sums = [[f32x4_splat(0.0); 2]; R];
        let mut columns = b.values.as_ptr().wrapping_add(first);
        let mut values: [_; R] = array::from_fn(|r| a.values.as_ptr().wrapping_add(r * a.stride));
        for _ in 0..depth {
            // SAFETY: per this function's contract.
            let pair = unsafe {
                [
                    v128_load(columns.cast()),
                    v128_load(columns.add(WIDTH).cast()),
                ]
            };
            for (value, sums) in values.iter().zip(&mut sums) {
                // SAFETY: per this function's contract.
                let value = unsafe { v128_load32_splat(value.cast()) };
                for (sum, columns) in sums.iter_mut().zip(pair) {
                    *sum = f32x4_relaxed_madd(value, columns, *sum);
                }
            }
            columns = columns.wrapping_add(b.stride);
            values = values.map(|value| value.wrapping_add(1));
        }
        for (sums, out) in sums.into_iter().zip(&mut *out) {
            let out = &mut out.as_flattened_mut()[first..first + COLUMNS];
            for (sum, out) in sums.into_iter().zip(out.as_chunks_mut::<WIDTH>().0) {
                // SAFETY: the array is one register long.
                unsafe { v128_store(out.as_mut_ptr().cast(), sum) };
            }
        }
    }
}

/// Products by `i32x4.relaxed_dot_i8x16_i7x16_add_s`. It is defined for activations from 0 to 127; beyond, hosts read them
/// as signed or as unsigned, and may saturate sums of two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Subtracted from activations before they are stored: 0 if they are unsigned, otherwise 128.
    offset: u8,
}

impl Bytes {
    /// `None` if this host's sums are not exact.
    pub fn new() -> Option<Self> {
        let product = |weight: i8, activation: u8| {
            let [weights, activations] = [
                i8x16_splat(black_box(weight)),
                u8x16_splat(black_box(activation)),
            ];
            i32x4_relaxed_dot_i8x16_i7x16_add(weights, activations, i32x4_splat(0))
        };
        let is_exact = |offset: u8| {
            [(-128, 0), (-128, 255), (127, 0), (127, 255)]
                .into_iter()
                .all(|(weight, activation)| {
                    let stored = i32::from(activation) - i32::from(offset);
                    let expected = i32x4_splat(GROUP as i32 * i32::from(weight) * stored);
                    i32x4_all_true(i32x4_eq(product(weight, activation ^ offset), expected))
                })
        };
        [0, 128]
            .into_iter()
            .find(|offset| is_exact(*offset))
            .map(|offset| Self { offset })
    }
}

impl IntegerProducts for Bytes {
    const ACTIVATION_SIZE: usize = 1;
    const WEIGHTS: usize = 16;

    #[inline(always)]
    fn store_activations(self, [low, high]: [v128; 2], out: &mut [u8]) {
        if let Some(out) = out.first_chunk_mut::<LANES>() {
            let bytes = v128_xor(u8x16_narrow_i16x8(low, high), u8x16_splat(self.offset));
            // SAFETY: the array is one register long.
            unsafe { v128_store(out.as_mut_ptr().cast(), bytes) };
        }
    }

    #[inline(always)]
    fn begin(self, column_sums: &[i32]) -> [v128; 2] {
        // The part of the sums that the offset has subtracted.
        let taken = |register: usize| {
            let sums = &column_sums.as_chunks::<WIDTH>().0[register];
            // SAFETY: the array is one register long.
            i32x4_mul(
                unsafe { v128_load(sums.as_ptr().cast()) },
                i32x4_splat(i32::from(self.offset)),
            )
        };
        [taken(0), taken(1)]
    }

    #[inline(always)]
    unsafe fn load_weights(self, weights: *const i8) -> v128 {
        // SAFETY: per this function's contract.
        unsafe { v128_load(weights.cast()) }
    }

    #[inline(always)]
    unsafe fn load_activations(self, group: *const u8) -> v128 {
        // SAFETY: per this function's contract.
        unsafe { v128_load32_splat(group.cast()) }
    }

    #[inline(always)]
    fn multiply_add(self, weights: v128, activations: v128, sums: v128) -> v128 {
        i32x4_relaxed_dot_i8x16_i7x16_add(weights, activations, sums)
    }

    #[inline(always)]
    fn finish(self, sums: [v128; 2], out: &mut [i32]) {
        for (sums, out) in sums.into_iter().zip(out.as_chunks_mut::<WIDTH>().0) {
            // SAFETY: the array is one register long.
            unsafe { v128_store(out.as_mut_ptr().cast(), sums) };
        }
    }
}
