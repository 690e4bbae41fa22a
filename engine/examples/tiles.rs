//! Products per cycle for each kernel that this processor can execute, with operands in its caches: the best of many
//! short repetitions, which hardly depends on what else the machine does.

#![expect(clippy::print_stdout, reason = "a program that prints its results")]

use std::{hint::black_box, time::Instant};

use kivu_engine::kernel::{
    Block, COLUMNS, GROUP, InstructionSet, Kernel, KernelFn, LANES, MAX_ROWS, MAX_TILE_ROWS, Panel, Rows,
};

const REPETITIONS: usize = 2000;
/// Panels per repetition, an even number.
const PANELS: usize = 8;
/// Products per repetition.
const PRODUCTS: usize = 20;

/// The least duration of a call, in nanoseconds.
fn least(mut call: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_nanos() as f64
    };
    (0..REPETITIONS).map(time).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds per cycle: dependent multiplications take three cycles each on current x86-64 and arm64 processors.
fn cycle() -> f64 {
    const COUNT: usize = 10_000;
    let factor = black_box(3_u64);
    let chain = || (0..COUNT).fold(black_box(1_u64), |product, _| black_box(factor).wrapping_mul(product));
    let nanoseconds = least(|| {
        black_box(chain());
    });
    nanoseconds / (3 * COUNT) as f64
}

/// 8-bit products per nanosecond: rows by [`PANELS`] panels.
struct Tiles {
    rows: usize,
    inputs: usize,
}

impl KernelFn for Tiles {
    type Output = f64;

    fn call<K: Kernel>(self, kernel: K) -> f64 {
        let Self { rows, inputs } = self;
        let depth = inputs / GROUP;
        let blocks: Vec<Block> =
            (0..PANELS * depth).map(|at| [[(at % 100) as i8 - 50; GROUP]; LANES]).collect();
        let row_size = inputs * K::ACTIVATION_SIZE + K::ROW_END_SIZE;
        let activations = vec![7; rows * row_size];
        let mut out = [[[0; LANES]; 2]; MAX_TILE_ROWS];
        let panel = |at: usize| Panel { blocks: &blocks[at * depth..][..depth], column_sums: &[0; LANES] };
        let nanoseconds = least(|| {
            for first in (0..PANELS).step_by(2) {
                for tile in activations.chunks(K::TILE_ROWS * row_size) {
                    kernel.tile(tile, [panel(first), panel(first + 1)], &mut out[..tile.len() / row_size]);
                }
            }
            black_box(&out);
        });
        (rows * inputs * PANELS * LANES) as f64 / nanoseconds
    }
}

/// `f32` products per nanosecond.
struct Products {
    rows: usize,
    depth: usize,
}

impl KernelFn for Products {
    type Output = f64;

    fn call<K: Kernel>(self, kernel: K) -> f64 {
        let Self { rows, depth } = self;
        let (a, b) = (vec![1.0; rows * depth], vec![1.0; depth * COLUMNS]);
        let mut out = [[[0.0; LANES]; 2]; MAX_ROWS];
        let nanoseconds = least(|| {
            for _ in 0..PRODUCTS {
                let (a, b) = (Rows { values: &a, stride: depth }, Rows { values: &b, stride: COLUMNS });
                kernel.product(depth, a, b, &mut out[..rows]);
            }
            black_box(&out);
        });
        (PRODUCTS * rows * depth * COLUMNS) as f64 / nanoseconds
    }
}

fn main() {
    let cycle = cycle();
    println!("{:.2} GHz", 1.0 / cycle);
    for instructions in InstructionSet::available() {
        for (rows, inputs) in [(48, 384), (48, 1536), (24, 384), (12, 384), (1, 384), (48, 32)] {
            let rate = instructions.call(Tiles { rows, inputs }) * cycle;
            println!("{instructions}, 8 bits, {rows} rows, {inputs} inputs: {rate:.1} products per cycle");
        }
        for (rows, depth) in [(8, 32), (8, 256), (12, 384)] {
            let rate = instructions.call(Products { rows, depth }) * cycle;
            println!("{instructions}, fp32, {rows} rows, depth {depth}: {rate:.1} products per cycle");
        }
    }
}
