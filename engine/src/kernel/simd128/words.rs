//! Integer products in 16 bits. Weights are widened while they are loaded: an instruction adds up two products, so a
//! column has two partial sums until the end.

use std::arch::wasm32::*;

use super::{IntegerProducts, WIDTH};
use crate::kernel::LANES;

/// Products by `i32x4.dot_i16x8_s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words;

impl IntegerProducts for Words {
    const ACTIVATION_SIZE: usize = size_of::<u16>();
    const WEIGHTS: usize = 8;

    #[inline(always)]
    fn store_activations(self, words: [v128; 2], out: &mut [u8]) {
        for (words, out) in words.into_iter().zip(out.as_chunks_mut::<LANES>().0) {
            // SAFETY: the array is one register long.
            unsafe { v128_store(out.as_mut_ptr().cast(), words) };
        }
    }

    #[inline(always)]
    fn begin(self, _: &[i32]) -> [v128; 2] {
        [i32x4_splat(0); 2]
    }

    #[inline(always)]
    unsafe fn load_weights(self, weights: *const i8) -> v128 {
        // SAFETY: per this function's contract.
        unsafe { i16x8_load_extend_i8x8(weights) }
    }

    #[inline(always)]
    unsafe fn load_activations(self, group: *const u8) -> v128 {
        // SAFETY: per this function's contract.
        unsafe { v128_load64_splat(group.cast()) }
    }

    #[inline(always)]
    fn multiply_add(self, weights: v128, activations: v128, sums: v128) -> v128 {
        i32x4_add(sums, i32x4_dot_i16x8(weights, activations))
    }

    #[inline(always)]
    fn finish(self, [a, b]: [v128; 2], out: &mut [i32]) {
        let [even, odd] = [
            i32x4_shuffle::<0, 2, 4, 6>(a, b),
            i32x4_shuffle::<1, 3, 5, 7>(a, b),
        ];
        if let Some(out) = out.first_chunk_mut::<WIDTH>() {
            // SAFETY: the array is one register long.
            unsafe { v128_store(out.as_mut_ptr().cast(), i32x4_add(even, odd)) };
        }
    }
}
