//! The kernel in ordinary Rust: the reference for all others, and the fallback for other processors.

use std::array;

use super::{
    Block, GROUP, Kernel, KernelFn, LANES, Lanes, Panel, Rows, Sums, assert_product, assert_tile,
};

/// Ordinary Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain;

#[inline(always)]
fn zip(a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
    array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Kernel for Plain {
    type F32x16 = Lanes;

    #[inline(never)]
    fn call<F: KernelFn>(self, function: F) -> F::Output {
        function.call(self)
    }

    #[inline(always)]
    fn load(self, values: &Lanes) -> Lanes {
        *values
    }

    #[inline(always)]
    fn store(self, a: Lanes, out: &mut Lanes) {
        *out = a;
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [value; LANES]
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn load_i32(self, values: &Sums) -> Lanes {
        values.map(|value| value as f32)
    }

    #[inline(always)]
    fn shift_exponent(self, a: Lanes, n: Lanes) -> Lanes {
        zip(a, n, |a, n| {
            f32::from_bits(a.to_bits().wrapping_add(n.to_bits() << 23))
        })
    }

    #[inline(always)]
    fn low_bytes(self, a: Lanes) -> [u8; LANES] {
        a.map(|a| a.to_bits() as u8)
    }

    #[inline(always)]
    fn store_activations(self, a: Lanes, out: &mut [u8]) {
        out.copy_from_slice(&self.low_bytes(a));
    }

    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
        assert_tile::<Self>(rows, &panels, out.len());
        let width = rows.len() / out.len();
        for (r, sums) in out.iter_mut().enumerate() {
            let groups = rows[r * width..][..width].as_chunks().0;
            *sums = panels.map(|panel| row_product(groups, panel.blocks));
        }
    }

    fn product(self, depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]) {
        assert_product(depth, a, b, out.len());
        for (r, out) in out.iter_mut().enumerate() {
            let row = &a.values[r * a.stride..][..depth];
            let out = out.as_flattened_mut();
            out.fill(0.0);
            for (k, a) in row.iter().enumerate() {
                for (b, out) in b.values[k * b.stride..].iter().zip(&mut *out) {
                    *out = a.mul_add(*b, *out);
                }
            }
        }
    }
}

fn row_product(row: &[[u8; GROUP]], blocks: &[Block]) -> Sums {
    let mut sums: Sums = [0; LANES];
    for (activations, block) in row.iter().zip(blocks) {
        for (sum, weights) in sums.iter_mut().zip(block) {
            for (activation, weight) in activations.iter().zip(weights) {
                *sum = sum.wrapping_add(i32::from(*activation) * i32::from(*weight));
            }
        }
    }
    sums
}
