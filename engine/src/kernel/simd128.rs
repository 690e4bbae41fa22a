//! The kernel for WebAssembly with 128-bit vectors.
//!
//! WebAssembly has neither 8-bit dot products nor fused multiply-add. Activations are therefore stored in 16 bits, and
//! weights are widened while they are loaded: an instruction adds up two products, so a column has two partial sums until
//! the end. Multiply-adds are calculated in `f64`, where products are exact, and rounded to `f32`. That equals a fused
//! multiply-add unless the sum in `f64` was rounded to the middle between two `f32`, about once in 2^29 operations.

#![expect(unsafe_code, reason = "the argument is in the documentation of the crate")]

use std::{arch::wasm32::*, array};

use super::{
    Block, GROUP, Kernel, KernelFn, LANES, Lanes, MAX_TILE_ROWS, Panel, Rows, Sums, assert_product,
    assert_tile, part, with_row_count,
};

/// 128-bit vectors. The module is compiled with them, so that every host that accepts it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd128;

/// Numbers per register.
const WIDTH: usize = LANES / 4;
/// Bytes per activation.
const SIZE: usize = size_of::<u16>();
/// Rows per register tile. Their sums for half a panel occupy 12 of the 16 registers that most processors have.
const TILE_ROWS: usize = 3;
/// Rows per register tile for `f32` products, and columns. Their sums in `f64` occupy 8 registers.
const PRODUCT_ROWS: usize = 2;
const PRODUCT_COLUMNS: usize = 8;

/// Four registers from four.
#[inline(always)]
fn map(f: impl Fn(usize) -> v128) -> [v128; 4] {
    array::from_fn(f)
}

impl Kernel for Simd128 {
    type F32x16 = [v128; 4];

    const ACTIVATION_SIZE: usize = SIZE;
    const TILE_ROWS: usize = MAX_TILE_ROWS;

    fn call<F: KernelFn>(self, function: F) -> F::Output {
        function.call(self)
    }

    #[inline(always)]
    fn load(self, values: &Lanes) -> [v128; 4] {
        // SAFETY: the array is four registers long.
        map(|n| unsafe { v128_load(values.as_ptr().add(n * WIDTH).cast()) })
    }

    #[inline(always)]
    fn store(self, a: [v128; 4], out: &mut Lanes) {
        for (n, a) in a.into_iter().enumerate() {
            // SAFETY: the array is four registers long.
            unsafe { v128_store(out.as_mut_ptr().add(n * WIDTH).cast(), a) };
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [v128; 4] {
        [f32x4_splat(value); 4]
    }

    #[inline(always)]
    fn add(self, a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        map(|n| f32x4_add(a[n], b[n]))
    }

    #[inline(always)]
    fn sub(self, a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        map(|n| f32x4_sub(a[n], b[n]))
    }

    #[inline(always)]
    fn mul(self, a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        map(|n| f32x4_mul(a[n], b[n]))
    }

    #[inline(always)]
    fn div(self, a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        map(|n| f32x4_div(a[n], b[n]))
    }

    #[inline(always)]
    fn mul_add(self, a: [v128; 4], b: [v128; 4], c: [v128; 4]) -> [v128; 4] {
        map(|n| {
            let [a, b, c] = [wide(a[n]), wide(b[n]), wide(c[n])];
            let sum = |half: usize| f32x4_demote_f64x2_zero(f64x2_add(f64x2_mul(a[half], b[half]), c[half]));
            i64x2_shuffle::<0, 2>(sum(0), sum(1))
        })
    }

    #[inline(always)]
    fn mul_add_one(self, a: f32, b: f32, c: f32) -> f32 {
        (f64::from(a) * f64::from(b) + f64::from(c)) as f32
    }

    // `pmin` returns its second operand only if it is less, and `pmax` only if it is greater.
    #[inline(always)]
    fn min(self, a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        map(|n| f32x4_pmin(b[n], a[n]))
    }

    #[inline(always)]
    fn max(self, a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        map(|n| f32x4_pmax(b[n], a[n]))
    }

    #[inline(always)]
    fn load_i32(self, values: &Sums) -> [v128; 4] {
        // SAFETY: the array is four registers long.
        map(|n| f32x4_convert_i32x4(unsafe { v128_load(values.as_ptr().add(n * WIDTH).cast()) }))
    }

    #[inline(always)]
    fn shift_exponent(self, a: [v128; 4], n: [v128; 4]) -> [v128; 4] {
        map(|i| i32x4_add(a[i], i32x4_shl(n[i], 23)))
    }

    #[inline(always)]
    fn low_bytes(self, a: [v128; 4]) -> [u8; LANES] {
        let [low, high] = low_words(a);
        let mut bytes = [0; LANES];
        // SAFETY: the array is one register long.
        unsafe { v128_store(bytes.as_mut_ptr().cast(), u8x16_narrow_i16x8(low, high)) };
        bytes
    }

    #[inline(always)]
    fn store_activations(self, a: [v128; 4], out: &mut [u8]) {
        assert_eq!(out.len(), LANES * SIZE, "expected {SIZE} bytes per activation");
        for (n, words) in low_words(a).into_iter().enumerate() {
            // SAFETY: the slice is two registers long.
            unsafe { v128_store(out.as_mut_ptr().add(n * LANES).cast(), words) };
        }
    }

    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
        assert_tile::<Self>(rows, &panels, out.len());
        let row_size = rows.len() / out.len();
        let part = part(out.len(), TILE_ROWS);
        for (n, panel) in panels.into_iter().enumerate() {
            for (i, out) in out.chunks_mut(part).enumerate() {
                let rows = &rows[i * part * row_size..];
                // SAFETY: the row length was asserted.
                with_row_count!(out, R in 1 2 3 => unsafe { tile::<R>(rows, panel.blocks, n, out) });
            }
        }
    }

    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        assert_product(depth, a, b, out.len());
        let part = part(out.len(), PRODUCT_ROWS);
        for (n, out) in out.chunks_mut(part).enumerate() {
            let a = Rows { values: &a.values[n * part * a.stride..], ..a };
            // SAFETY: the row lengths were asserted.
            with_row_count!(out, R in 1 2 => unsafe { product::<R>(depth, a, b, out) });
        }
    }
}

/// Four numbers in `f64`.
#[inline(always)]
fn wide(a: v128) -> [v128; 2] {
    [f64x2_promote_low_f32x4(a), f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(a, a))]
}

/// Each number's lowest eight bits, in 16 bits.
#[inline(always)]
fn low_words(a: [v128; 4]) -> [v128; 2] {
    let [a, b, c, d] = a.map(|a| v128_and(a, i32x4_splat(0xff)));
    [i16x8_narrow_i32x4(a, b), i16x8_narrow_i32x4(c, d)]
}

/// Multiplies `R` rows by panel `n`, half a panel at a time.
///
/// # Safety
/// `rows` begins with `R` rows, each with four activations per block.
unsafe fn tile<const R: usize>(rows: &[u8], blocks: &[Block], n: usize, out: &mut [[Sums; 2]; R]) {
    const HALF: usize = LANES / 2;
    let row_size = blocks.len() * GROUP * SIZE;
    for half in 0..2 {
        let mut sums = [[i32x4_splat(0); 4]; R];
        for (step, block) in blocks.iter().enumerate() {
            let weights = block.as_flattened().as_ptr().wrapping_add(half * HALF * GROUP);
            // SAFETY: half a block has four times eight weights.
            let weights = map(|quarter| unsafe { i16x8_load_extend_i8x8(weights.add(quarter * 8)) });
            for (r, sums) in sums.iter_mut().enumerate() {
                let group = rows.as_ptr().wrapping_add(r * row_size + step * GROUP * SIZE);
                // SAFETY: within the row, per this function's contract.
                let activations = unsafe { v128_load64_splat(group.cast()) };
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    *sums = i32x4_add(*sums, i32x4_dot_i16x8(weights, activations));
                }
            }
        }
        for (sums, out) in sums.iter().zip(&mut *out) {
            let columns = out[n].as_mut_ptr().wrapping_add(half * HALF);
            for (i, [a, b]) in [[sums[0], sums[1]], [sums[2], sums[3]]].into_iter().enumerate() {
                let [even, odd] = [i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b)];
                // SAFETY: half of `Sums` is two registers long.
                unsafe { v128_store(columns.add(i * WIDTH).cast(), i32x4_add(even, odd)) };
            }
        }
    }
}

/// # Safety
/// `a` has `R` rows with `depth` values each, and `b` has `depth` rows with 32 values each.
unsafe fn product<const R: usize>(depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]; R]) {
    for first in (0..2 * LANES).step_by(PRODUCT_COLUMNS) {
        // Numbers in `f32`, as `f64`.
        let mut sums = [[f64x2_splat(0.0); PRODUCT_COLUMNS / 2]; R];
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
            let out = &mut out.as_flattened_mut()[first..first + PRODUCT_COLUMNS];
            for (sum, out) in sums.into_iter().zip(out.as_chunks_mut::<2>().0) {
                let pair = f32x4_demote_f64x2_zero(sum);
                *out = [f32x4_extract_lane::<0>(pair), f32x4_extract_lane::<1>(pair)];
            }
        }
    }
}
