//! The arithmetic of Kivu's native engine, with one implementation for each family of processors.
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
//! AVX-VNNI or AVX2, four of NEON, and a row of a tile register of AMX. Activations are rows in a format that each
//! kernel defines, see [`Kernel::store_activations`]. AMX would fit in: its tiles are rows of unsigned activations and
//! these blocks of weights. A kernel for it does not exist yet.
//!
//! # Unsafe code
//! This crate has `unsafe` code for two reasons:
//! - Intrinsics, and functions compiled for processor features. A value of a kernel's type is proof that this
//!   processor has its features: the only constructor, `new`, detects them.
//! - Unaligned loads and stores of vector registers. Their pointers are derived from references to arrays of at least
//!   the register's size, or from slices whose length is asserted.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod instruction_set;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub use avx2::{Avx2, AvxVnni};
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512Vnni;
pub use instruction_set::InstructionSet;
#[cfg(target_arch = "aarch64")]
pub use neon::{NeonDotProduct, NeonI8mm};
pub use plain::Plain;

/// The number of `f32` lanes of a kernel, and of columns of a panel.
pub const LANES: usize = 16;
/// 16 numbers.
pub type Lanes = [f32; LANES];
/// 16 sums of integer products.
pub type Sums = [i32; LANES];
/// The weights of four inputs for 16 columns.
pub type Block = [[i8; GROUP]; LANES];
/// The number of inputs of a block.
pub const GROUP: usize = 4;
/// The largest number of rows of [`Kernel::tile`] and [`Kernel::product`].
pub const MAX_ROWS: usize = 12;

/// 16 columns of a matrix of weights.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// The weights, four inputs each.
    pub blocks: &'a [Block],
    /// The sum of each column.
    pub column_sums: &'a Sums,
}

/// Rows of a matrix, `stride` values apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// From the first value of the first row to the last value of the last row, at least.
    pub values: &'a [f32],
    /// The number of values from the beginning of a row to that of the next.
    pub stride: usize,
}

/// A function that is compiled for every kernel.
pub trait KernelFn {
    /// The result of [`KernelFn::call`].
    type Output;

    /// Implementations are `#[inline(always)]`, as are the functions that they call with `kernel`: only code that is
    /// inlined into [`Kernel::call`] is compiled with the processor's features.
    fn call<K: Kernel>(self, kernel: K) -> Self::Output;
}

/// The arithmetic of a family of processors.
///
/// Kernels are zero-sized. A value exists only on processors that can execute it.
pub trait Kernel: Copy + Send + Sync + 'static {
    /// 16 numbers, in registers.
    type F32x16: Copy;

    /// Bytes per activation in rows for [`tile`](Self::tile).
    const ACTIVATION_SIZE: usize;

    /// Calls a function that is compiled for this processor.
    fn call<F: KernelFn>(self, function: F) -> F::Output;

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
    /// `if a < b { a } else { b }`: `b` if either is NaN, or if both are zero.
    fn min(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// `if a > b { a } else { b }`: `b` if either is NaN, or if both are zero.
    fn max(self, a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// 16 integers, rounded to the nearest numbers.
    fn load_i32(self, values: &Sums) -> Self::F32x16;
    /// Adds the lowest nine bits of `n`, as an integer, to sign and exponent of `a`: `a × 2^i` for a normal result,
    /// where `n` is `1.5 × 2^23 + i`. The result for NaN is unspecified.
    fn shift_exponent(self, a: Self::F32x16, n: Self::F32x16) -> Self::F32x16;
    /// The lowest eight bits of each number: the integer `i` where the number is `2^23 + i`.
    fn low_bytes(self, a: Self::F32x16) -> [u8; LANES];

    /// Stores the [lowest byte](Self::low_bytes) of each lane as an unsigned activation, in the format of
    /// [`tile`](Self::tile).
    ///
    /// # Panics
    /// Unless `out` has [`ACTIVATION_SIZE`](Self::ACTIVATION_SIZE) bytes per lane.
    fn store_activations(self, a: Self::F32x16, out: &mut [u8]);

    /// Products of one to [`MAX_ROWS`] rows of activations with two panels. The number of rows is that of `out`.
    /// Sums that exceed an `i32`, for which more than 65,000 inputs are needed, wrap around.
    ///
    /// # Panics
    /// Unless both panels have as many inputs as each row.
    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]);

    /// Products of one to [`MAX_ROWS`] rows of `depth` values with 32 columns. The number of rows is that of `out`.
    ///
    /// # Panics
    /// Unless `a` has as many rows of `depth` values and `b` has `depth` rows of 32.
    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]);
}

/// Implements methods by intrinsics.
macro_rules! intrinsics {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $output:ty)? { $body:expr })*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $type),*) $(-> $output)? {
            // SAFETY: `self` is proof of the processor's features. Pointers are derived from references to arrays
            // that have at least the size of the register that is read or written.
            unsafe { $body }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use intrinsics;

/// Evaluates an expression with the constant `$R` equal to the number of elements of `$out`, and `$out` an array.
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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use with_row_count;

/// Splits rows evenly into parts of at most `max`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn part(rows: usize, max: usize) -> usize {
    rows.div_ceil(rows.div_ceil(max))
}

/// Asserts that the arguments of a tile fit each other.
#[inline(always)]
fn assert_tile<K: Kernel>(rows: &[u8], panels: &[Panel<'_>; 2], row_count: usize) {
    assert!((1..=MAX_ROWS).contains(&row_count), "expected 1 to {MAX_ROWS} rows, but found {row_count}");
    let steps = panels[0].blocks.len();
    assert_eq!(panels[1].blocks.len(), steps, "expected two panels of equal depth");
    assert_eq!(
        rows.len(),
        row_count * steps * GROUP * K::ACTIVATION_SIZE,
        "expected rows as long as the panels"
    );
}

/// Asserts that the arguments of a product fit each other.
#[inline(always)]
fn assert_product(depth: usize, a: Rows<'_>, b: Rows<'_>, row_count: usize) {
    let has_rows = |rows: Rows<'_>, count: usize, width: usize| {
        let start = rows.stride.checked_mul(count.saturating_sub(1));
        count == 0 || start.and_then(|start| rows.values.get(start..)?.get(..width)).is_some()
    };
    assert!((1..=MAX_ROWS).contains(&row_count), "expected 1 to {MAX_ROWS} rows, but found {row_count}");
    assert!(has_rows(a, row_count, depth), "expected {row_count} rows of {depth} values");
    assert!(has_rows(b, depth, 2 * LANES), "expected {depth} rows of 32 values");
}
