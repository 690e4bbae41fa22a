//! Arithmetic of the native backend, with one implementation for each family of processors.
//!
//! A [`Kernel`] multiplies 8-bit integers and `f32` matrices and calculates with 16 `f32` lanes. [`Plain`] is
//! ordinary Rust and defines the results; all other kernels return the same bits:
//! - sums of integer products are exact in `i32`;
//! - sums of `f32` products are made in the order of the inputs, each step a fused multiply-add;
//! - lane operations are the correctly rounded ones of IEEE 754; `min` and `max` are comparisons with a defined
//!   result for NaN and for zeros of either sign.
//!
//! Only the sign and payload of a NaN are unspecified.
//!
//! # Weights
//! All kernels read the same layout, so a file of weights serves every processor: [panels](Panel) of 16 columns, in
//! which the weights of four inputs are adjacent. A [`Block`] of 64 bytes is a register of AVX-512 VNNI, two of
//! AVX-VNNI or AVX2, four of NEON, and a row of a tile register of AMX. The layout of activations is private to each
//! kernel, see [`Kernel::pack`]. That leaves room for a kernel that uses AMX, which needs rows of activations without
//! interleaving; there is none yet.
//!
//! # Unsafe code
//! Apart from `backend/onnx/run.rs`, the files of this module are the only ones of the crate with `unsafe`. It has two
//! uses:
//! - Intrinsics, and functions compiled for processor features. A value of a kernel's type is proof that this
//!   processor has its features: the only constructor, `new`, detects them.
//! - Unaligned loads and stores of vector registers. Their pointers are derived from references to arrays of at least
//!   the register's size, or from slices whose length is asserted.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;
#[cfg(test)]
mod tests;

use std::fmt;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512Vnni;
pub(crate) use plain::Plain;

/// The number of `f32` lanes of a kernel, and of columns of a panel.
pub(crate) const LANES: usize = 16;
/// 16 numbers.
pub(crate) type Lanes = [f32; LANES];
/// 16 sums of integer products.
pub(crate) type Sums = [i32; LANES];
/// The weights of four inputs for 16 columns.
pub(crate) type Block = [[i8; GROUP]; LANES];
/// The number of inputs of a block.
pub(crate) const GROUP: usize = 4;
/// The largest number of rows of [`Kernel::tile`] and [`Kernel::product`].
pub(crate) const MAX_ROWS: usize = 12;

/// 16 columns of a matrix of weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    /// The weights, four inputs each.
    pub(crate) blocks: &'a [Block],
    /// The sum of each column, from [`column_sums`].
    pub(crate) column_sums: &'a Sums,
}

/// The sum of each column of a panel.
pub(crate) fn column_sums(blocks: &[Block]) -> Sums {
    let mut sums = [0; LANES];
    for block in blocks {
        for (sum, group) in sums.iter_mut().zip(block) {
            *sum += group.iter().map(|weight| i32::from(*weight)).sum::<i32>();
        }
    }
    sums
}

/// Rows that begin `stride` values after each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
}

/// A function that is compiled for every kernel.
pub(crate) trait KernelFn {
    type Output;

    /// Implementations are `#[inline(always)]`, as are the functions that they call with `kernel`: only code that is
    /// inlined into [`Kernel::call`] is compiled with the processor's features.
    fn call<K: Kernel>(self, kernel: K) -> Self::Output;
}

/// The arithmetic of a family of processors.
///
/// Kernels are zero-sized. A value exists only on processors that can execute it.
pub(crate) trait Kernel: Copy + Send + Sync + 'static {
    /// 16 numbers, in registers.
    type F32x16: Copy;

    /// Bytes per activation in the layout of [`pack`](Self::pack).
    const PACKED_SIZE: usize;

    /// Calls a function that is compiled for this processor.
    fn call<F: KernelFn>(self, function: F) -> F::Output;

    fn load(self, values: &Lanes) -> Self::F32x16;
    fn store(self, a: Self::F32x16, out: &mut Lanes);
    fn splat(self, value: f32) -> Self::F32x16;
    fn add(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    fn sub(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    fn mul(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    fn div(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `a × b + c`, rounded once.
    fn mul_add(self, a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// `if a < b { a } else { b }`: `b` if either is NaN, or if both are zero.
    fn min(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `if a > b { a } else { b }`: `b` if either is NaN, or if both are zero.
    fn max(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    fn from_i32(self, values: &Sums) -> Self::F32x16;
    /// Adds the lowest nine bits of `n`, as an integer, to sign and exponent of `a`: `a × 2^i` for a normal result,
    /// where `n` is `1.5 × 2^23 + i`. The result for NaN is unspecified.
    fn shift_exponent(self, a: Self::F32x16, n: Self::F32x16) -> Self::F32x16;
    /// The lowest eight bits of each number: the integer `i` where the number is `2^23 + i`.
    fn low_bytes(self, a: Self::F32x16) -> [u8; LANES];

    /// Packs rows of activations for [`tile`](Self::tile).
    ///
    /// # Panics
    /// Unless `rows` consists of `row_count` rows of the same length, a multiple of four, and `out` has
    /// [`PACKED_SIZE`](Self::PACKED_SIZE) bytes per activation.
    fn pack(self, rows: &[u8], row_count: usize, out: &mut [u8]);

    /// Products of one to [`MAX_ROWS`] rows, as [`pack`](Self::pack) returns them, with two panels. The number of
    /// rows is that of `out`.
    ///
    /// # Panics
    /// Unless both panels have as many inputs as the rows.
    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]);

    /// Products of one to [`MAX_ROWS`] rows of `depth` values with 32 columns. The number of rows is that of `out`.
    ///
    /// # Panics
    /// Unless `a` has as many rows of `depth` values and `b` has `depth` rows of 32.
    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]);
}

/// Calls `$call` with the constant `$R` equal to the number of rows of `$out`, and `$out` an array.
macro_rules! for_row_count {
    ($out:ident, $R:ident => $call:expr) => {
        for_row_count!(@ $out, $R, $call, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    (@ $out:ident, $R:ident, $call:expr, $($number:literal)*) => {
        match $out.len() {
            $($number => {
                const $R: usize = $number;
                if let Some($out) = $out.first_chunk_mut::<$R>() {
                    $call
                }
            })*
            rows => unreachable!("expected 1 to 12 rows, but found {rows}"),
        }
    };
}
use for_row_count;

/// Packs rows so that their groups of four alternate: group `g` of row `r` becomes group `g × rows + r`.
#[inline(always)]
fn interleave(rows: &[u8], row_count: usize, out: &mut [u8]) {
    assert!(rows.len() == out.len() && rows.len().is_multiple_of(row_count * GROUP), "whole groups");
    let groups = out.as_chunks_mut::<GROUP>().0;
    let steps = groups.len() / row_count;
    for (r, row) in rows.as_chunks::<GROUP>().0.chunks_exact(steps).enumerate() {
        for (group, out) in row.iter().zip(groups[r..].iter_mut().step_by(row_count)) {
            *out = *group;
        }
    }
}

/// Asserts that the arguments of a tile fit each other.
#[inline(always)]
fn assert_tile(bytes: usize, packed_size: usize, panels: &[Panel<'_>; 2], row_count: usize) {
    let steps = panels[0].blocks.len();
    assert_eq!(panels[1].blocks.len(), steps, "two panels of equal depth");
    assert_eq!(bytes, row_count * steps * GROUP * packed_size, "rows as long as the panels");
}

/// Asserts that the arguments of a product fit each other.
#[inline(always)]
fn assert_product(depth: usize, a: Rows<'_>, b: Rows<'_>, row_count: usize) {
    let fits = |rows: Rows<'_>, count: usize, width: usize| {
        count == 0
            || rows
                .stride
                .checked_mul(count - 1)
                .is_some_and(|start| start.checked_add(width).is_some_and(|end| end <= rows.values.len()))
    };
    assert!(fits(a, row_count, depth), "rows of {depth} values");
    assert!(fits(b, depth, 2 * LANES), "{depth} rows of 32 columns");
}

/// A kernel that this processor can execute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    Plain(Plain),
}

impl InstructionSet {
    /// The fastest kernel for this processor.
    pub(crate) fn detected() -> Self {
        Self::available().next().unwrap_or(Self::Plain(Plain))
    }

    /// All kernels that this processor can execute, the fastest first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        let all = [
            #[cfg(target_arch = "x86_64")]
            Avx512Vnni::new().map(Self::Avx512Vnni),
            Some(Self::Plain(Plain)),
        ];
        all.into_iter().flatten()
    }

    /// Calls a function that is compiled for these instructions.
    pub(crate) fn call<F: KernelFn>(self, function: F) -> F::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(kernel) => kernel.call(function),
            Self::Plain(kernel) => kernel.call(function),
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => "AVX-512 VNNI",
            Self::Plain(_) => "portable",
        })
    }
}

impl fmt::Debug for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
