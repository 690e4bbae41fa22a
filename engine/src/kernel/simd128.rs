//! Kernels for WebAssembly with 128-bit vectors, with and without relaxed instructions.
//!
//! The results of relaxed instructions depend on the host. A kernel with them exists only on hosts whose results are those
//! of [`Plain`](super::Plain), which its constructor tries out. Without them, there are neither 8-bit dot products nor
//! fused multiply-adds: see [`Words`] and [`Emulated`].

#![expect(
    unsafe_code,
    reason = "the argument is in the documentation of the crate"
)]

mod emulated;
#[cfg(target_feature = "relaxed-simd")]
mod relaxed;
mod tile;
mod words;

use std::{arch::wasm32::*, array};

#[cfg(target_feature = "relaxed-simd")]
use self::relaxed::{Bytes, Fused};
use self::{emulated::Emulated, tile::tile, words::Words};
use super::{
    Kernel, KernelFn, LANES, Lanes, MAX_TILE_ROWS, Panel, Rows, Sums, assert_product, assert_tile,
};

/// 128-bit vectors, with multiply-adds by the instructions `M`, and integer products by `P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits128<M, P>(M, P);

/// WebAssembly without relaxed instructions.
pub type Simd128 = Bits128<Emulated, Words>;
/// Fused multiply-adds.
#[cfg(target_feature = "relaxed-simd")]
pub type RelaxedMadd = Bits128<Fused, Words>;
/// Fused multiply-adds and 8-bit dot products.
#[cfg(target_feature = "relaxed-simd")]
pub type RelaxedDot = Bits128<Fused, Bytes>;

#[cfg(target_feature = "relaxed-simd")]
impl RelaxedDot {
    /// The kernel with the same operations on numbers.
    pub fn madd(self) -> RelaxedMadd {
        Bits128(self.0, Words)
    }
}

/// Instructions for multiply-adds.
pub trait MultiplyAdds: Copy + Send + Sync + 'static {
    /// As [`Kernel::mul_add`].
    fn mul_add(self, a: v128, b: v128, c: v128) -> v128;

    /// As [`Kernel::mul_add_one`].
    fn mul_add_one(self, a: f32, b: f32, c: f32) -> f32;

    /// As [`Kernel::product`].
    ///
    /// # Safety
    /// `a` has as many rows as `out`, with `depth` values each, and `b` has `depth` rows with 32 values each.
    unsafe fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]);
}

/// Instructions for integer products. Columns are computed in two registers at a time.
pub trait IntegerProducts: Copy + Send + Sync + 'static {
    /// As [`Kernel::ACTIVATION_SIZE`].
    const ACTIVATION_SIZE: usize;
    /// Weights per register: four for each of its columns.
    const WEIGHTS: usize;

    /// Stores activations, one per 16-bit lane.
    fn store_activations(self, words: [v128; 2], out: &mut [u8]);

    /// Sums before the first product, for columns whose weights have the sums `column_sums`.
    fn begin(self, column_sums: &[i32]) -> [v128; 2];

    /// Loads a register of weights.
    ///
    /// # Safety
    /// `weights` points to as many.
    unsafe fn load_weights(self, weights: *const i8) -> v128;

    /// Loads four activations, for each column of a register.
    ///
    /// # Safety
    /// `group` points to as many.
    unsafe fn load_activations(self, group: *const u8) -> v128;

    /// Adds products to a register of sums.
    fn multiply_add(self, weights: v128, activations: v128, sums: v128) -> v128;

    /// Writes the sums of the columns.
    fn finish(self, sums: [v128; 2], out: &mut [i32]);
}

/// Numbers per register.
const WIDTH: usize = LANES / 4;

/// Four registers from four.
#[inline(always)]
fn map(f: impl Fn(usize) -> v128) -> [v128; 4] {
    array::from_fn(f)
}

impl Simd128 {
    /// The kernel. The module is compiled with 128-bit vectors, so that every host that accepts it has them.
    pub fn new() -> Self {
        Self(Emulated, Words)
    }
}

#[cfg(target_feature = "relaxed-simd")]
impl RelaxedMadd {
    /// The kernel, or `None` if this host rounds products before it adds them.
    pub fn new() -> Option<Self> {
        Some(Self(Fused::new()?, Words))
    }
}

#[cfg(target_feature = "relaxed-simd")]
impl RelaxedDot {
    /// The kernel, or `None` if this host also has no exact 8-bit products.
    pub fn new() -> Option<Self> {
        Some(Self(Fused::new()?, Bytes::new()?))
    }
}

impl<M: MultiplyAdds, P: IntegerProducts> Kernel for Bits128<M, P> {
    type F32x16 = [v128; 4];

    const ACTIVATION_SIZE: usize = P::ACTIVATION_SIZE;
    const TILE_ROWS: usize = MAX_TILE_ROWS;

    // Otherwise all kernels' code would be in one function, and hosts compile whole functions.
    #[inline(never)]
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
        map(|n| self.0.mul_add(a[n], b[n], c[n]))
    }

    #[inline(always)]
    fn mul_add_one(self, a: f32, b: f32, c: f32) -> f32 {
        self.0.mul_add_one(a, b, c)
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
        assert_eq!(
            out.len(),
            LANES * P::ACTIVATION_SIZE,
            "expected {} bytes per activation",
            P::ACTIVATION_SIZE
        );
        self.1.store_activations(low_words(a), out);
    }

    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
        assert_tile::<Self>(rows, &panels, out.len());
        for (n, panel) in panels.into_iter().enumerate() {
            // SAFETY: the row length was asserted.
            unsafe { tile(self.1, rows, panel, n, out) };
        }
    }

    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        assert_product(depth, a, b, out.len());
        // SAFETY: the row lengths were asserted.
        unsafe { self.0.product(depth, a, b, out) };
    }
}

/// Each number's lowest eight bits, in 16 bits.
#[inline(always)]
fn low_words(a: [v128; 4]) -> [v128; 2] {
    let [a, b, c, d] = a.map(|a| v128_and(a, i32x4_splat(0xff)));
    [i16x8_narrow_i32x4(a, b), i16x8_narrow_i32x4(c, d)]
}
