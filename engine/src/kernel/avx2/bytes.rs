//! 8-bit products without widened factors: by AVX-VNNI, and by AVX2 for weights with
//! [small quads](crate::kernel#small-quads).

use std::{arch::x86_64::*, array::from_fn};

use super::{Bits256, Int8Products, halves, store};
use crate::kernel::{
    Block, GROUP, KernelFn, LANES, Lanes, RowsMut, ScaledTile, Sums, part, totals::Totals,
    with_row_count,
};

/// Implements [`Int8Products`] with a function `multiply`, which has a form for each row count in a list. The first
/// rows of a tile prefetch later weights.
macro_rules! byte_products {
    ($name:ident, $features:literal, $detected:expr, [$($number:literal)*]) => {
        impl $name {
            /// Rows per register tile.
            const ROWS: usize = [$($number),*].len();

            /// Multiplies `R` rows by panel `n`, and adds the results to the totals from row `first` on.
            ///
            /// # Safety
            /// The processor has the instructions. The tile has the rows, and the panel.
            #[target_feature(enable = $features)]
            unsafe fn add_panel<const R: usize, const PREFETCHES: bool>(
                totals: &Totals<'_, Bits256<Self>>,
                tile: &ScaledTile<'_>,
                first: usize,
                n: usize,
            ) {
                let blocks = tile.panels[n].blocks;
                let rows = &tile.rows[first * blocks.len() * GROUP..];
                let Some(ranges) = tile.ranges[first..].first_chunk::<R>() else { unreachable!("a range per row") };
                let add = |sums: &[[__m256i; 2]; R]| {
                    let scales = totals.scales(n);
                    for (row, (sums, range)) in sums.iter().zip(ranges).enumerate() {
                        let sums = [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])];
                        // SAFETY: per this function's contract.
                        unsafe { totals.add(first + row, n, scales, range, sums) };
                    }
                };
                // SAFETY: per this function's contract.
                unsafe { Self::multiply::<R, PREFETCHES>(rows, blocks, tile.prefetch_distance, add) };
            }
        }

        impl Int8Products for $name {
            fn new() -> Option<Self> {
                $detected.then_some(Self(()))
            }

            #[target_feature(enable = $features)]
            unsafe fn call<F: KernelFn>(kernel: Bits256<Self>, function: F) -> F::Output {
                function.call(kernel)
            }

            #[inline(always)]
            fn store_activations(bytes: [u8; LANES], out: &mut [u8]) {
                out.copy_from_slice(&bytes);
            }

            #[inline(always)]
            unsafe fn finish_row(_: &mut [u8]) {}

            #[target_feature(enable = $features)]
            unsafe fn tile(rows: &[u8], blocks: &[Block], n: usize, out: &mut [[Sums; 2]]) {
                let part = part(out.len(), Self::ROWS);
                for (i, out) in out.chunks_mut(part).enumerate() {
                    let rows = &rows[i * part * blocks.len() * GROUP..];
                    // SAFETY: per this function's contract.
                    with_row_count!(out, R in $($number)* => unsafe {
                        Self::multiply::<R, false>(rows, blocks, 0, |sums| store(sums, n, out));
                    });
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn add_tile(
                kernel: Bits256<Self>,
                tile: &ScaledTile<'_>,
                _: &mut [[Sums; 2]],
                totals: &mut [[Lanes; 2]],
                out: Option<RowsMut<'_>>,
            ) {
                let part = part(totals.len(), Self::ROWS);
                let totals = Totals::new(kernel, tile, totals, out);
                for n in 0..2 {
                    for first in (0..tile.ranges.len()).step_by(part) {
                        // SAFETY: per this function's contract. The constructor has asserted the number of ranges.
                        unsafe {
                            match (part.min(tile.ranges.len() - first), first) {
                                $(($number, 0) => Self::add_panel::<$number, true>(&totals, tile, first, n),)*
                                $(($number, _) => Self::add_panel::<$number, false>(&totals, tile, first, n),)*
                                (rows, _) => unreachable!("{rows} rows in a tile"),
                            }
                        }
                    }
                }
            }
        }
    };
}

/// Products by `vpdpbusd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vnni(());

byte_products!(Vnni, "avx2,fma,avxvnni", is_x86_feature_detected!("avxvnni"), [1 2 3 4 5 6]);

impl Vnni {
    /// Multiplies `R` rows by a panel, and calls `finish` with the sums, in registers.
    ///
    /// # Safety
    /// The processor has the instructions. `rows` begins with `R` rows, each with one activation per input in `blocks`.
    #[target_feature(enable = "avx2,fma,avxvnni")]
    unsafe fn multiply<const R: usize, const PREFETCHES: bool>(
        rows: &[u8],
        blocks: &[Block],
        distance: usize,
        finish: impl FnOnce(&[[__m256i; 2]; R]),
    ) {
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        let rows: [*const u8; R] =
            from_fn(|r| rows.as_ptr().wrapping_add(r * blocks.len() * GROUP));
        for (step, block) in blocks.iter().enumerate() {
            let weights = load::<PREFETCHES>(block, distance);
            for (row, sums) in rows.iter().zip(&mut sums) {
                // SAFETY: per this function's contract.
                let group = unsafe { broadcast(*row, step) };
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    *sums = _mm256_dpbusd_avx_epi32(*sums, group, weights);
                }
            }
        }
        finish(&sums);
    }
}

/// Products by `vpmaddubsw`, for weights with [small quads](crate::kernel#small-quads).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maddubs(pub ());

/// Blocks per step.
const STEP: usize = 2;

byte_products!(Maddubs, "avx2,fma", true, [1 2 3]);

impl Maddubs {
    /// Multiplies `R` rows by a panel, and calls `finish` with the sums, in registers.
    ///
    /// # Safety
    /// The processor has the instructions. `rows` begins with `R` rows, each with one activation per input in `blocks`.
    ///
    /// # Panics
    /// If the number of blocks is odd.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn multiply<const R: usize, const PREFETCHES: bool>(
        rows: &[u8],
        blocks: &[Block],
        distance: usize,
        finish: impl FnOnce(&[[__m256i; 2]; R]),
    ) {
        let (steps, rest) = blocks.as_chunks();
        assert!(
            rest.is_empty(),
            "expected an even number of blocks, but found {}",
            blocks.len()
        );
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        let rows: [*const u8; R] =
            from_fn(|r| rows.as_ptr().wrapping_add(r * blocks.len() * GROUP));
        let ones = _mm256_set1_epi16(1);
        for (step, blocks) in steps.iter().enumerate() {
            let weights: [_; STEP] = blocks
                .each_ref()
                .map(|block| load::<PREFETCHES>(block, distance));
            for (row, sums) in rows.iter().zip(&mut sums) {
                // SAFETY: per this function's contract.
                let [a, b] = from_fn(|n| unsafe { broadcast(*row, STEP * step + n) });
                for (half, sums) in sums.iter_mut().enumerate() {
                    let pairs = _mm256_maddubs_epi16(a, weights[0][half]);
                    let quads = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(b, weights[1][half]));
                    *sums = _mm256_add_epi32(*sums, _mm256_madd_epi16(quads, ones));
                }
            }
        }
        finish(&sums);
    }
}

/// Loads a block; may prefetch the one that is `distance` blocks after it.
#[target_feature(enable = "avx2")]
#[inline]
fn load<const PREFETCHES: bool>(block: &Block, distance: usize) -> [__m256i; 2] {
    // SAFETY: half a block is 32 bytes long, as is a register. Any address may be prefetched.
    unsafe {
        if PREFETCHES {
            _mm_prefetch::<_MM_HINT_T0>((&raw const *block).wrapping_add(distance).cast());
        }
        halves(block).map(|half| _mm256_loadu_si256(half.as_ptr().cast()))
    }
}

/// A row's activations for a block, in all 32-bit lanes.
///
/// # Safety
/// The row has them.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn broadcast(row: *const u8, block: usize) -> __m256i {
    // SAFETY: per this function's contract.
    _mm256_set1_epi32(unsafe { row.cast::<i32>().add(block).read_unaligned() })
}
