//! The kernel for x86-64 processors with AVX-512 and its 8-bit products (VNNI).

#![expect(
    unsafe_code,
    reason = "the argument is in the documentation of the crate"
)]

use std::arch::x86_64::*;

use super::{
    Block, GROUP, Kernel, KernelFn, LANES, Lanes, MAX_ROWS, MAX_TILE_ROWS, Panel, Rows, RowsMut,
    ScaledTile, Sums, Totals, assert_product, assert_tile, intrinsics, part, row_size,
    with_row_count,
};

/// AVX-512 with VNNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Vnni(());

impl Avx512Vnni {
    /// The kernel, or `None` if this processor lacks its features.
    pub fn new() -> Option<Self> {
        let detected = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
        detected.then_some(Self(()))
    }
}

impl Kernel for Avx512Vnni {
    type F32x16 = __m512;

    const TILE_ROWS: usize = MAX_TILE_ROWS;

    intrinsics! {
        fn load(values: &Lanes) -> __m512 { _mm512_loadu_ps(values.as_ptr()) }
        fn store(a: __m512, out: &mut Lanes) { _mm512_storeu_ps(out.as_mut_ptr(), a) }
        fn splat(value: f32) -> __m512 { _mm512_set1_ps(value) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn load_i32(values: &Sums) -> __m512 { _mm512_cvtepi32_ps(_mm512_loadu_si512(values.as_ptr().cast())) }
        fn shift_exponent(a: __m512, n: __m512) -> __m512 {
            _mm512_castsi512_ps(_mm512_add_epi32(
                _mm512_castps_si512(a),
                _mm512_slli_epi32::<23>(_mm512_castps_si512(n)),
            ))
        }
        fn transpose(rows: [__m512; LANES]) -> [__m512; LANES] { transpose(rows) }
        fn low_bytes(a: __m512) -> [u8; LANES] {
            {
                let mut bytes = [0; LANES];
                _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(a)));
                bytes
            }
        }
    }

    fn call<F: KernelFn>(self, function: F) -> F::Output {
        // SAFETY: `self` is proof that the processor has the features.
        unsafe { call(self, function) }
    }

    #[inline(always)]
    fn store_activations(self, a: __m512, out: &mut [u8]) {
        out.copy_from_slice(&self.low_bytes(a));
    }

    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
        // SAFETY: `self` is proof that the processor has the features.
        unsafe { tile(self, rows, panels, out) }
    }

    fn add_tile(
        self,
        tile: &ScaledTile<'_>,
        _: &mut [[Sums; 2]],
        totals: &mut [[Lanes; 2]],
        out: Option<RowsMut<'_>>,
    ) {
        // SAFETY: `self` is proof that the processor has the features.
        unsafe { add_tile(self, tile, totals, out) }
    }

    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        assert_product(depth, a, b, out.len());
        // SAFETY: `self` is proof that the processor has the features. The row lengths were asserted.
        with_row_count!(out, R in 1 2 3 4 5 6 7 8 9 10 11 12 => unsafe { product::<R>(depth, a, b, out) });
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn call<F: KernelFn>(kernel: Avx512Vnni, function: F) -> F::Output {
    function.call(kernel)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn transpose(mut rows: [__m512; LANES]) -> [__m512; LANES] {
    // Within groups of four rows, the squares of four columns.
    for rows in rows.as_chunks_mut::<4>().0 {
        let [a, b, c, d] = *rows;
        let pairs = [
            _mm512_unpacklo_ps(a, b),
            _mm512_unpackhi_ps(a, b),
            _mm512_unpacklo_ps(c, d),
            _mm512_unpackhi_ps(c, d),
        ]
        .map(|pair| _mm512_castps_pd(pair));
        *rows = [
            _mm512_unpacklo_pd(pairs[0], pairs[2]),
            _mm512_unpackhi_pd(pairs[0], pairs[2]),
            _mm512_unpacklo_pd(pairs[1], pairs[3]),
            _mm512_unpackhi_pd(pairs[1], pairs[3]),
        ]
        .map(|row| _mm512_castpd_ps(row));
    }
    // Then the squares themselves.
    let mut columns = rows;
    for at in 0..4 {
        let [a, b, c, d] = [rows[at], rows[4 + at], rows[8 + at], rows[12 + at]];
        let (even, odd) = (
            _mm512_shuffle_f32x4::<0x88>(a, b),
            _mm512_shuffle_f32x4::<0xdd>(a, b),
        );
        let (next_even, next_odd) = (
            _mm512_shuffle_f32x4::<0x88>(c, d),
            _mm512_shuffle_f32x4::<0xdd>(c, d),
        );
        columns[at] = _mm512_shuffle_f32x4::<0x88>(even, next_even);
        columns[4 + at] = _mm512_shuffle_f32x4::<0x88>(odd, next_odd);
        columns[8 + at] = _mm512_shuffle_f32x4::<0xdd>(even, next_even);
        columns[12 + at] = _mm512_shuffle_f32x4::<0xdd>(odd, next_odd);
    }
    columns
}

/// [`Kernel::tile`] with products by VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub fn tile<K: Kernel>(_: K, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
    assert_tile::<K>(rows, &panels, out.len());
    let panels = [panels[0].blocks, panels[1].blocks];
    let size = row_size::<K>(panels[0].len() * GROUP);
    let part = part(out.len(), MAX_ROWS);
    for (index, out) in out.chunks_mut(part).enumerate() {
        let rows = &rows[index * part * size..];
        // SAFETY: the row length was asserted.
        with_row_count!(out, R in 1 2 3 4 5 6 7 8 9 10 11 12 => unsafe {
            multiply::<R, false, false>(rows, size, panels, 0, |sums| {
                for (sums, out) in sums.as_flattened().iter().zip(out.as_flattened_mut()) {
                    // `Sums` is 64 bytes long, as is a register.
                    _mm512_storeu_si512(out.as_mut_ptr().cast(), *sums);
                }
            });
        });
    }
}

/// [`Kernel::add_tile`] with products by VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub fn add_tile<K: Kernel<F32x16 = __m512>>(
    kernel: K,
    tile: &ScaledTile<'_>,
    totals: &mut [[Lanes; 2]],
    mut out: Option<RowsMut<'_>>,
) {
    assert_tile::<K>(tile.rows, &tile.panels, totals.len());
    assert_eq!(tile.ranges.len(), totals.len(), "expected a range per row");
    let size = row_size::<K>(tile.panels[0].blocks.len() * GROUP);
    let part = part(totals.len(), MAX_ROWS);
    let is_divided = part < totals.len();
    let parts = tile.ranges.chunks(part).zip(totals.chunks_mut(part));
    for (index, (ranges, totals)) in parts.enumerate() {
        let tile = ScaledTile {
            rows: &tile.rows[index * part * size..],
            ranges,
            ..*tile
        };
        let out = out.as_mut().map(|RowsMut { values, stride }| RowsMut {
            values: &mut values[index * part * *stride..],
            stride: *stride,
        });
        // SAFETY: the row length was asserted.
        with_row_count!(totals, R in 1 2 3 4 5 6 7 8 9 10 11 12 => unsafe {
            // The first two parts prefetch for a panel each: more lines at once than the cache requests at a time
            // would stall.
            match (index, is_divided) {
                (0, false) => add_rows::<R, true, true>(kernel, &tile, size, totals, out),
                (0, true) => add_rows::<R, true, false>(kernel, &tile, size, totals, out),
                (1, _) => add_rows::<R, false, true>(kernel, &tile, size, totals, out),
                _ => add_rows::<R, false, false>(kernel, &tile, size, totals, out),
            }
        });
    }
}

/// # Safety
/// The tile has `R` rows of `size` bytes, each with one activation per input in the panels.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn add_rows<const R: usize, const LEFT: bool, const RIGHT: bool>(
    kernel: impl Kernel<F32x16 = __m512>,
    tile: &ScaledTile<'_>,
    size: usize,
    totals: &mut [[Lanes; 2]; R],
    out: Option<RowsMut<'_>>,
) {
    let totals = Totals::new(kernel, tile, totals, out);
    let Some(ranges) = tile.ranges.first_chunk::<R>() else {
        unreachable!("a range per row")
    };
    let add = |sums: &[[__m512i; 2]; R]| {
        let scales = [totals.scales(0), totals.scales(1)];
        for (row, (sums, range)) in sums.iter().zip(ranges).enumerate() {
            for n in 0..2 {
                // SAFETY: the tile has a range per row.
                unsafe { totals.add(row, n, scales[n], range, _mm512_cvtepi32_ps(sums[n])) };
            }
        }
    };
    let panels = [tile.panels[0].blocks, tile.panels[1].blocks];
    // SAFETY: per this function's contract.
    unsafe { multiply::<R, LEFT, RIGHT>(tile.rows, size, panels, tile.prefetch_distance, add) }
}

/// Calls `finish` with the sums of `R` rows, in registers. Prefetches `distance` blocks ahead, in the left panel, in
/// the right one, or in both.
///
/// # Safety
/// `rows` has `R` rows of `size` bytes, each with one activation per input in `left` and `right`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply<const R: usize, const LEFT: bool, const RIGHT: bool>(
    rows: &[u8],
    size: usize,
    [left, right]: [&[Block]; 2],
    distance: usize,
    finish: impl FnOnce(&[[__m512i; 2]; R]),
) {
    let mut sums = [[_mm512_setzero_si512(); 2]; R];
    // SAFETY: a block is 64 bytes long, as is a register. Any address may be prefetched.
    let load = |block: &Block, prefetches: bool| unsafe {
        if prefetches {
            _mm_prefetch::<_MM_HINT_T0>((&raw const *block).wrapping_add(distance).cast());
        }
        _mm512_loadu_si512((&raw const *block).cast())
    };
    for (step, (left, right)) in left.iter().zip(right).enumerate() {
        let (left, right) = (load(left, LEFT), load(right, RIGHT));
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: per this function's contract.
            let group = unsafe {
                rows.as_ptr()
                    .add(r * size + step * GROUP)
                    .cast::<i32>()
                    .read_unaligned()
            };
            let group = _mm512_set1_epi32(group);
            sums[0] = _mm512_dpbusd_epi32(sums[0], group, left);
            sums[1] = _mm512_dpbusd_epi32(sums[1], group, right);
        }
    }
    finish(&sums);
}

/// # Safety
/// `a` has `R` rows with `depth` values each, and `b` has `depth` rows with 32 values each.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn product<const R: usize>(
    depth: usize,
    a: Rows<'_>,
    b: Rows<'_>,
    out: &mut [[Lanes; 2]; R],
) {
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    let rows: [*const f32; R] =
        std::array::from_fn(|r| a.values.as_ptr().wrapping_add(r * a.stride));
    let mut columns = b.values.as_ptr();
    for k in 0..depth {
        // SAFETY: per this function's contract.
        let (left, right) = unsafe {
            (
                _mm512_loadu_ps(columns),
                _mm512_loadu_ps(columns.add(LANES)),
            )
        };
        for (row, sums) in rows.iter().zip(&mut sums) {
            // SAFETY: per this function's contract.
            let value = _mm512_set1_ps(unsafe { *row.add(k) });
            sums[0] = _mm512_fmadd_ps(value, left, sums[0]);
            sums[1] = _mm512_fmadd_ps(value, right, sums[1]);
        }
        columns = columns.wrapping_add(b.stride);
    }
    for (sums, out) in sums.as_flattened().iter().zip(out.as_flattened_mut()) {
        // SAFETY: `Lanes` is 64 bytes long, as is a register.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sums) };
    }
}
