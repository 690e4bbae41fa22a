//! Native engine arithmetic, with one implementation per processor family.
//!
//! A [`Kernel`] multiplies 8-bit integers and `f32` matrices and calculates with 16 `f32` lanes. [`Plain`] is ordinary
//! Rust and defines the results; all other kernels return the same bits:
//! - integer sums are exact in `i32`;
//! - `f32` products are summed in input order, each step a fused multiply-add;
//! - lane operations are correctly rounded, as in IEEE 754; `min` and `max` are comparisons with a defined result for
//!   NaN and for positive and negative zero.
//!
//! Only a NaN's sign and payload are unspecified. WebAssembly has no fused multiply-add without relaxed instructions: its
//! kernel calculates one in `f64`, whose results differ for subnormal numbers only.
//!
//! # Weights
//! All kernels read the same layout, so one weight file serves every processor: 16-column [panels](Panel), in which
//! four inputs' weights are adjacent. A [`Block`] has 64 bytes: one register with AVX-512 VNNI, two with AVX-VNNI or
//! AVX2, four with NEON, and one row of a matrix register with AMX. Activations are rows in a format that each kernel
//! defines, see [`Kernel::store_activations`].
//!
//! # Small quads
//! `vpmaddubsw` multiplies bytes and adds two products each in 16 bits, with saturation: those for a block's inputs 0 and
//! 1, and those for inputs 2 and 3. Such sums of two blocks, an even one and the next, can be added in 16 bits, too. A
//! column's four weights in a sum, a *quad*, are small if neither the positive nor the negative ones add up to more than
//! 128 in magnitude: 128 × 255 fits into 16 bits, so sums are exact for all activations. [Rounding](crate::quantize::rounding) to
//! sample inputs yields such weights; the kernel for AVX2 widens others before it multiplies them.
//!
//! # Unsafe code
//! This crate has `unsafe` code for two reasons:
//! - Intrinsics, and functions compiled for processor features. A kernel value is proof that the processor has the
//!   features: the only constructor, `new`, detects them.
//! - Unaligned loads and stores between memory and vector registers. Their pointers are derived from references to
//!   arrays at least as long as the register, or from slices whose length is asserted.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod instruction_set;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_feature = "simd128")]
mod simd128;
#[cfg(test)]
mod tests;
mod totals;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use amx::AmxInt8;
#[cfg(target_arch = "x86_64")]
pub use avx2::{Avx2, AvxVnni};
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512Vnni;
pub use instruction_set::InstructionSet;
#[cfg(target_arch = "aarch64")]
pub use neon::{NeonDotProduct, NeonI8mm};
pub use plain::Plain;
#[cfg(target_feature = "simd128")]
pub use simd128::Simd128;
#[cfg(target_feature = "relaxed-simd")]
pub use simd128::{RelaxedDot, RelaxedMadd};

use self::totals::Totals;

/// `f32` lanes per kernel, and columns per panel.
pub const LANES: usize = 16;
/// 16 numbers.
pub type Lanes = [f32; LANES];
/// 16 integer sums.
pub type Sums = [i32; LANES];
/// Weights for four inputs and 16 columns.
pub type Block = [[i8; GROUP]; LANES];
/// Maximum magnitude for a [small quad](self#small-quads)'s positive and negative sum.
pub const MAX_QUAD_SUM: i16 = i16::MAX / u8::MAX as i16;
/// Inputs per block.
pub const GROUP: usize = 4;
/// Columns per [`Kernel::product`].
pub const COLUMNS: usize = 2 * LANES;
/// Maximum row count for [`Kernel::product`].
pub const MAX_ROWS: usize = 12;
/// Maximum of [`Kernel::TILE_ROWS`].
pub const MAX_TILE_ROWS: usize = 4 * MAX_ROWS;

/// 16 columns of a weight matrix.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// The weights, four inputs each.
    pub blocks: &'a [Block],
    /// Per-column sums.
    pub column_sums: &'a Sums,
}

/// How a block of an activation row was quantized: `value ≈ least + scale × integer`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowRange {
    /// Quantization step.
    pub scale: f32,
    /// Smallest value.
    pub least: f32,
}

/// A block of quantized rows and of two panels, for [`Kernel::add_tile`].
#[derive(Clone, Copy, Debug)]
pub struct ScaledTile<'a> {
    /// As for [`Kernel::tile`].
    pub rows: &'a [u8],
    /// Per row.
    pub ranges: &'a [RowRange],
    /// The weights.
    pub panels: [Panel<'a>; 2],
    /// Distance in blocks from each panel's weights to later ones, which a kernel may prefetch, even beyond the last panel.
    pub prefetch_distance: usize,
    /// A scale per column.
    pub scales: [&'a Lanes; 2],
    /// Initial values of the sums, the same for all rows; `None` continues with the earlier totals.
    pub bias: Option<[&'a Lanes; 2]>,
}

/// Matrix rows, `stride` values apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// At least from the first row's first value to the last row's last value.
    pub values: &'a [f32],
    /// Distance between row starts, in values.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows that begin every `stride` values.
    #[inline(always)]
    pub fn new(values: &'a [f32], stride: usize) -> Self {
        Self { values, stride }
    }
}

/// As [`Rows`], for results.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// At least from the first row's first value to the last row's last value.
    pub values: &'a mut [f32],
    /// Distance between row starts, in values.
    pub stride: usize,
}

impl<'a> RowsMut<'a> {
    /// Rows that begin every `stride` values.
    #[inline(always)]
    pub fn new(values: &'a mut [f32], stride: usize) -> Self {
        Self { values, stride }
    }
}

/// A function compiled for every kernel.
pub trait KernelFn {
    /// Return type.
    type Output;

    /// Implementations are `#[inline(always)]`, as are all functions they call with `kernel`: only code inlined into
    /// [`Kernel::call`] is compiled with the processor's features. Arrays are iterated by reference: iterators by value
    /// are functions of the standard library, which are not always inlined.
    fn call<K: Kernel>(self, kernel: K) -> Self::Output;
}

/// Arithmetic for a processor family.
///
/// A value exists only on processors that can execute it.
pub trait Kernel: Copy + Send + Sync + 'static {
    /// 16 numbers, in registers.
    type F32x16: Copy;

    /// Bytes per activation in rows for [`tile`](Self::tile).
    const ACTIVATION_SIZE: usize = 1;
    /// Bytes after a row's activations.
    const ROW_END_SIZE: usize = 0;
    /// Maximum row count for [`tile`](Self::tile), at most [`MAX_TILE_ROWS`].
    const TILE_ROWS: usize = MAX_ROWS;
    /// Whether [`call_for_small_quads`](Self::call_for_small_quads) calls with another kernel.
    const HAS_SMALL_QUADS: bool = false;

    /// Calls a function compiled for this processor.
    fn call<F: KernelFn>(self, function: F) -> F::Output;

    /// Calls a function with this kernel, or with one whose tiles are faster and exact only for weights with
    /// [small quads](self#small-quads), in panels with an even number of blocks.
    #[inline(always)]
    fn call_for_small_quads<F: KernelFn>(self, function: F) -> F::Output {
        function.call(self)
    }

    /// Loads 16 numbers.
    fn load(self, values: &Lanes) -> Self::F32x16;
    /// Stores 16 numbers.
    fn store(self, a: Self::F32x16, out: &mut Lanes);
    /// Sets all lanes to `value`.
    fn splat(self, value: f32) -> Self::F32x16;
    /// `a + b`
    fn add(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `a - b`
    fn sub(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `a × b`
    fn mul(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `a / b`
    fn div(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `a × b + c`, rounded once.
    fn mul_add(self, a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// `a × b + c` for one number.
    #[inline(always)]
    fn mul_add_one(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    /// `if a < b { a } else { b }`: `b` if either is NaN, or if both are zero.
    fn min(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `if a > b { a } else { b }`: `b` if either is NaN, or if both are zero.
    fn max(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// 16 integers, rounded to the nearest numbers.
    fn load_i32(self, values: &Sums) -> Self::F32x16;
    /// Multiplies `a` by `2^i` if the result is normal, where `n` is `1.5 × 2^23 + i`: adds `n`'s lowest nine bits, as
    /// an integer, to `a`'s sign and exponent. The result for NaN is unspecified.
    fn shift_exponent(self, a: Self::F32x16, n: Self::F32x16) -> Self::F32x16;
    /// Each number's lowest eight bits: the integer `i` where the number is `2^23 + i`.
    fn low_bytes(self, a: Self::F32x16) -> [u8; LANES];

    /// Exchanges rows and columns.
    #[inline(always)]
    fn transpose(self, rows: [Self::F32x16; LANES]) -> [Self::F32x16; LANES] {
        let (mut columns, mut out) = ([[0.0; LANES]; LANES], rows);
        for (at, row) in rows.into_iter().enumerate() {
            let mut lanes = [0.0; LANES];
            self.store(row, &mut lanes);
            for (value, column) in lanes.into_iter().zip(&mut columns) {
                column[at] = value;
            }
        }
        for (column, out) in columns.iter().zip(&mut out) {
            *out = self.load(column);
        }
        out
    }

    /// Stores each lane's [lowest byte](Self::low_bytes) as an unsigned activation, in the format that
    /// [`tile`](Self::tile) reads.
    ///
    /// # Panics
    /// Unless `out` has [`ACTIVATION_SIZE`](Self::ACTIVATION_SIZE) bytes per lane.
    fn store_activations(self, a: Self::F32x16, out: &mut [u8]);

    /// Completes a row after all its activations are stored: writes its last [`ROW_END_SIZE`](Self::ROW_END_SIZE)
    /// bytes.
    #[inline(always)]
    fn finish_row(self, _row: &mut [u8]) {}

    /// Multiplies one to [`TILE_ROWS`](Self::TILE_ROWS) activation rows, as many as `out` has, by two panels. Sums that exceed an `i32`,
    /// which takes more than 65,000 inputs, wrap around.
    ///
    /// # Panics
    /// Unless both panels have as many inputs as each row.
    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]);

    /// Multiplies rows by panels as [`tile`](Self::tile) does, and adds the products of the numbers that the integers
    /// stand for to `totals`: per column `least × (column sum × scale)`, then `(row scale × scale) × integer sum`, each
    /// with one rounding after the factors in brackets. The results replace `totals`, or are written to `out` if there
    /// is one. `sums` is scratch memory.
    ///
    /// # Panics
    /// Unless there are as many totals and sums as ranges, `out` has as many rows with 32 values, and the tile's parts
    /// fit as for [`tile`](Self::tile).
    #[inline(always)]
    fn add_tile(
        self,
        tile: &ScaledTile<'_>,
        sums: &mut [[Sums; 2]],
        totals: &mut [[Lanes; 2]],
        out: Option<RowsMut<'_>>,
    ) {
        self.tile(tile.rows, tile.panels, sums);
        Totals::new(self, tile, totals, out).add_all(sums);
    }

    /// Multiplies one to [`MAX_ROWS`] rows, as many as `out` has, with `depth` values each, by 32 columns.
    ///
    /// # Panics
    /// Unless `a` has as many rows with `depth` values, and `b` has `depth` rows with 32 values.
    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]);
}

/// Implements methods by intrinsics.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! intrinsics {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $output:ty)? { $body:expr })*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $type),*) $(-> $output)? {
            // SAFETY: `self` is proof that the processor has the features. Pointers are derived from references to
            // arrays at least as long as the register read or written.
            unsafe { $body }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use intrinsics;

/// Evaluates an expression with the constant `$R` equal to `$out`'s length, and `$out` an array.
macro_rules! with_row_count {
    ($out:ident, $R:ident in $($number:literal)* => $call:expr) => {
        match $out.len() {
            $($number => {
                const $R: usize = $number;
                if let Some($out) = $out.first_chunk_mut::<$R>() {
                    $call
                }
            })*
            rows => unreachable!("{rows} rows in a tile"),
        }
    };
}
#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_feature = "simd128"
))]
use with_row_count;

/// Splits rows evenly into parts with at most `max` rows.
#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_feature = "simd128"
))]
fn part(rows: usize, max: usize) -> usize {
    rows.div_ceil(rows.div_ceil(max))
}

/// Bytes per activation row with `inputs` activations.
pub const fn row_size<K: Kernel>(inputs: usize) -> usize {
    inputs * K::ACTIVATION_SIZE + K::ROW_END_SIZE
}

/// Asserts that a tile's arguments fit each other.
#[inline(always)]
fn assert_tile<K: Kernel>(rows: &[u8], panels: &[Panel<'_>; 2], row_count: usize) {
    let max = K::TILE_ROWS;
    assert!(
        (1..=max).contains(&row_count),
        "expected 1 to {max} rows, but found {row_count}"
    );
    let steps = panels[0].blocks.len();
    assert_eq!(
        panels[1].blocks.len(),
        steps,
        "expected two panels of equal depth"
    );
    assert_eq!(
        rows.len(),
        row_count * row_size::<K>(steps * GROUP),
        "expected rows as long as the panels"
    );
}

/// Asserts that a product's arguments fit each other.
#[inline(always)]
fn assert_product(depth: usize, a: Rows<'_>, b: Rows<'_>, row_count: usize) {
    let has_rows = |rows: Rows<'_>, count: usize, width: usize| {
        let start = rows.stride.checked_mul(count.saturating_sub(1));
        count == 0
            || start
                .and_then(|start| rows.values.get(start..)?.get(..width))
                .is_some()
    };
    assert!(
        (1..=MAX_ROWS).contains(&row_count),
        "expected 1 to {MAX_ROWS} rows, but found {row_count}"
    );
    assert!(
        has_rows(a, row_count, depth),
        "expected {row_count} rows of {depth} values"
    );
    assert!(
        has_rows(b, depth, 2 * LANES),
        "expected {depth} rows of 32 values"
    );
}
