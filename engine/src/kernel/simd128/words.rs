//! Integer products in 16 bits. Weights are widened while they are loaded: an instruction adds up two products, so a
//! column has two partial sums until the end.

use std::{arch::wasm32::*, array};

use super::{IntegerProducts, WIDTH};
use crate::kernel::{GROUP, LANES, Panel, Sums, part, with_row_count};

/// Bytes per activation.
const SIZE: usize = size_of::<u16>();
/// Rows per register tile. Their sums for a quarter of a panel occupy 10 of the 16 registers that most processors have.
const ROWS: usize = 5;

/// Products by `i32x4.dot_i16x8_s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words;

impl IntegerProducts for Words {
    const ACTIVATION_SIZE: usize = SIZE;

    #[inline(always)]
    fn store_activations(self, words: [v128; 2], out: &mut [u8]) {
        for (words, out) in words.into_iter().zip(out.as_chunks_mut::<LANES>().0) {
            // SAFETY: the array is one register long.
            unsafe { v128_store(out.as_mut_ptr().cast(), words) };
        }
    }

    unsafe fn tile(self, rows: &[u8], panel: Panel<'_>, n: usize, out: &mut [[Sums; 2]]) {
        let row_size = panel.blocks.len() * GROUP * SIZE;
        let part = part(out.len(), ROWS);
        for (i, out) in out.chunks_mut(part).enumerate() {
            let rows = &rows[i * part * row_size..];
            // SAFETY: per this function's contract.
            with_row_count!(out, R in 1 2 3 4 5 => unsafe { tile::<R>(rows, panel, n, out) });
        }
    }
}

/// Multiplies `R` rows by panel `n`, a quarter of a panel at a time.
///
/// # Safety
/// `rows` begins with `R` rows, each with one activation per input in `panel`.
unsafe fn tile<const R: usize>(rows: &[u8], panel: Panel<'_>, n: usize, out: &mut [[Sums; 2]; R]) {
    let steps = panel.blocks.len();
    let row_size = steps * GROUP * SIZE;
    for quarter in 0..LANES / WIDTH {
        let mut sums = [[i32x4_splat(0); 2]; R];
        // Wrapping, since there may be no steps.
        let mut weights = panel.blocks.as_ptr().cast::<i8>().wrapping_add(quarter * WIDTH * GROUP);
        let mut groups = array::from_fn(|r| rows.as_ptr().wrapping_add(r * row_size));
        for _ in 0..steps / 4 {
            // SAFETY: per this function's contract.
            unsafe { multiply::<R, 4>(&mut weights, &mut groups, &mut sums) };
        }
        for _ in 0..steps % 4 {
            // SAFETY: per this function's contract.
            unsafe { multiply::<R, 1>(&mut weights, &mut groups, &mut sums) };
        }
        for ([a, b], out) in sums.into_iter().zip(&mut *out) {
            let [even, odd] = [i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b)];
            let out = &mut out[n].as_chunks_mut::<WIDTH>().0[quarter];
            // SAFETY: the array is one register long.
            unsafe { v128_store(out.as_mut_ptr().cast(), i32x4_add(even, odd)) };
        }
    }
}

/// Adds the products of `STEPS` groups of four inputs to `sums`, and moves the pointers behind them.
///
/// # Safety
/// As many groups follow in each row, and blocks at `weights`.
#[inline(always)]
unsafe fn multiply<const R: usize, const STEPS: usize>(
    weights: &mut *const i8,
    groups: &mut [*const u8; R],
    sums: &mut [[v128; 2]; R],
) {
    for step in 0..STEPS {
        let half = |half: usize| {
            // SAFETY: a quarter of a block has two times eight weights.
            unsafe { i16x8_load_extend_i8x8(weights.add(step * LANES * GROUP + half * 8)) }
        };
        let weights = [half(0), half(1)];
        for (group, sums) in groups.iter().zip(&mut *sums) {
            // SAFETY: per this function's contract.
            let activations = unsafe { v128_load64_splat(group.add(step * GROUP * SIZE).cast()) };
            for (sums, weights) in sums.iter_mut().zip(weights) {
                *sums = i32x4_add(*sums, i32x4_dot_i16x8(weights, activations));
            }
        }
    }
    // The first of several quarters ends within the last block, the others behind it.
    *weights = weights.wrapping_add(STEPS * LANES * GROUP);
    for group in groups {
        *group = group.wrapping_add(STEPS * GROUP * SIZE);
    }
}
