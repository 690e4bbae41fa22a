//! The second part of [`Kernel::add_tile`]: integer sums become numbers.

#![expect(
    unsafe_code,
    reason = "the argument is in the documentation of the crate"
)]

use std::marker::PhantomData;

use super::{COLUMNS, Kernel, LANES, Lanes, RowRange, RowsMut, ScaledTile, Sums};

/// The numbers to which a tile's products are added, and the places for the results.
pub struct Totals<'a, K> {
    kernel: K,
    tile: &'a ScaledTile<'a>,
    /// Per panel, the first row's numbers; other rows' are `stride` numbers apart.
    before: [*const f32; 2],
    stride: usize,
    out: *mut f32,
    out_stride: usize,
    lifetime: PhantomData<&'a mut f32>,
}

/// A panel's scales, and its column sums times these.
#[derive(Clone, Copy)]
pub struct Scales<K: Kernel> {
    scales: K::F32x16,
    column_sums: K::F32x16,
}

impl<'a, K: Kernel> Totals<'a, K> {
    /// # Panics
    /// Unless there are as many totals as ranges, and `out` has as many rows with 32 values.
    #[inline(always)]
    pub fn new(
        kernel: K,
        tile: &'a ScaledTile<'a>,
        totals: &'a mut [[Lanes; 2]],
        out: Option<RowsMut<'a>>,
    ) -> Self {
        let rows = tile.ranges.len();
        assert_eq!(rows, totals.len(), "expected a range per row");
        let totals: *mut f32 = totals.as_mut_ptr().cast();
        let (before, stride) = match tile.bias {
            Some(bias) => (bias.map(|bias| bias.as_ptr()), 0),
            None => (
                [totals.cast_const(), totals.wrapping_add(LANES).cast_const()],
                COLUMNS,
            ),
        };
        let (out, out_stride) = match out {
            Some(out) => {
                let last = out.stride.checked_mul(rows.saturating_sub(1));
                let last = last.and_then(|start| out.values.get(start..)?.get(..COLUMNS));
                assert!(
                    rows == 0 || last.is_some(),
                    "expected {rows} rows of 32 values"
                );
                (out.values.as_mut_ptr(), out.stride)
            }
            None => (totals, COLUMNS),
        };
        Self {
            kernel,
            tile,
            before,
            stride,
            out,
            out_stride,
            lifetime: PhantomData,
        }
    }

    /// The scales of panel `n`.
    #[inline(always)]
    pub fn scales(&self, n: usize) -> Scales<K> {
        let Self { kernel, tile, .. } = self;
        let scales = kernel.load(tile.scales[n]);
        Scales {
            scales,
            column_sums: kernel.mul(kernel.load_i32(tile.panels[n].column_sums), scales),
        }
    }

    /// Adds a row's integer sums for panel `n`, with the panel's scales and the row's range.
    ///
    /// # Safety
    /// The tile has the row, and `n` is less than 2.
    #[inline(always)]
    pub unsafe fn add(
        &self,
        row: usize,
        n: usize,
        scales: Scales<K>,
        range: &RowRange,
        sums: K::F32x16,
    ) {
        let kernel = self.kernel;
        // SAFETY: the row has 32 numbers, as the constructor has asserted.
        let before = kernel.load(unsafe { &*self.before[n].add(row * self.stride).cast() });
        let base = kernel.mul_add(kernel.splat(range.least), scales.column_sums, before);
        let scale = kernel.mul(kernel.splat(range.scale), scales.scales);
        let total = kernel.mul_add(sums, scale, base);
        // SAFETY: as above.
        kernel.store(total, unsafe {
            &mut *self.out.add(row * self.out_stride + n * LANES).cast()
        });
    }

    /// Adds all rows' sums.
    ///
    /// # Panics
    /// Unless there are as many sums as ranges.
    #[inline(always)]
    pub fn add_all(&self, sums: &[[Sums; 2]]) {
        assert_eq!(
            sums.len(),
            self.tile.ranges.len(),
            "expected sums per range"
        );
        let scales = [self.scales(0), self.scales(1)];
        for (row, (range, sums)) in self.tile.ranges.iter().zip(sums).enumerate() {
            for n in 0..2 {
                // SAFETY: there is a range per row.
                unsafe { self.add(row, n, scales[n], range, self.kernel.load_i32(&sums[n])) };
            }
        }
    }
}
