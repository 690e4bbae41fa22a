//! Kernels for arm64 processors with 8-bit products: signed dot products (`sdot`), or mixed-sign ones (i8mm, `sudot`).
//!
//! Their intrinsics are not stable yet, so the instructions are inline assembly.

#![expect(
    unsafe_code,
    reason = "the argument is in the documentation of the crate"
)]

use std::{
    arch::{aarch64::*, asm, is_aarch64_feature_detected},
    array,
};

use super::{
    Block, GROUP, Kernel, KernelFn, LANES, Lanes, Panel, Rows, Sums, assert_product, assert_tile,
    intrinsics, part, with_row_count,
};

/// NEON, with integer products by the instructions `I`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon<I>(I);

/// NEON with signed dot products. Activations become signed; the sums' initial values correct the offset.
pub type NeonDotProduct = Neon<Sdot>;
/// NEON with mixed-sign dot products.
pub type NeonI8mm = Neon<Sudot>;

/// 16 numbers.
type F32x16 = [float32x4_t; 4];
/// 16 sums.
type I32x16 = [int32x4_t; 4];

/// Instructions for integer products.
pub trait Int8Products: Copy + Send + Sync + 'static {
    /// Activations are stored with these bits inverted.
    const INVERTED_BITS: u8;

    /// Detects the instructions; `None` if this processor lacks them.
    fn new() -> Option<Self>;

    /// # Safety
    /// The processor has the instructions.
    unsafe fn call<F: KernelFn>(kernel: Neon<Self>, function: F) -> F::Output;

    /// Initial sums, given the panel's column sums: corrects the activations' offset.
    fn initial(column_sums: &Sums) -> Sums;

    /// Adds four products to each sum: four adjacent weights times the four activations in lane `LANE`.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn dot<const LANE: u32>(
        sums: int32x4_t,
        weights: int8x16_t,
        activations: uint8x16_t,
    ) -> int32x4_t;

    /// Multiplies `R` rows, at most [`TILE_ROWS`], by panel `n`.
    ///
    /// # Safety
    /// The processor has the instructions. `rows` begins with `R` rows, each with one activation per input in `panel`.
    unsafe fn tile<const R: usize>(
        rows: &[u8],
        panel: Panel<'_>,
        n: usize,
        out: &mut [[Sums; 2]; R],
    );
}

/// Rows per register tile. Their sums occupy 16 of the 32 registers.
const TILE_ROWS: usize = 4;
/// Rows per register tile for `f32` products. Their sums occupy 20 of the 32 registers.
const PRODUCT_ROWS: usize = 5;

impl<I: Int8Products> Neon<I> {
    /// The kernel, or `None` if this processor lacks its features.
    pub fn new() -> Option<Self> {
        I::new().map(Self)
    }
}

impl NeonI8mm {
    /// The kernel with the same operations on numbers.
    pub fn dot_product(self) -> NeonDotProduct {
        Neon(self.0.0)
    }
}

impl<I: Int8Products> Kernel for Neon<I> {
    type F32x16 = F32x16;

    intrinsics! {
        fn load(values: &Lanes) -> F32x16 { array::from_fn(|n| vld1q_f32(quarters(values)[n].as_ptr())) }
        fn store(a: F32x16, out: &mut Lanes) {
            for (out, a) in out.as_chunks_mut::<{ LANES / 4 }>().0.iter_mut().zip(a) {
                vst1q_f32(out.as_mut_ptr(), a);
            }
        }
        fn splat(value: f32) -> F32x16 { [vdupq_n_f32(value); 4] }
        fn add(a: F32x16, b: F32x16) -> F32x16 { array::from_fn(|n| vaddq_f32(a[n], b[n])) }
        fn sub(a: F32x16, b: F32x16) -> F32x16 { array::from_fn(|n| vsubq_f32(a[n], b[n])) }
        fn mul(a: F32x16, b: F32x16) -> F32x16 { array::from_fn(|n| vmulq_f32(a[n], b[n])) }
        fn div(a: F32x16, b: F32x16) -> F32x16 { array::from_fn(|n| vdivq_f32(a[n], b[n])) }
        fn mul_add(a: F32x16, b: F32x16, c: F32x16) -> F32x16 { array::from_fn(|n| vfmaq_f32(c[n], a[n], b[n])) }
        // Not `fmin` and `fmax`, which differ for NaN and zeros.
        fn min(a: F32x16, b: F32x16) -> F32x16 { array::from_fn(|n| vbslq_f32(vcltq_f32(a[n], b[n]), a[n], b[n])) }
        fn max(a: F32x16, b: F32x16) -> F32x16 { array::from_fn(|n| vbslq_f32(vcgtq_f32(a[n], b[n]), a[n], b[n])) }
        fn load_i32(values: &Sums) -> F32x16 {
            array::from_fn(|n| vcvtq_f32_s32(vld1q_s32(quarters(values)[n].as_ptr())))
        }
        fn shift_exponent(a: F32x16, n: F32x16) -> F32x16 {
            array::from_fn(|i| {
                let shift = vshlq_n_s32::<23>(vreinterpretq_s32_f32(n[i]));
                vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a[i]), shift))
            })
        }
        fn low_bytes(a: F32x16) -> [u8; LANES] {{
            let words = a.map(|a| vmovn_u32(vreinterpretq_u32_f32(a)));
            let low = vmovn_u16(vcombine_u16(words[0], words[1]));
            let high = vmovn_u16(vcombine_u16(words[2], words[3]));
            let mut bytes = [0; LANES];
            vst1q_u8(bytes.as_mut_ptr(), vcombine_u8(low, high));
            bytes
        }}
    }

    fn call<F: KernelFn>(self, function: F) -> F::Output {
        // SAFETY: `self` is proof that the processor has the features.
        unsafe { I::call(self, function) }
    }

    #[inline(always)]
    fn store_activations(self, a: F32x16, out: &mut [u8]) {
        out.copy_from_slice(&self.low_bytes(a).map(|byte| byte ^ I::INVERTED_BITS));
    }

    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
        assert_tile::<Self>(rows, &panels, out.len());
        let row_size = rows.len() / out.len();
        let part = part(out.len(), TILE_ROWS);
        for (n, panel) in panels.into_iter().enumerate() {
            for (i, out) in out.chunks_mut(part).enumerate() {
                let rows = &rows[i * part * row_size..];
                // SAFETY: `self` is proof that the processor has the features. The row length was asserted.
                with_row_count!(out, R in 1 2 3 4 => unsafe { I::tile::<R>(rows, panel, n, out) });
            }
        }
    }

    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        assert_product(depth, a, b, out.len());
        let part = part(out.len(), PRODUCT_ROWS);
        for (n, out) in out.chunks_mut(part).enumerate() {
            let a = Rows {
                values: &a.values[n * part * a.stride..],
                ..a
            };
            // SAFETY: every arm64 processor has NEON. The row lengths were asserted.
            with_row_count!(out, R in 1 2 3 4 5 => unsafe { product::<R>(depth, a, b, out) });
        }
    }
}

#[inline(always)]
fn quarters<T>(values: &[T; LANES]) -> &[[T; LANES / 4]; 4] {
    let Some(quarters) = values.as_chunks().0.first_chunk() else {
        unreachable!("four quarters")
    };
    quarters
}

/// Products by `sdot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sdot(());

impl Int8Products for Sdot {
    /// Subtracts 128.
    const INVERTED_BITS: u8 = 0x80;

    fn new() -> Option<Self> {
        is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn call<F: KernelFn>(kernel: NeonDotProduct, function: F) -> F::Output {
        function.call(kernel)
    }

    #[inline(always)]
    fn initial(column_sums: &Sums) -> Sums {
        column_sums.map(|sum| sum.wrapping_mul(128))
    }

    #[inline(always)]
    unsafe fn dot<const LANE: u32>(
        mut sums: int32x4_t,
        weights: int8x16_t,
        activations: uint8x16_t,
    ) -> int32x4_t {
        // SAFETY: the processor has the instruction, per this function's contract.
        unsafe {
            asm!(
                "sdot {sums:v}.4s, {weights:v}.16b, {activations:v}.4b[{lane}]",
                sums = inout(vreg) sums,
                weights = in(vreg) weights,
                activations = in(vreg) activations,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn tile<const R: usize>(
        rows: &[u8],
        panel: Panel<'_>,
        n: usize,
        out: &mut [[Sums; 2]; R],
    ) {
        // SAFETY: per this function's contract.
        unsafe { tile::<Self, R>(rows, panel, n, out) }
    }
}

/// Products by `sudot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sudot(Sdot);

impl Int8Products for Sudot {
    const INVERTED_BITS: u8 = 0;

    fn new() -> Option<Self> {
        let products = Sdot::new()?;
        is_aarch64_feature_detected!("i8mm").then_some(Self(products))
    }

    #[target_feature(enable = "neon,i8mm")]
    unsafe fn call<F: KernelFn>(kernel: NeonI8mm, function: F) -> F::Output {
        function.call(kernel)
    }

    #[inline(always)]
    fn initial(_: &Sums) -> Sums {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn dot<const LANE: u32>(
        mut sums: int32x4_t,
        weights: int8x16_t,
        activations: uint8x16_t,
    ) -> int32x4_t {
        // SAFETY: the processor has the instruction, per this function's contract.
        unsafe {
            asm!(
                "sudot {sums:v}.4s, {weights:v}.16b, {activations:v}.4b[{lane}]",
                sums = inout(vreg) sums,
                weights = in(vreg) weights,
                activations = in(vreg) activations,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }

    #[target_feature(enable = "neon,i8mm")]
    unsafe fn tile<const R: usize>(
        rows: &[u8],
        panel: Panel<'_>,
        n: usize,
        out: &mut [[Sums; 2]; R],
    ) {
        // SAFETY: per this function's contract.
        unsafe { tile::<Self, R>(rows, panel, n, out) }
    }
}

/// # Safety
/// As for [`Int8Products::tile`].
#[inline(always)]
unsafe fn tile<I: Int8Products, const R: usize>(
    rows: &[u8],
    panel: Panel<'_>,
    n: usize,
    out: &mut [[Sums; 2]; R],
) {
    let width = panel.blocks.len() * GROUP;
    let row = |r: usize, step: usize| rows.as_ptr().wrapping_add(r * width + step * GROUP);
    let initial = I::initial(panel.column_sums);
    // SAFETY: the arrays are as long as the registers. Activations are within the rows, per this function's contract,
    // which covers `add_block` too.
    unsafe {
        let mut sums: [I32x16; R] =
            [array::from_fn(|n| vld1q_s32(quarters(&initial)[n].as_ptr())); R];
        // A register has the activations for four blocks.
        let (fours, rest) = panel.blocks.as_chunks::<4>();
        for (step, blocks) in fours.iter().enumerate() {
            let activations = array::from_fn(|r| vld1q_u8(row(r, 4 * step)));
            add_block::<I, 0, R>(&mut sums, &blocks[0], &activations);
            add_block::<I, 1, R>(&mut sums, &blocks[1], &activations);
            add_block::<I, 2, R>(&mut sums, &blocks[2], &activations);
            add_block::<I, 3, R>(&mut sums, &blocks[3], &activations);
        }
        for (step, block) in rest.iter().enumerate() {
            let activations = array::from_fn(|r| {
                let group = row(r, 4 * fours.len() + step)
                    .cast::<u32>()
                    .read_unaligned();
                vreinterpretq_u8_u32(vdupq_n_u32(group))
            });
            add_block::<I, 0, R>(&mut sums, block, &activations);
        }
        for (sums, out) in sums.iter().zip(out) {
            for (sums, out) in sums.iter().zip(out[n].as_chunks_mut::<{ LANES / 4 }>().0) {
                vst1q_s32(out.as_mut_ptr(), *sums);
            }
        }
    }
}

/// Adds the products of a block and the activations in lane `LANE`.
///
/// # Safety
/// The processor has the instructions `I`.
#[inline(always)]
unsafe fn add_block<I: Int8Products, const LANE: u32, const R: usize>(
    sums: &mut [I32x16; R],
    block: &Block,
    activations: &[uint8x16_t; R],
) {
    // SAFETY: a quarter block is 16 bytes long, as is a register. The processor has the instructions, per this
    // function's contract.
    unsafe {
        let weights: [int8x16_t; 4] =
            array::from_fn(|n| vld1q_s8(quarters(block)[n].as_ptr().cast()));
        for (sums, activations) in sums.iter_mut().zip(activations) {
            for (sums, weights) in sums.iter_mut().zip(weights) {
                *sums = I::dot::<LANE>(*sums, weights, *activations);
            }
        }
    }
}

/// # Safety
/// `a` has `R` rows with `depth` values each, and `b` has `depth` rows with 32 values each.
#[target_feature(enable = "neon")]
unsafe fn product<const R: usize>(
    depth: usize,
    a: Rows<'_>,
    b: Rows<'_>,
    out: &mut [[Lanes; 2]; R],
) {
    for n in 0..2 {
        let mut sums = [[vdupq_n_f32(0.0); 4]; R];
        let columns = |k: usize| -> F32x16 {
            let columns = b.values.as_ptr().wrapping_add(k * b.stride + n * LANES);
            // SAFETY: per this function's contract.
            array::from_fn(|i| unsafe { vld1q_f32(columns.add(i * LANES / 4)) })
        };
        let whole = depth - depth % 4;
        for k in (0..whole).step_by(4) {
            // A register has four values of a row. Loads that repeat a value would occupy an arithmetic unit.
            // SAFETY: per this function's contract.
            let values =
                array::from_fn(|r| unsafe { vld1q_f32(a.values.as_ptr().add(r * a.stride + k)) });
            add_products::<0, R>(&mut sums, columns(k), &values);
            add_products::<1, R>(&mut sums, columns(k + 1), &values);
            add_products::<2, R>(&mut sums, columns(k + 2), &values);
            add_products::<3, R>(&mut sums, columns(k + 3), &values);
        }
        for k in whole..depth {
            // SAFETY: per this function's contract.
            let value = |r: usize| vdupq_n_f32(unsafe { *a.values.as_ptr().add(r * a.stride + k) });
            add_products::<0, R>(&mut sums, columns(k), &array::from_fn(value));
        }
        for (sums, out) in sums.iter().zip(&mut *out) {
            for (sums, out) in sums.iter().zip(out[n].as_chunks_mut::<{ LANES / 4 }>().0) {
                // SAFETY: a quarter of `Lanes` is 16 bytes long, as is a register.
                unsafe { vst1q_f32(out.as_mut_ptr(), *sums) };
            }
        }
    }
}

/// Adds the products of 16 columns and each row's value in lane `LANE`.
#[target_feature(enable = "neon")]
#[inline]
fn add_products<const LANE: i32, const R: usize>(
    sums: &mut [F32x16; R],
    columns: F32x16,
    values: &[float32x4_t; R],
) {
    for (sums, values) in sums.iter_mut().zip(values) {
        for (sum, columns) in sums.iter_mut().zip(columns) {
            *sum = vfmaq_laneq_f32::<LANE>(*sum, columns, *values);
        }
    }
}
