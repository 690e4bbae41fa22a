//! Kernels for x86-64 processors with 256-bit registers, with and without 8-bit products (AVX-VNNI).

#![expect(
    unsafe_code,
    reason = "the argument is in the documentation of the crate"
)]

mod bytes;
mod madd;

use std::arch::x86_64::*;

use self::{bytes::Vnni, madd::Madd};
use super::{
    Block, Kernel, KernelFn, LANES, Lanes, MAX_ROWS, Panel, Rows, RowsMut, ScaledTile, Sums,
    Totals, assert_product, assert_tile, intrinsics, part, with_row_count,
};

/// AVX2 and FMA, with integer products by the instructions `I`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits256<I>(I);

/// AVX2 without 8-bit products: the factors are widened to 16 bits, so that no sum saturates.
pub type Avx2 = Bits256<Madd>;
/// AVX-VNNI.
pub type AvxVnni = Bits256<Vnni>;

/// Instructions for integer products.
pub trait Int8Products: Copy + Send + Sync + 'static {
    const ACTIVATION_SIZE: usize = 1;
    const ROW_END_SIZE: usize = 0;
    const TILE_ROWS: usize = MAX_ROWS;
    const HAS_SMALL_QUADS: bool = false;

    /// Detects the instructions; `None` if this processor lacks them.
    fn new() -> Option<Self>;

    /// # Safety
    /// The processor has the instructions.
    unsafe fn call<F: KernelFn>(kernel: Bits256<Self>, function: F) -> F::Output;

    #[inline(always)]
    fn call_for_small_quads<F: KernelFn>(kernel: Bits256<Self>, function: F) -> F::Output {
        function.call(kernel)
    }

    fn store_activations(bytes: [u8; LANES], out: &mut [u8]);

    /// Writes the end of a row, after its activations are stored.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn finish_row(row: &mut [u8]);

    /// Multiplies one to [`TILE_ROWS`](Self::TILE_ROWS) rows, as many as `out` has, by panel `n`.
    ///
    /// # Safety
    /// The processor has the instructions. `rows` has as many rows as `out`, each with one activation per input in
    /// `blocks`.
    unsafe fn tile(rows: &[u8], blocks: &[Block], n: usize, out: &mut [[Sums; 2]]);

    /// As [`Kernel::add_tile`].
    ///
    /// # Safety
    /// The processor has the instructions. The tile's rows have one activation per input.
    #[inline(always)]
    unsafe fn add_tile(
        kernel: Bits256<Self>,
        tile: &ScaledTile<'_>,
        sums: &mut [[Sums; 2]],
        totals: &mut [[Lanes; 2]],
        out: Option<RowsMut<'_>>,
    ) {
        kernel.tile(tile.rows, tile.panels, sums);
        Totals::new(kernel, tile, totals, out).add_all(sums);
    }
}

/// Rows per register tile. Their sums occupy 12 of the 16 registers.
const REGISTER_ROWS: usize = 6;

impl<I: Int8Products> Bits256<I> {
    /// The kernel, or `None` if this processor lacks its features.
    pub fn new() -> Option<Self> {
        let detected = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        if detected { I::new().map(Self) } else { None }
    }
}

impl AvxVnni {
    /// The kernel with the same operations on numbers.
    pub fn avx2(self) -> Avx2 {
        Bits256(Madd::from(self.0))
    }
}

impl<I: Int8Products> Kernel for Bits256<I> {
    type F32x16 = [__m256; 2];

    const ACTIVATION_SIZE: usize = I::ACTIVATION_SIZE;
    const ROW_END_SIZE: usize = I::ROW_END_SIZE;
    const TILE_ROWS: usize = I::TILE_ROWS;
    const HAS_SMALL_QUADS: bool = I::HAS_SMALL_QUADS;

    intrinsics! {
        fn load(values: &Lanes) -> [__m256; 2] {{
            let [low, high] = halves(values);
            [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())]
        }}
        fn store(a: [__m256; 2], out: &mut Lanes) {{
            let [low, high] = halves_mut(out);
            _mm256_storeu_ps(low.as_mut_ptr(), a[0]);
            _mm256_storeu_ps(high.as_mut_ptr(), a[1]);
        }}
        fn splat(value: f32) -> [__m256; 2] { [_mm256_set1_ps(value); 2] }
        fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
        }
        fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])]
        }
        fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
        }
        fn div(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])]
        }
        fn mul_add(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn min(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])]
        }
        fn max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
        }
        fn load_i32(values: &Sums) -> [__m256; 2] {{
            let [low, high] = halves(values);
            [
                _mm256_cvtepi32_ps(_mm256_loadu_si256(low.as_ptr().cast())),
                _mm256_cvtepi32_ps(_mm256_loadu_si256(high.as_ptr().cast())),
            ]
        }}
        fn shift_exponent(a: [__m256; 2], n: [__m256; 2]) -> [__m256; 2] {
            [shift_exponent(a[0], n[0]), shift_exponent(a[1], n[1])]
        }
        fn transpose(rows: [[__m256; 2]; LANES]) -> [[__m256; 2]; LANES] { transpose(rows) }
        fn low_bytes(a: [__m256; 2]) -> [u8; LANES] { low_bytes(a) }
    }

    fn call<F: KernelFn>(self, function: F) -> F::Output {
        // SAFETY: `self` is proof that the processor has the features.
        unsafe { I::call(self, function) }
    }

    #[inline(always)]
    fn call_for_small_quads<F: KernelFn>(self, function: F) -> F::Output {
        I::call_for_small_quads(self, function)
    }

    #[inline(always)]
    fn store_activations(self, a: [__m256; 2], out: &mut [u8]) {
        I::store_activations(self.low_bytes(a), out);
    }

    #[inline(always)]
    fn finish_row(self, row: &mut [u8]) {
        // SAFETY: `self` is proof that the processor has the features.
        unsafe { I::finish_row(row) };
    }

    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
        assert_tile::<Self>(rows, &panels, out.len());
        for (n, panel) in panels.into_iter().enumerate() {
            // SAFETY: `self` is proof that the processor has the features. The row length was asserted.
            unsafe { I::tile(rows, panel.blocks, n, out) };
        }
    }

    #[inline(always)]
    fn add_tile(
        self,
        tile: &ScaledTile<'_>,
        sums: &mut [[Sums; 2]],
        totals: &mut [[Lanes; 2]],
        out: Option<RowsMut<'_>>,
    ) {
        assert_tile::<Self>(tile.rows, &tile.panels, totals.len());
        // SAFETY: `self` is proof that the processor has the features. The row length was asserted.
        unsafe { I::add_tile(self, tile, sums, totals, out) };
    }

    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        assert_product(depth, a, b, out.len());
        let part = part(out.len(), REGISTER_ROWS);
        for (n, out) in out.chunks_mut(part).enumerate() {
            let a = Rows {
                values: &a.values[n * part * a.stride..],
                ..a
            };
            // SAFETY: `self` is proof that the processor has the features. The row lengths were asserted.
            with_row_count!(out, R in 1 2 3 4 5 6 => unsafe { product::<R>(depth, a, b, out) });
        }
    }
}

/// Splits 16 numbers in half.
#[inline(always)]
fn halves<T>(values: &[T; LANES]) -> [&[T; LANES / 2]; 2] {
    let [low, high] = values.as_chunks().0 else {
        unreachable!("two halves")
    };
    [low, high]
}

#[inline(always)]
fn halves_mut<T>(values: &mut [T; LANES]) -> [&mut [T; LANES / 2]; 2] {
    let [low, high] = values.as_chunks_mut().0 else {
        unreachable!("two halves")
    };
    [low, high]
}

#[target_feature(enable = "avx2")]
#[inline]
fn shift_exponent(a: __m256, n: __m256) -> __m256 {
    let shift = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift))
}

#[target_feature(enable = "avx2")]
#[inline]
fn transpose(rows: [[__m256; 2]; LANES]) -> [[__m256; 2]; LANES] {
    let mut columns = rows;
    // Four squares of eight rows and columns, which fit into the registers.
    for (place, first) in [(0, 0), (0, 8), (1, 0), (1, 8)] {
        let mut square = [_mm256_setzero_ps(); LANES / 2];
        for at in 0..2 {
            // The squares of four columns.
            let row = first + 4 * at;
            let (a, b) = (rows[row][place], rows[row + 1][place]);
            let (c, d) = (rows[row + 2][place], rows[row + 3][place]);
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (next_low, next_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            square[4 * at] = join_low(low, next_low);
            square[4 * at + 1] = join_high(low, next_low);
            square[4 * at + 2] = join_low(high, next_high);
            square[4 * at + 3] = join_high(high, next_high);
        }
        for at in 0..4 {
            let (a, b) = (square[at], square[4 + at]);
            columns[8 * place + at][first / 8] = _mm256_permute2f128_ps::<0x20>(a, b);
            columns[8 * place + 4 + at][first / 8] = _mm256_permute2f128_ps::<0x31>(a, b);
        }
    }
    columns
}

/// The first two numbers in each half of both registers.
#[target_feature(enable = "avx2")]
#[inline]
fn join_low(a: __m256, b: __m256) -> __m256 {
    _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
}

/// The last two numbers in each half of both registers.
#[target_feature(enable = "avx2")]
#[inline]
fn join_high(a: __m256, b: __m256) -> __m256 {
    _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn low_bytes(a: [__m256; 2]) -> [u8; LANES] {
    let mask = _mm256_set1_epi32(0xff);
    let low = _mm256_and_si256(_mm256_castps_si256(a[0]), mask);
    let high = _mm256_and_si256(_mm256_castps_si256(a[1]), mask);
    // Packing interleaves register halves; the permutation restores their order.
    let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
    let packed = _mm_packus_epi16(
        _mm256_castsi256_si128(words),
        _mm256_extracti128_si256::<1>(words),
    );
    let mut bytes = [0; LANES];
    // SAFETY: the array is 16 bytes long, as is a register.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed) };
    bytes
}

/// Stores the sums of rows and panel `n`.
#[target_feature(enable = "avx2")]
#[inline]
fn store<const R: usize>(sums: &[[__m256i; 2]; R], n: usize, out: &mut [[Sums; 2]; R]) {
    for (sums, out) in sums.iter().zip(out) {
        for (sums, out) in sums.iter().zip(out[n].as_chunks_mut::<{ LANES / 2 }>().0) {
            // SAFETY: half of `Sums` is 32 bytes long, as is a register.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), *sums) };
        }
    }
}

/// # Safety
/// `a` has `R` rows with `depth` values each, and `b` has `depth` rows with 32 values each.
#[target_feature(enable = "avx2,fma")]
unsafe fn product<const R: usize>(
    depth: usize,
    a: Rows<'_>,
    b: Rows<'_>,
    out: &mut [[Lanes; 2]; R],
) {
    for n in 0..2 {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for k in 0..depth {
            // SAFETY: per this function's contract.
            let columns = unsafe {
                let columns = b.values.as_ptr().add(k * b.stride + n * LANES);
                [
                    _mm256_loadu_ps(columns),
                    _mm256_loadu_ps(columns.add(LANES / 2)),
                ]
            };
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: per this function's contract.
                let value = _mm256_set1_ps(unsafe { *a.values.as_ptr().add(r * a.stride + k) });
                sums[0] = _mm256_fmadd_ps(value, columns[0], sums[0]);
                sums[1] = _mm256_fmadd_ps(value, columns[1], sums[1]);
            }
        }
        for (sums, out) in sums.iter().zip(&mut *out) {
            for (sums, out) in sums.iter().zip(out[n].as_chunks_mut::<{ LANES / 2 }>().0) {
                // SAFETY: half of `Lanes` is 32 bytes long, as is a register.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *sums) };
            }
        }
    }
}
