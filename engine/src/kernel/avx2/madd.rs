//! 8-bit products for any weights: `vpmaddubsw` may saturate, so values are widened to 16 bits for `vpmaddwd`.
//!
//! That would be one multiplication and one addition per 16 products. Processors multiply on fewer ports than they
//! add, so half of the multiplications are replaced by additions, with Winograd's identity:
//!
//! `a₀w₀ + a₁w₁ = (a₀ + w₁)(a₁ + w₀) − a₀a₁ − w₀w₁`
//!
//! The last two products are summed once per row and once per panel. Everything is an exact integer: an activation
//! plus a weight is within −128…382, and 32-bit sums wrap around until the last term is subtracted.

use std::{
    arch::{asm, x86_64::*},
    array::from_fn,
    mem::{MaybeUninit, size_of},
};

use super::{
    Avx2, Bits256, Int8Products,
    bytes::{Maddubs, Vnni},
    store,
};
use crate::kernel::{Block, GROUP, KernelFn, LANES, MAX_TILE_ROWS, Sums, part, with_row_count};

/// Products by `vpmaddwd`, which multiplies 16-bit integers.
///
/// In rows, activations 1 and 2 of each four are exchanged. Each row ends with the sum of its pairs' products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Madd(());

impl From<Vnni> for Madd {
    /// Processors with AVX-VNNI have AVX2.
    fn from(_: Vnni) -> Self {
        Self(())
    }
}

/// Rows per register tile. Sums, weights and operands occupy all 16 registers.
const ROWS: usize = 4;
/// From this row count on, widened weights and the identity pay.
const MIN_ROWS: usize = 16;
/// Maximum number of widened blocks: 16 KiB, half of the first-level cache.
const MAX_BLOCKS: usize = 128;
/// Prefetch distance in panel blocks: 8 KiB.
const PREFETCHED_BLOCKS: usize = 128;
/// Bytes per activation.
const SIZE: usize = 2;

/// Weights in 16 bits. For columns 0 to 7 of a block: inputs 1 and 3 in each 32-bit lane, and inputs 0 and 2; then for
/// columns 8 to 15.
type WideBlock = [__m256i; 4];

fn row_size(blocks: usize) -> usize {
    blocks * GROUP * SIZE + size_of::<i32>()
}

impl Int8Products for Madd {
    const ACTIVATION_SIZE: usize = SIZE;
    const ROW_END_SIZE: usize = size_of::<i32>();
    const TILE_ROWS: usize = MAX_TILE_ROWS;
    const HAS_SMALL_QUADS: bool = true;

    fn new() -> Option<Self> {
        Some(Self(()))
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn call<F: KernelFn>(kernel: Avx2, function: F) -> F::Output {
        function.call(kernel)
    }

    #[inline(always)]
    fn call_for_small_quads<F: KernelFn>(_: Avx2, function: F) -> F::Output {
        function.call(Bits256(Maddubs(())))
    }

    #[inline(always)]
    fn store_activations(bytes: [u8; LANES], out: &mut [u8]) {
        let mut words = bytes.map(u16::from);
        for group in words.as_chunks_mut::<GROUP>().0 {
            group.swap(1, 2);
        }
        out.copy_from_slice(words.map(u16::to_le_bytes).as_flattened());
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn finish_row(row: &mut [u8]) {
        let (activations, end) = row.split_at_mut(row.len() - Self::ROW_END_SIZE);
        let (registers, rest) = activations.as_chunks::<{ LANES * SIZE }>();
        let mut sums = _mm256_setzero_si256();
        for register in registers {
            // SAFETY: 16 activations are 32 bytes long, as is a register.
            let groups = unsafe { _mm256_loadu_si256(register.as_ptr().cast()) };
            sums = _mm256_add_epi32(
                sums,
                _mm256_madd_epi16(groups, _mm256_srli_epi64::<32>(groups)),
            );
        }
        let mut lanes = [0_i32; LANES / 2];
        // SAFETY: eight sums are 32 bytes long, as is a register.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums) };
        let mut sum = lanes.into_iter().fold(0, i32::wrapping_add);
        for group in rest.as_chunks::<{ GROUP * SIZE }>().0 {
            let [a, c, b, d] = from_fn(|n| i32::from(group[n * SIZE]));
            sum = sum.wrapping_add(a * b + c * d);
        }
        end.copy_from_slice(&sum.to_le_bytes());
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile(rows: &[u8], blocks: &[Block], n: usize, out: &mut [[Sums; 2]]) {
        let row_size = row_size(blocks.len());
        let pays = out.len() >= MIN_ROWS && !blocks.is_empty();
        let whole = if pays {
            out.len() - out.len() % ROWS
        } else {
            0
        };
        let ((many, few), (out, rest)) = (rows.split_at(whole * row_size), out.split_at_mut(whole));
        if whole > 0 {
            // SAFETY: per this function's contract.
            unsafe { multiply_many(many, blocks, n, out.as_chunks_mut().0) };
        }
        let part = part(rest.len().max(1), ROWS);
        for (rows, rest) in few.chunks(part * row_size).zip(rest.chunks_mut(part)) {
            // SAFETY: per this function's contract.
            with_row_count!(rest, R in 1 2 3 4 => unsafe { multiply_few::<R>(rows, blocks, n, rest) });
        }
    }
}

/// Multiplies rows by panel `n` with Winograd's identity.
///
/// # Safety
/// `rows` has as many rows as `out`, each with four activations per block.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_many(rows: &[u8], blocks: &[Block], n: usize, out: &mut [[[Sums; 2]; ROWS]]) {
    let row_size = row_size(blocks.len());
    let mut wide = MaybeUninit::<[WideBlock; MAX_BLOCKS]>::uninit();
    let wide: *mut WideBlock = wide.as_mut_ptr().cast();
    let depth = part(blocks.len(), MAX_BLOCKS);
    for (i, blocks) in blocks.chunks(depth).enumerate() {
        // SAFETY: `wide` has space for a chunk.
        let (products, wide) = unsafe {
            let products = widen(blocks, wide);
            (products, std::slice::from_raw_parts(wide, blocks.len()))
        };
        // The next chunk is prefetched in parts: more lines at once than the cache requests at a time would stall.
        let next = blocks.as_ptr().wrapping_add(blocks.len());
        let prefetched = blocks.len().div_ceil(out.len());
        for (j, (rows, out)) in rows
            .chunks_exact(ROWS * row_size)
            .zip(&mut *out)
            .enumerate()
        {
            // The earlier chunks' sums, or the rows' ends subtracted from zero; less the chunk's own pair products.
            let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
            // Loops: what iterator adapters call in the standard library is not compiled for the processor's features.
            for ((sums, row), out) in sums
                .iter_mut()
                .zip(rows.chunks_exact(row_size))
                .zip(&mut *out)
            {
                if i == 0 {
                    let end = row.last_chunk().map_or(0, |end| i32::from_le_bytes(*end));
                    *sums = [_mm256_set1_epi32(end.wrapping_neg()); 2];
                } else {
                    let out: *const __m256i = out[n].as_ptr().cast();
                    // SAFETY: `Sums` is 64 bytes long, as are two registers.
                    *sums = unsafe { [_mm256_loadu_si256(out), _mm256_loadu_si256(out.add(1))] };
                }
                *sums = [
                    _mm256_sub_epi32(sums[0], products[0]),
                    _mm256_sub_epi32(sums[1], products[1]),
                ];
            }
            // SAFETY: the rows are as long as all blocks, per this function's contract. Any address may be prefetched.
            unsafe {
                for block in j * prefetched..(j + 1) * prefetched {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(block).cast());
                }
                multiply(&rows[i * depth * GROUP * SIZE..], row_size, wide, &mut sums);
            }
            store(&sums, n, out);
        }
    }
}

/// Two register halves of a block in 16 bits: each column's inputs 1 and 3, and inputs 0 and 2.
#[target_feature(enable = "avx2")]
#[inline]
fn widened(half: __m256i) -> [__m256i; 2] {
    [
        _mm256_srai_epi16::<8>(half),
        _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(half)),
    ]
}

/// Loads a block and widens it; may prefetch a later one.
#[target_feature(enable = "avx2")]
#[inline]
fn load<const PREFETCHES: bool>(block: &Block) -> WideBlock {
    let start: *const __m256i = (&raw const *block).cast();
    // SAFETY: a block is 64 bytes long, as are two registers. Any address may be prefetched.
    let halves = unsafe {
        if PREFETCHES {
            _mm_prefetch::<_MM_HINT_T0>((&raw const *block).wrapping_add(PREFETCHED_BLOCKS).cast());
        }
        [_mm256_loadu_si256(start), _mm256_loadu_si256(start.add(1))]
    };
    let [[a, b], [c, d]] = halves.map(|half| widened(half));
    [a, b, c, d]
}

/// Writes the blocks in 16 bits, and returns each column's sum of its pairs' products.
///
/// # Safety
/// `out` has space for as many blocks.
#[target_feature(enable = "avx2")]
unsafe fn widen(blocks: &[Block], out: *mut WideBlock) -> [__m256i; 2] {
    let mut products = [_mm256_setzero_si256(); 2];
    for (step, block) in blocks.iter().enumerate() {
        let wide = load::<false>(block);
        for (products, [odd, even]) in products.iter_mut().zip(wide.as_chunks::<2>().0) {
            *products = _mm256_add_epi32(*products, _mm256_madd_epi16(*odd, *even));
        }
        // SAFETY: per this function's contract.
        unsafe { out.add(step).write(wide) };
    }
    products
}

/// Instructions that add the products of a row's four activations, at an address, and a wide block to two sums.
macro_rules! row {
    ($address:literal, $left:literal, $right:literal) => {
        concat!(
            "vpbroadcastd {even}, [{group}",
            $address,
            "]\n",
            "vpbroadcastd {odd}, [{group}",
            $address,
            " + 4]\n",
            "vpaddw {a}, {even}, {weights0}\n",
            "vpaddw {b}, {odd}, {weights1}\n",
            "vpmaddwd {a}, {a}, {b}\n",
            "vpaddd ",
            $left,
            ", ",
            $left,
            ", {a}\n",
            "vpaddw {even}, {even}, {weights2}\n",
            "vpaddw {odd}, {odd}, {weights3}\n",
            "vpmaddwd {even}, {even}, {odd}\n",
            "vpaddd ",
            $right,
            ", ",
            $right,
            ", {even}",
        )
    };
}

/// Adds the products of [`ROWS`] rows, `row_size` bytes apart, and panel `n`'s wide blocks to the sums.
///
/// In assembly, since all 16 registers are needed: compilers spill sums.
///
/// # Safety
/// `rows` begins with four activations per block, for each row. There is a block.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply(
    rows: &[u8],
    row_size: usize,
    blocks: &[WideBlock],
    sums: &mut [[__m256i; 2]; ROWS],
) {
    let [[a0, a1], [b0, b1], [c0, c1], [d0, d1]] = sums;
    let range = blocks.as_ptr_range();
    // SAFETY: the loop reads each block, which is aligned like a register, and each row's activations for it.
    unsafe {
        asm!(
            "2:",
            "vmovdqa {weights0}, [{block}]",
            "vmovdqa {weights1}, [{block} + 32]",
            "vmovdqa {weights2}, [{block} + 64]",
            "vmovdqa {weights3}, [{block} + 96]",
            row!("", "{a0}", "{a1}"),
            row!(" + {row_size}", "{b0}", "{b1}"),
            row!(" + 2 * {row_size}", "{c0}", "{c1}"),
            row!(" + {three_rows}", "{d0}", "{d1}"),
            "add {group}, 8",
            "add {block}, 128",
            "cmp {block}, {end}",
            "jne 2b",
            group = inout(reg) rows.as_ptr() => _,
            block = inout(reg) range.start => _,
            end = in(reg) range.end,
            row_size = in(reg) row_size,
            three_rows = in(reg) 3 * row_size,
            a0 = inout(ymm_reg) *a0, a1 = inout(ymm_reg) *a1, b0 = inout(ymm_reg) *b0, b1 = inout(ymm_reg) *b1,
            c0 = inout(ymm_reg) *c0, c1 = inout(ymm_reg) *c1, d0 = inout(ymm_reg) *d0, d1 = inout(ymm_reg) *d1,
            weights0 = out(ymm_reg) _, weights1 = out(ymm_reg) _, weights2 = out(ymm_reg) _,
            weights3 = out(ymm_reg) _, even = out(ymm_reg) _, odd = out(ymm_reg) _, a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            options(readonly, nostack),
        );
    }
}

/// Multiplies `R` rows by panel `n` without Winograd's identity, which does not pay for few rows.
///
/// # Safety
/// `rows` has `R` rows, each with four activations per block.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_few<const R: usize>(
    rows: &[u8],
    blocks: &[Block],
    n: usize,
    out: &mut [[Sums; 2]; R],
) {
    let mut sums = [[_mm256_setzero_si256(); 2]; R];
    for (step, block) in blocks.iter().enumerate() {
        let wide = load::<true>(block);
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: per this function's contract.
            let pairs = unsafe {
                pairs(
                    rows.as_ptr()
                        .add(r * row_size(blocks.len()) + step * GROUP * SIZE),
                )
            };
            for (sums, [odd, even]) in sums.iter_mut().zip(wide.as_chunks::<2>().0) {
                *sums = _mm256_add_epi32(*sums, _mm256_madd_epi16(pairs[0], *even));
                *sums = _mm256_add_epi32(*sums, _mm256_madd_epi16(pairs[1], *odd));
            }
        }
    }
    store(&sums, n, out);
}

/// Activations 0 and 2 of a group, in all 32-bit lanes, and activations 1 and 3.
///
/// # Safety
/// `group` has four activations.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn pairs(group: *const u8) -> [__m256i; 2] {
    let group: *const i32 = group.cast();
    // SAFETY: per this function's contract.
    unsafe {
        [
            _mm256_set1_epi32(group.read_unaligned()),
            _mm256_set1_epi32(group.add(1).read_unaligned()),
        ]
    }
}
